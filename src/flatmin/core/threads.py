"""Work over blocks of an ensemble by threads of one process.

Compiled kernels release the interpreter lock, so threads are enough on one machine. Blocks do not
touch each other's memory and no result depends on which thread took which block.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, pairwise
from threading import Condition, Event

from flatmin.core.checks import check_count, whole_in
from flatmin.core.errors import SettingError

MOST = 1024
NO_THREADS = "the system starts no more threads; FLATMIN_THREADS=1 needs none"


def thread_count(asked: int | None = None) -> int:
    """Threads to use: as many as are asked for, FLATMIN_THREADS if set, else the cores this process
    may run on."""
    if asked is not None:
        return check_count("threads", asked, MOST)
    wanted = os.environ.get("FLATMIN_THREADS", "").strip()
    if wanted:
        number = whole_in(wanted)
        if number is None or not 1 <= number <= MOST:
            raise SettingError(
                f"FLATMIN_THREADS must be a whole number from 1 to {MOST}, got {wanted!r}"
            )
        return number
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Slots:
    """Places where pieces of work run, for several who share so many threads.

    Those in front take a place before those behind, who get one when for a moment nobody in front
    has wanted it: between two pieces of one who is in front it is not free.
    """

    MOMENT = 0.02

    def __init__(self, count: int) -> None:
        self._free, self._changed = count, Condition()
        self._waiting, self._left = 0, -math.inf

    @contextmanager
    def front(self) -> Iterator[None]:
        """A place as soon as there is one."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._free > 0)
            finally:
                self._waiting -= 1
            self._free -= 1
        try:
            yield
        finally:
            with self._changed:
                self._free, self._left = self._free + 1, time.monotonic()
                self._changed.notify_all()

    @contextmanager
    def behind(self) -> Iterator[None]:
        """A place that nobody in front wants."""
        with self._changed:
            while not self._free or self._waiting or time.monotonic() < self._left + self.MOMENT:
                self._changed.wait(self.MOMENT)
            self._free -= 1
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()


def block_ranges(blocks: int, parts: int) -> list[tuple[int, int]]:
    """Nearly equal ranges (first, last) that cover all blocks.

    >>> block_ranges(5, 2)
    [(0, 2), (2, 5)]
    """
    parts = max(1, min(parts, blocks))
    cuts = [blocks * part // parts for part in range(parts + 1)]
    return list(pairwise(cuts))


@contextmanager
def _started() -> Iterator[None]:
    """A thread that the system does not start is no error of ours."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise SettingError(NO_THREADS) from error


def over_blocks(
    work: Callable[[int, int], object], blocks: int, threads: int | None = None
) -> None:
    """Call work(first, last) on ranges that cover all blocks, one range a thread.

    The first error of any thread is raised.
    """
    ranges = block_ranges(blocks, thread_count(threads))
    if len(ranges) == 1:
        work(*ranges[0])
        return
    with ThreadPoolExecutor(len(ranges)) as pool:
        with _started():
            tasks = [pool.submit(work, *one) for one in ranges]
        for done in tasks:
            done.result()


def over_each(work: Callable[[int, Event], object], blocks: int, threads: int) -> None:
    """Call work(block, cancelled) for every block; a thread that is free takes the next one.

    The thread that calls is one of them. On an error or Ctrl-C `cancelled` is set, so that jobs
    under way can end early, and the rest is not begun.
    """
    cancelled, following = Event(), count()

    def take() -> None:
        try:
            while not cancelled.is_set() and (block := next(following)) < blocks:
                work(block, cancelled)
        except BaseException:
            cancelled.set()
            raise

    if threads == 1 or blocks == 1:
        take()
        return
    others = min(threads, blocks) - 1
    with ThreadPoolExecutor(others) as pool:
        try:
            with _started():
                takers = [pool.submit(take) for _ in range(others)]
            take()
            for taker in takers:
                taker.result()
        except BaseException:
            cancelled.set()
            raise
