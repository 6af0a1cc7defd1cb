"""A study on disk: a directory in which what is there is complete and what is missing is run again.

    DIR/study.toml                 the spec as it was run
    DIR/study.json                 its canonical text, the hash of that, and versions
    DIR/runs/shard-<id>.parquet    one row per run
    DIR/traces/shard-<id>.parquet  what was recorded along the runs
    DIR/failures/<id>.json         shards that failed, until they succeed
    DIR/.lock                      held by the process that writes

Every file is written under a temporary name, flushed and renamed, and nothing else is state: a
process may be killed at any moment.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flatmin.core.errors import DataError, SettingError
from flatmin.core.files import make_directory, read_text, remove, telling, writing
from flatmin.dynamics.endings import LEARNED_AT
from flatmin.study import shard_files
from flatmin.study.schema import ROWS_SCHEMA, TRACES_SCHEMA
from flatmin.study.shard_files import RUNS, TRACES, Packed, shard_id, shard_path
from flatmin.study.versions import difference, versions

Note = Callable[[str], None]

_RECORD, _SPEC, _LOCK = "study.json", "study.toml", ".lock"
_SHOWN = 3


@dataclass(frozen=True)
class Failure:
    """A shard that raised an error: its last line, its traceback, how to run the shard alone.

    `mistake` is an error for the person who wrote the spec, not one of flatmin.
    """

    shard_id: str
    error: str
    traceback: str
    command: str
    mistake: bool = False


def hash_of(study_text: str) -> str:
    """The hash that names a study."""
    return hashlib.sha256(study_text.encode()).hexdigest()


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold a study's directory, made if need be; the kernel lets go however the process ends."""
    import fcntl

    make_directory(directory)
    _refuse_other_folders(directory)
    path = directory / _LOCK
    handle = -1
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if handle >= 0:
            os.close(handle)
        if isinstance(error, BlockingIOError):
            raise SettingError(
                f"another process is running the study in {str(directory)!r}: "
                "wait until it ends, or stop it and run this again"
            ) from None
        raise SettingError(f"{str(path)!r} cannot be locked: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(handle)


class Store:
    """The files of one study. Writing needs `lock`; reading does not."""

    def __init__(self, directory: Path) -> None:
        record = _read_record(directory)
        self.directory = directory
        self.study_text: str = record["study"]
        self.study_hash: str = record["sha256"]
        self.total_runs: int | None = record.get("runs")
        self._runs, self._traces = directory / RUNS, directory / TRACES
        self._failures = directory / "failures"
        for folder in (self._runs, self._traces, self._failures):
            if folder.is_symlink():
                raise DataError(f"{str(folder)!r} is a link: a study keeps its own files")

    @classmethod
    def open(cls, directory: Path) -> Store:
        """A study that has been begun, for reading."""
        if not os.path.lexists(directory / _RECORD):
            raise DataError(f"{str(directory)!r} holds no study: there is no {_RECORD} in it")
        return cls(directory)

    @classmethod
    def create_or_open(
        cls,
        directory: Path,
        study_text: str,
        spec_toml: str,
        note: Note | None = None,
        runs: int | None = None,
    ) -> Store:
        """Begin a study in a locked directory, or continue the same one.

        `note` is called with one line about anything that is odd or was repaired.
        """
        say = note or (lambda line: None)
        if os.path.lexists(directory / _RECORD):
            _check_same(directory, study_text, say)
        else:
            _write(directory / _SPEC, spec_toml.encode())
            record: dict[str, Any] = {"study": study_text, "sha256": hash_of(study_text)}
            record |= {"versions": versions(), "runs": runs}
            _write(directory / _RECORD, (json.dumps(record, indent=2) + "\n").encode())
        store = cls(directory)
        for folder in (store._runs, store._traces, store._failures):
            make_directory(folder)
        store._tidy(say)
        return store

    def _tidy(self, say: Note) -> None:
        """Remove what killed processes left half written, and put damaged shards aside."""
        for folder in (self.directory, self._runs, self._traces, self._failures):
            for leftover in folder.glob(".*.part.*"):
                remove(leftover)
        for folder in (self._runs, self._traces):
            for path in sorted(folder.glob("[!.]*")):
                if shard_id(path) is None:
                    say(f"{str(path)!r} is not part of this study and was left alone")
                elif wrong := shard_files.deep_fault(path, self.study_hash):
                    aside = _put_aside(path)
                    say(f"{str(path)!r} {wrong}: kept as {aside.name!r}; the shard is run again")

    @property
    def learned_at(self) -> float:
        """The share of the excess risk of w = 0 at which runs of this study count as learned."""
        method = json.loads(self.study_text).get("method", {})
        return float(method.get("learned_at", LEARNED_AT))

    def missing(self, faults: Container[str] = ()) -> int | None:
        """Runs of the study that no whole shard holds; None where the total is not recorded.

        `faults` are files that do not count, as they are named there.
        """
        if self.total_runs is None:
            return None
        there = [
            shard_files.row_count(path)
            for path in self._run_files()
            if not any(f"{kind}/{path.name}" in faults for kind in (RUNS, TRACES))
        ]
        return max(0, self.total_runs - sum(there))

    def faults(self) -> dict[str, str]:
        """What is wrong with files in the study's folders, each read as a whole."""
        found = {}
        for folder in (self._runs, self._traces):
            for path in sorted(folder.glob("[!.]*")):
                wrong = "is not part of this study"
                if shard_id(path) is not None:
                    wrong = shard_files.deep_fault(path, self.study_hash) or ""
                if wrong:
                    found[f"{folder.name}/{path.name}"] = wrong
        for path in self._runs.glob("shard-*"):
            traces = self._traces / path.name
            if not shard_files.fault(path, self.study_hash) and not self._complete(path):
                found.setdefault(f"{self._traces.name}/{traces.name}", "is missing")
        return found

    def finished(self) -> set[str]:
        """The shards that are complete."""
        return {str(shard_id(path)) for path in self._run_files()}

    def _run_files(self) -> list[Path]:
        return [path for path in sorted(self._runs.glob("shard-*")) if self._complete(path)]

    def _complete(self, path: Path) -> bool:
        name = shard_id(path)
        if name is None or shard_files.fault(path, self.study_hash):
            return False
        traces = shard_path(self._traces, name)
        return not shard_files.has_traces(path) or not shard_files.fault(traces, self.study_hash)

    def write(self, packed: Packed) -> None:
        """Put a finished shard on disk: the traces first, so that its rows mean it is complete."""
        if packed.traces is not None:
            _write(shard_path(self._traces, packed.shard_id), packed.traces)
        _write(shard_path(self._runs, packed.shard_id), packed.rows)
        (self._failures / f"{packed.shard_id}.json").unlink(missing_ok=True)

    def write_failure(self, failure: Failure) -> None:
        """Record that a shard failed; the record goes when the shard succeeds."""
        text = json.dumps(asdict(failure), indent=2) + "\n"
        _write(self._failures / f"{failure.shard_id}.json", text.encode())

    def failures(self) -> list[Failure]:
        """The shards that failed and have not succeeded since."""
        found = []
        for path in sorted(self._failures.glob("[!.]*.json")):
            try:
                found.append(Failure(**json.loads(read_text(path))))
            except (ValueError, TypeError, RecursionError):
                continue  # A file from elsewhere says nothing about this study.
        return found

    def counts(self) -> Counter[str]:
        """Finished runs by state, and how many of them ended at the edge of stability."""
        total: Counter[str] = Counter()
        for path in self._run_files():
            total.update(shard_files.count_states(shard_files.read(path, shard_files.COUNTED)))
        return total

    def read_rows(self) -> pa.Table:
        """All finished runs in the order of the plan."""
        self._refuse_damage()
        table = shard_files.gather(self._run_files(), ROWS_SCHEMA)
        if pc.count_distinct(table["run"]).as_py() != len(table):
            raise DataError(f"{str(self._runs)!r} holds a run twice: it is not as it was written")
        return table

    def read_traces(self) -> pa.Table:
        """All records of finished runs in the order of the plan."""
        self._refuse_damage()
        paths = [shard_path(self._traces, name) for name in sorted(self.finished())]
        return shard_files.gather([path for path in paths if path.exists()], TRACES_SCHEMA)

    def _refuse_damage(self) -> None:
        """A table must not lack runs in silence."""
        for folder in (self._runs, self._traces):
            for path in sorted(folder.glob("shard-*")):
                wrong = shard_id(path) and shard_files.fault(path, self.study_hash)
                if wrong:
                    raise DataError(f"{str(path)!r} {wrong}: run the study again to replace it")


def _write(path: Path, content: bytes) -> None:
    """A file that survives a power failure once this returns."""
    with writing(path) as temporary:
        temporary.write_bytes(content)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _put_aside(path: Path) -> Path:
    """Rename to a hidden name, which tools that read the whole folder skip."""
    names = (path.with_name(f".{path.name}.{number}.broken") for number in count(1))
    with telling(f"{str(path)!r} cannot be put aside"):
        return path.rename(next(aside for aside in names if not os.path.lexists(aside)))


def _refuse_other_folders(directory: Path) -> None:
    """A folder that is neither empty nor a study is left alone."""
    if os.path.lexists(directory / _RECORD):
        return
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise SettingError(f"{str(directory)!r} cannot be read: {error.strerror}") from None
    others = [name for name in names if name not in (_LOCK, _SPEC) and ".part." not in name]
    if others:
        raise SettingError(
            f"{str(directory)!r} is not empty and holds no study "
            f"(it has {others[0]!r} but no {_RECORD}): give a new folder"
        )


def _read_record(directory: Path) -> dict[str, Any]:
    path = directory / _RECORD
    try:
        if path.is_symlink():
            raise ValueError
        record = json.loads(read_text(path))
        study = json.loads(record["study"])
        if (
            record["sha256"] == hash_of(record["study"])
            and isinstance(record["versions"], dict)
            and isinstance(record.get("runs"), int | None)
            and float(study.get("method", {}).get("learned_at", LEARNED_AT)) > 0
        ):
            return dict(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise DataError(f"{str(path)!r} is damaged or not flatmin's: restore it, or give a new folder")


def _check_same(directory: Path, study_text: str, say: Note) -> None:
    """Refuse to continue another study, or this one with another flatmin."""
    record = _read_record(directory)
    if record["study"] != study_text:
        raise SettingError(
            f"{str(directory)!r} holds a study with another spec "
            f"({spec_difference(record['study'], study_text)}): give a new folder, or the old spec"
        )
    then, now = record["versions"], versions()
    own = {name: then.get(name, "unknown") for name in ("flatmin", "kernels")}
    if changed := difference(own, now):
        raise SettingError(
            f"{str(directory)!r} was begun with another flatmin (this is {changed}): "
            "finish it with that one, or give a new folder"
        )
    if changed := difference(then, now):
        say(f"the study was begun with other libraries: now {changed}; last digits may differ")


def spec_difference(old: str, new: str) -> str:
    """The first keys that differ between two canonical texts, as `key: old -> new`.

    >>> spec_difference('{"a": {"b": 1, "c": 2}}', '{"a": {"b": 3, "c": 2}}')
    'a.b: 1 -> 3'
    """
    before, after = dict(_leaves(json.loads(old))), dict(_leaves(json.loads(new)))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    shown = [
        f"{key}: {before.get(key, 'nothing')} -> {after.get(key, 'nothing')}"
        for key in keys[:_SHOWN]
    ]
    more = [f"and {len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    return "; ".join([*shown, *more])


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value that is not a table, under its dotted name, as JSON."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, json.dumps(value)
