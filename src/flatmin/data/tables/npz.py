"""Arrays with names: NPZ archives and dictionaries."""

from __future__ import annotations

import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError, FlatminError
from flatmin.core.memory import check_memory
from flatmin.data.tables.source import Place
from flatmin.data.tables.table import (
    ROWS,
    TEXT_HINT,
    Reading,
    Table,
    checked,
    choose_columns,
    from_numbers,
    one_line,
)


def npz_table(place: Place, reading: Reading) -> Table:
    """The table in an NPZ archive."""
    return named_arrays_table(place.name, _load_npz(place), reading)


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
            hint = f"; {TEXT_HINT}" if array.dtype.kind == "U" else ""
            raise DataError(f"{source}: array {name!r} is of type {array.dtype}, not numbers{hint}")
        if array.shape != (length,):
            raise DataError(
                f"{source}: array {name!r} has shape {array.shape}; expected the length {length} "
                f"of the target {first!r}"
            )

    def blocks() -> Iterator[Float]:
        for start in range(0, length, ROWS):
            part = slice(start, start + ROWS)
            yield np.column_stack(
                [from_numbers(by_name[name][part], labels.get(name)) for name in choice.names]
            )

    return checked(source, choice, blocks)


def _load_npz(place: Place) -> dict[str, npt.NDArray[Any]]:
    """The arrays; whatever a damaged archive makes the libraries raise is said in one line."""
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
