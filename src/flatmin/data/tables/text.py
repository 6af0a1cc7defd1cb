"""CSV and TSV: streamed through pyarrow; what it refuses is explained from the file itself."""

from __future__ import annotations

import csv
import io
import weakref
from codecs import utf_8_decode
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError
from flatmin.data.tables.labels import MISSING
from flatmin.data.tables.source import Place
from flatmin.data.tables.table import (
    LARGEST,
    MISSING_HINT,
    Choice,
    Reading,
    Table,
    acceptable,
    choose_columns,
    complaint,
    from_arrow,
    one_line,
    pyarrow_part,
)

TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
# Of a column of numbers, where no category can be meant.
NO_NUMBER = (*MISSING, "na", "Na", "N/a", "none", "NONE", "Null", "NAN", "Nan")
LOOK_AHEAD = 1000  # rows in which the first value of a column is looked for
RETURNED_SECONDS = 10.0


@dataclass(frozen=True)
class _Text:
    """A text table: its header, where the rows begin, and which columns hold true or false."""

    place: Place
    delimiter: str
    names: tuple[str, ...]
    header_lines: int
    logical: frozenset[int]
    width: int  # bytes in a row, a generous guess from the first two
    choice: Choice
    columns: tuple[int, ...]  # the places of the chosen ones


def text_table(place: Place, delimiter: str, reading: Reading) -> Table:
    text = _read_header(place, delimiter, reading)
    return Table(place.name, text.choice, lambda: _text_blocks(text))


def _read_header(place: Place, delimiter: str, reading: Reading) -> _Text:
    path = place.name
    with _text_of(place) as stream:
        reader = csv.reader(place.lines(stream), delimiter=delimiter)
        rows = (row for row in reader if not _blank(row))
        try:
            names = tuple(name.strip() for name in next(rows, []))
            lines = reader.line_num
            first = next(rows, None)
            values = _first_values(first, rows)
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
    logical = frozenset(j for j, cell in enumerate(values) if cell in TRUE + FALSE)
    width = 4 * max(sum(map(len, row)) + 3 * len(row) for row in (names, first))
    choice = choose_columns(path, names, reading)
    number = {name: j for j, name in enumerate(names)}
    columns = tuple(number[name] for name in choice.names)
    return _Text(place, delimiter, names, lines, logical, width, choice, columns)


def _text_of(place: Place) -> io.TextIOWrapper:
    return io.TextIOWrapper(place.open(), encoding="utf-8-sig", newline="")


def _first_values(first: list[str] | None, rows: Iterator[list[str]]) -> list[str]:
    """The first value of each column that is not missing, among the first rows."""
    values = [cell.strip() for cell in first or ()]
    with suppress(UnicodeDecodeError, csv.Error):  # said later, with its line
        for _ in range(LOOK_AHEAD):
            unknown = [j for j, cell in enumerate(values) if cell in NO_NUMBER]
            row = next(rows, None) if unknown else None
            if row is None:
                break
            for j in unknown:
                values[j] = row[j].strip() if j < len(row) else ""
    return values


class _Lent:
    """What pyarrow's threads are given of Python's: a stream, its blocks, a function.

    They may hold these for longer than the reader lives, and a thread that lets go of one while the
    interpreter ends aborts the process: so all are waited for. (Weak references tell a queue: no
    step of Python's is taken in the other thread, which therefore gives up the lock only once.)
    """

    def __init__(self, stream: BinaryIO, lend: Callable[[Any], None]) -> None:
        self.closed, self._stream, self._lend = False, stream, lend
        self.is_text, self._cut = True, b""
        lend(self)

    def read(self, size: int) -> memoryview:
        """The next block of whole letters, up to where the file is no text: of a row there `unfit`
        cannot be told, and pyarrow would print that. (An error raised here would keep this object.)
        """
        content, more = b"", b"?"
        while more and not content:
            more = self._stream.read(size)
            content = self._cut + more
            try:
                whole = utf_8_decode(content, "strict", not more)[1]
            except UnicodeDecodeError:
                self.is_text, content, more, whole = False, b"", b"", 0
            content, self._cut = content[:whole], content[whole:]
        block = memoryview(content)
        self._lend(block)
        return block

    def unfit(self, row: Any) -> str:
        """What becomes of a row with too many or too few values."""
        return "error" if row.text.strip() else "skip"


def _text_blocks(text: _Text) -> Iterator[Float]:
    told: list[Any] = []
    returned: SimpleQueue[Any] = SimpleQueue()
    with text.place.open() as stream:
        blocks = _lent_blocks(
            text, _Lent(stream, lambda one: told.append(weakref.ref(one, returned.put)))
        )
        try:
            yield from blocks
        finally:
            blocks.close()
            with suppress(Empty):
                for _ in told:
                    returned.get(timeout=RETURNED_SECONDS)


def _lent_blocks(text: _Text, lent: Any) -> Generator[Float]:
    """Blocks of the chosen columns, parsed by pyarrow a quarter of a megabyte at a time."""
    pa, pc = pyarrow_part("csv")
    choice = text.choice
    types = {f"c{j}": pa.bool_() if j in text.logical else pa.float64() for j in text.columns}
    for name, j in zip(choice.names, text.columns, strict=True):
        if choice.missing or name in choice.labels:
            types[f"c{j}"] = pa.string()
    reader = None
    try:
        reader = pc.open_csv(
            lent,
            read_options=pc.ReadOptions(
                block_size=min(max(1 << 18, 8 * text.width), 1 << 30),
                column_names=[f"c{j}" for j in range(len(text.names))],
                skip_rows=text.header_lines,
            ),
            parse_options=pc.ParseOptions(
                delimiter=text.delimiter,
                newlines_in_values=True,
                invalid_row_handler=lent.unfit,
            ),
            convert_options=pc.ConvertOptions(
                include_columns=list(types),
                column_types=types,
                null_values=[],
                strings_can_be_null=False,
                true_values=[*TRUE, "1"],
                false_values=[*FALSE, "0"],
            ),
        )
        for batch in reader:
            if choice.missing:
                batch = _with_gaps(batch, text)
            block = from_arrow(batch, choice.names, choice.labels)
            if not acceptable(block, choice.missing):
                raise pa.ArrowInvalid("a value is not a finite number or its square overflows")
            yield block
        if not lent.is_text:
            raise pa.ArrowInvalid("not UTF-8")
    except (pa.ArrowException, OSError) as error:
        raise _explain(text, one_line(error)) from None
    finally:
        reader = lent = None


def _with_gaps(batch: Any, text: _Text) -> Any:
    """A batch of text as numbers, null where a value is missing; categories stay text.

    (pyarrow's own reading of missing values takes no spaces around them.)
    """
    pa, pc = pyarrow_part("compute")
    missing, true, false = map(pa.array, (NO_NUMBER, [*TRUE, "1"], [*FALSE, "0"]))
    converted = []
    for column, j in zip(batch.columns, text.columns, strict=True):
        if text.names[j] not in text.choice.labels:
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.is_in(column, missing), pa.scalar(None, pa.string()), column)
            if j in text.logical:
                known = pc.or_(pc.is_in(column, true), pc.is_in(column, false))
                if not pc.all(pc.or_(known, pc.is_null(column))).as_py():
                    raise pa.ArrowInvalid("a value is neither true nor false")
                column = pc.if_else(pc.is_null(column), None, pc.is_in(column, true))
            column = column.cast(pa.float64())
        converted.append(column)
    return pa.record_batch(converted, names=batch.schema.names)


def _explain(text: _Text, fallback: str) -> DataError:
    """The first thing wrong in a text table, found cell by cell; slow, run only on failure."""
    line, path = 0, text.place.name
    with _text_of(text.place) as stream:
        reader = csv.reader(text.place.lines(stream), delimiter=text.delimiter)
        try:
            for row in reader:
                begins, line = line + 1, reader.line_num
                if line > text.header_lines and not _blank(row):
                    problem = _row_problem(text, row)
                    if problem:
                        return DataError(f"{path}: line {begins}{problem}")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            return DataError(
                f"{path}: after line {line}: not a text table (byte 0x{byte:02x} is not UTF-8)"
            )
        except csv.Error as error:
            return DataError(f"{path}: line {line + 1}: not a text table ({error})")
    return DataError(f"{path}: cannot be read ({fallback})")


def _row_problem(text: _Text, row: Sequence[str]) -> str | None:
    if len(row) != len(text.names):
        return f": expected {len(text.names)} values, got {len(row)}"
    for j in text.columns:
        cell = row[j].strip()
        where = f", column {text.names[j]!r}: "
        categories = text.names[j] in text.choice.labels
        if text.choice.missing and cell in (MISSING if categories else NO_NUMBER):
            continue
        if not cell or (categories and cell in MISSING):
            shown = f" ({cell})" if cell else ""
            return f"{where}the value is missing{shown}; every row needs one, {MISSING_HINT}"
        if "\0" in cell:
            return f"{where}not a text table (it contains NUL bytes)"
        if categories:
            continue
        if j in text.logical:
            if cell not in (*TRUE, *FALSE, "0", "1"):
                return f"{where}{_short(cell)} where true or false belongs"
        elif cell.lower() in ("na", "n/a", "null", "none"):
            return f"{where}the value is missing ({cell}); every row needs one, {MISSING_HINT}"
        elif not _is_number(cell):
            return (
                f"{where}{_short(cell)} where a number belongs; {text.choice.hint(text.names[j])}"
            )
        elif not abs(float(cell)) <= LARGEST:
            return f"{where}the value is {complaint(float(cell))}"
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
