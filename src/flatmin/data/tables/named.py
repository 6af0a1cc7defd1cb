"""Columns in memory: frames, dictionaries, arrays X and y, and NPZ archives."""

from __future__ import annotations

import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float, numbers
from flatmin.core.checks import check_several, shown
from flatmin.core.errors import DataError, FlatminError
from flatmin.core.memory import check_memory
from flatmin.data.tables.source import Place
from flatmin.data.tables.table import (
    DROP_HINT,
    ROWS,
    Names,
    Reading,
    Table,
    checked,
    choose_columns,
    one_line,
)

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
            hint = choice.hint(name, not is_complex_dtype(column.dtype))
            raise DataError(
                f"the frame: column {name!r} is of type {column.dtype}, not numbers; {hint}"
            )

    def numbers_of(name: str, start: int) -> Float:
        part = columns[name].iloc[start : start + ROWS]
        if name in labels:
            try:
                places, values = factorize(part)
            except TypeError:  # lists, dictionaries: what cannot be compared
                raise DataError(
                    f"the frame: column {name!r} holds values that are not text or numbers; "
                    f"{DROP_HINT}"
                ) from None
            return labels[name].encode(list(values), places)
        return part.to_numpy(dtype=np.float64, na_value=np.nan)

    def blocks() -> Iterator[Float]:
        for start in range(0, len(frame), ROWS):
            yield np.column_stack([numbers_of(name, start) for name in choice.names])

    return checked("the frame", choice, blocks)


def named_arrays_table(
    source: str, arrays: Mapping[str, npt.NDArray[Any]], reading: Reading
) -> Table:
    """Arrays of one axis are columns; an array X of shape (n, k) is the columns X0 ... X{k-1}."""
    columns: list[tuple[str, npt.NDArray[Any]]] = []
    groups: dict[str, list[str]] = {}
    for name, array in arrays.items():
        if array.ndim == 2:
            groups[name] = [f"{name}{j}" for j in range(array.shape[1])]
            columns.extend(zip(groups[name], array.T, strict=True))
        else:
            columns.append((name, array))
    choice = choose_columns(source, [name for name, _ in columns], reading, groups)
    labels = choice.labels
    by_name, first = dict(columns), choice.targets[0]
    length = len(by_name[first]) if by_name[first].ndim else 0
    for name in (*choice.targets, *choice.features):
        array = by_name[name]
        if array.dtype.kind not in ("biufU" if name in labels else "biuf"):
            hint = choice.hint(name, array.dtype.kind == "U")
            raise DataError(
                f"{source}: array {name!r} is of type {array.dtype}, not numbers; {hint}"
            )
        if array.shape != (length,):
            raise DataError(
                f"{source}: array {name!r} has shape {array.shape}; expected the length {length} "
                f"of the target {first!r}"
            )

    def numbers_of(name: str, start: int) -> Float:
        part = by_name[name][start : start + ROWS]
        if name in labels:
            values, places = np.unique(part, return_inverse=True)
            return labels[name].encode(values.tolist(), places)
        return part.astype(np.float64)

    def blocks() -> Iterator[Float]:
        for start in range(0, length, ROWS):
            yield np.column_stack([numbers_of(name, start) for name in choice.names])

    return checked(source, choice, blocks)


def column_names(
    pair: tuple[Float, Float], features: Names | None, target: Names | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names for the columns of X and y: those given, or x0 ... and y (y0 ... if several)."""
    X, y = pair
    if X.ndim != 2 or not X.shape[1]:
        raise DataError(f"X has shape {X.shape}; expected (n, d) with d at least 1")
    if y.ndim not in (1, 2) or y.shape[1:] == (0,):
        raise DataError(f"y has shape {y.shape}; expected (n,) or (n, m) with m at least 1")
    if len(X) != len(y):
        raise DataError(f"X has {len(X)} rows and y has {len(y)}; expected as many")
    d, m = X.shape[1], y.shape[1] if y.ndim == 2 else 1
    if target is None:
        target = "y" if m == 1 else [f"y{k}" for k in range(m)]
    if features is None:
        features = [f"x{j}" for j in range(d)]
    chosen, wanted = (
        (given,) if isinstance(given, str) else tuple(check_several(argument, given, "names"))
        for argument, given in (("features", features), ("target", target))
    )
    for name in (*chosen, *wanted):
        if not isinstance(name, str):
            raise DataError(f"the name of a column must be text, got {shown(name)}")
    for argument, given, count in (("features", chosen, d), ("target", wanted, m)):
        if len(given) != count:
            raise DataError(f"{argument} has {len(given)} names; expected {count}, one per column")
    if len({*chosen, *wanted}) < d + m:
        raise DataError("features and target repeat a name; expected distinct names")
    return chosen, wanted


def array_table(X: npt.ArrayLike, y: npt.ArrayLike, reading: Reading) -> Table:
    """Arrays as a table; their columns are numbers, which may stand for categories.

    `reading` names the features and targets; without names (or targets) they are numbered.
    """
    pair = numbers("X", X), numbers("y", y)
    features, target = column_names(pair, reading.features, reading.target or None)
    values = (*pair[0].T, *np.atleast_2d(pair[1].T))
    columns = dict(zip((*features, *target), values, strict=True))
    reading = replace(reading, target=target, features=features)
    return named_arrays_table("the arrays", columns, reading)


def load_npz(place: Place) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an NPZ archive; what a damaged one makes the libraries raise is one line."""
    path, name = place.name, None
    try:
        with place.open() as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a header of Python 2
            if not zipfile.is_zipfile(stream):
                raise DataError(f"{path}: not a readable NPZ archive")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                for name, times in Counter(archive.files).items():
                    if times > 1:
                        raise DataError(f"{path}: the array {name!r} occurs {times} times")
                sizes = [one.file_size for one in archive.zip.infolist()]
                check_memory(f"{path}: its arrays", sum(sizes))
                arrays = {}
                for name in archive.files:
                    arrays[name] = np.asarray(archive[name])
                return arrays
    except FlatminError:
        raise
    except Exception as error:
        which = f"array {name!r} of the NPZ archive" if name else "the NPZ archive"
        raise DataError(f"{path}: {which} cannot be read ({one_line(error)})") from None
