"""What `make attack` runs: a row a grammar.

A grammar is a module of this folder with `run(cases, seed, first)`, which returns a score: `count`
(a Counter that has "cases") and `failures` (lines). Case N of a seed must always be the same.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections import Counter
from importlib import import_module
from typing import NamedTuple

from adversary.watchdog import Score


class Row(NamedTuple):
    """How many of all cases, relative to the other rows, and how many in one piece of work."""

    share: float
    piece: int = 200


# In thousands of the 20,000 cases.
PLAN = {
    "kills": Row(0.4, 50),
    "surroundings": Row(0.06, 15),
    "readers": Row(0.1, 50),
    "disks": Row(0.2, 50),
    "folders": Row(2.0, 200),
    "options": Row(2.2, 200),
    "specs": Row(3.0, 200),
    "texts": Row(2.0, 300),
    "tables": Row(4.2, 400),
    "weights": Row(5.84, 500),
}


class Done(NamedTuple):
    """A piece of the work: counts, failures, and seconds of processors with those of children."""

    name: str
    count: Counter[str]
    failures: list[str]
    seconds: float


def numbered_piece(given: tuple[str, int, int, int]) -> Done:
    """One piece of the work (name, cases, seed, first)."""
    name, cases, seed, first = given
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["FLATMIN_THREADS"] = "1"
    began = sum(os.times()[:4])
    kept = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="attack-") as place:  # what the killed leave goes too
        os.environ["TMPDIR"] = tempfile.tempdir = place
        try:
            score = import_module(f"adversary.{name}").run(cases, seed, first)
        except Exception:  # of the attack itself: one piece less, and a failure
            score = Score(failures=[f"from {first} on: {traceback.format_exc()}"])
        os.environ["TMPDIR"] = tempfile.tempdir = kept
    return Done(name, score.count, score.failures, sum(os.times()[:4]) - began)
