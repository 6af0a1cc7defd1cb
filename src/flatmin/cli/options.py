"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory

if TYPE_CHECKING:
    from flatmin.data.preparation import Preparation

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int, typer.Option(help="Seed of the initial weights.")]
LearnedAt = Annotated[
    float, typer.Option(help="Learned means this share of the excess risk of w = 0.")
]
Scale = Annotated[str, typer.Option(help="Its scale, as of train; 1 is the standard one.")]


@dataclass(frozen=True)
class Table:
    """A table and what is done to it first, in this order: the same options wherever one is read.

    A command that takes it without a default needs a FILE and a target.
    """

    needed: ClassVar = ("file", "target")
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="A table: .csv, .tsv (also .gz), .parquet, .npz; or -."
        ),
    ] = None
    target: Annotated[
        list[str] | None, typer.Option(help="The column to predict; repeat for several targets.")
    ] = None
    features: Annotated[
        list[str] | None, typer.Option(help="Feature columns: a,b or repeat. Default: all others.")
    ] = None
    drop: Annotated[list[str] | None, typer.Option(help="Columns to leave out: a,b or repeat.")] = (
        None
    )
    one_hot: Annotated[
        list[str] | None, typer.Option("--one-hot", help="Columns of categories: a,b or repeat.")
    ] = None
    missing: Annotated[
        str | None, typer.Option(help="Missing values: drop (the row) or mean (of the column).")
    ] = None
    intercept: Annotated[bool, typer.Option("--intercept", help="Centre features and target.")] = (
        False
    )
    standardise: Annotated[
        bool, typer.Option("--standardise", help="Features to mean 0 and standard deviation 1.")
    ] = False

    def given(self) -> bool:
        """Whether there is a FILE; what else was said of one needs it, and it needs a target."""
        if self.file is None and any(vars(self).values()):
            raise SettingError("--target, --features and what prepares a table need a FILE")
        if self.file is not None and not self.target:
            raise SettingError("target is missing: the column to predict")
        return self.file is not None

    def preparation(self) -> Preparation:
        """What is done to it."""
        from flatmin.data.preparation import Preparation

        names = ("missing", "intercept", "standardise")
        settings: Any = {name: getattr(self, name) for name in names}
        return Preparation(drop=self.drop or (), one_hot=self.one_hot or (), **settings)

    def spare(self, name: str, place: str | None, files: Iterable[str] = ("",)) -> None:
        """Refuse to write over the table itself, and to a place without a name ("$OUT" of nothing);
        `files` are those that are written if the place is a folder."""
        if place is not None and not place.strip():
            raise SettingError(f"{name} must name a place to write to, got {place!r}")
        for path in [] if place is None else [Path(place, one) for one in files]:
            with suppress(OSError):  # one of them is not there
                if self.file is not None and path.samefile(self.file):
                    raise SettingError(
                        f"{name} would write over the table {self.file!r}; give another place"
                    )

    def read(self, reader: Callable[..., Any]) -> Any:
        """What `read_regression` or `read_samples` makes of it; None without a FILE."""
        if not self.given():
            return None
        return reader(self.file, self.target, self.features, self.preparation())


NO_TABLE = Table()


def figure_path(name: str, text: str) -> Path:
    """Where a figure goes; its suffix must be one that matplotlib writes."""
    if Path(text).suffix.lower() not in {".png", ".pdf", ".svg"}:
        raise SettingError(f"{name} must end in .png, .pdf or .svg, got {text!r}")
    return file_path(name, text)


def file_path(name: str, text: str) -> Path:
    """Where a file goes; its folder is made."""
    path = Path(text)
    if path.is_dir():
        raise SettingError(f"{name} must name a file, got the folder {text!r}")
    make_directory(path.parent)
    return path
