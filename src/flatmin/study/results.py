"""A study's results: its directory, read as tables, summed up, drawn, exported, verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory, writing
from flatmin.core.pages import Listing, Page, Remarks
from flatmin.core.shown import Shown
from flatmin.study.export import write_csv, write_parquet
from flatmin.study.shard_files import RUNS, TRACES
from flatmin.study.store import Store
from flatmin.study.summary import (
    Facets,
    Overview,
    facets,
    frame,
    missing_note,
    overview,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Verification(Shown):
    """What was found in a study's folder; `missing` is None where the total is not known."""

    directory: Path
    shards: int
    faults: dict[str, str]
    missing: int | None

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged, strange or missing."""
        return not self.faults and not self.missing

    @property
    def verdict(self) -> str:
        """In one sentence."""
        if self.whole:
            return f"{self.directory}: {self.shards} shards, every one as it was written."
        found = []
        if self.faults:
            found.append(f"{len(self.faults)} files are not as they should be")
        if self.missing:
            found.append(f"{self.missing} runs are missing")
        return f"{self.directory}: {' and '.join(found)}: flatmin study run makes them anew."

    def page(self) -> Page:
        """What `flatmin study verify` prints."""
        blocks: Page = [Remarks(self.verdict)]
        if self.faults:
            blocks.insert(0, Listing(("File", "What is wrong"), list(self.faults.items())))
        return blocks


class Results(Shown):
    """What has been run of the study in a directory."""

    directory: Path

    @property
    def store(self) -> Store:
        """The files."""
        return Store.open(self.directory)

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run; there must be some."""
        rows = self.store.read_rows()
        if not rows.num_rows:
            raise SettingError(f"{str(self.directory)!r} has no finished runs yet")
        return frame(rows)

    @property
    def traces(self) -> pd.DataFrame:
        """One row an entry of a run's trace, if traces were asked for."""
        table: pd.DataFrame = self.store.read_traces().to_pandas()
        return table

    def summary(self) -> Overview:
        """Counts, and means with 95 % bands per point of the grid."""
        store = self.store
        return overview(self._tables(), store.learned_at, store.missing())

    def _tables(self) -> Callable[[Collection[str]], Iterator[pd.DataFrame]]:
        """The runs as `summary` takes them, shard by shard; there must be some."""
        stream = self.store.rows()
        if not len(stream):
            raise SettingError(f"{str(self.directory)!r} has no finished runs yet")
        return lambda columns: map(frame, stream.shards(columns))

    def missing(self) -> str:
        """How many runs of the study are not there, in words; nothing if all are."""
        return missing_note(self.store.missing())

    def verify(self) -> Verification:
        """Every shard, read and compared with its own digests."""
        store = self.store
        faults = store.faults()
        return Verification(
            directory=store.directory,
            shards=len(store.finished()),
            faults=faults,
            missing=store.missing(faults),
        )

    def page(self) -> Page:
        """What `flatmin study show` prints."""
        return self.summary().page()

    def facets(self, x: str | None = None, y: str = "sharpness", by: str | None = None) -> Facets:
        """Means of y along x, a curve per value of `by`, and panels (see `summary.facets`).

        By default x is the scale, or the first axis if the scale does not vary.
        """
        return facets(self._tables(), x, y, by)

    def plot(self, x: str | None = None, y: str = "sharpness", by: str | None = None) -> Figure:
        """The picture of `facets`."""
        from flatmin.study.figures import study_figure

        return study_figure(self.facets(x, y, by))

    def export(self, path: str | Path, traces: bool = False) -> int:
        """All runs, or the traces, in one .csv or .parquet file; in CSV a list has one column per
        layer. Returns the number of rows."""
        place = Path(path)
        suffix = place.suffix.lower()
        if suffix not in (".csv", ".parquet"):
            raise SettingError(f"the file must end in .csv or .parquet, got {str(path)!r}")
        for folder in (RUNS, TRACES):
            if place.resolve().is_relative_to((self.directory / folder).resolve()):
                raise SettingError(
                    f"{str(path)!r} is among the study's own files; give another place"
                )
        stream = self.store.traces() if traces else self.store.rows()
        make_directory(place.parent)
        with writing(place) as temporary:
            return (write_parquet if suffix == ".parquet" else write_csv)(stream, temporary)
