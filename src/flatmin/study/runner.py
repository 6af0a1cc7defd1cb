"""Running a study: shards, long ones first, by threads of this process or by a Dask cluster.

Several shards are under way at once, one thread each: what is serial in one of them (drawing
weights, encoding rows) overlaps with the steps of another. Whoever runs a shard returns the bytes
of its files for this process to write, or has written them where both see the same folder.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import Any

from flatmin.core.errors import SettingError
from flatmin.core.memory import many_objects
from flatmin.core.pages import Listing, Page, Remarks
from flatmin.core.progress import Show, live_bar
from flatmin.core.threads import thread_count
from flatmin.dynamics.endings import learned_note
from flatmin.study import execute
from flatmin.study.identity import Note, hash_of
from flatmin.study.index import Checked
from flatmin.study.plan import Shard, plan
from flatmin.study.results import Results
from flatmin.study.shard_files import EDGE, LEARNED, Packed, pack
from flatmin.study.spec import Study
from flatmin.study.store import Failure, Store, lock

_WAIT_SECONDS = 0.5


@dataclass
class Status:
    """How far a study is, earlier calls included; `progress` is called with it."""

    total_steps: int
    total_shards: int
    steps: int = 0
    shards: int = 0
    failed: int = 0
    counts: Counter[str] = field(default_factory=Counter)


class StudyRun(Results):
    """A study after a call of `run_study`; `steps` and the times are those of this call.

    `seconds` is the time in which shards were run, `other_seconds` that of starting and ending.
    """

    finished: int
    total_runs: int
    shards: int
    total_shards: int
    counts: dict[str, int]
    shards_run: int
    steps: int
    seconds: float
    other_seconds: float
    failures: tuple[Failure, ...]
    learned_at: float
    by_workers: int | None = None
    """Shards that workers of a cluster wrote into the folder themselves; None without a cluster."""
    # A directory that is removed when nothing refers to these results any more.
    temporary: Any = field(default=None, repr=False)

    def __repr__(self) -> str:
        place = f"directory={str(self.directory)!r}"
        return f"StudyRun(finished={self.finished}, total_runs={self.total_runs}, {place})"

    def contents(self) -> dict[str, Any]:
        """The counts, without what only serves the program."""
        names = ("total_runs", "shards", "total_shards", "counts", "shards_run", "by_workers")
        rest = {name: getattr(self, name) for name in (*names, "steps", "seconds", "other_seconds")}
        first = {"directory": self.directory, "runs": self.finished}
        return first | rest | {"failures": self.failures}

    def page(self) -> Page:
        """What `flatmin study run` prints."""
        counts = dict(self.counts)
        edge, learned = counts.pop(EDGE, 0), counts.pop(LEARNED, 0)
        rows = [
            ("Runs finished", f"{self.finished} of {self.total_runs}"),
            ("  learned", str(learned)),
            ("  at the edge of stability", str(edge)),
            ("How they ended", ""),
            *((f"  {state}", str(counts[state])) for state in sorted(counts)),
            ("Shards finished", f"{self.shards} of {self.total_shards}"),
            ("  run now", str(self.shards_run)),
        ]
        if self.by_workers is not None:
            rows.append(("  written by workers, into this folder", str(self.by_workers)))
            rows.append(("  sent here by workers", str(self.shards_run - self.by_workers)))
        if self.failures:
            rows.append(("  failed now", str(len(self.failures))))
        rows.append(("Time", f"{self.seconds:.1f} s, and {self.other_seconds:.1f} s around it"))
        if self.steps:
            speed = f"{self.steps / self.seconds / 1e6:.3g} million a second"
            rows.append(("Network steps", f"{self.steps:.3g}, {speed}"))
        rows.append(("Folder", str(self.directory)))
        return [Listing(("Study", ""), rows), Remarks("", [learned_note(self.learned_at)])]


class PoolError(SettingError):
    """No shard can be run any more, through no fault of a shard."""


Result = Packed | Checked | Failure
"""A shard to be written, one that was, or what went wrong."""


@dataclass(frozen=True)
class Pool:
    """Whoever runs shards: takes some, which come back together, and says how many such tasks to
    have under way, and how many of the shards that are left to put into the next one."""

    submit: Callable[[Sequence[Shard]], Future[list[Result]]]
    width: Callable[[], int]
    batch: Callable[[Sequence[Shard]], int] = lambda left: 1


def run_study(
    study: Study | Mapping[str, Any] | str | Path,
    directory: str | Path | None = None,
    *,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    only: str | None = None,
    spec: str | None = None,
    progress: bool | Callable[[Status], None] | None = None,
    note: Note | None = None,
    slot: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> StudyRun:
    """Run what is missing of a study, and write it to its directory, or to a temporary one.

    By default `threads` of this process (all cores) do the work; `workers` starts that many Dask
    processes instead, `scheduler` is the address of a Dask cluster that is there. `only` is the id
    of one shard to run, `spec` the file to name in the command that runs a failed shard alone.
    A shard that fails is recorded and the others go on; the next call tries it again.
    Studies that are run at once by threads share these: a shard runs in a `slot`.
    """
    if not isinstance(study, Study):
        study = Study(study)
    places = {"threads": threads, "workers": workers, "scheduler": scheduler}
    given = [name for name, value in places.items() if value is not None]
    if len(given) > 1:
        raise SettingError(f"{given[0]} and {given[1]} exclude each other: give one of them")
    on_cluster = workers is not None or scheduler is not None
    begin = time.perf_counter()
    temporary = TemporaryDirectory(prefix="flatmin-") if directory is None else None
    folder = Path(temporary.name if temporary else directory or "")
    with many_objects():
        shards = plan(study)
    chosen = _chosen(shards, only)
    with live_bar(progress is True) as show, lock(folder):
        tell = progress if callable(progress) else None if show is None else bar_of(show)
        with many_objects():
            store = Store.create_or_open(folder, study, note)
            done = _finished(store, shards)
            todo = [shard for shard in chosen if shard.id not in done]
            course = _Course(shards, done, store.counts(), tell)
        by_workers = 0 if on_cluster else None
        place = spec or str(folder / "study.toml")
        command = ["flatmin", "study", "run", place, "--out", str(folder)]
        failures: list[Failure] = []
        seconds = 0.0
        if todo:
            if on_cluster:
                from flatmin.study.cluster import cluster_pool

                begun = cluster_pool(study, workers, scheduler, store)
            else:
                many = thread_count(threads)
                begun = _thread_pool(study, len(todo), many, course.report, slot)
            with begun as pool:
                started = time.perf_counter()
                for shard, result in _completed(pool, todo):
                    if isinstance(result, Packed):
                        store.write(result)
                        course.ended(shard, result.counts)
                    elif isinstance(result, Checked):
                        store.known(shard.id, result)
                        by_workers = (by_workers or 0) + 1
                        course.ended(shard, result.counts)
                    else:
                        alone = shlex.join([*command, "--only", shard.id])
                        failures.append(replace(result, shard_id=shard.id, command=alone))
                        store.write_failure(failures[-1])
                        course.ended(shard, None)
                    store.save_index(now=False)
                seconds = time.perf_counter() - started
        store.save_index()
    status = course.status
    return StudyRun(
        directory=folder,
        finished=sum(len(shard) for shard in shards if shard.id in course.done),
        total_runs=study.runs,
        shards=status.shards,
        total_shards=len(shards),
        counts=dict(status.counts),
        shards_run=len(todo) - len(failures),
        steps=sum(shard.network_steps for shard in todo if shard.id in course.done),
        seconds=seconds,
        other_seconds=time.perf_counter() - begin - seconds,
        failures=tuple(failures),
        learned_at=study.method.learned_at,
        by_workers=by_workers,
        temporary=temporary,
    )


def bar_of(show: Show) -> Callable[[Status], None]:
    """A bar over network steps, with counts and speed."""
    begin, first = time.perf_counter(), None

    def tell(status: Status) -> None:
        nonlocal first
        first = status.steps if first is None else first
        speed = (status.steps - first) / (time.perf_counter() - begin)
        counts = status.counts
        words = [f"{counts[state]} {state}" for state in (LEARNED, "settled", "diverged")]
        words.insert(2, f"{counts[EDGE]} at the edge")
        if status.failed:
            words.append(f"{status.failed} shards failed")
        note = f"{', '.join(words)}, {speed / 1e6:.3g} M steps/s"
        show("", status.steps, status.total_steps, note)

    return tell


class _Course:
    """Keeps count while shards are under way, and tells `progress`."""

    def __init__(
        self,
        shards: list[Shard],
        done: set[str],
        counts: Counter[str],
        progress: Callable[[Status], None] | None,
    ) -> None:
        self.done = set(done)
        total = before = 0
        for shard in shards:
            total += (steps := shard.network_steps)
            before += steps if shard.id in done else 0
        self.status = Status(total, len(shards), before, len(done), counts=counts)
        self._reported: Counter[str] = Counter()
        self._progress, self._lock = progress, Lock()
        self._tell()

    def report(self, shard: Shard, steps: int) -> None:
        """A shard under way has taken steps; called from any thread."""
        with self._lock:
            self._reported[shard.id] += steps
            self.status.steps += steps
            self._tell()

    def ended(self, shard: Shard, counts: dict[str, int] | None) -> None:
        """A shard is on disk; or it has failed, without counts, and its steps do not count."""
        with self._lock:
            self.status.steps -= self._reported.pop(shard.id, 0)
            if counts is None:
                self.status.failed += 1
            else:
                self.done.add(shard.id)
                self.status.shards += 1
                self.status.steps += shard.network_steps
                self.status.counts.update(counts)
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.status)


def _finished(store: Store, shards: list[Shard]) -> set[str]:
    done = set(store.checked)
    unknown = done - {shard.id for shard in shards}
    if unknown:
        raise SettingError(
            f"{str(store.directory)!r} holds shards of another plan, such as {min(unknown)}: "
            "give a new folder"
        )
    return done


def _chosen(shards: list[Shard], only: str | None) -> list[Shard]:
    if only is None:
        return shards
    chosen = [shard for shard in shards if shard.id == only]
    if not chosen:
        raise SettingError(
            f"there is no shard {only!r} in this study: it has {len(shards)}, "
            f"such as {shards[0].id!r}"
        )
    return chosen


def _completed(pool: Pool, shards: list[Shard]) -> Iterator[tuple[Shard, Result]]:
    """Shards as they end, with a bounded number under way."""
    left, alone = deque(shards), deque[Shard]()
    ended: SimpleQueue[tuple[list[Shard], Future[list[Result]]]] = SimpleQueue()
    waiting = 0
    while left or alone or waiting:
        while (left or alone) and waiting < pool.width():
            batch = [alone.popleft()] if alone else []
            if not batch:
                batch = [left.popleft() for _ in range(max(1, pool.batch(left)))]
            put = partial(lambda batch, done: ended.put((batch, done)), batch)
            pool.submit(batch).add_done_callback(put)
            waiting += 1
        try:
            # A signal that comes in the instant before a wait does not end it: so none is long.
            batch, future = ended.get(timeout=_WAIT_SECONDS)
        except Empty:
            continue
        waiting -= 1
        results = future.result()
        if len(results) < len(batch):
            alone.extend(batch)  # one of them ended the rest: which?
        else:
            yield from zip(batch, results, strict=True)


def attempt(
    study: Study,
    study_hash: str,
    shard: Shard,
    threads: int,
    progress: Callable[[int], None] | None = None,
) -> Packed | Failure:
    """The files of a shard, or what went wrong."""
    try:
        return pack(study_hash, shard.id, execute.run_shard(study, shard, threads, progress))
    except Exception as error:
        return Failure.of(error)


@contextmanager
def _thread_pool(
    study: Study,
    shards: int,
    threads: int,
    report: Callable[[Shard, int], None],
    slot: Callable[[], AbstractContextManager[None]],
) -> Iterator[Pool]:
    """Shards by threads; those under way end soon after the block is left."""
    at_once = min(threads, shards)
    study_hash = hash_of(study.canonical())
    stop = Event()

    def work(batch: Sequence[Shard]) -> list[Result]:
        (shard,) = batch

        def advance(steps: int) -> None:
            if stop.is_set():
                raise _Stopped
            report(shard, steps)

        with slot():
            return [attempt(study, study_hash, shard, threads // at_once, advance)]

    executor = ThreadPoolExecutor(at_once, "shard")
    try:
        # One more than can run, so that no thread waits for this process to write.
        yield Pool(lambda batch: executor.submit(work, batch), lambda: at_once + 1)
    finally:
        stop.set()
        executor.shutdown(wait=False, cancel_futures=True)


class _Stopped(Exception):
    """Raised inside a shard that is no longer wanted."""
