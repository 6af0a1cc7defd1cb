"""Shards on a Dask cluster (the extra `cluster`): one that is there, or processes of this machine.

A task carries all it needs and returns the bytes of the shard's files: the two sides share nothing
but the network. Dask runs the shards of a lost worker again elsewhere. A worker with another
flatmin, or other libraries below it, might give other bytes: it is refused before it computes.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

from flatmin.core.errors import SettingError
from flatmin.study.plan import Shard
from flatmin.study.runner import Broken, Pool, PoolError, attempt, broken
from flatmin.study.shard_files import Packed
from flatmin.study.spec import Study
from flatmin.study.store import hash_of
from flatmin.study.versions import versions

# Shards under way per thread of the cluster: one that runs and one that waits.
_PER_THREAD = 2
_CONNECT_SECONDS = 10
# File handles of this process, and for each worker, amply.
_HANDLES, _HANDLES_PER_WORKER = 100, 16
_WORKER_SECONDS = 60
# What concerns the user is raised; these talk about connections that close.
_TALKATIVE = ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio")
# How often the size of the cluster is looked up.
_LOOK_SECONDS = 2.0


@contextmanager
def cluster_pool(study: Study, workers: int | None, scheduler: str | None) -> Iterator[Pool]:
    """A pool for `run_study`: the cluster at `scheduler`, or `workers` new processes."""
    distributed = _distributed()
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        address = scheduler
        if address is None:
            address = stack.enter_context(_local(distributed, workers or 1))
        client = stack.enter_context(_client(distributed, address))
        # Refuse at once if a worker that is already there does not fit.
        for worker, complaint in sorted(client.run(_complaint_of(versions())).items()):
            if complaint:
                raise _refusal(worker, complaint)
        tasks = _Tasks(client, study)
        yield Pool(tasks.submit, tasks.width)


def _local(distributed: Any, workers: int) -> Any:
    """Processes of this machine; too few file handles are told before any is taken."""
    import resource

    wanted = _HANDLES + _HANDLES_PER_WORKER * workers
    handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if handles != resource.RLIM_INFINITY and handles < wanted:
        raise SettingError(
            f"workers: {workers} Dask processes need about {wanted} file handles, and the limit "
            f"is {handles}: raise it (ulimit -n), or take fewer"
        )
    try:
        return distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        )
    except (OSError, RuntimeError) as error:
        raise SettingError(f"workers: {workers} Dask processes do not start: {error}") from None


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise SettingError(
            "a Dask cluster needs the package distributed: pip install 'flatmin[cluster]'"
        ) from None
    return distributed


def _client(distributed: Any, address: Any) -> Any:
    try:
        if isinstance(address, str):
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

    def __init__(self, client: Any, study: Study) -> None:
        self._client = client
        self._executor = client.get_executor(pure=False)
        self._study = pickle.dumps(study)
        self._task = _task(versions(), hash_of(study.canonical()))
        self._threads, self._looked = 0, float("-inf")

    def submit(self, shard: Shard) -> Future[Packed | Broken]:
        """Send one shard."""
        sent = self._executor.submit(self._task, self._study, pickle.dumps(shard))
        answer: Future[Packed | Broken] = Future()
        sent.add_done_callback(lambda future: _answer(future, answer))
        return answer

    def width(self) -> int:
        """Twice the threads the cluster has now."""
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._threads, self._looked = sum(self._client.nthreads().values()), now
        return max(2, _PER_THREAD * self._threads)


def _task(wanted: dict[str, str], study_hash: str) -> Callable[[bytes, bytes], Any]:
    """What a worker does with a shard; sent by value like `_complaint_of`."""
    complaint = _complaint_of(wanted)

    def task(study: bytes, shard: bytes) -> Any:
        wrong = complaint()
        if wrong:
            from distributed import get_worker

            return get_worker().address, wrong
        from flatmin.study.cluster import run_pickled

        return run_pickled(study, shard, study_hash)

    return task


def run_pickled(study: bytes, shard: bytes, study_hash: str) -> Packed | Broken:
    """A shard on a worker, by one thread: the cluster decides how many run at once."""
    return attempt(_study(study), study_hash, pickle.loads(shard), 1)


@lru_cache(maxsize=1)
def _study(content: bytes) -> Study:
    study: Study = pickle.loads(content)
    return study


def _answer(sent: Future[Any], answer: Future[Packed | Broken]) -> None:
    """Pass a task's end on; a task cancelled by Dask means that the scheduler is gone."""
    if sent.cancelled():
        answer.set_exception(
            PoolError(
                "the Dask scheduler is gone; finished shards are kept, run this again to continue"
            )
        )
    elif error := sent.exception():
        # Such as KilledWorker: several workers in turn died of the shard.
        answer.set_result(broken(error))
    elif isinstance(sent.result(), Packed | Broken):
        answer.set_result(sent.result())
    else:
        answer.set_exception(_refusal(*sent.result()))
