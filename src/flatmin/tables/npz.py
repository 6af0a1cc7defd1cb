"""NPZ archives of NumPy arrays."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flatmin.errors import DataError
from flatmin.tables.table import ROWS, FloatArray, Names, Table, checked, choose_columns, one_line


def npz_table(path: Path, target: Names, features: Names | None) -> Table:
    """Arrays of one axis are columns; an array X of shape (n, k) is the columns X0 ... X{k-1}."""
    arrays = _load_npz(path)
    columns: list[tuple[str, npt.NDArray[Any]]] = []
    groups: dict[str, list[str]] = {}
    for name, array in arrays.items():
        if array.ndim == 2:
            groups[name] = [f"{name}{j}" for j in range(array.shape[1])]
            columns.extend(zip(groups[name], array.T, strict=True))
        else:
            columns.append((name, array))
    chosen, wanted = choose_columns(str(path), [c[0] for c in columns], target, features, groups)
    by_name = dict(columns)
    length = len(by_name[wanted[0]]) if by_name[wanted[0]].ndim else 0
    for name in (*wanted, *chosen):
        array = by_name[name]
        if array.dtype.kind not in "biuf":
            raise DataError(f"{path}: array {name!r} is of type {array.dtype}, not numbers")
        if array.shape != (length,):
            raise DataError(
                f"{path}: array {name!r} has shape {array.shape}; expected the length {length} "
                f"of the target {wanted[0]!r}"
            )

    def blocks() -> Iterator[FloatArray]:
        for start in range(0, length, ROWS):
            parts = [by_name[name][start : start + ROWS] for name in (*chosen, *wanted)]
            yield np.column_stack([part.astype(np.float64) for part in parts])

    return checked(str(path), chosen, wanted, blocks())


def _load_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    broken = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
    name = None
    try:
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path}: not a readable NPZ archive")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {}
            for name in archive.files:
                arrays[name] = np.asarray(archive[name])
            return arrays
    except DataError:
        raise
    except broken as error:
        which = f"array {name!r} of the NPZ archive" if name else "the NPZ archive"
        raise DataError(f"{path}: {which} cannot be read ({one_line(error)})") from None
