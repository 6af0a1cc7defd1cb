"""An atlas of what gradient descent does above the ceiling, for one data set and depth.

Rates are told as c = eta S_min/2, so that c = 1 is the ceiling 2/S_min. Every run of the map begins
next to a flattest minimiser, where runs from elsewhere are driven near the ceiling, at c = 0.9,
and is raised to its rate (`orbits`): so the attractor is followed and not lost to divergence on
the way. Which starts find it is another question, and another set of runs: basins, from a given
initialisation at the rate from the first step on.

Thresholds. At c_2 and c_4 an orbit is born whose width grows as the square root of the distance
from the threshold, so that the squared width (of the orbit; of what returns after two steps only
up to it) is a smooth function of c: a cubic is fitted on runs beyond the threshold and continued to
0, and the error is how far that of a quadratic is from it, with the fit's own. (Runs at the
threshold itself would take for ever.) c_div is the least rate at which a run diverged, so not below
the true one; its error is how far the rates tried are apart, and the next lost run from the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.arrays import Float, Whole
from flatmin.core.checks import check_count, check_depth
from flatmin.core.errors import SettingError
from flatmin.core.plain import Plain, plain
from flatmin.core.seeds import generator
from flatmin.data.regression import Regression
from flatmin.dynamics.orbits import DIVERGED, Orbits, follow_orbits
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import DEFAULT_INIT, architecture_for, initialise
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.minimisers import flattest_minimiser

if TYPE_CHECKING:
    import pandas as pd

FIRST_RATE, RATES = 0.9, np.linspace(0.9, 3.0, 400)
STARTS, STEPS, RUNS = 4, 20_000, 16
# How far from a flattest minimiser runs begin, as a share of its weights.
NOISE = 1e-3
# Rates of a threshold's own runs, and at most of the basins.
REFINED, BASIN_RATES = 24, 36
# Where the orbit of period two is measured for c_2, and how far beyond c_4 for that.
NEAR_TWO, NEAR_FOUR = (1.004, 1.05), 0.025
# Outputs kept of every run in a table.
KEPT = 128
FEWEST_POINTS = 6


@dataclass(frozen=True)
class Threshold(Plain):
    """A rate c with its error."""

    c: float
    error: float

    def __str__(self) -> str:
        places = int(np.clip(np.ceil(-np.log10(max(self.error, 1e-12))), 1, 8))
        return f"{self.c:.{places}f} +- {self.error:.1g}"


@dataclass(frozen=True)
class Basins(Plain):
    """Of runs from one initialisation: for every rate c, the share of each kind."""

    init: str
    scale: float
    runs: int
    c: tuple[float, ...]
    shares: dict[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Atlas:
    """Runs at the rates `c` from every `start`, the thresholds found, and the basins."""

    depth: int
    minimal_sharpness: float
    steps: int
    c: Float
    start: Whole
    orbits: Orbits
    c_2: Threshold | None
    c_4: Threshold | None
    c_div: Threshold | None
    basins: Basins | None = None

    def table(self) -> pd.DataFrame:
        """One row a run, with its last outputs as a list."""
        import pandas as pd

        found = self.orbits
        last = np.where(found.kind == DIVERGED, np.nan, found.output[-KEPT:])
        return pd.DataFrame(
            {
                "depth": self.depth,
                "c": self.c,
                "learning_rate": found.rate,
                "start": self.start,
                "kind": found.kind.astype(str),
                "period": found.period,
                "exponent": found.exponent,
                "transverse_exponent": found.transverse,
                "excess_risk": found.excess,
                "swing": found.swing,
                "outputs": list(last.T.astype(np.float32)),
            }
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values: thresholds, one entry a rate, and basins."""
        rates = []
        for c in np.unique(self.c):
            here = self.c == c
            kinds, counts = np.unique(self.orbits.kind[here], return_counts=True)
            rates.append(
                {
                    "c": c,
                    "learning_rate": self.orbits.rate[here][0],
                    "kinds": dict(zip(kinds.tolist(), counts.tolist(), strict=True)),
                    "exponent": _mean(self.orbits.exponent[here]),
                    "transverse_exponent": _mean(self.orbits.transverse[here]),
                    "excess_risk": _mean(self.orbits.excess[here]),
                }
            )
        found: dict[str, Any] = plain(
            {
                "depth": self.depth,
                "minimal_sharpness": self.minimal_sharpness,
                "critical_learning_rate": 2.0 / self.minimal_sharpness,
                "steps": self.steps,
                "thresholds": {"c_2": self.c_2, "c_4": self.c_4, "c_div": self.c_div},
                "rates": rates,
                "basins": self.basins,
            }
        )
        return found

    def sentence(self) -> str:
        """What was found, in words."""
        words = f"At depth {self.depth} "
        if self.c_2 is None:
            words += "no orbit of period two was seen just above the ceiling"
            near = (self.c > NEAR_TWO[0]) & (self.c < NEAR_TWO[1])
            kinds, counts = np.unique(self.orbits.kind[near], return_counts=True)
            return (
                f"{words}: most runs there are {kinds[counts.argmax()]}."
                if near.any()
                else f"{words}."
            )
        eta = 2.0 / self.minimal_sharpness
        words += f"gradient descent starts to oscillate at rate {eta * self.c_2.c:.4g}"
        if self.c_4 is not None:
            words += f", doubles its period at {eta * self.c_4.c:.4g}"
        if self.c_div is None:
            return f"{words} and diverges at none of the rates tried."
        return f"{words} and begins to diverge at {eta * self.c_div.c:.4g}."


def _mean(values: Float) -> float:
    kept = values[np.isfinite(values)]
    return float(np.mean(kept)) if len(kept) else np.nan


def atlas(
    regression: Regression,
    depth: int,
    *,
    c: Float = RATES,
    starts: int = STARTS,
    steps: int = STEPS,
    seed: int = 0,
    width: int | None = None,
    init: str = DEFAULT_INIT,
    scale: float = 1.0,
    runs: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Atlas:
    """The map at the rates `c`, thresholds, and with `runs` the basins of an initialisation.

    Hidden layers have the `width` of the features unless given; of width 1 they have the same
    orbits, because chains stay chains, and cost less.
    `progress` is called with network steps just taken; `work` says how many there will be at most.

    >>> from flatmin.data.sets import paper_samples
    >>> data = paper_samples("linear").regression()
    >>> found = atlas(data, 3, c=np.array([0.95, 1.1, 1.28]), starts=1, steps=4000)
    >>> found.orbits.kind.tolist()
    ['settled', 'period 2', 'period 4']
    """
    depth, c = check_depth(depth), _rates(c)
    if depth < 2:
        raise SettingError("above the ceiling one layer diverges: depth must be at least 2, got 1")
    if regression.targets != 1:
        raise SettingError(f"an atlas is for one target, got {regression.targets}")
    starts, steps = check_count("starts", starts), check_count("steps", steps)
    least = minimal_sharpness(regression, depth).exact
    networks = _near_flattest(
        regression, Architecture.mlp(regression.d, depth, width), starts, seed
    )

    def run(rates: Float) -> tuple[Float, Orbits]:
        every = np.repeat(rates, starts)
        start = Ensemble.from_flat(networks.architecture, np.tile(networks.flat(), (len(rates), 1)))
        etas = 2.0 * every / least
        first = np.minimum(2.0 * FIRST_RATE / least, etas)
        return every, follow_orbits(
            regression, start, etas, steps, first_rates=first, seed=seed, progress=progress
        )

    every, orbits = run(c)
    basins = None
    if runs:
        drawn = architecture_for(init, regression, depth, width=width, seed=seed)
        basins = _basins(regression, drawn, c, least, init, scale, runs, steps, seed, progress)
    return Atlas(
        depth=depth,
        minimal_sharpness=least,
        steps=steps,
        c=every,
        start=np.tile(np.arange(starts), len(c)),
        orbits=orbits,
        c_2=_second(run, c),
        c_4=_fourth(run, every, orbits),
        c_div=_divergence(run, every, orbits),
        basins=basins,
    )


def work(c: Float, starts: int, steps: int, runs: int) -> int:
    """The network steps of an atlas, at most."""
    return steps * ((len(c) + 3 * REFINED) * starts + min(BASIN_RATES, len(c)) * runs)


def _rates(c: Float) -> Float:
    rates = np.unique(np.asarray(c, dtype=float))
    if not len(rates) or not np.all(np.isfinite(rates)) or rates[0] <= 0.0:
        raise SettingError("rates c must be positive numbers")
    return rates


def _near_flattest(
    regression: Regression, network: Architecture, starts: int, seed: int
) -> Ensemble:
    """Flattest minimisers with random unit vectors, moved a little."""
    rows = []
    for i in range(starts):
        random = generator(seed, "atlas", network.depth, i)
        flat = network.join(flattest_minimiser(regression, network, random))
        size = NOISE * np.sqrt(np.mean(flat**2))
        rows.append(flat + size * random.standard_normal(network.parameters))
    return Ensemble.from_flat(network, rows)


Run = Callable[[Float], tuple[Float, Orbits]]


def _second(run: Run, c: Float) -> Threshold | None:
    """c_2, from the width of the orbit of period two."""
    if c[-1] <= 1.0:
        return None
    every, found = run(np.linspace(*NEAR_TWO, REFINED))
    kept = found.period == 2
    return _continued(every[kept], found.swing[kept] ** 2)


def _fourth(run: Run, every: Float, orbits: Orbits) -> Threshold | None:
    """c_4, from what is not yet back after two steps."""
    twice = every[orbits.period == 2]
    beyond = every[orbits.period == 4]
    if not len(twice) or not np.any(beyond > twice.min()):
        return None
    after = beyond[beyond > twice.min()].min()
    before = twice[twice < after].max()
    c, found = run(np.linspace(before, after + NEAR_FOUR, REFINED))
    last = found.output[-KEPT:]
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
    return Threshold(value, abs(value - first) + error)


def _divergence(run: Run, every: Float, orbits: Orbits) -> Threshold | None:
    """The least rate at which a run diverged, looked for again below the first of the map."""
    lost = every[orbits.kind == DIVERGED]
    if not len(lost):
        return None
    first, rates = lost.min(), np.unique(every)
    below = rates[rates < first]
    # Just above the threshold few runs diverge: look further down than the last rate without any.
    low = below[max(0, len(below) - 8)] if len(below) else 0.5 * first
    c, found = run(np.linspace(low, first, REFINED))
    every_lost = np.sort(np.concatenate([lost, c[found.kind == DIVERGED]]))
    gap = every_lost[1] - every_lost[0] if len(every_lost) > 1 else 0.0
    return Threshold(float(every_lost[0]), float((first - low) / (REFINED - 1) + gap))


def _basins(
    regression: Regression,
    network: Architecture,
    c: Float,
    least: float,
    init: str,
    scale: float,
    runs: int,
    steps: int,
    seed: int,
    progress: Callable[[int], None] | None,
) -> Basins:
    """What becomes of runs from one initialisation at the rate from the first step on."""
    rates = c[np.unique(np.linspace(0, len(c) - 1, BASIN_RATES).round().astype(int))]
    addresses = [("basin", network.depth, i) for i in range(runs)]
    starts = initialise(network, init, scale, seed, addresses, regression)
    every = Ensemble.from_flat(network, np.tile(starts.flat(), (len(rates), 1)))
    etas = np.repeat(2.0 * rates / least, runs)
    found = follow_orbits(regression, every, etas, steps, seed=seed, progress=progress)
    kind = found.kind.reshape(len(rates), runs)
    shares = {str(name): tuple(np.mean(kind == name, axis=1).tolist()) for name in np.unique(kind)}
    return Basins(init, scale, runs, tuple(rates.tolist()), shares)
