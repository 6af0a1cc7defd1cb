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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from flatmin.checks import check_count, check_depth, check_positive, check_seed
from flatmin.errors import SettingError
from flatmin.ledger.lemma_9 import rank_one_directions
from flatmin.ledger.record import Record, Verdict, not_applicable
from flatmin.parallel import over_each, thread_count
from flatmin.seeds import generator

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int = NDArray[np.intp]
Number = float | Float
Progress = Callable[[int], None]

STATEMENT = "lemma-3"
DIMENSIONS = (4, 8, 16, 32)
DEPTHS = (5, 20, 80)
SCALES = (0.25, 0.5, 1.0)
DRAWS = {4: 2000, 8: 1000, 16: 500, 32: 300}
"""Networks per (d, L), by d."""
US = tuple(round(0.05 * i, 2) for i in range(1, 21)) + tuple(
    round(1.0 + 0.1 * i, 1) for i in range(1, 41)
)
"""0.05..1 in steps of 0.05, then up to 5 in steps of 0.1: from 4.08 on every bound is below 1."""
CONFIDENCE = 0.95
LEAST_DIMENSION = 4
# Bytes of noise a block of draws may take.
_BLOCK_BYTES = 2**25
_SQUARED_CONDITION = 1e-6


def norm_ceiling(s: Number, u: Number) -> Float:
    """4 exp(s^2/2 + u), Lemma 3."""
    return np.asarray(4.0 * np.exp(s**2 / 2.0 + u))


def singular_value_floor(s: Number, u: Number, d: Number) -> Float:
    """exp(-2 s^2/d - u) / 4, Lemma 3."""
    return np.asarray(np.exp(-2.0 * s**2 / d - u) / 4.0)


def failure_bound(s: Number, u: Number, d: Number) -> Float:
    """8 exp(-d u^2 / (32 s^2)), Lemma 3."""
    return np.asarray(8.0 * np.exp(-d * u**2 / (32.0 * s**2)))


def theta_ball(s: Number, u: Number) -> Float:
    """exp(-2 s^2 - 4 u) / 64, Lemma 3: what every |theta_k|_2 may be."""
    return np.asarray(np.exp(-2.0 * s**2 - 4.0 * u) / 64.0)


def confidence_interval(
    failures: ArrayLike, draws: int, confidence: float = CONFIDENCE
) -> tuple[Float, Float]:
    """Clopper and Pearson's exact limits of a probability seen `failures` times in `draws`."""
    seen, tail = np.asarray(failures), (1.0 - confidence) / 2.0
    low = np.where(seen == 0, 0.0, beta.ppf(tail, np.maximum(seen, 1), draws - seen + 1))
    left = np.maximum(draws - seen, 1)
    high = np.where(seen == draws, 1.0, beta.ppf(1.0 - tail, seen + 1, left))
    return low, high


@dataclass(frozen=True, eq=False)
class Extremes:
    """What is kept of the networks of one (d, L, s): logarithms of singular values, each once."""

    d: int
    L: int
    s: float
    us: Float
    norm: Float
    """max_k ln |W_k...W_1|_2 as `[draw]`."""
    smallest: Float
    """min_k ln smin(W_k...W_1) as `[draw]`."""
    pushed_norm: Float
    """The largest ln |W~_k...W~_1|_2 found over k and theta in the ball of u, `[draw, u]`."""
    pushed_smallest: Float
    """The least ln smin(W~_k...W~_1) found over k and theta in the ball of u, `[draw, u]`."""

    @classmethod
    def empty(cls, d: int, L: int, s: float, us: Float, draws: int) -> Extremes:
        """Room for `draws` networks."""
        one, many = (draws,), (draws, len(us))
        return cls(d, L, s, us, np.empty(one), np.empty(one), np.empty(many), np.empty(many))

    @property
    def draws(self) -> int:
        """How many networks."""
        return len(self.norm)

    def fails_tight(self, block: slice = slice(None)) -> Bool:
        """Breaks the proof's bounds at theta = 0, so it may fail for some theta: `[draw, u]`."""
        upper, lower = self._limits(2.0)
        return np.asarray(
            (self.norm[block, None] > upper) | (self.smallest[block, None] < lower), dtype=bool
        )

    def fails(self, block: slice = slice(None)) -> Bool:
        """Breaks the lemma's bounds at a theta of the ball: `[draw, u]`."""
        upper, lower = self._limits(1.0)
        return np.asarray(
            (self.pushed_norm[block] > upper) | (self.pushed_smallest[block] < lower), dtype=bool
        )

    def _limits(self, tighter: float) -> tuple[Float, Float]:
        upper = np.log(norm_ceiling(self.s, self.us) / tighter)
        return upper, np.log(singular_value_floor(self.s, self.us, self.d) * tighter)


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
        return confidence_interval(self.at_least, self.draws)[0]

    @cached_property
    def high(self) -> Float:
        """Upper confidence limit, from the networks that may fail."""
        return confidence_interval(self.at_most, self.draws)[1]

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
        return _first(self.us, self.where(Status.EXCEEDED) & (self.us > self._last()))

    def _last(self) -> float:
        return -np.inf if self.largest_admissible is None else self.largest_admissible

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

    def _words(self, status: Status) -> str:
        unresolved = status is Status.UNRESOLVED
        return f"{status.value} by {self.draws} draws" if unresolved else status.value

    def rows(self) -> list[dict[str, Any]]:
        """One plain row per u."""
        return [
            {
                "d": self.d,
                "L": self.L,
                "s": self.s,
                "u": float(u),
                "bound": float(self.bound[i]),
                "draws": self.draws,
                "at_least": int(self.at_least[i]),
                "at_most": int(self.at_most[i]),
                "low": float(self.low[i]),
                "high": float(self.high[i]),
                "status": self._words(self.status[i]),
                "admissible": bool(self.admissible[i]),
            }
            for i, u in enumerate(self.us)
        ]


@dataclass(frozen=True, eq=False)
class Lemma3Table:
    """Failure probabilities over a grid of (d, L, s), and which u are admissible."""

    curves: tuple[Curve, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row per (d, L, s, u)."""
        return [row for curve in self.curves for row in curve.rows()]

    def admissible(self) -> list[dict[str, Any]]:
        """One row per (d, L, s): where the bound is below 1, which u work, where failures end."""
        return [
            {
                "d": curve.d,
                "L": curve.L,
                "s": curve.s,
                "draws": curve.draws,
                "bound_below_1_from": curve.smallest_informative,
                "admissible_from": curve.smallest_admissible,
                "confirmed_to": curve.largest_admissible,
                "exceeded_from": curve.exceeded_from,
                "failures_below_5_percent_from": curve.quiet_from(),
                "verdict": curve.verdict.value,
            }
            for curve in self.curves
        ]

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
    return len(depths) * len(scales) * sum(_draws(d, draws) for d in dimensions)


def sample(
    seed: int,
    draws: int | dict[int, int] | None,
    dimensions: Sequence[int],
    depths: Sequence[int],
    scales: Sequence[float],
    us: Sequence[float],
    *,
    noise: float = 1.0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Extremes]:
    """Draw the networks of a grid; one job for a thread is a block of draws of one (d, L).

    `noise` multiplies the weights' noise and not the s that is claimed for them: other than 1 it
    makes networks that the lemma is not about. No result depends on the number of threads.
    """
    check_seed(seed)
    grid = np.array(sorted(check_positive("u", u) for u in us))
    for d in dimensions:
        _check_dimension(d)
    found = [
        [Extremes.empty(d, check_depth(L), check_positive("s", s), grid, _draws(d, draws))
         for s in scales]
        for d in dimensions
        for L in depths
    ]  # fmt: skip
    jobs = [(cell, block) for cell in found for block in _blocks(cell[0])]
    jobs.sort(key=lambda job: -_work(job[0][0], job[1]))
    lock = Lock()

    def work(job: int, cancelled: Event) -> None:
        cell, block = jobs[job]
        normal = draw_noise(seed, cell[0].d, cell[0].L, range(block.start, block.stop))
        for extremes in cell:
            if cancelled.is_set():
                return
            _measure(extremes, block, normal, noise)
            if progress is not None:
                with lock:
                    progress(len(normal))

    over_each(work, len(jobs), threads or thread_count())
    return [extremes for cell in found for extremes in cell]


def draw_noise(seed: int, d: int, L: int, draws: Iterable[int]) -> Float:
    """N_1..N_L of the draws as `[draw, layer, d, d]`, each from its own address (d, L, draw)."""
    return np.stack(
        [generator(seed, STATEMENT, d, L, draw).standard_normal((L, d, d)) for draw in draws]
    )


def _measure(extremes: Extremes, block: slice, normal: Float, noise: float) -> None:
    """Fill one block of draws."""
    factor = noise * extremes.s / np.sqrt(extremes.L * extremes.d)
    norms, smallest = log_extremes(normal, factor)
    extremes.norm[block], extremes.smallest[block] = norms.max(axis=1), smallest.min(axis=1)
    extremes.pushed_norm[block] = norms.max(axis=1)[:, None]
    extremes.pushed_smallest[block] = smallest.min(axis=1)[:, None]
    # Only a network that may fail and does not at theta = 0 needs a harder theta.
    unsure = extremes.fails_tight(block) & ~extremes.fails(block)
    rows, columns = np.flatnonzero(unsure.any(axis=1)), np.flatnonzero(unsure.any(axis=0))
    if len(rows) == 0:
        return
    layers = [np.eye(extremes.d) + factor * normal[rows, k] for k in range(extremes.L)]
    radius = theta_ball(extremes.s, extremes.us[columns])
    where = np.ix_(rows + block.start, columns)
    up = pushed(layers, np.argmax(norms[rows], axis=1), radius, 0)
    down = pushed(layers, np.argmin(smallest[rows], axis=1), -radius, -1)
    extremes.pushed_norm[where] = np.maximum(extremes.pushed_norm[where], up)
    extremes.pushed_smallest[where] = np.minimum(extremes.pushed_smallest[where], down)


def log_extremes(normal: Float, factor: float) -> tuple[Float, Float]:
    """ln |W_k...W_1|_2 and ln smin(W_k...W_1) as `[draw, layer]`, W_k = I + factor N_k."""
    draws, L, d, _ = normal.shape
    norms, smallest = np.empty((draws, L)), np.empty((draws, L))
    product: Float = np.broadcast_to(np.eye(d), (draws, d, d))
    for k in range(L):
        product = product + factor * (normal[:, k] @ product)
        norms[:, k], smallest[:, k] = extreme_singular_values(product)
    with np.errstate(divide="ignore"):
        return np.log(norms), np.log(smallest)


def extreme_singular_values(matrices: Float) -> tuple[Float, Float]:
    """The largest and the smallest singular value of each matrix.

    From the eigenvalues of A'A, which takes two thirds of the time of A's singular values and, for
    a condition number below 1e3, leaves an error of 1e-9 or less; other matrices are done again.
    """
    squares = np.linalg.eigvalsh(matrices.transpose(0, 2, 1) @ matrices)[:, [-1, 0]]
    poor = squares[:, 1] < _SQUARED_CONDITION * squares[:, 0]
    values = np.sqrt(np.maximum(squares, 0.0))
    if poor.any():
        values[poor] = np.linalg.svd(matrices[poor], compute_uv=False)[:, [0, -1]]
    return values[:, 0], values[:, 1]


def pushed(layers: Sequence[Float], at: Int, radius: Float, which: int) -> Float:
    """ln |W~_K...W~_1 x| for theta_k = radius c_k e_k' as `[network, radius]`, K - 1 = `at`.

    c_k and e_k are as in `rank_one_directions` and x = e_1 is a unit vector, so this is at most
    ln |W~_K...W~_1|_2 and at least ln smin(W~_K...W~_1).
    """
    left, right = rank_one_directions(layers, at, which)
    h = np.repeat(right[0][:, :, None], len(radius), axis=2)
    reached = np.empty((len(h), len(radius)))
    for k, w in enumerate(layers):
        along = np.einsum("ni,niu->nu", right[k], h) * radius / len(layers)
        h = w @ h + left[k][:, :, None] * along[:, None, :]
        reached[at == k] = np.linalg.norm(h[at == k], axis=1)
    with np.errstate(divide="ignore"):
        return np.log(reached)


def _blocks(extremes: Extremes) -> list[slice]:
    """Ranges of draws whose noise fits a block."""
    size = max(1, _BLOCK_BYTES // (8 * extremes.L * extremes.d**2))
    return [
        slice(first, min(first + size, extremes.draws)) for first in range(0, extremes.draws, size)
    ]


def _work(extremes: Extremes, block: slice) -> float:
    """About how much work a block is, to begin with the longest."""
    return float((block.stop - block.start) * extremes.L * extremes.d**2)


def _draws(d: int, draws: int | dict[int, int] | None) -> int:
    """Networks for this d; of dimensions not named, as many as for the next larger one named."""
    if isinstance(draws, int):
        return check_count("draws", draws)
    table = DRAWS if draws is None else draws
    larger = [key for key in sorted(table) if key >= d]
    return check_count("draws", table[larger[0] if larger else max(table)])


def _check_dimension(d: int) -> None:
    if check_count("d", d) < LEAST_DIMENSION:
        raise SettingError(f"Lemma 3 extends to theta by Lemma 9 only for d >= 4, got d = {d}")


def _first(values: Float, where: Bool) -> float | None:
    return float(values[np.argmax(where)]) if where.any() else None


def _record(s: float, curves: list[Curve]) -> Record:
    """The record of one s: its tightest comparison and the u that work."""
    verdict = _overall([curve.verdict for curve in curves])
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
        STATEMENT,
        _hypothesis(curves),
        verdict,
        float(curve.bound[i]),
        measured,
        slack,
        f"d = {curve.d}, L = {curve.L}, u = {curve.us[i]:g}",
        room=0.0,
        violations=int(curve.at_least[i]) if verdict is Verdict.VIOLATED else 0,
        **fields,
    )


def _overall(verdicts: list[Verdict]) -> Verdict:
    order = (Verdict.VIOLATED, Verdict.HOLDS, Verdict.NOT_APPLICABLE)
    return min(verdicts, key=order.index)


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
