"""Tables in pandas frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from flatmin.errors import DataError
from flatmin.tables.table import ROWS, FloatArray, Names, Table, checked, choose_columns

if TYPE_CHECKING:
    import pandas as pd


def frame_table(frame: pd.DataFrame, target: Names, features: Names | None = None) -> Table:
    """The table in a pandas frame; its columns are known by the text of their labels."""
    from pandas.api.types import is_complex_dtype, is_numeric_dtype

    names = [str(label) for label in frame.columns]
    chosen, wanted = choose_columns("the frame", names, target, features)
    place = {name: j for j, name in enumerate(names)}
    columns = [frame.iloc[:, place[name]] for name in (*chosen, *wanted)]
    for column, name in zip(columns, (*chosen, *wanted), strict=True):
        if not is_numeric_dtype(column.dtype) or is_complex_dtype(column.dtype):
            raise DataError(f"the frame: column {name!r} is of type {column.dtype}, not numbers")

    def blocks() -> Iterator[FloatArray]:
        for start in range(0, len(frame), ROWS):
            parts = [column.iloc[start : start + ROWS] for column in columns]
            yield np.column_stack([p.to_numpy(dtype=np.float64, na_value=np.nan) for p in parts])

    return checked("the frame", chosen, wanted, blocks())
