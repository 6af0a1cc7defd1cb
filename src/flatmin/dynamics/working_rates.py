"""The share of runs that learn against the learning rate, measured on an ensemble.

Every network is run at every rate, for a number of steps at most, and ends in one of three ways: it
learned (see `trial`); it was unstable (diverged, or oscillates without falling); it was too slow
(still learning, or stalled). The curve is bracketed: rates are added upwards in factors of 1.5
until none learns, and downwards until all are too slow. Then neighbours with shares that differ by
more than a fifth get rates in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from flatmin.core.checks import check_count, check_kind
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.progress import Progress, advancing
from flatmin.core.shown import Shown
from flatmin.core.statistics import share_interval
from flatmin.data.samples import Problem, regression_of
from flatmin.dynamics.endings import LEARNED_AT, check_share
from flatmin.dynamics.trial import trial
from flatmin.network.architecture import Architecture
from flatmin.network.initialisation import DEFAULT_INIT, DEFAULT_SCALE, initialise
from flatmin.theory.prediction import predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS, STEPS, SHARE = 100, 5000, 0.95
MOST_RATES = 40
_RATIO, _JUMP, _CLOSE = 1.5, 0.2, 1.03
_LOWEST = 1e-12  # of the ceiling


class RatePoint(Shown, eq=True):
    """One rate: shares of runs, and the steps after which half of those that learn have learned."""

    learning_rate: float
    learned: float
    learned_low: float
    learned_high: float
    unstable: float
    slow: float
    median_steps: float | None


class RateCurve(Shown, eq=True):
    """Points by ascending rate, and how they were measured. `ceiling` is 2/S_min."""

    points: tuple[RatePoint, ...]
    ceiling: float
    init: str
    scale: float
    runs: int
    steps: int
    learned_at: float

    def largest(self, share: float = SHARE) -> float | None:
        """The largest measured rate at which at least this share of runs learned."""
        working = [one.learning_rate for one in self.points if one.learned >= share]
        return max(working, default=None)

    def sentence(self, share: float = SHARE) -> str:
        """What the curve says, in one sentence."""
        best = self.largest(share)
        start = f"from init {self.init} (scale {self.scale:g})"
        if best is not None:
            return (
                f"The largest rate measured at which {100 * share:g} % of runs learn within "
                f"{self.steps} steps {start} is {best:.4g}."
            )
        top = max(self.points, key=lambda one: one.learned)
        where = f"at {top.learning_rate:.4g}, where {100 * top.learned:.3g} % learned"
        mixed = f"{100 * top.unstable:.3g} % were unstable and {100 * top.slow:.3g} % too slow"
        return (
            f"No rate lets {100 * share:g} % of runs learn within {self.steps} steps {start}: "
            f"{where}, {mixed}."
        )

    def table(self) -> Listing:
        """A row a rate."""

        def percent(share: float) -> str:
            return f"{100 * share:.3g} %"

        rows = [
            (
                number(one.learning_rate),
                percent(one.learned),
                percent(one.unstable),
                percent(one.slow),
                "-" if one.median_steps is None else f"{one.median_steps:.0f}",
            )
            for one in self.points
        ]
        return Listing(("Learning rate", "learned", "unstable", "too slow", "median steps"), rows)

    def page(self) -> Page:
        """The table, and what it says."""
        return [self.table(), Remarks(self.sentence())]

    def plot(self, advised: float | None = None) -> Figure:
        """The curve, with the ceiling and, if given, the rate that was advised."""
        from flatmin.dynamics.figures import rate_figure

        title = f"init {self.init}, scale {self.scale:g}"
        return rate_figure({title: self}, {title: advised})


def rate_curve(
    problem: Problem,
    architecture: Architecture,
    init: str = DEFAULT_INIT,
    scale: float = DEFAULT_SCALE,
    *,
    runs: int = RUNS,
    steps: int = STEPS,
    learned_at: float = LEARNED_AT,
    seed: int = 0,
    progress: Progress = None,
    label: str = "measuring rates",
) -> RateCurve:
    """Measure the curve. `progress` is told 1 for each rate, of which MOST_RATES at most."""
    runs, steps = check_count("runs", runs), check_count("steps", steps)
    learned_at = check_share("learned_at", learned_at)
    regression = regression_of(problem)
    check_kind("architecture", architecture, Architecture)
    ceiling = predict(regression, architecture.depth, architecture.output_norm).critical_rate
    architecture.check_size(runs)
    addresses = [("rate curve", i) for i in range(runs)]
    start = initialise(architecture, init, scale, seed, addresses, regression)
    points: dict[float, RatePoint] = {}

    def measure(rate: float) -> RatePoint:
        found = trial(problem, start, rate, steps, learned_at)
        learned = found.learned
        # Above the ceiling nothing settles: a risk that happens to fall will rise again.
        unstable = ~learned if rate > ceiling else found.unstable
        low, high = share_interval(int(learned.sum()), runs)
        if advance is not None:
            advance(1)
        points[rate] = RatePoint(
            learning_rate=rate,
            learned=float(learned.mean()),
            learned_low=low,
            learned_high=high,
            unstable=float(unstable.mean()),
            slow=float((~learned & ~unstable).mean()),
            median_steps=float(np.median(found.arrival[learned])) if learned.any() else None,
        )
        return points[rate]

    with advancing(progress, label, MOST_RATES) as advance:
        _bracket(measure, ceiling)
        _refine(measure, points)
    return RateCurve(
        points=tuple(points[rate] for rate in sorted(points)),
        ceiling=ceiling,
        init=init,
        scale=float(scale),
        runs=runs,
        steps=steps,
        learned_at=learned_at,
    )


def _bracket(measure: Callable[[float], RatePoint], ceiling: float) -> None:
    """Up from the ceiling until none learns, down from it until all are too slow.

    Where all runs end alike there is little to see, and strides grow from 1.5 to 10.
    """
    top = measure(ceiling)
    rate = _RATIO * ceiling
    while measure(rate).learned > 0.0 and rate < 10.0 * ceiling:
        rate *= _RATIO
    rate, stride, point = ceiling, _RATIO, top
    while point.slow < 1.0 and rate > _LOWEST * ceiling:
        rate /= stride
        point = measure(rate)
        alike = max(point.learned, point.unstable) == 1.0
        stride = min(stride * _RATIO, 10.0) if alike else _RATIO


def _refine(measure: Callable[[float], RatePoint], points: dict[float, RatePoint]) -> None:
    """Rates between neighbours whose shares differ much, the largest difference first."""
    while len(points) < MOST_RATES:
        shares = {rate: np.array([points[rate].learned, points[rate].unstable]) for rate in points}
        gaps = [
            (float(np.abs(shares[low] - shares[high]).max()), low, high)
            for low, high in pairwise(sorted(points))
            if high / low > _CLOSE
        ]
        jump, low, high = max(gaps, default=(0.0, 0.0, 0.0))
        if jump <= _JUMP:
            return
        measure(math.sqrt(low * high))
