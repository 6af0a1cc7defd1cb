"""A study on disk: a directory in which what is there is complete and what is missing is run again.

    DIR/study.toml                 the spec as it was run
    DIR/study.json                 its canonical text, the hash of that, and versions
    DIR/runs/shard-<id>.parquet    one row per run
    DIR/traces/shard-<id>.parquet  what was recorded along the runs
    DIR/failures/<id>.json         shards that failed, until they succeed
    DIR/.lock                      held by the process that runs the study
    DIR/.index.json                which shards need not be read again (`index`)

Every file is written under a temporary name, flushed and renamed, and nothing else is state: a
process may be killed at any moment.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from flatmin.core.errors import DataError, FlatminError, SettingError
from flatmin.core.files import make_directory, read_text, remove, telling, writing
from flatmin.dynamics.endings import LEARNED_AT
from flatmin.study import shard_files
from flatmin.study.identity import IDENTITY, Note, check_same, hash_of, read_identity
from flatmin.study.index import Checked, Stamp, listing, read_index, stamp, write_index
from flatmin.study.schema import ROWS_SCHEMA, TRACES_SCHEMA
from flatmin.study.shard_files import RUNS, TRACES, Packed, file_name, shard_id, shard_path
from flatmin.study.spec import Study
from flatmin.study.stream import Stream
from flatmin.study.versions import versions

_SPEC, _LOCK = "study.toml", ".lock"
# From one index to the next while a study is being run: seconds, and times as long as it took.
_INDEX_SECONDS, _INDEX_SHARE = 30.0, 50.0


@dataclass(frozen=True)
class Failure:
    """A shard that raised an error, in words (not every error can be sent between processes): its
    last line, its traceback, and how to run the shard alone.

    `mistake` is an error for the person who wrote the spec, not one of flatmin.
    """

    error: str
    traceback: str
    mistake: bool = False
    shard_id: str = ""
    command: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What an error says, without the shard."""
        mistake = isinstance(error, FlatminError | MemoryError)
        last = str(error) if mistake else traceback.format_exception_only(error)[-1]
        words = " ".join((last or "not enough memory").split())
        return cls(words, "".join(traceback.format_exception(error)), mistake)


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
        identity = read_identity(directory)
        self.directory = directory
        self.study_text: str = identity["study"]
        self.study_hash: str = identity["sha256"]
        self.total_runs: int | None = identity.get("runs")
        self._runs, self._traces = directory / RUNS, directory / TRACES
        self._failures = directory / "failures"
        self.checked: dict[str, Checked] = {}
        """Shards that are complete, once the study is being run."""
        self._unsaved, self._next_save = False, time.monotonic() + _INDEX_SECONDS
        for folder in (self._runs, self._traces, self._failures):
            if folder.is_symlink():
                raise DataError(f"{str(folder)!r} is a link: a study keeps its own files")

    @classmethod
    def open(cls, directory: Path) -> Store:
        """A study that has been begun, for reading."""
        if not os.path.lexists(directory / IDENTITY):
            raise DataError(f"{str(directory)!r} holds no study: there is no {IDENTITY} in it")
        return cls(directory)

    @classmethod
    def create_or_open(cls, directory: Path, study: Study, note: Note | None = None) -> Store:
        """Begin a study in a locked directory, or continue the same one.

        `note` is called with one line about anything that is odd or was repaired.
        """
        say, text = note or (lambda line: None), study.canonical()
        if os.path.lexists(directory / IDENTITY):
            check_same(directory, text, say)
        else:
            _refuse_other_spec(directory / _SPEC, study.to_toml())
            _write(directory / _SPEC, study.to_toml().encode())
            identity: dict[str, Any] = {"study": text, "sha256": hash_of(text)}
            identity |= {"versions": versions(), "runs": study.runs}
            _write(directory / IDENTITY, (json.dumps(identity, indent=2) + "\n").encode())
        store = cls(directory)
        for folder in (store._runs, store._traces, store._failures):
            make_directory(folder)
        for folder in (directory, store._failures):
            for leftover in folder.glob(".*.part.*"):
                remove(leftover)
        store._tidy(say)
        return store

    def _tidy(self, say: Note) -> None:
        """Remove what killed processes left half written, put damaged shards aside, and know the
        whole ones; those that the index knows are not read."""
        found: dict[Path, dict[str, Stamp]] = {}
        for folder in (self._runs, self._traces):
            self.remove_leftovers(folder)
            found[folder] = listing(folder)
        rows, traces = found.values()
        known: set[str] = set()
        for shard, entry in read_index(self.directory, self.study_hash, len(rows)).items():
            file = file_name(shard)
            if rows.get(file) == entry.rows and traces.get(file) == entry.traces:
                self.checked[shard] = entry
                known.add(file)
        for folder, names in found.items():
            for path in [folder / name for name in sorted(names.keys() - known)]:
                if shard_id(path) is None:
                    say(f"{str(path)!r} is not part of this study and was left alone")
                elif wrong := shard_files.deep_fault(path, self.study_hash):
                    aside = _put_aside(path)
                    say(f"{str(path)!r} {wrong}: kept as {aside.name!r}; the shard is run again")
        for path in [self._runs / name for name in sorted(rows.keys() - known)]:
            if (name := shard_id(path)) is not None and self._complete(path):
                counts = shard_files.count_states(shard_files.read(path, shard_files.COUNTED))
                self.checked[name] = Checked(rows[path.name], traces.get(path.name), counts)
                self._unsaved = True

    def remove_leftovers(self, *folders: Path) -> None:
        """Remove what killed processes left half written among the shards."""
        for folder in folders or (self._runs, self._traces):
            with os.scandir(folder) as entries:
                names = [one.name for one in entries if one.name[0] == "." and ".part." in one.name]
            for name in names:
                remove(folder / name)

    def save_index(self, now: bool = True) -> None:
        """Write the index if it has changed; if not `now`, only once in a while."""
        begin = time.monotonic()
        if self._unsaved and (now or begin > self._next_save):
            write_index(self.directory, self.study_hash, self.checked)
            self._unsaved, end = False, time.monotonic()
            self._next_save = end + max(_INDEX_SECONDS, _INDEX_SHARE * (end - begin))

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
        """Put a finished shard on disk."""
        self.known(packed.shard_id, write_shard(self.directory, packed))

    def known(self, name: str, checked: Checked) -> None:
        """A shard is on disk, as whoever has written it says."""
        self.checked[name], self._unsaved = checked, True
        (self._failures / f"{name}.json").unlink(missing_ok=True)

    def write_failure(self, failure: Failure) -> None:
        """Note that a shard failed; the note goes when the shard succeeds."""
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
        for one in self.checked.values():
            total.update(one.counts)
        return total

    def rows(self) -> Stream:
        """All finished runs."""
        self._refuse_damage()
        return Stream(self._run_files(), ROWS_SCHEMA)

    def traces(self) -> Stream:
        """All entries of the traces of finished runs."""
        self._refuse_damage()
        paths = [shard_path(self._traces, name) for name in sorted(self.finished())]
        return Stream([path for path in paths if path.exists()], TRACES_SCHEMA, several=True)

    def read_rows(self) -> pa.Table:
        """All finished runs in the order of the plan, in memory."""
        return pa.concat_tables(self.rows().pieces()).combine_chunks()

    def read_traces(self) -> pa.Table:
        """All entries of the traces of finished runs in the order of the plan, in memory."""
        return pa.concat_tables(self.traces().pieces()).combine_chunks()

    def _refuse_damage(self) -> None:
        """A table must not lack runs in silence."""
        for folder in (self._runs, self._traces):
            for path in sorted(folder.glob("shard-*")):
                wrong = shard_id(path) and shard_files.fault(path, self.study_hash)
                if wrong:
                    raise DataError(f"{str(path)!r} {wrong}: run the study again to replace it")


def write_shard(directory: Path, packed: Packed) -> Checked:
    """Put a finished shard on disk: the traces first, so that its rows mean it is complete."""
    traces = None
    if packed.traces is not None:
        traces = _write(shard_path(directory / TRACES, packed.shard_id), packed.traces)
    rows = _write(shard_path(directory / RUNS, packed.shard_id), packed.rows)
    return Checked(rows, traces, packed.counts)


def found_whole(directory: Path, study_hash: str, name: str) -> Checked | None:
    """A shard that is in the folder, read as a whole, if it is and nothing is wrong with it."""
    paths = [shard_path(directory / kind, name) for kind in (RUNS, TRACES)]
    marks = [stamp(path.lstat()) if os.path.lexists(path) else None for path in paths]
    rows, traces = marks
    wanted = [path for path, mark in zip(paths, marks, strict=True) if mark]
    if rows is None or any(shard_files.deep_fault(path, study_hash) for path in wanted):
        return None
    if traces is None and shard_files.has_traces(paths[0]):
        return None
    return Checked(rows, traces, shard_files.count_states(shard_files.read(paths[0])))


def _write(path: Path, content: bytes) -> Stamp:
    """A file that survives a power failure once this returns."""
    with writing(path) as temporary:
        temporary.write_bytes(content)
    written = stamp(path.lstat())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return written


def _put_aside(path: Path) -> Path:
    """Rename to a hidden name, which tools that read the whole folder skip."""
    names = (path.with_name(f".{path.name}.{number}.broken") for number in count(1))
    with telling(f"{str(path)!r} cannot be put aside"):
        return path.rename(next(aside for aside in names if not os.path.lexists(aside)))


def _refuse_other_spec(path: Path, text: str) -> None:
    """A file in the place of the spec is somebody's own, with its comments, unless a run that was
    stopped at once left it."""
    with suppress(SettingError):
        if not os.path.lexists(path) or (not path.is_symlink() and read_text(path) == text):
            return
    raise SettingError(
        f"{str(path)!r} is there already, and the study as it is run would be written over it: "
        "give a new folder"
    )


def _refuse_other_folders(directory: Path) -> None:
    """A folder that is neither empty nor a study is left alone."""
    if os.path.lexists(directory / IDENTITY):
        return
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise SettingError(f"{str(directory)!r} cannot be read: {error.strerror}") from None
    others = [name for name in names if name not in (_LOCK, _SPEC) and ".part." not in name]
    if others:
        raise SettingError(
            f"{str(directory)!r} is not empty and holds no study "
            f"(it has {others[0]!r} but no {IDENTITY}): give a new folder"
        )
