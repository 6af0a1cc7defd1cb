"""Threads that everybody shares, in the order of asking.

Three queues, so that a curve under somebody's finger does not wait behind somebody's map, nor the
map behind somebody's checks: `quick` for runs, `slow` for maps, `long` for all else. Each lets as
many jobs run at a time as there are cores. A job is a piece of a run or a batch of a map, and who
wants another one asks again, behind those who are waiting. A job that takes longer than a `TURN`
goes behind them in the middle of its work: so people share the cores fairly, whatever they ask for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import TypeVar

from flatmin.core.threads import thread_count

T = TypeVar("T")

TURN = 0.25
"""Seconds of work after which a job lets others go first."""
ASIDE = 8
"""Jobs that may wait in the middle of their work: each keeps a thread."""


class Stopped(Exception):
    """Raised inside a job whose result nobody waits for any more."""


class Stop:
    """What a job calls between slices of its work: it may have to end, or to let others go first.

    It is told how much was done, and counts it; a job that knows says `of` how much in all.
    """

    def __init__(self, over: Event, aside: Callable[[], None]) -> None:
        self._asked, self._over, self._aside = Event(), over, aside
        self._since = time.monotonic()
        self.done, self.of = 0, 0

    def set(self) -> None:
        """Ask the job to end."""
        self._asked.set()

    def __call__(self, done: int = 0) -> None:
        self.done += done
        if self._asked.is_set() or self._over.is_set():
            raise Stopped
        if time.monotonic() - self._since > TURN:
            self._aside()
            self._since = time.monotonic()


Job = Callable[[Stop], T]


class Workers:
    """The queues and their threads."""

    def __init__(self, cores: int | None = None) -> None:
        self.cores = cores or thread_count()
        self._over, self._waiting = Event(), 0
        self._pool = ThreadPoolExecutor(3 * self.cores + ASIDE, thread_name_prefix="lab")
        self._quick, self._slow, self._long = (asyncio.Semaphore(self.cores) for _ in range(3))

    async def quick(self, job: Job[T]) -> T:
        """The result of a short job."""
        return await self._do(self._quick, job)

    async def slow(self, job: Job[T]) -> T:
        """The result of a batch of many."""
        return await self._do(self._slow, job)

    async def long(self, job: Job[T]) -> T:
        """The result of a job that may take longer."""
        return await self._do(self._long, job)

    async def _do(self, queue: asyncio.Semaphore, job: Job[T]) -> T:
        async with queue:
            loop = asyncio.get_running_loop()
            stop = Stop(self._over, lambda: self._step_aside(queue, loop))
            work = loop.run_in_executor(self._pool, job, stop)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                stop.set()
                # The thread is ours until it has seen it.
                await asyncio.wait([work])
                if not work.cancelled():
                    work.exception()
                raise

    def _step_aside(self, queue: asyncio.Semaphore, loop: asyncio.AbstractEventLoop) -> None:
        """In the thread of a job: go behind those who wait, if any, and wait there."""

        async def behind() -> None:
            if not queue.locked() or self._waiting >= ASIDE:  # a thread is kept while it waits
                return
            self._waiting += 1
            queue.release()
            await queue.acquire()
            self._waiting -= 1

        again = asyncio.run_coroutine_threadsafe(behind(), loop)
        while not self._over.is_set():
            with suppress(TimeoutError):
                return again.result(timeout=0.2)
        again.cancel()
        raise Stopped

    def close(self) -> None:
        """End every job under way, soon."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
