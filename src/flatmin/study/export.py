"""A study's table as one file, written piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.arrays import Float, Whole
from flatmin.study.stream import Stream

if TYPE_CHECKING:
    import pandas as pd


def write_parquet(stream: Stream, path: Path) -> int:
    """All rows as Parquet; returns their number."""
    import pyarrow.parquet

    parquet: Any = pyarrow.parquet
    rows = 0
    with parquet.ParquetWriter(path, stream.schema) as writer:
        for piece in stream.pieces():
            writer.write_table(piece)
            rows += piece.num_rows
    return rows


def write_csv(stream: Stream, path: Path) -> int:
    """All rows as CSV, a list as one column per layer; returns their number."""
    shape, rows = Shape().add(stream.schema.empty_table()), 0
    for shard in stream.shards():
        shape.add(shard)
    with path.open("w", encoding="utf-8", newline="") as file:
        for piece in stream.pieces():
            flat_frame(piece, shape).to_csv(file, index=False, header=not rows)
            rows += piece.num_rows
    return rows


def flat_frame(rows: Any, like: Shape | None = None) -> pd.DataFrame:
    """A frame without lists: a column `name` of lists becomes name_1, name_2, ...

    With `like`, as part of a larger table of that shape.
    """
    import pandas as pd
    import pyarrow as pa

    shape = like or Shape().add(rows)
    for at, name in enumerate(rows.column_names):
        if name in shape.nulls and pa.types.is_integer(rows.schema.field(at).type):
            rows = rows.set_column(at, name, rows[name].cast(pa.float64(), safe=False))
    lists = [name for name in rows.column_names if name in shape.lengths]
    table: pd.DataFrame = rows.drop_columns(lists).to_pandas()
    for name in lists:
        lengths, numbers = _unfolded(rows[name])
        padded = np.full((len(table), shape.lengths[name]), np.nan)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = numbers
        names = [f"{name}_{k + 1}" for k in range(shape.lengths[name])]
        table = pd.concat([table, pd.DataFrame(padded, columns=names)], axis=1)
    return table


class Shape:
    """What the pieces of a table must share to look like one: the longest list of each column, and
    which columns have nulls."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        self.nulls: set[str] = set()

    def add(self, rows: Any) -> Shape:
        """One more piece."""
        for field in rows.schema:
            if rows[field.name].null_count:
                self.nulls.add(field.name)
            if hasattr(field.type, "value_type"):
                longest = int(_unfolded(rows[field.name])[0].max(initial=0))
                self.lengths[field.name] = max(longest, self.lengths.get(field.name, 0))
        return self


def _unfolded(lists: Any) -> tuple[Whole, Float]:
    """How long the lists of a column are, and the numbers in them."""
    import pyarrow.compute

    pc: Any = pyarrow.compute
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return lengths, np.asarray(pc.list_flatten(lists).to_numpy(), dtype=float)
