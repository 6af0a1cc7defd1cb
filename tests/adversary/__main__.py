"""All attacks of the plan, side by side: `make attack`.

    python -m tests.adversary [--cases 20000] [--seed 0] [--only NAME,...] [--jobs N]

Cases are cut into pieces, and a process a core takes the next one; each piece is a call of `run`
of its grammar. What a piece finds is printed when it ends, with the numbers that repeat it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import TimeoutError, get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from adversary.plan import PLAN, Done, numbered_piece

MEMORY = "/dev/shm"
LONGEST = 900  # seconds between two pieces


def _until_lost(pieces: Any) -> Iterator[Done]:
    """Pieces as they come; a pool waits for ever for one whose worker the system has killed."""
    while True:
        try:
            yield pieces.next(timeout=LONGEST)
        except StopIteration:
            return
        except TimeoutError:
            yield Done("lost", Counter(), [f"nothing came for {LONGEST} s: a worker is lost"], 0.0)
            return


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack flatmin; exit code 1 if something broke.")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default=",".join(PLAN))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    wanted = parser.parse_args()
    if os.access(MEMORY, os.W_OK):  # on a disk most of the time is waiting for it
        os.environ.setdefault("TMPDIR", MEMORY)
    names = wanted.only.split(",")
    print(f"seed {wanted.seed}: repeat with SEED={wanted.seed} CASES={wanted.cases}", flush=True)
    began, shares = time.perf_counter(), sum(PLAN[name].share for name in names)
    counts = {name: Counter[str]() for name in (*names, "lost")}
    worked = dict.fromkeys(counts, 0.0)
    failures: list[str] = []
    pieces = []
    for name in names:
        cases, size = round(wanted.cases * PLAN[name].share / shares), PLAN[name].piece
        for first in range(0, cases, size):
            some = min(size, cases - first)
            pieces.append((name, some, wanted.seed, wanted.first + first))
    # Not a ProcessPoolExecutor: with max_tasks_per_child it waited for workers that had ended.
    with get_context("spawn").Pool(wanted.jobs, maxtasksperchild=4) as pool:
        for name, count, found, seconds in _until_lost(pool.imap_unordered(numbered_piece, pieces)):
            counts[name] += count
            worked[name] += seconds
            failures += [f"{name} {one}" for one in found]
            for one in found:
                print(f"{name} {one}", flush=True)
            total, seconds = sum(c["cases"] for c in counts.values()), time.perf_counter() - began
            print(f"{total} of {wanted.cases} cases, {seconds:.0f} s", file=sys.stderr, flush=True)
    for name in names:
        print(f"\n{name}: {worked[name]:.0f} s of a processor")
        for what, number in counts[name].most_common():
            print(f"{number:7d}  {what}")
    total = sum(count["cases"] for count in counts.values())
    print(f"\n{total} cases in {time.perf_counter() - began:.0f} s, "
          f"{sum(worked.values()):.0f} s of processors, {len(failures)} failures")  # fmt: skip
    print(f"one case again: python -m tests.adversary --only NAME --seed {wanted.seed} "
          "--first NUMBER --cases 1")  # fmt: skip
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
