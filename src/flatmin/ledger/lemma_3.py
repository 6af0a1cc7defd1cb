"""Lemma 3: how likely residual networks W_k = I + s/sqrt(L d) N_k keep their singular values.

There are C1..C4 that depend on s only such that for L >= C1, d >= C2 and u in [C3, C4 L^{1/4}],
with probability at least 1 - 8 exp(-d u^2 / (32 s^2)), for every k and every theta with
max_k |theta_k|_2 <= exp(-2 s^2 - 4 u) / 64,

    |W~_k...W~_1|_2 <= 4 exp(s^2/2 + u)   and   smin(W~_k...W~_1) >= exp(-2 s^2/d - u) / 4

with W~_k = W_k + theta_k / L. The lemma does not say what the constants are; here the failure
probability is measured, and which u work.

Whether a network fails for some theta of the ball is bracketed:

- It does not fail if it satisfies the proof's tighter bounds, with 2 and 1/2 in place of 4 and 1/4,
  at theta = 0: for d >= 4 Lemma 9 takes it from there. Counting all others gives `at_most`.
- It fails if it does at one theta of the ball. Two are tried besides theta = 0: the rank-one ones
  that push the largest singular value up and the smallest down (`lemma_9.rank_one_directions`).
  Counting these gives `at_least`.

The confidence interval goes from the lower Clopper-Pearson limit of `at_least` to the upper one of
`at_most`. All u are judged on the same draws, and all s on the same N_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.statistics import share_interval
from flatmin.dynamics.descent import Progress
from flatmin.ledger.lemma_3_draws import (
    STATEMENT,
    Bool,
    Extremes,
    Int,
    draws_for,
    failure_bound,
    sample,
)
from flatmin.ledger.record import Record, Verdict, not_applicable

DIMENSIONS = (4, 8, 16, 32)
DEPTHS = (5, 20, 80)
SCALES = (0.25, 0.5, 1.0)
US = tuple(round(0.05 * i, 2) for i in range(1, 21)) + tuple(
    round(1.0 + 0.1 * i, 1) for i in range(1, 41)
)
"""0.05..1 in steps of 0.05, then up to 5 in steps of 0.1: from 4.08 on every bound is below 1."""


class Status(StrEnum):
    """What the draws say about the bound at one u. The values are the words a user reads."""

    VACUOUS = "bound above 1"
    ADMISSIBLE = "admissible"
    UNRESOLVED = "not resolved"
    EXCEEDED = "bound exceeded"


@dataclass(frozen=True, eq=False)
class Curve:
    """The failure probability of one (d, L, s) against u, next to the lemma's bound."""

    d: int
    L: int
    s: float
    us: Float
    draws: int
    at_most: Int
    at_least: Int

    @classmethod
    def of(cls, extremes: Extremes) -> Curve:
        """Counts of networks that may fail and that do fail."""
        return cls(
            extremes.d,
            extremes.L,
            extremes.s,
            extremes.us,
            extremes.draws,
            np.count_nonzero(extremes.fails_tight(), axis=0),
            np.count_nonzero(extremes.fails(), axis=0),
        )

    @cached_property
    def bound(self) -> Float:
        """8 exp(-d u^2 / (32 s^2))."""
        return failure_bound(self.s, self.us, self.d)

    @cached_property
    def low(self) -> Float:
        """Lower confidence limit, from the networks that fail."""
        return np.array([share_interval(int(k), self.draws)[0] for k in self.at_least])

    @cached_property
    def high(self) -> Float:
        """Upper confidence limit, from the networks that may fail."""
        return np.array([share_interval(int(k), self.draws)[1] for k in self.at_most])

    @cached_property
    def status(self) -> list[Status]:
        """What is known at each u."""
        names = (Status.VACUOUS, Status.EXCEEDED, Status.ADMISSIBLE)
        cases = np.stack([self.bound >= 1.0, self.low > self.bound, self.high <= self.bound])
        return [
            names[int(np.argmax(column))] if column.any() else Status.UNRESOLVED
            for column in cases.T
        ]

    @cached_property
    def admissible(self) -> Bool:
        """The u that work: the unbroken range of confirmed u that ends with the largest of them.

        Above it the bound is smaller than the draws resolve, or exceeded because u is beyond
        C4 L^{1/4}; below it the bound is above 1, or exceeded because u is below C3.
        """
        confirmed = self.where(Status.ADMISSIBLE)
        last = len(confirmed) - 1 - int(np.argmax(confirmed[::-1]))
        unbroken = np.logical_and.accumulate(confirmed[last::-1])[::-1]
        return np.concatenate([unbroken, np.zeros(len(confirmed) - 1 - last, dtype=bool)])

    def where(self, status: Status) -> Bool:
        """At which u this is what is known."""
        return np.array([one is status for one in self.status], dtype=bool)

    @property
    def smallest_informative(self) -> float | None:
        """The smallest u of the grid with a bound below 1."""
        return _first(self.us, self.bound < 1.0)

    @property
    def smallest_admissible(self) -> float | None:
        """The smallest u of the grid that works."""
        return _first(self.us, self.admissible)

    @property
    def largest_admissible(self) -> float | None:
        """The largest u of the grid that the draws confirm."""
        return _first(self.us[::-1], self.admissible[::-1])

    @property
    def exceeded_from(self) -> float | None:
        """The smallest u above the admissible ones where the bound is exceeded."""
        last = -np.inf if self.largest_admissible is None else self.largest_admissible
        return _first(self.us, self.where(Status.EXCEEDED) & (self.us > last))

    @property
    def verdict(self) -> Verdict:
        """Violated only if the bound is exceeded at some u and no u works."""
        if self.admissible.any():
            return Verdict.HOLDS
        decided = Status.EXCEEDED in self.status
        return Verdict.VIOLATED if decided else Verdict.NOT_APPLICABLE

    def quiet_from(self, level: float = 0.05) -> float | None:
        """The smallest u of the grid from which on the upper confidence limit is below `level`."""
        loud = np.logical_or.accumulate((self.high > level)[::-1])[::-1]
        return _first(self.us, ~loud)


@dataclass(frozen=True, eq=False)
class Lemma3Table:
    """Failure probabilities over a grid of (d, L, s), and which u are admissible."""

    curves: tuple[Curve, ...]

    def as_records(self) -> list[Record]:
        """One record per s, because the lemma's constants depend on s."""
        scales = sorted({curve.s for curve in self.curves})
        return [_record(s, [one for one in self.curves if one.s == s]) for s in scales]


def lemma_3(
    seed: int = 0,
    draws: int | dict[int, int] | None = None,
    *,
    dimensions: Sequence[int] = DIMENSIONS,
    depths: Sequence[int] = DEPTHS,
    scales: Sequence[float] = SCALES,
    us: Sequence[float] = US,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Lemma3Table:
    """Measure Lemma 3 on a grid; `draws` is one number for all d or one for each.

    `progress` is called with the number of networks done since the last call, of
    `network_count(...)` in all.
    """
    extremes = sample(
        seed, draws, dimensions, depths, scales, us, threads=threads, progress=progress
    )
    return Lemma3Table(tuple(Curve.of(one) for one in extremes))


def network_count(
    draws: int | dict[int, int] | None = None,
    dimensions: Sequence[int] = DIMENSIONS,
    depths: Sequence[int] = DEPTHS,
    scales: Sequence[float] = SCALES,
) -> int:
    """How many networks a table takes, for a progress bar."""
    return len(depths) * len(scales) * sum(draws_for(d, draws) for d in dimensions)


def _first(values: Float, where: Bool) -> float | None:
    return float(values[np.argmax(where)]) if where.any() else None


def _record(s: float, curves: list[Curve]) -> Record:
    """The record of one s: its tightest comparison and the u that work."""
    order = (Verdict.VIOLATED, Verdict.HOLDS, Verdict.NOT_APPLICABLE)
    verdict = min((curve.verdict for curve in curves), key=order.index)
    fields: dict[str, Any] = {
        "part": f"s = {s:g}",
        "networks": sum(curve.draws for curve in curves),
        "note": _note(curves),
    }
    if verdict is Verdict.NOT_APPLICABLE:
        return not_applicable(STATEMENT, _hypothesis(curves), "no u is decided", **fields)
    chosen = [curve for curve in curves if curve.verdict is verdict]
    slack, i, curve, measured = min(map(_tightest, chosen), key=lambda found: found[0])
    return Record(
        statement=STATEMENT,
        hypothesis=_hypothesis(curves),
        verdict=verdict,
        bound=float(curve.bound[i]),
        measured=measured,
        slack=slack,
        at=f"d = {curve.d}, L = {curve.L}, u = {curve.us[i]:g}",
        room=0.0,
        violations=int(curve.at_least[i]) if verdict is Verdict.VIOLATED else 0,
        **fields,
    )


def _tightest(curve: Curve) -> tuple[float, int, Curve, float]:
    """Slack and index of the tightest u: of those that work, or of those exceeded if none does."""
    pool, measured = curve.admissible, curve.high
    if not pool.any():
        pool, measured = curve.where(Status.EXCEEDED), curve.low
    slack = np.where(pool, curve.bound / np.where(pool, measured, 1.0) - 1.0, np.inf)
    i = int(np.argmin(slack))
    return float(slack[i]), i, curve, float(measured[i])


def _hypothesis(curves: list[Curve]) -> str:
    d, L = (sorted({getattr(one, name) for one in curves}) for name in ("d", "L"))
    us = curves[0].us
    return (
        f"W_k = I + s/sqrt(L d) N_k with d in {d}, L in {L}, u from {us[0]:g} to {us[-1]:g}; "
        "the constants C1..C4 of the range are not given, so every u is tried"
    )


def _note(curves: list[Curve]) -> str:
    """Which u work, what is compared, and where nothing is known."""
    parts = _working([one for one in curves if one.verdict is Verdict.HOLDS])
    broken = [_cell(one) for one in curves if one.verdict is Verdict.VIOLATED]
    if broken:
        parts.append("no u works at " + ", ".join(broken))
    silent = [one for one in curves if one.verdict is Verdict.NOT_APPLICABLE]
    parts += [
        f"not resolved by {one.draws} draws at {_cell(one)}"
        if one.smallest_informative is not None
        else f"bound above 1 on the whole grid at {_cell(one)}"
        for one in silent
    ]
    return "; ".join(parts)


def _working(curves: list[Curve]) -> list[str]:
    if not curves:
        return []
    starts = [f"{_range(curves, d)} (d = {d})" for d in sorted({one.d for one in curves})]
    parts = ["admissible from u = " + ", ".join(starts)]
    if all(one.smallest_admissible == one.smallest_informative for one in curves):
        parts[0] += ", as soon as the bound is below 1"
    parts.append("measured is the upper 95 % confidence limit")
    unresolved = [one for one in curves if one.where(Status.UNRESOLVED)[-1]]
    if unresolved:
        ends = [one.largest_admissible or np.nan for one in unresolved]
        draws = sorted({one.draws for one in unresolved})
        parts.append(
            f"not resolved by {' to '.join(map(str, draws[:: max(1, len(draws) - 1)]))} draws "
            f"beyond u = {min(ends):g} to {max(ends):g}"
        )
    beyond = [
        f"u = {one.exceeded_from:g} ({_cell(one)})"
        for one in curves
        if one.exceeded_from is not None
    ]
    if beyond:
        parts.append(f"exceeded from {', '.join(beyond)}, which is beyond C4 L^(1/4)")
    return parts


def _cell(curve: Curve) -> str:
    return f"d = {curve.d}, L = {curve.L}"


def _range(curves: list[Curve], d: int) -> str:
    found = {f"{one.smallest_admissible:g}" for one in curves if one.d == d}
    return " to ".join(sorted(found, key=float)[:: max(1, len(found) - 1)])
