"""Work over blocks of an ensemble by threads of one process.

Compiled kernels release the interpreter lock, so threads are enough on one machine. Blocks do not
touch each other's memory and no result depends on which thread took which block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from threading import Event

from flatmin.core.checks import check_count, whole_in
from flatmin.core.errors import SettingError

MOST = 1024


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


def block_ranges(blocks: int, parts: int) -> list[tuple[int, int]]:
    """Nearly equal ranges (first, last) that cover all blocks.

    >>> block_ranges(5, 2)
    [(0, 2), (2, 5)]
    """
    parts = max(1, min(parts, blocks))
    cuts = [blocks * part // parts for part in range(parts + 1)]
    return list(pairwise(cuts))


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
        for done in [pool.submit(work, *one) for one in ranges]:
            done.result()


def over_each(work: Callable[[int, Event], object], blocks: int, threads: int) -> None:
    """Call work(block, cancelled) for every block; a thread that is free takes the next one.

    On an error or Ctrl-C `cancelled` is set, so that jobs under way can end early, and the rest
    is not begun.
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
    with ThreadPoolExecutor(min(threads, blocks)) as pool:
        takers = [pool.submit(take) for _ in range(min(threads, blocks))]
        try:
            for taker in takers:
                taker.result()
        except BaseException:
            cancelled.set()
            raise
