"""Tables of numbers, read as blocks of rows.

Every source (CSV, TSV, Parquet, NPZ, a pandas frame) becomes a `Table`: the names of the chosen
columns and passes over blocks of shape (rows, d + m), the d features first, then the m targets.
Files in row order are never held whole. Whatever is wrong with a file is said in one line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import numbers, plain_array
from flatmin.core.checks import kind_of
from flatmin.core.errors import DataError
from flatmin.data.tables.named import (
    array_table,
    frame_table,
    load_npz,
    named_arrays_table,
)
from flatmin.data.tables.parquet import parquet_table
from flatmin.data.tables.source import place_of
from flatmin.data.tables.table import Names, PathLike, Reading, Table
from flatmin.data.tables.text import text_table

Source = PathLike | Mapping[str, npt.ArrayLike] | npt.ArrayLike
PACKED = (".csv", ".tsv", ".tab")
SUFFIXES = (*PACKED, ".parquet", ".pq", ".npz")


def table_of(source: Any, reading: Reading, names: Names | None = None) -> Table:
    """The table in whatever was given: a path; a frame or a dictionary of arrays, and names of
    targets; or X and y (as the target), arrays or frames, and `names` for columns of an array."""
    if isinstance(source, str | os.PathLike):
        return open_table(source, reading)
    target: Any = reading.target
    named = isinstance(target, str) or (
        isinstance(target, list | tuple) and all(isinstance(name, str) for name in target)
    )
    is_frame = hasattr(source, "columns") and hasattr(source, "iloc")
    if is_frame and isinstance(target, Integral) and target in source.columns:  # a label, no values
        target, named = str(target), True
        reading = replace(reading, target=target)
    if is_frame and named:
        return frame_table(source, reading)
    if is_frame:
        columns = _columns_of(target)
        for name, values in columns.items():
            if len(values) != len(source):
                raise DataError(f"X has {len(source)} rows and y has {len(values)}")
            if name in map(str, source.columns):
                raise DataError(f"the name of y, {name!r}, is also that of a column of X")
        return frame_table(source.assign(**columns), replace(reading, target=list(columns)))
    if isinstance(source, Mapping):
        if not named:
            raise DataError("target must be the name of an array in the dictionary, or several")
        arrays = {str(name): _plain(values) for name, values in source.items()}
        return named_arrays_table("the dictionary", arrays, reading)
    if named and not isinstance(source, np.ndarray | list | tuple):
        hint = " (its to_pandas() makes a frame)" if hasattr(source, "to_pandas") else ""
        raise DataError(
            f"a table is a path, a pandas frame or a dictionary of arrays, got {kind_of(source)}"
            f"{hint}"
        )
    if named:
        raise DataError(
            f"the target {target!r} is a name, but columns of an array have none; expected y itself"
        )
    return array_table(source, target, replace(reading, target=names or ()))


def _columns_of(y: Any) -> dict[str, Any]:
    """The columns of y by their names, or y (y0, y1, ... if several) if they have none."""
    if hasattr(y, "columns") and hasattr(y, "iloc"):
        return {str(name): y.iloc[:, j].to_numpy() for j, name in enumerate(y.columns)}
    values, name = numbers("y", y), getattr(y, "name", None)
    if values.ndim not in (1, 2):
        raise DataError(f"y has shape {values.shape}; expected (n,) or (n, m), or names of columns")
    if values.ndim == 1:
        return {"y" if name is None else str(name): values}
    return {f"y{j}": column for j, column in enumerate(values.T)}


def _plain(values: Any) -> Any:
    """An array; of text if it holds nothing but text."""
    array = plain_array(values)
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        return array.astype(str)
    return array


def open_table(path: PathLike, reading: Reading) -> Table:
    """The table in a file, by its suffix, or in standard input (`-`); only the chosen columns are
    converted to numbers."""
    place = place_of(path)
    if (place.packed and place.kind not in PACKED) or place.kind not in SUFFIXES:
        kind = f"{place.kind}.gz" if place.packed else place.kind
        known = ", ".join((*SUFFIXES, *(f"{one}.gz" for one in PACKED)))
        raise DataError(f"{place.name}: unsupported suffix {kind!r}; expected one of {known}")
    if place.kind == ".npz":
        return named_arrays_table(place.name, load_npz(place), reading)
    if place.kind in (".parquet", ".pq"):
        return parquet_table(place, reading)
    return text_table(place, "," if place.kind == ".csv" else "\t", reading)
