"""How a comparison is made: all contenders in one run, in turns, several rounds.

A benchmark here is a ratio. Each round times every contender once, so a slow moment of the machine
hits all of them; the ratio of a round is rival time over our time, and a case reports the median
ratio with its smallest and largest value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

Contender = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of a list of measurements."""
        return cls(median(values), min(values), max(values))

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Result:
    """One case: our cost, the rivals' costs and the ratios, against the bar set for it.

    `unit` says what a cost counts (for example seconds per network). `ratios` are rival over ours,
    except for the machine's limit D, where it is the share of the limit that we reach.
    """

    id: str
    title: str
    unit: str
    ours: Spread
    rivals: dict[str, Spread]
    ratios: dict[str, Spread]
    bar: dict[str, float]
    met: bool
    compile_seconds: float
    notes: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON: medians first, spreads beside them."""
        return {
            "id": self.id,
            "title": self.title,
            "unit": self.unit,
            "ours": self.ours.median,
            "rivals": {name: spread.median for name, spread in self.rivals.items()},
            "ratios": {name: spread.median for name, spread in self.ratios.items()},
            "bar": self.bar,
            "met": self.met,
            "spread": {
                "ours": self.ours.as_dict(),
                "ratios": {name: spread.as_dict() for name, spread in self.ratios.items()},
            },
            "compile_seconds": self.compile_seconds,
            "notes": self.notes,
        }


def seconds(work: Contender) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare(
    id: str,
    title: str,
    unit: str,
    ours: tuple[Contender, float],
    rivals: dict[str, tuple[Contender, float]],
    bar: dict[str, float],
    rounds: int = 5,
    notes: str = "",
    beside: dict[str, tuple[str, str]] | None = None,
) -> Result:
    """Time contenders in turns. Each comes with the units of work that one call does.

    `beside` names ratios of two rivals, the first of which is there for that alone.

    The first call of everyone is not counted: it compiles. Ours is reported as compile time.
    """
    compile_seconds = seconds(ours[0])
    for work, _ in rivals.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in ("ours", *rivals)}
    for _ in range(rounds):
        for name, (work, amount) in (("ours", ours), *rivals.items()):
            times[name].append(seconds(work) / amount)
    pairs = {name: (name, "ours") for name in rivals} | (beside or {})
    for first, _ in (beside or {}).values():
        del pairs[first]
    ratios = {
        name: Spread.of([a / b for a, b in zip(times[one], times[other], strict=True)])
        for name, (one, other) in pairs.items()
    }
    return Result(
        id,
        title,
        unit,
        Spread.of(times["ours"]),
        {name: Spread.of(times[name]) for name in rivals},
        ratios,
        bar,
        all(ratios[name].median >= least for name, least in bar.items()),
        compile_seconds,
        notes,
    )
