"""Shards on a Dask cluster (the extra `cluster`): one that is there, or processes of this machine.

A task carries all it needs. A worker that sees the study's folder, as a probe in it tells, writes
its shards there and says so; any other sends back the bytes of their files. Dask runs the shards of
a lost worker again elsewhere, where those already written are found. A worker with another flatmin,
or other libraries below it, might give other bytes: it is refused before it computes.

Short shards go together, and a few long ones, so that this process and the scheduler handle fewer
tasks; towards the end there are fewer in each, so that no worker waits long for another.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any

from flatmin.core.errors import SettingError
from flatmin.core.files import telling
from flatmin.study.identity import hash_of
from flatmin.study.local_cluster import dask, local_cluster
from flatmin.study.plan import SHARD_FLOPS, Shard
from flatmin.study.runner import Pool, PoolError, Result, attempt
from flatmin.study.shard_files import Packed
from flatmin.study.spec import Study
from flatmin.study.store import Failure, Store, found_whole, write_shard
from flatmin.study.versions import versions

# Shards under way per thread of the cluster: one that runs and one that waits.
_PER_THREAD = 2
_CONNECT_SECONDS = 10
_WORKER_SECONDS = 60
# A task has no more than so many flops and shards, and a share of what is left for every thread.
_TASK_FLOPS, _TASK_SHARDS, _TASKS_LEFT = 8 * SHARD_FLOPS, 64, 4
# How often the size of the cluster is looked up.
_LOOK_SECONDS = 2.0


@contextmanager
def cluster_pool(
    study: Study, workers: int | None, scheduler: str | None, store: Store
) -> Iterator[Pool]:
    """A pool for `run_study`: the cluster at `scheduler`, or `workers` new processes."""
    with ExitStack() as stack:
        address = scheduler or stack.enter_context(local_cluster(workers or 1))
        client = stack.enter_context(_client(dask(), address))
        # Refuse at once if a worker that is already there does not fit.
        for worker, complaint in sorted(client.run(_complaint_of(versions())).items()):
            if complaint:
                raise _refusal(worker, complaint)
        # Behind the client's end: what is written after the probe has gone was not asked for.
        with _probe(store.directory) as probe:
            tasks = _Tasks(client, study, probe)
            yield Pool(tasks.submit, tasks.width, tasks.batch)
        store.remove_leftovers()


@contextmanager
def _probe(directory: Path) -> Iterator[Path]:
    """A file that only those who see the folder see, for as long as their shards are wanted.

    Its name is that of something half written, which the next call removes if this one is killed.
    """
    probe = directory.resolve() / f".{token_hex(16)}.part.probe"
    with telling(f"{str(probe)!r} cannot be written"):
        probe.touch()
    try:
        yield probe
    finally:
        probe.unlink(missing_ok=True)


def _client(distributed: Any, address: str) -> Any:
    try:
        # The client says so too, but only after it has begun threads that complain at the end.
        distributed.comm.resolve_address(address)
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SettingError(
            f"scheduler: no Dask scheduler answers at {address!r} ({reason})"
        ) from None
    try:
        client.wait_for_workers(1, timeout=_WORKER_SECONDS)
    except TimeoutError:
        client.close()
        raise SettingError(
            f"scheduler: the scheduler at {address!r} has no workers after {_WORKER_SECONDS} s"
        ) from None
    return client


def _refusal(address: str, complaint: str) -> PoolError:
    return PoolError(
        f"the worker at {address} is refused: it has {complaint}; "
        "give all workers what this process has, and run this again"
    )


def _complaint_of(wanted: dict[str, str]) -> Callable[[], str]:
    """A function that says on a worker in what it differs.

    It is sent by value, since a worker with another flatmin may not have this module.
    """

    def complaint() -> str:
        try:
            import flatmin.study.execute  # noqa: F401  (so that the first shard need not)
            from flatmin.study.versions import difference, versions
        except ImportError as error:
            return f"no flatmin with studies ({error})"
        return difference(wanted, versions())

    return complaint


class _Tasks:
    """Shards of one study as tasks of a cluster."""

    def __init__(self, client: Any, study: Study, probe: Path) -> None:
        self._client = client
        self._executor = client.get_executor(pure=False)
        self._study = pickle.dumps(study)
        self._task = _task(versions(), hash_of(study.canonical()), probe)
        self._threads, self._looked = 0, float("-inf")

    def submit(self, shards: Sequence[Shard]) -> Future[list[Result]]:
        """Send some shards."""
        sent = self._executor.submit(self._task, self._study, pickle.dumps(shards))
        answer: Future[list[Result]] = Future()
        sent.add_done_callback(lambda future: _answer(future, answer, len(shards)))
        return answer

    def width(self) -> int:
        """Twice the threads the cluster has now."""
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._threads, self._looked = sum(self._client.nthreads().values()), now
        return max(2, _PER_THREAD * self._threads)

    def batch(self, left: Sequence[Shard]) -> int:
        """How many of the shards that are left to send together."""
        most = min(_TASK_SHARDS, len(left) // (_TASKS_LEFT * max(1, self._threads)))
        count, cost = 0, 0.0
        for shard in islice(left, most):
            cost += shard.cost
            count += cost <= _TASK_FLOPS
        return max(1, count)


def _task(wanted: dict[str, str], study_hash: str, probe: Path) -> Callable[[bytes, bytes], Any]:
    """What a worker does with shards; sent by value like `_complaint_of`."""
    complaint, place = _complaint_of(wanted), str(probe)

    def task(study: bytes, shards: bytes) -> Any:
        wrong = complaint()
        if wrong:
            from distributed import get_worker

            return get_worker().address, wrong
        from flatmin.study.cluster import run_pickled

        return run_pickled(study, shards, study_hash, place)

    return task


def run_pickled(study: bytes, shards: bytes, study_hash: str, probe: str) -> list[Result]:
    """Shards on a worker, by one thread: the cluster decides how many run at once."""
    place, found = Path(probe), []
    here = sees(place)
    for shard in pickle.loads(shards):
        result: Result | None = found_whole(place.parent, study_hash, shard.id) if here else None
        if result is None:
            result = attempt(_study(study), study_hash, shard, 1)
            if here and isinstance(result, Packed):
                result = _written(place, result)
        found.append(result)
    return found


def sees(probe: Path) -> bool:
    """Whether a worker shares the folder, and its shards are wanted."""
    return probe.exists()


def _written(probe: Path, packed: Packed) -> Result:
    """A shard put into the folder, as long as it is wanted there."""
    if not sees(probe):
        return Failure.of(SettingError("the process that asked for this shard has ended"))
    try:
        return write_shard(probe.parent, packed)
    except SettingError as error:
        return Failure.of(error)


@lru_cache(maxsize=1)
def _study(content: bytes) -> Study:
    study: Study = pickle.loads(content)
    return study


def _answer(sent: Future[Any], answer: Future[list[Result]], shards: int) -> None:
    """Pass a task's end on; a task cancelled by Dask means that the scheduler is gone."""
    if sent.cancelled():
        answer.set_exception(
            PoolError(
                "the Dask scheduler is gone; finished shards are kept, run this again to continue"
            )
        )
    elif error := sent.exception():
        # Such as KilledWorker: several workers in turn died of a shard, and of several no result
        # says which.
        answer.set_result([Failure.of(error)] if shards == 1 else [])
    elif isinstance(sent.result(), list):
        answer.set_result(sent.result())
    else:
        answer.set_exception(_refusal(*sent.result()))
