"""Tables that people bring: from the command line, or dropped on the page.

A dropped table is kept in a private folder under a name made from its content; the page knows a
table by its key, and no text from the page is ever taken for a path. The table reader reads it, so
what is wrong with it is said as everywhere.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from flatmin.core.errors import DataError, SettingError
from flatmin.data.preparation import NOTHING, Preparation
from flatmin.data.samples import Samples, read_samples
from flatmin.data.tables import open_table
from flatmin.data.tables.table import Reading

MOST_BYTES = 20_000_000
DROPPED = (".csv", ".tsv", ".tab")
"""What may be dropped: plain text, which is as large in memory as it looks."""
MOST_TABLES = 20
MOST_COLUMNS = 1000


@dataclass(frozen=True)
class Stored:
    """A table: the key the page has, where it is, and what people call it."""

    key: str
    path: Path
    shown: str


class Tables:
    """The tables that are here, at most so many; the one unused for longest goes first."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="flatmin-lab-")
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._lock = Lock()
        self._fixed: set[str] = set()
        self._read = lru_cache(maxsize=8)(read_samples)

    def close(self) -> None:
        """Remove what was dropped."""
        self._folder.cleanup()

    def keep(
        self,
        file: str,
        targets: Sequence[str],
        features: Sequence[str] | None = None,
        preparation: Preparation = NOTHING,
    ) -> dict[str, Any]:
        """A table that is read from where it is, as the [problem] of a study; it is read once here,
        so that what is wrong with it shows at once."""
        if file == "-":
            raise SettingError("the lab reads a table more than once: give a file instead of -")
        open_table(file, Reading(targets))
        path = Path(file)
        with path.open("rb") as content:
            key = _key(hashlib.file_digest(content, "sha256").hexdigest(), path.name)
        with self._lock:
            self._stored[key] = Stored(key, path.resolve(), file)
            self._fixed.add(key)
        chosen = None if features is None else tuple(features)
        self.samples(key, tuple(targets), chosen, preparation)
        problem: dict[str, Any] = {"file": key, "target": targets[0], "more_targets": targets[1:]}
        problem |= {"features": chosen, **vars(preparation)}
        return {name: value for name, value in problem.items() if value}

    def add(self, name: str, content: bytes) -> Stored:
        """A table that was dropped on the page."""
        suffix = Path(name.replace("\\", "/")).suffix.lower()
        plain = _plain(name)
        if suffix not in DROPPED:
            raise DataError(
                f"{plain}: unsupported suffix {suffix!r}; the page takes {', '.join(DROPPED)} "
                "(flatmin lab FILE takes more)"
            )
        if not content:
            raise DataError(f"{plain}: the file is empty")
        if len(content) > MOST_BYTES:
            raise DataError(
                f"{plain}: {len(content)} bytes; the page takes at most {MOST_BYTES} "
                "(flatmin lab FILE takes more)"
            )
        digest = hashlib.sha256(content).hexdigest()
        key = _key(digest, plain)
        # The folder and the name are ours; the suffix is one of a list.
        path = Path(self._folder.name) / f"{digest}{suffix}"
        with self._lock:
            path.write_bytes(content)
            stored = self._stored[key] = Stored(key, path, plain)
            self._stored.move_to_end(key)
            self._drop_oldest()
        return stored

    def _drop_oldest(self) -> None:
        loose = [key for key in self._stored if key not in self._fixed]
        for key in loose[: max(0, len(loose) - MOST_TABLES)]:
            gone = self._stored.pop(key)
            if all(other.path != gone.path for other in self._stored.values()):
                gone.path.unlink(missing_ok=True)

    def find(self, key: str) -> Stored:
        """The table of this key, or a DataError that says what to do."""
        with self._lock:
            if key not in self._stored:
                name = key.partition("-")[2] or key
                raise DataError(f"the table {name[:100]!r} is not here: drop it on the page")
            self._stored.move_to_end(key)
            return self._stored[key]

    def samples(
        self,
        key: str,
        targets: tuple[str, ...],
        features: tuple[str, ...] | None,
        preparation: Preparation,
    ) -> Samples:
        """The rows of a table, prepared; errors call it by the name that people gave it."""
        stored = self.find(key)
        try:
            return self._read(stored.path, targets, features, preparation)
        except DataError as error:
            raise DataError(str(error).replace(str(stored.path), stored.shown)) from None

    def columns(self, key: str) -> list[str]:
        """The names of a text table's columns, for the page to offer as targets."""
        stored = self.find(key)
        if stored.path.suffix.lower() not in DROPPED:
            return []
        mark = "," if stored.path.suffix.lower() == ".csv" else "\t"
        try:
            with stored.path.open(encoding="utf-8-sig", newline="") as stream:
                rows = (row for row in csv.reader(stream, delimiter=mark) if any(row))
                return [name.strip() for name in next(rows, [])][:MOST_COLUMNS]
        except (UnicodeDecodeError, csv.Error):
            return []  # the table reader says what is wrong


def _key(digest: str, name: str) -> str:
    return f"{digest[:12]}-{_plain(name)}"


def _plain(name: str) -> str:
    """A file's own name without what could be anything but a name."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[^\w.\- ]", "_", last)[-60:] or "table"
