"""What `make attack` runs: a row a grammar.

A grammar is a module of this folder with `run(cases, seed, first)`, which returns a score: `count`
(a Counter that has "cases") and `failures` (lines). Case N of a seed must always be the same.
"""

from __future__ import annotations

import os
from collections import Counter
from importlib import import_module
from typing import NamedTuple


class Row(NamedTuple):
    """How many of all cases, relative to the other rows, and how many in one piece of work."""

    share: float
    piece: int = 200


PLAN = {
    "tables": Row(8, 400),
    "folders": Row(4, 200),
    "options": Row(8, 200),
    "specs": Row(4, 200),
    "kills": Row(0.2, 100),
    "weights": Row(4, 500),
}


def numbered_piece(given: tuple[str, int, int, int]) -> tuple[str, Counter[str], list[str]]:
    """One piece of the work (name, cases, seed, first): counts and failures."""
    name, cases, seed, first = given
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["FLATMIN_THREADS"] = "1"
    score = import_module(f"adversary.{name}").run(cases, seed, first)
    return name, score.count, score.failures
