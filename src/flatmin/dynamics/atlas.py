"""An atlas of what gradient descent does above the ceiling, for one data set and depth.

Rates are told as c = eta S_min/2, so that c = 1 is the ceiling 2/S_min. Every run of the map begins
next to a flattest minimiser, where runs from elsewhere are driven near the ceiling, at c = 0.9,
and is raised to its rate (`orbits`): so the attractor is followed and not lost to divergence on
the way. Which starts find it is another question, and another set of runs: basins, from a given
initialisation at the rate from the first step on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.arrays import Float, Whole
from flatmin.core.checks import check_count, check_depth
from flatmin.core.errors import SettingError
from flatmin.core.plain import plain
from flatmin.core.seeds import generator
from flatmin.data.regression import Regression
from flatmin.dynamics.orbits import DIVERGED, Orbits, follow_orbits
from flatmin.dynamics.thresholds import NEAR_TWO, REFINED, Threshold, divergence, fourth, second
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
# Rates of the basins, at most.
BASIN_RATES = 36
# Outputs kept of every run in a table.
KEPT = 128


@dataclass(frozen=True)
class Basins:
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
        c_2=second(run, c),
        c_4=fourth(run, every, orbits),
        c_div=divergence(run, every, orbits),
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
