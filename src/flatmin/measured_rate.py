"""The largest learning rate that works from a given initialisation, measured on an ensemble.

2/S_min is a ceiling by theory; how close gradient descent comes to it depends on the start. Here
every network of an ensemble gets its own threshold, the largest rate at which it converges within
a budget of steps: first a grid of rates for all networks at once, then a bisection of every
network's own bracket, all in parallel. The working rate for a share q of runs is then the
(1-q)-quantile of the thresholds. It is confirmed by running the whole ensemble at it, and its
confidence interval comes from order statistics, so it assumes nothing about the distribution.

A run counts as converged when its excess risk has fallen to 1e-6 of that of w = 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatmin.checks import check_count, check_positive
from flatmin.dynamics.descent import Progress, descend
from flatmin.errors import SettingError
from flatmin.initialisation import initialise
from flatmin.network import Architecture, Ensemble
from flatmin.problem import Regression
from flatmin.theory.minimal_sharpness import critical_learning_rate

Float = NDArray[np.float64]

LEARNED = 1e-6
CONFIDENCE = 0.95
_GRID = np.append(np.geomspace(1e-3, 0.5, 10), np.linspace(0.55, 1.05, 11))
_BISECTIONS = 8


@dataclass(frozen=True)
class WorkingRate:
    """The measured rate with its confidence interval, and what was run to find it.

    `share` is the share of runs that did converge at `value`; `value` is 0 if no rate worked.
    """

    value: float
    low: float
    high: float
    share: float
    wanted_share: float
    runs: int
    steps: int
    init: str
    scale: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def network_steps(runs: int, steps: int) -> int:
    """The network steps of a measurement that is confirmed at once, for a progress bar."""
    return runs * steps * (len(_GRID) + _BISECTIONS + 1)


def working_rate(
    regression: Regression,
    architecture: Architecture,
    init: str = "gaussian",
    scale: float = 0.35,
    *,
    share: float = 0.95,
    runs: int = 200,
    steps: int = 5000,
    seed: int = 0,
    progress: Progress | None = None,
) -> WorkingRate:
    """Measure the largest rate at which a share of runs converges within a number of steps."""
    if not 0.0 < check_positive("share", share) < 1.0:
        raise SettingError(f"share must lie between 0 and 1, got {share}")
    runs, steps = check_count("runs", runs), check_count("steps", steps)
    ceiling = critical_learning_rate(regression, architecture.depth, architecture.output_norm)
    start = initialise(
        architecture, init, scale, seed, [("working rate", i) for i in range(runs)], regression
    )
    flat = start.flat()
    goal = LEARNED * (regression.risk_at_zero - regression.risk_min)

    def learns(networks: NDArray[np.int64], rates: Float) -> NDArray[np.bool_]:
        chosen = Ensemble.from_flat(architecture, flat[networks])
        # Stopping at any smaller gradient than the goal's changes nothing about the answer.
        outcome = descend(regression, chosen, rates, steps, progress=progress)
        return np.asarray(outcome.excess_risk <= goal)

    everyone = np.arange(runs)
    grid = ceiling * _GRID
    tried = learns(np.tile(everyone, len(grid)), np.repeat(grid, runs)).reshape(len(grid), runs)
    # The bracket of each network: its largest grid rate that works, and the next one.
    best = np.where(tried.any(axis=0), len(grid) - 1 - np.argmax(tried[::-1], axis=0), -1)
    low = np.where(best >= 0, grid[best], 0.0)
    high = grid[np.minimum(best + 1, len(grid) - 1)]
    for _ in range(_BISECTIONS):
        middle = np.where(best >= 0, 0.5 * (low + high), grid[0])
        works = learns(everyone, middle) & (best >= 0)
        low, high = np.where(works, middle, low), np.where(works, high, middle)
    thresholds = np.sort(low)
    rank = int((1.0 - share) * runs + 1e-9)
    # Thresholds are found one network at a time; the rate is what the whole ensemble confirms.
    value = seen = 0.0
    for candidate in thresholds[rank::-1]:
        if candidate <= 0.0:
            break
        reached = float(learns(everyone, np.full(runs, candidate)).mean())
        if reached >= share:
            value, seen = float(candidate), reached
            break
    from scipy.stats import binom

    tail = 0.5 * (1.0 - CONFIDENCE)
    lowest = int(binom.ppf(tail, runs, 1.0 - share)) - 1
    highest = int(binom.ppf(1.0 - tail, runs, 1.0 - share))
    return WorkingRate(
        value,
        min(float(thresholds[lowest]) if lowest >= 0 else 0.0, value),
        max(float(thresholds[min(highest, runs - 1)]), value),
        seen,
        share,
        runs,
        steps,
        init,
        float(scale),
    )
