"""A study's results: its directory, read as tables, summed up, drawn, exported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory, writing
from flatmin.core.pages import Page
from flatmin.core.shown import Shown
from flatmin.study.store import Store
from flatmin.study.summary import Facets, Overview, facets, flat_frame, frame, overview, varied

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
        """One row a record of a run, if traces were asked for."""
        table: pd.DataFrame = self.store.read_traces().to_pandas()
        return table

    def summary(self) -> Overview:
        """Counts, and means with 95 % bands per point of the grid."""
        return overview(self.runs, self.store.learned_at)

    def page(self) -> Page:
        """What `flatmin study show` prints."""
        return self.summary().page()

    def facets(self, x: str | None = None, y: str = "sharpness", by: str | None = None) -> Facets:
        """Means of y along x, a curve per value of `by`, and panels (see `summary.facets`).

        By default x is the scale, or the first axis if the scale does not vary.
        """
        table = self.runs
        axes = varied(table)
        return facets(table, x or ("scale" if "scale" in axes or not axes else axes[0]), y, by)

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
        table = self.store.read_traces() if traces else self.store.read_rows()
        make_directory(place.parent)
        with writing(place) as temporary:
            if suffix == ".parquet":
                import pyarrow.parquet

                parquet: Any = pyarrow.parquet
                parquet.write_table(table, temporary)
            else:
                flat_frame(table).to_csv(temporary, index=False)
        return int(table.num_rows)
