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
from functools import cached_property
from threading import Event, Lock
from typing import Any

import numpy as np

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.checks import check_count, check_depth, check_positive, check_seed
from flatmin.core.errors import SettingError
from flatmin.core.progress import Progress, advancing
from flatmin.core.statistics import share_interval
from flatmin.core.threads import over_each, thread_count
from flatmin.ledger.lemma_3_draws import STATEMENT, draw_noise, failing, failure_bound
from flatmin.ledger.record import Record, Sides, Verdict

DIMENSIONS = (4, 8, 16, 32)
LEAST_DIMENSION = 4
DEPTHS = (5, 20, 80)
SCALES = (0.25, 0.5, 1.0)
US = tuple(round(0.05 * i, 2) for i in (*range(1, 21), *range(22, 101, 2)))
"""0.05..1 in steps of 0.05, then up to 5 in steps of 0.1: from 4.08 on every bound is below 1."""
# Bytes of noise a block of draws may take.
_BLOCK_BYTES = 2**25


def draws_for(d: int) -> int:
    """How many networks of each (d, L) are drawn unless something else is asked for."""
    return next((draws for most, draws in ((4, 2000), (8, 1000), (16, 500)) if d <= most), 300)


@dataclass(frozen=True, eq=False)
class Curve:
    """The failure probability of one (d, L, s) against u, next to the lemma's bound."""

    d: int
    L: int
    s: float
    us: Float
    draws: int
    at_most: Whole
    at_least: Whole

    def __str__(self) -> str:
        return f"d = {self.d}, L = {self.L}"

    @cached_property
    def bound(self) -> Float:
        """8 exp(-d u^2 / (32 s^2)); it says nothing where it is 1 or more."""
        return failure_bound(self.s, self.us, self.d)

    @cached_property
    def low(self) -> Float:
        """Lower confidence limit, from the networks that fail."""
        return np.array([share_interval(int(k), self.draws)[0] for k in self.at_least])

    @cached_property
    def high(self) -> Float:
        """Upper confidence limit, from the networks that may fail."""
        return np.array([share_interval(int(k), self.draws)[1] for k in self.at_most])

    @property
    def exceeded(self) -> Yes:
        """At which u more networks fail than the bound allows."""
        return np.asarray((self.bound < 1.0) & (self.low > self.bound))

    @property
    def confirmed(self) -> Yes:
        """At which u the draws confirm the bound; at others with a bound below 1 they are few."""
        return np.asarray((self.bound < 1.0) & (self.high <= self.bound))

    @cached_property
    def admissible(self) -> Yes:
        """The u that work: the unbroken range of confirmed u that ends with the largest of them.

        Above it the bound is smaller than the draws resolve, or exceeded because u is beyond
        C4 L^{1/4}; below it the bound is above 1, or exceeded because u is below C3.
        """
        confirmed = self.confirmed
        last = len(confirmed) - 1 - int(np.argmax(confirmed[::-1]))
        unbroken = np.logical_and.accumulate(confirmed[last::-1])[::-1]
        return np.concatenate([unbroken, np.zeros(len(confirmed) - 1 - last, dtype=bool)])

    def first(self, where: Yes) -> float | None:
        """The smallest u of those chosen."""
        return float(self.us[np.argmax(where)]) if where.any() else None

    @property
    def smallest_admissible(self) -> float | None:
        """The smallest u of the grid that works."""
        return self.first(self.admissible)

    @property
    def largest_admissible(self) -> float:
        """The largest u of the grid that the draws confirm; minus infinity if there is none."""
        return float(np.max(self.us, where=self.admissible, initial=-np.inf))

    @property
    def exceeded_from(self) -> float | None:
        """The smallest u above the admissible ones where the bound is exceeded."""
        return self.first(self.exceeded & (self.us > self.largest_admissible))

    @property
    def verdict(self) -> Verdict:
        """Violated only if the bound is exceeded at some u and no u works."""
        if self.admissible.any():
            return Verdict.HOLDS
        return Verdict.VIOLATED if self.exceeded.any() else Verdict.NOT_APPLICABLE

    def record(self) -> Record:
        """At the tightest u that works, or is exceeded if none does. The part is s, because the
        lemma's constants depend on s."""
        works = self.verdict is Verdict.HOLDS
        pool, measured = (self.admissible, self.high) if works else (self.exceeded, self.low)
        fields: dict[str, Any] = {
            "statement": STATEMENT,
            "hypothesis": "W_k = I + s/sqrt(L d) N_k; the constants C1..C4 of the range of u are "
            f"not given, so every u from {self.us[0]:g} to {self.us[-1]:g} is tried",
            "part": f"s = {self.s:g}",
            "networks": self.draws,
            "note": self._note(),
        }
        if not pool.any():
            return Record(at="no u is decided", **fields)
        slack = np.where(pool, self.bound / np.where(pool, measured, 1.0) - 1.0, np.nan)
        i = int(np.nanargmin(slack))
        # Beyond what the draws resolve there is nothing to compare.
        known = pool | (self.bound >= 1.0)
        shown, bound = (np.where(known, side, np.nan) for side in (measured, self.bound))
        return Record(
            verdict=self.verdict,
            bound=float(self.bound[i]),
            measured=float(measured[i]),
            slack=float(slack[i]),
            at=f"{self}, u = {self.us[i]:g}",
            room=0.0,
            violations=0 if works else int(self.at_least[i]),
            sides=Sides(shown, bound, slack, np.zeros(len(slack)), ("u",), self.us, "u"),
            **fields,
        )

    def _note(self) -> str:
        """Which u work, what is compared, and where nothing is known."""
        if self.verdict is Verdict.VIOLATED:
            return f"no u works at {self}"
        few, silent = f"not resolved by {self.draws} draws", "bound above 1 on the whole grid"
        if self.verdict is Verdict.NOT_APPLICABLE:
            return f"{few if np.any(self.bound < 1.0) else silent} at {self}"
        notes = [f"admissible from u = {self.smallest_admissible:g} at {self}"]
        if self.smallest_admissible == self.first(self.bound < 1.0):
            notes[0] += ", as soon as the bound is below 1"
        notes.append("measured is the upper 95 % confidence limit")
        if self.bound[-1] < 1.0 and not (self.exceeded | self.confirmed)[-1]:
            notes.append(f"{few} beyond u = {self.largest_admissible:g}")
        if self.exceeded_from is not None:
            notes.append(f"exceeded from u = {self.exceeded_from:g}, which is beyond C4 L^(1/4)")
        return "; ".join(notes)


def lemma_3(
    seed: int = 0,
    draws: int | None = None,
    *,
    dimensions: Sequence[int] = DIMENSIONS,
    depths: Sequence[int] = DEPTHS,
    scales: Sequence[float] = SCALES,
    us: Sequence[float] = US,
    threads: int | None = None,
    progress: Progress = None,
) -> list[Curve]:
    """Measure Lemma 3 on a grid of (d, L, s); a job for a thread is a block of draws of one (d, L).

    `progress` is told the networks just done. No result depends on the number of threads.
    """
    check_seed(seed)
    grid = np.array(sorted(check_positive("u", u) for u in us))
    jobs: list[tuple[list[Curve], range]] = []
    for d, L in ((d, L) for d in dimensions for L in depths):
        if check_count("d", d) < LEAST_DIMENSION:
            raise SettingError(f"Lemma 3 extends to theta by Lemma 9 only for d >= 4, got d = {d}")
        count = check_count("draws", draws_for(d) if draws is None else draws)
        zeros = np.zeros((2, len(scales), len(grid)), dtype=np.int64)
        curves = [
            Curve(d, check_depth(L), check_positive("s", s), grid, count, *zeros[:, i])
            for i, s in enumerate(scales)
        ]
        size = max(1, _BLOCK_BYTES // (8 * L * d**2))
        blocks = [range(i, min(i + size, count)) for i in range(0, count, size)]
        jobs += [(curves, block) for block in blocks]
    longest_first = sorted(jobs, key=lambda job: -len(job[1]) * job[0][0].L * job[0][0].d ** 2)
    curves = [one for curves, block in jobs if block.start == 0 for one in curves]
    lock = Lock()

    def work(job: int, cancelled: Event) -> None:
        drawn, block = longest_first[job]
        normal = draw_noise(seed, drawn[0].d, drawn[0].L, block)
        for curve in drawn:
            if cancelled.is_set():
                return
            may_fail, fails = failing(normal, curve.s, grid)
            with lock:
                curve.at_most[:] += np.count_nonzero(may_fail, axis=0)
                curve.at_least[:] += np.count_nonzero(fails, axis=0)
                if advance is not None:
                    advance(len(block))

    with advancing(progress, "random products", sum(one.draws for one in curves)) as advance:
        over_each(work, len(longest_first), thread_count(threads))
    return curves
