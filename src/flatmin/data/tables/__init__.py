"""Tables of numbers, read as blocks of rows.

Every source (CSV, TSV, Parquet, NPZ, a pandas frame) becomes a `Table`: the names of the chosen
columns and passes over blocks of shape (rows, d + m), the d features first, then the m targets.
Files in row order are never held whole. Whatever is wrong with a file is said in one line.
"""

from __future__ import annotations

from pathlib import Path

from flatmin.core.errors import DataError
from flatmin.data.tables.npz import npz_table
from flatmin.data.tables.parquet import parquet_table
from flatmin.data.tables.table import Names, PathLike, Reading, Table
from flatmin.data.tables.text import text_table

SUFFIXES = (".csv", ".tsv", ".tab", ".parquet", ".pq", ".npz")


def open_table(
    path: PathLike,
    target: Names,
    features: Names | None = None,
    reading: Reading | None = None,
) -> Table:
    """The table in a file, by its suffix; only the chosen columns are converted to numbers."""
    file = Path(path)
    kind = file.suffix.lower()
    try:
        if file.is_dir():
            raise DataError(f"{file}: is a folder; expected a file")
        if kind not in SUFFIXES:
            raise DataError(
                f"{file}: unsupported suffix {kind!r}; expected one of {', '.join(SUFFIXES)}"
            )
        with open(file, "rb") as stream:
            if not stream.read(1):
                raise DataError(f"{file}: the file is empty")
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from None
    if kind == ".npz":
        return npz_table(file, target, features, reading)
    if kind in (".parquet", ".pq"):
        return parquet_table(file, target, features, reading)
    return text_table(file, "," if kind == ".csv" else "\t", target, features, reading)
