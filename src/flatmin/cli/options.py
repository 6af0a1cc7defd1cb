"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory

if TYPE_CHECKING:
    from flatmin.data.preparation import Preparation

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

# What is done to a table first, in this order; the same options wherever one is read.
Features = Annotated[
    list[str] | None, typer.Option(help="Feature columns: a,b or repeat. Default: all others.")
]
Drop = Annotated[list[str] | None, typer.Option(help="Columns to leave out: a,b or repeat.")]
OneHot = Annotated[
    list[str] | None, typer.Option("--one-hot", help="Columns of categories: a,b or repeat.")
]
Missing = Annotated[
    str | None, typer.Option(help="Missing values: drop (the row) or mean (of the column).")
]
Intercept = Annotated[bool, typer.Option("--intercept", help="Centre features and target.")]
Standardise = Annotated[
    bool, typer.Option("--standardise", help="Features to mean 0 and standard deviation 1.")
]


def preparation(
    drop: list[str] | None,
    one_hot: list[str] | None,
    missing: str | None,
    intercept: bool,
    standardise: bool,
) -> Preparation:
    """What is done to the table, from the options above."""
    from flatmin.data.preparation import Preparation

    return Preparation(
        drop=drop or (),
        one_hot=one_hot or (),
        missing=missing,
        intercept=intercept,
        standardise=standardise,
    )


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
