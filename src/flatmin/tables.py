"""Tables of numbers, read as blocks of rows.

Every source (CSV, TSV, Parquet, NPZ, a pandas frame) becomes a `Table`: the names of the chosen
columns and one pass over blocks of shape (rows, d + m), the d features first, then the m targets.
Files in row order are never held whole. Whatever is wrong with a file is said in one line.
"""

from __future__ import annotations

import csv
import difflib
import math
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flatmin.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

PathLike = str | os.PathLike[str]
FloatArray = npt.NDArray[np.float64]
Names = str | Sequence[str]

SUFFIXES = (".csv", ".tsv", ".tab", ".parquet", ".pq", ".npz")
LARGEST = 1e140  # squares summed over all rows and columns must stay below 1.8e308
ROWS = 8192  # rows handled at a time: fast in cache, small in memory
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")


@dataclass(frozen=True)
class Table:
    """The chosen columns of a source and one pass over their values (features, then targets)."""

    source: str
    features: tuple[str, ...]
    targets: tuple[str, ...]
    blocks: Iterator[FloatArray]


def open_table(path: PathLike, target: Names, features: Names | None = None) -> Table:
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
        return _npz_table(file, target, features)
    if kind in (".parquet", ".pq"):
        return _parquet_table(file, target, features)
    return _text_table(file, "," if kind == ".csv" else "\t", target, features)


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

    return _checked("the frame", chosen, wanted, blocks())


def choose_columns(
    source: str,
    names: Sequence[str],
    target: Names,
    features: Names | None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the feature columns and of the target columns.

    A name in `groups` stands for several columns. Without `features`, every column that is not a
    target is a feature.

    >>> choose_columns("data.csv", ["a", "b", "y"], "y", None)
    (('a', 'b'), ('y',))
    """
    known = [name for name in names if name]
    present = set(known)
    if len(present) < len(known):
        name, times = Counter(known).most_common(1)[0]
        raise DataError(f"{source}: the column name {name!r} occurs {times} times")

    def expand(argument: str, asked: Names) -> tuple[str, ...]:
        found: list[str] = []
        for name in (asked,) if isinstance(asked, str) else asked:
            if not isinstance(name, str):
                raise DataError(f"{argument} {name!r} is not a name; expected text")
            if groups and name in groups and name not in present:
                found.extend(groups[name])
            elif name in present:
                found.append(name)
            else:
                near = difflib.get_close_matches(name, [*known, *(groups or ())], 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                shown = ", ".join(known[:8]) + (f", ... ({len(known)})" if len(known) > 8 else "")
                raise DataError(
                    f"{source}: no column {name!r} ({argument}); {hint}columns: {shown}"
                )
        if len(set(found)) < len(found):
            name = Counter(found).most_common(1)[0][0]
            raise DataError(f"{source}: the {argument} {name!r} is given twice")
        return tuple(found)

    wanted = expand("target", target)
    if not wanted:
        raise DataError(f"{source}: no target given; expected the name of a column")
    if features is None:
        taken = set(wanted)
        chosen = tuple(name for name in known if name not in taken)
        if "" in names:
            raise DataError(
                f"{source}: column {list(names).index('') + 1} has no name; "
                "name it or list the features to use"
            )
    else:
        chosen = expand("feature", features)
        for name in wanted:
            if name in chosen:
                raise DataError(f"{source}: the target {name!r} is also among the features")
    if not chosen:
        raise DataError(f"{source}: no features left beside the target {', '.join(wanted)}")
    return chosen, wanted


def check_values(block: FloatArray, names: Sequence[str], first_row: int, source: str) -> None:
    """Refuse the first value that is not finite or whose square overflows, by row and column."""
    if _acceptable(block):
        return
    row, column = np.argwhere(~(np.abs(block) <= LARGEST))[0]
    where = f"{source}: column {names[column]!r}, row {first_row + row} (counting from 0)"
    raise DataError(f"{where} is {_complaint(float(block[row, column]))}")


def _acceptable(block: FloatArray) -> bool:
    return not block.size or bool(block.max() <= LARGEST and block.min() >= -LARGEST)


def _complaint(value: float) -> str:
    """What is wrong with a value that is not acceptable."""
    if math.isfinite(value):
        return f"{value:g}, beyond {LARGEST:g}: its square overflows; rescale the column"
    return f"{value}; every value must be a finite number"


def _checked(
    source: str, features: tuple[str, ...], targets: tuple[str, ...], blocks: Iterable[FloatArray]
) -> Table:
    """A table whose blocks are checked as they pass."""

    def passing() -> Iterator[FloatArray]:
        row = 0
        for block in blocks:
            check_values(block, (*features, *targets), row, source)
            row += len(block)
            yield block

    return Table(source, features, targets, passing())


def _pyarrow(part: str) -> tuple[Any, Any]:
    """pyarrow and one of its parts, imported when first needed (it is untyped and slow to load)."""
    return import_module("pyarrow"), import_module(f"pyarrow.{part}")


def _one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


# --- CSV and TSV ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Text:
    """A text table: its header, where the rows begin, and which columns hold true or false."""

    path: Path
    delimiter: str
    names: tuple[str, ...]
    header_lines: int
    logical: frozenset[int]
    width: int  # bytes in a row, a generous guess from the first two


def _text_table(path: Path, delimiter: str, target: Names, features: Names | None) -> Table:
    text = _read_header(path, delimiter)
    chosen, wanted = choose_columns(str(path), text.names, target, features)
    place = {name: j for j, name in enumerate(text.names)}
    columns = [place[name] for name in (*chosen, *wanted)]
    return Table(str(path), chosen, wanted, _text_blocks(text, columns))


def _read_header(path: Path, delimiter: str) -> _Text:
    with open(path, encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter=delimiter)
        rows = (row for row in reader if not _blank(row))
        try:
            names = tuple(name.strip() for name in next(rows, []))
            lines = reader.line_num
            first = next(rows, None)
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(f"{path}: not a text table (byte 0x{byte:02x} is not UTF-8)") from None
        except csv.Error as error:
            raise DataError(f"{path}: not a text table ({error})") from None
    if not names:
        raise DataError(f"{path}: the file is empty")
    if any("\0" in cell for cell in (*names, *(first or ()))):
        raise DataError(f"{path}: not a text table (it contains NUL bytes)")
    if len(names) == 1:
        other = next((mark for mark in ";\t,| " if mark in names[0] and mark != delimiter), None)
        hint = f"; the columns seem to be separated by {other!r}" if other else ""
        raise DataError(
            f"{path}: only one column ({_short(names[0])}) when split at {delimiter!r}; "
            f"expected features and a target{hint}"
        )
    if all(map(_is_number, names)) and names != tuple(map(str, range(len(names)))):
        raise DataError(f"{path}: no header: the first line holds only numbers, not column names")
    if first is None:
        raise DataError(f"{path}: no rows below the header")
    logical = frozenset(j for j, cell in enumerate(first) if cell.strip() in TRUE + FALSE)
    width = 4 * max(sum(map(len, row)) + 3 * len(row) for row in (names, first))
    return _Text(path, delimiter, names, lines, logical, width)


def _text_blocks(text: _Text, columns: Sequence[int]) -> Iterator[FloatArray]:
    """Blocks of the chosen columns, parsed by pyarrow a quarter of a megabyte at a time."""
    pa, pc = _pyarrow("csv")
    labels = [f"c{j}" for j in range(len(text.names))]
    types = {labels[j]: pa.bool_() if j in text.logical else pa.float64() for j in columns}
    try:
        reader = pc.open_csv(
            text.path,
            read_options=pc.ReadOptions(
                block_size=min(max(1 << 18, 8 * text.width), 1 << 30),
                column_names=labels,
                skip_rows=text.header_lines,
            ),
            parse_options=pc.ParseOptions(
                delimiter=text.delimiter,
                newlines_in_values=True,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            convert_options=pc.ConvertOptions(
                include_columns=[labels[j] for j in columns],
                column_types=types,
                null_values=[],
                true_values=[*TRUE, "1"],
                false_values=[*FALSE, "0"],
            ),
        )
        for batch in reader:
            block = _from_arrow(batch)
            if not _acceptable(block):
                raise pa.ArrowInvalid("a value is not a finite number or its square overflows")
            yield block
    except (pa.ArrowException, OSError) as error:
        raise _explain(text, columns, _one_line(error)) from None


def _from_arrow(batch: Any) -> FloatArray:
    """A pyarrow record batch of numbers as a block; missing values become nan."""
    pa, _ = _pyarrow("types")
    block = np.empty((batch.num_rows, batch.num_columns), order="F")
    for j, column in enumerate(batch.columns):
        if column.type != pa.float64():
            column = column.cast(pa.float64(), safe=False)
        block[:, j] = column.to_numpy(zero_copy_only=False)
    return block


def _explain(text: _Text, columns: Sequence[int], fallback: str) -> DataError:
    """The first thing wrong in a text table, found cell by cell; slow, run only on failure."""
    line = 0
    with open(text.path, encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter=text.delimiter)
        try:
            for row in reader:
                begins, line = line + 1, reader.line_num
                if line > text.header_lines and not _blank(row):
                    problem = _row_problem(text, columns, row)
                    if problem:
                        return DataError(f"{text.path}: line {begins}{problem}")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            return DataError(
                f"{text.path}: after line {line}: not a text table (byte 0x{byte:02x} is not UTF-8)"
            )
        except csv.Error as error:
            return DataError(f"{text.path}: line {line + 1}: not a text table ({error})")
    return DataError(f"{text.path}: cannot be read ({fallback})")


def _row_problem(text: _Text, columns: Sequence[int], row: Sequence[str]) -> str | None:
    if len(row) != len(text.names):
        return f": expected {len(text.names)} values, got {len(row)}"
    for j in columns:
        cell = row[j].strip()
        where = f", column {text.names[j]!r}: "
        if not cell:
            return f"{where}the value is missing; every value must be a finite number"
        if "\0" in cell:
            return f"{where}not a text table (it contains NUL bytes)"
        if j in text.logical:
            if cell not in (*TRUE, *FALSE, "0", "1"):
                return f"{where}{_short(cell)} where true or false belongs"
        elif cell.lower() in ("na", "n/a", "null", "none"):
            return f"{where}the value is missing ({cell}); every value must be a finite number"
        elif not _is_number(cell):
            return f"{where}{_short(cell)} where a number belongs"
        elif not abs(float(cell)) <= LARGEST:
            return f"{where}the value is {_complaint(float(cell))}"
    return None


def _blank(row: Sequence[str]) -> bool:
    return len(row) < 2 and not "".join(row).strip()


def _is_number(cell: str) -> bool:
    with suppress(ValueError):
        float(cell)
        return cell.isascii() and "_" not in cell
    return False


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


# --- Parquet and NPZ --------------------------------------------------------------------------


def _parquet_table(path: Path, target: Names, features: Names | None) -> Table:
    pa, pq = _pyarrow("parquet")
    try:
        file = pq.ParquetFile(path, buffer_size=1 << 18, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({_one_line(error)})") from None
    schema = file.schema_arrow
    names = [name for name in schema.names if not re.fullmatch(r"__index_level_\d+__", name)]
    chosen, wanted = choose_columns(str(path), names, target, features)
    for name in (*chosen, *wanted):
        kind = schema.field(name).type
        tests = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean)
        if not (any(test(kind) for test in tests) or pa.types.is_decimal(kind)):
            raise DataError(f"{path}: column {name!r} is of type {kind}, not numbers")

    def blocks() -> Iterator[FloatArray]:
        order = [*chosen, *wanted]
        try:
            for batch in file.iter_batches(batch_size=ROWS, columns=order):
                yield _from_arrow(batch.select(order))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable Parquet file ({_one_line(error)})") from None

    return _checked(str(path), chosen, wanted, blocks())


def _npz_table(path: Path, target: Names, features: Names | None) -> Table:
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

    return _checked(str(path), chosen, wanted, blocks())


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
        raise DataError(f"{path}: {which} cannot be read ({_one_line(error)})") from None
