"""What a check returns: whether a statement holds, by how much, and where it is tightest.

Every statement is brought into the form `smaller <= larger`, both positive. One side is the bound,
the other is measured, and

    slack = larger / smaller - 1,

so that 0 means equality, 1 a factor of two to spare, and a negative number a violation. A
comparison may be off by `room`: what the integrator's own error, the residual of a sharpness and
rounding explain. A statement is violated only if it fails by more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.core.shown import Shown

Describe = Callable[[tuple[int, ...]], str]


@dataclass(frozen=True)
class Place:
    """Names for the entries of an array, and what its axes count: entries, networks, layers."""

    describe: Describe
    axes: tuple[str, ...] = ()

    def __call__(self, index: tuple[int, ...]) -> str:
        return self.describe(index)


@dataclass(frozen=True, eq=False)
class Sides:
    """Both sides of a comparison, entry by entry: what a picture is made of.

    `axes` names the axes as `Place` does; `x` is what a one-dimensional comparison runs over.
    """

    measured: Float
    bound: Float
    slack: Float
    room: Float
    axes: tuple[str, ...]
    x: Float | None = None
    x_name: str = ""

    @property
    def nbytes(self) -> int:
        """Memory that a copy takes."""
        return 4 * self.slack.nbytes

    def copy(self) -> Sides:
        """The same in memory of its own."""
        measured, bound, slack, room = map(
            np.array, (self.measured, self.bound, self.slack, self.room)
        )
        return replace(self, measured=measured, bound=bound, slack=slack, room=room)


class Verdict(StrEnum):
    """What a check found. The values are the words a user reads."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_APPLICABLE = "not applicable"


class Record(Shown, eq=True):
    """One statement (or one part of it) on one ensemble, at its tightest."""

    statement: str = ""
    hypothesis: str = ""
    verdict: Verdict = Verdict.NOT_APPLICABLE
    bound: float | None = None
    measured: float | None = None
    slack: float | None = None
    at: str = ""
    part: str = ""
    room: float | None = None
    """What the integrator's error, residuals and rounding explain, in the units of `measured`."""
    error: float | None = None
    """The integrator's own estimate of its error; none without an integrator."""
    networks: int = 0
    """How many networks (of a sweep, sizes or scales) the statement applied to."""
    violations: int = 0
    """How many of them break it."""
    flow_only: bool = False
    """Proved for gradient flow and measured on gradient descent."""
    note: str = ""
    why: str = ""
    """Where it does not apply: what is missing, to be read after "needs"."""
    sides: Sides | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        slack = "" if self.slack is None else f", slack={self.slack:.4g}"
        return f"Record({self.name!r}, {self.verdict.value!r}{slack})"

    @property
    def name(self) -> str:
        """The statement, and the part if it has several."""
        return f"{self.statement} {self.part}".strip()

    @property
    def within_room(self) -> bool:
        """Whether it holds with a negative slack, by as little as errors explain."""
        return self.verdict is Verdict.HOLDS and self.slack is not None and self.slack < 0.0


def compare(
    smaller: ArrayLike,
    larger: ArrayLike,
    *,
    measured: str,
    place: Place | Describe,
    hypothesis: str = "",
    applies: ArrayLike = True,
    room: ArrayLike = 0.0,
    x: ArrayLike | None = None,
    x_name: str = "",
    why: str = "",
    **fields: Any,
) -> Record:
    """The record of `smaller <= larger + room` over arrays, at the entry with the least slack.

    `measured` says which side was measured: "smaller" or "larger". `applies` says for which entries
    the hypotheses are met; entries that are not finite were not measured. `place` names an entry,
    and its axes say which one counts networks (the first if it has none); `x` is what a picture
    runs over; `why` is what is missing if the hypotheses are met nowhere (by default, these).
    """
    arrays = (np.asarray(values, dtype=float) for values in (smaller, larger, room))
    low, high, spare, meets = np.broadcast_arrays(*arrays, np.asarray(applies, dtype=bool))
    # A room that is not a number must not hide a violation.
    spare = np.where(np.isnan(spare), 0.0, spare)
    # Where both sides are 0 nothing was put to the test.
    known = np.isfinite(low) & np.isfinite(high) & ~((low == 0.0) & (high == 0.0))
    counted = known & meets
    why = "" if counted.any() else why or hypothesis
    if not known.any():
        return Record(hypothesis=hypothesis, at="not measured", why=why, **fields)
    with np.errstate(divide="ignore", invalid="ignore"):
        slack = high / low - 1.0
    broken = counted & (low > high + spare)
    # Where the room is larger than both sides, the slack is noise: such entries come last.
    resolved = spare < high
    pools = (broken, counted & resolved, counted, known & resolved, known)
    pool = next(pool for pool in pools if pool.any())
    candidates = np.flatnonzero(pool)
    tightest = candidates[np.argmin(slack.ravel()[candidates])]
    index = np.unravel_index(tightest, slack.shape)
    axes = place.axes if isinstance(place, Place) else ()
    networks = axes.index("network") if "network" in axes else None if axes else 0
    others = tuple(axis for axis in range(counted.ndim) if axis != networks)
    verdict = Verdict.VIOLATED if broken.any() else Verdict.HOLDS
    sides = (low, high) if measured == "smaller" else (high, low)
    return Record(
        hypothesis=hypothesis,
        verdict=verdict if counted.any() else Verdict.NOT_APPLICABLE,
        measured=float(sides[0][index]),
        bound=float(sides[1][index]),
        slack=float(slack[index]),
        at=place(tuple(int(i) for i in index)),
        why=why,
        room=float(spare[index]),
        networks=int(np.count_nonzero(counted.any(axis=others))),
        violations=int(np.count_nonzero(broken.any(axis=others))),
        sides=Sides(
            *sides,
            np.where(known, slack, np.nan),
            spare,
            axes,
            None if x is None else np.asarray(x, dtype=float),
            x_name,
        ),
        **fields,
    )


def at_most(measured: ArrayLike, bound: ArrayLike, **how: Any) -> Record:
    """The record of measured <= bound, by `compare`."""
    return compare(measured, bound, measured="smaller", **how)


def at_least(measured: ArrayLike, bound: ArrayLike, **how: Any) -> Record:
    """The record of measured >= bound, by `compare`."""
    return compare(bound, measured, measured="larger", **how)


def sandwich(low: ArrayLike, value: ArrayLike, high: ArrayLike, **common: Any) -> list[Record]:
    """The records of low <= value <= high, parts "lower" and "upper"."""
    return [
        at_least(value, low, part="lower", **common),
        at_most(value, high, part="upper", **common),
    ]


def merge(records: Iterable[Record]) -> list[Record]:
    """One record per statement and part: violations first, then the least slack; counts add up."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.statement, record.part), []).append(record)
    return [
        replace(
            min(group, key=_tightness),
            networks=sum(one.networks for one in group),
            violations=sum(one.violations for one in group),
        )
        for group in groups.values()
    ]


def _tightness(record: Record) -> tuple[int, float]:
    order = (Verdict.VIOLATED, Verdict.HOLDS, Verdict.NOT_APPLICABLE)
    return order.index(record.verdict), np.inf if record.slack is None else record.slack
