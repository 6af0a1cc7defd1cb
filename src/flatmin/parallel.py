"""Work over blocks of an ensemble by threads of one process.

Compiled kernels release the interpreter lock, so threads are enough on one machine. Blocks do not
touch each other's memory and no result depends on which thread took which block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def thread_count() -> int:
    """Threads to use: FLATMIN_THREADS if set, else the cores this process may run on."""
    wanted = os.environ.get("FLATMIN_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def over_blocks(work: Callable[[int], None], blocks: int, threads: int | None = None) -> None:
    """Call work(block) for every block, on several threads; the first error is raised."""
    threads = min(threads or thread_count(), blocks)
    if threads <= 1:
        for block in range(blocks):
            work(block)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, range(blocks)):
            pass
