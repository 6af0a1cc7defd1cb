"""Where one kind of orbit gives way to the next, from runs, with errors.

At c_2 and c_4 something is born whose squared width is a smooth function of c: the orbit of period
two; the distance of an output from that two steps before. A cubic is fitted on runs beyond the
threshold and continued to 0; the error is how far a quadratic's is from it, with the fit's own.

c_div lies between two rates, and its error is half of their distance. The upper is the least at
which a run diverged. The lower is the next below it at which all survive, less the distance from
the first rate with a loss to the sixth: as rare as losses are above, they may have been missed
below.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.shown import Shown
from flatmin.dynamics.orbits import DIVERGED, Orbits

# Rates of a threshold's own runs.
REFINED = 24
# Where the orbit of period two is measured for c_2, and how far beyond c_4 for that.
NEAR_TWO, NEAR_FOUR = (1.004, 1.05), 0.025
# The last outputs looked at, and the fewest rates that a cubic is fitted to.
WATCHED_OUTPUTS, FEWEST_POINTS = 128, 6
# Rates with losses that tell how rare they are.
_LOSSES = 6


class Threshold(Shown, eq=True):
    """A rate c with its error."""

    c: float
    error: float

    def digits(self, most: int) -> str:
        """c with the digits that its error leaves, at most so many."""
        places = int(np.clip(np.ceil(-np.log10(max(self.error, 1e-12))), 1, most))
        return f"{self.c:.{places}f}"

    def __str__(self) -> str:
        return f"{self.digits(8)} +- {self.error:.1g}"


Run = Callable[[Float], tuple[Float, Orbits]]
"""Runs at rates c, from every start: the c of each, and its orbit."""


def second(run: Run, c: Float) -> Threshold | None:
    """c_2, from the width of the orbit of period two."""
    if c[-1] <= 1.0:
        return None
    every, found = run(np.linspace(*NEAR_TWO, REFINED))
    kept = found.period == 2
    return _continued(every[kept], found.swing[kept] ** 2)


def fourth(run: Run, every: Float, orbits: Orbits) -> Threshold | None:
    """c_4, from what is not yet back after two steps."""
    twice = every[orbits.period == 2]
    beyond = every[orbits.period == 4]
    if not len(twice) or not np.any(beyond > twice.min()):
        return None
    after = beyond[beyond > twice.min()].min()
    before = twice[twice < after].max()
    c, found = run(np.linspace(before, after + NEAR_FOUR, REFINED))
    last = found.output[-WATCHED_OUTPUTS:]
    split = np.max(np.abs(last[2:] - last[:-2]), axis=0)
    kept = (found.period == 4) & (split > 0.03 * found.swing)
    return _continued(c[kept], split[kept] ** 2)


def _continued(c: Float, squared: Float) -> Threshold | None:
    """Where a squared width, fitted beyond its threshold, is 0."""
    if len(np.unique(c)) < FEWEST_POINTS:
        return None
    centre, spread = float(c.min()), float(np.ptp(c))

    def zero(degree: int) -> tuple[float, float]:
        fit, covariance = np.polyfit((c - centre) / spread, squared, degree, cov=True)
        roots = np.roots(fit)
        # The real root nearest to the first point.
        real = roots[np.abs(roots.imag) < 1e-9].real
        best = real[np.argmin(np.abs(real))] if len(real) else np.nan
        slope = np.polyval(np.polyder(fit), best)
        powers = best ** np.arange(degree, -1, -1)
        error = np.sqrt(powers @ covariance @ powers) / abs(slope)
        return centre + spread * float(best), spread * float(error)

    (first, _), (value, error) = zero(2), zero(3)
    if not np.isfinite(value):
        return None
    return Threshold(c=value, error=abs(value - first) + error)


def divergence(run: Run, every: Float, orbits: Orbits) -> Threshold | None:
    """c_div, between the last rate that all runs survive and the first at which one is lost."""
    lost, tried = every[orbits.kind == DIVERGED], every
    if not len(lost):
        return None
    for reach in (8, 4):
        below = np.unique(tried[tried < lost.min()])
        # Just above the threshold few runs diverge: look further down than the last rate without.
        low = below[-min(reach, len(below))] if len(below) else 0.5 * lost.min()
        c, found = run(np.linspace(low, lost.min(), REFINED))
        lost = np.unique(np.concatenate([lost, c[found.kind == DIVERGED]]))
        tried = np.concatenate([tried, c])
    survived = np.max(tried[tried < lost[0]], initial=0.0)
    gap = max(lost[min(_LOSSES, len(lost)) - 1] - lost[0], lost[0] - survived)
    low, high = float(survived - gap), float(lost[0])
    return Threshold(c=0.5 * (low + high), error=0.5 * (high - low))
