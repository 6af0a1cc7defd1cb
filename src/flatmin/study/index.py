"""Which shards were found whole, so that continuing a study need not read them again.

    DIR/.index.json    for every shard: stamps of its files, and how many runs ended how

A stamp is what the system says of a file: its size, its times of change, its number on the disk. An
edit, a copy or an unpacked archive has another one, and nobody can choose it, so that an entry
speaks for the very file that was read. It is never believed about any other: what does not match,
and all of it if the index is lost or damaged, is read again.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flatmin.core.checks import LARGEST_COUNT
from flatmin.core.errors import SettingError
from flatmin.core.files import writing
from flatmin.dynamics.endings import State
from flatmin.study.shard_files import EDGE, LEARNED

NAME = ".index.json"
# Bytes of the index that a shard may take.
_ENTRY_BYTES = 2000

Stamp = tuple[int, int, int, int]
_NONE: Stamp = (0, 0, 0, 0)
_WORDS = {*(state.value for state in State), LEARNED, EDGE}


class Checked(NamedTuple):
    """A shard that was found whole: its files' stamps, and the number of runs in each state."""

    rows: Stamp
    traces: Stamp | None
    counts: dict[str, int]


def stamp(status: os.stat_result) -> Stamp:
    """What tells a file from every other."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def listing(folder: Path) -> dict[str, Stamp]:
    """The names in a folder that are not hidden, with their stamps; links are not followed."""
    with os.scandir(folder) as entries:
        return {
            entry.name: stamp(entry.stat(follow_symlinks=False))
            for entry in entries
            if entry.name[0] != "."
        }


def read_index(directory: Path, study_hash: str, shards: int) -> dict[str, Checked]:
    """What is known of the shards of a study of so many; nothing if the file is not as written."""
    path = directory / NAME
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _ENTRY_BYTES * (shards + 1):
            return {}
        content = json.loads(path.read_bytes())
        if content["study"] != study_hash:
            return {}
        stamps = [list(zip(*content[kind], strict=True)) for kind in ("rows", "traces")]
        states, counts = content["states"], content["counts"]
        if not (_WORDS.issuperset(states) and all(map(_possible, counts))):
            return {}
        columns = [content["shards"], *stamps, zip(*counts, strict=True)]
        return {
            name: Checked(
                rows,
                None if traces == _NONE else traces,
                {state: count for state, count in zip(states, counted, strict=True) if count},
            )
            for name, rows, traces, counted in zip(*columns, strict=True)
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _possible(counts: list[int]) -> bool:
    """Whether these are numbers of runs."""
    return {*map(type, counts)} == {int} and min(counts) >= 0 and max(counts) <= LARGEST_COUNT


def write_index(directory: Path, study_hash: str, shards: dict[str, Checked]) -> None:
    """The file that `read_index` reads; without it nothing is lost but time."""
    states = sorted({state for one in shards.values() for state in one.counts})
    names = sorted(shards)
    entries = [shards[name] for name in names]
    # By columns: lists of numbers are written and read in a fraction of the time of many records.
    content = {
        "study": study_hash,
        "shards": names,
        "rows": list(zip(*(one.rows for one in entries), strict=True)),
        "traces": list(zip(*(one.traces or _NONE for one in entries), strict=True)),
        "states": states,
        "counts": [[one.counts.get(state, 0) for one in entries] for state in states],
    }
    with suppress(SettingError), writing(directory / NAME) as temporary:
        temporary.write_text(json.dumps(content, separators=(",", ":")))
