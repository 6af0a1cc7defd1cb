"""Where a table comes from: a regular file, packed by gzip or not, or standard input.

Whatever else a path may name (a pipe, a device, a folder) could wait or flow for ever, and is
refused before it is opened. What is unpacked, and what standard input brings, has a limit.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flatmin.core.errors import DataError

LONGEST_LINE = 1 << 26
MOST_INPUT = 1 << 32
# How much larger than its file a packed table may be. Of zeros gzip makes a thousandth.
MOST_RATIO, SMALL = 200, 1 << 28
_BYTES = {b"\x1f\x8b": ".csv.gz", b"PK\x03\x04": ".npz", b"PAR1": ".parquet"}


@dataclass(frozen=True)
class Place:
    """A file that can be read again and again; `name` is for people, `kind` its last suffix."""

    path: Path
    name: str
    kind: str
    packed: bool
    kept: Any = None  # what must not be closed while the file is needed

    def open(self) -> BinaryIO:
        """Its bytes, unpacked."""
        if not self.packed:
            return self.path.open("rb")
        size = self.path.stat().st_size
        return io.BufferedReader(_Unpacked(self, max(SMALL, MOST_RATIO * size)))

    def lines(self, stream: io.TextIOBase) -> Iterator[str]:
        """Lines of a text, none of which is endless."""
        while line := stream.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise DataError(f"{self.name}: a line of more than {LONGEST_LINE} characters")
            yield line


class _Unpacked(io.RawIOBase):
    """What gzip unpacks, up to a limit."""

    def __init__(self, place: Place, most: int) -> None:
        self._place, self._left = place, most
        self._stream = gzip.GzipFile(place.path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        name = self._place.name
        try:
            count = self._stream.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{name}: not a readable gzip file ({error})") from None
        self._left -= count
        if self._left < 0:
            raise DataError(
                f"{name}: unpacks to more than {MOST_RATIO} times its size; unpack it first"
            )
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def place_of(path: str | os.PathLike[str]) -> Place:
    """The file at a path; `-` is standard input, whose kind its first bytes tell (else CSV)."""
    name = os.fspath(path)
    if name == "-":
        return _standard_input()
    try:
        mode = os.stat(name).st_mode
        if stat.S_ISDIR(mode):
            raise DataError(f"{name}: is a folder; expected a file")
        if not stat.S_ISREG(mode):
            raise DataError(f"{name}: is no regular file; - reads a table from standard input")
        with open(name, "rb") as stream:
            if not stream.read(1):
                raise DataError(f"{name}: the file is empty")
    except FileNotFoundError:
        raise DataError(f"{name}: no such file") from None
    except DataError:
        raise
    except (OSError, ValueError) as error:  # a ValueError if the name holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{name}: cannot be read ({reason})") from None
    return _named(Path(name), name)


def _named(path: Path, name: str, kept: Any = None) -> Place:
    packed = path.suffix.lower() == ".gz"
    kind = (path.with_suffix("") if packed else path).suffix.lower()
    return Place(path, name, kind, packed, kept)


def _standard_input() -> Place:
    """Standard input, kept in a temporary file."""
    name = "standard input"
    if sys.stdin is None or sys.stdin.closed:
        raise DataError(f"{name}: is closed")
    source, kept = sys.stdin.buffer, None
    try:
        first = source.read(4)
        suffix = next((end for mark, end in _BYTES.items() if first.startswith(mark)), ".csv")
        kept = tempfile.NamedTemporaryFile(prefix="flatmin-", suffix=suffix)  # noqa: SIM115
        size, block = 0, first
        while block:
            kept.write(block)
            size += len(block)
            if size > MOST_INPUT:
                raise DataError(f"{name}: more than {MOST_INPUT >> 30} GiB; give a file instead")
            block = source.read(1 << 20)
        kept.flush()
    except OSError as error:
        if kept is not None:
            with suppress(OSError):  # it would try to write the rest once more
                kept.close()
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None
    if not size:
        raise DataError(f"{name}: is empty")
    return _named(Path(kept.name), name, kept)
