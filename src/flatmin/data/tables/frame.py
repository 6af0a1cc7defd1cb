"""Tables in pandas frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError
from flatmin.data.tables.table import ROWS, TEXT_HINT, Reading, Table, checked, choose_columns

if TYPE_CHECKING:
    import pandas as pd


def frame_table(frame: pd.DataFrame, reading: Reading) -> Table:
    """The table in a pandas frame; its columns are known by the text of their labels."""
    from pandas import factorize
    from pandas.api.types import is_complex_dtype, is_numeric_dtype

    names = [str(label) for label in frame.columns]
    choice = choose_columns("the frame", names, reading)
    labels = choice.labels
    place = {name: j for j, name in enumerate(names)}
    columns = {name: frame.iloc[:, place[name]] for name in choice.names}
    for name, column in columns.items():
        numbers = is_numeric_dtype(column.dtype) and not is_complex_dtype(column.dtype)
        if not numbers and name not in labels:
            raise DataError(
                f"the frame: column {name!r} is of type {column.dtype}, not numbers; {TEXT_HINT}"
            )

    def numbers_of(name: str, start: int) -> Float:
        part = columns[name].iloc[start : start + ROWS]
        if name in labels:
            places, values = factorize(part)
            return labels[name].encode(list(values), places)
        return part.to_numpy(dtype=np.float64, na_value=np.nan)

    def blocks() -> Iterator[Float]:
        for start in range(0, len(frame), ROWS):
            yield np.column_stack([numbers_of(name, start) for name in choice.names])

    return checked("the frame", choice, blocks)
