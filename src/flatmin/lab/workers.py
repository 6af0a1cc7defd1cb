"""Threads that everybody shares, in the order of asking.

Two queues, so that a curve under somebody's finger does not wait behind somebody's map: `quick` for
runs, `slow` for maps, advice and checks. Each lets as many jobs run at a time as there are cores. A
job is short (a piece of a run, a batch of a map), and who wants another one asks again, behind
those who are waiting: so people share the cores fairly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from flatmin.core.threads import thread_count

T = TypeVar("T")


class Stopped(Exception):
    """Raised inside a job whose result nobody waits for any more."""


class Stop:
    """Whether a job should end: called between slices of its work."""

    def __init__(self, over: Event) -> None:
        self._asked, self._over = Event(), over

    def set(self) -> None:
        """Ask the job to end."""
        self._asked.set()

    def __call__(self, done: int = 0) -> None:
        if self._asked.is_set() or self._over.is_set():
            raise Stopped


Job = Callable[[Stop], T]


class Workers:
    """The two queues and their threads."""

    def __init__(self, cores: int | None = None) -> None:
        self.cores = cores or thread_count()
        self._over = Event()
        self._pool = ThreadPoolExecutor(2 * self.cores, thread_name_prefix="lab")
        self._quick, self._slow = asyncio.Semaphore(self.cores), asyncio.Semaphore(self.cores)

    async def quick(self, job: Job[T]) -> T:
        """The result of a short job."""
        return await self._do(self._quick, job)

    async def slow(self, job: Job[T]) -> T:
        """The result of a job that may take longer."""
        return await self._do(self._slow, job)

    async def _do(self, queue: asyncio.Semaphore, job: Job[T]) -> T:
        async with queue:
            stop = Stop(self._over)
            work = asyncio.get_running_loop().run_in_executor(self._pool, job, stop)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                stop.set()
                # The thread is ours until it has seen it.
                await asyncio.wait([work])
                if not work.cancelled():
                    work.exception()
                raise

    def close(self) -> None:
        """End every job under way, soon."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
