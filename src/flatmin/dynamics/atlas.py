"""An atlas of what gradient descent does above the ceiling, for one data set.

Rates are told as c = eta S_min/2, so that c = 1 is the ceiling 2/S_min. Every run of the map begins
next to a flattest minimiser, where runs from elsewhere are driven near the ceiling, at c = 0.9,
and is raised to its rate (`orbits`): so the attractor is followed and not lost to divergence on
the way. Which starts find it is another question, and another set of runs: basins, from a given
initialisation at the rate from the first step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float, numbers
from flatmin.core.checks import check_count, check_depth, check_nonnegative, check_several
from flatmin.core.errors import SettingError
from flatmin.core.progress import Progress, advancing
from flatmin.core.seeds import generator
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, regression_of
from flatmin.data.sets import paper_samples
from flatmin.dynamics.atlas_record import Atlas, Atlases, Basins
from flatmin.dynamics.orbits import Orbits, follow_orbits
from flatmin.dynamics.thresholds import REFINED, divergence, fourth, second
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import DEFAULT_INIT, architecture_for, initialise, resolve_scale
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.minimisers import flattest_minimiser

FIRST_RATE, RATES = 0.9, np.linspace(0.9, 3.0, 400)
DEPTH, STARTS, STEPS = 10, 4, 20_000
# How far from a flattest minimiser runs begin, as a share of its weights.
NOISE = 1e-3
# Rates of the basins, at most.
BASIN_RATES = 36
# Steps of all networks together, at most: a chaotic run never ends before its last step.
MOST_WORK = 10**10


def atlases(
    regression: Problem | None = None,
    depth: int | None = None,
    *,
    depths: Sequence[int] = (),
    **settings: Any,
) -> Atlases:
    """The atlas at a depth (by default 10), or at several; of the paper's data if none are given.

    `settings` are those of `atlas`.
    """
    depths = [check_depth(one) for one in check_several("depths", depths, "a list of depths")]
    if depth is not None and depths:
        raise SettingError("depth and depths exclude each other: give one of them")
    data = paper_samples("linear") if regression is None else regression
    chosen = depths or (check_depth(DEPTH if depth is None else depth),)
    return Atlases(depths=tuple(atlas(data, one, **settings) for one in sorted(set(chosen))))


@np.errstate(all="ignore")  # what overflows is judged, not warned of
def atlas(
    regression: Problem,
    depth: int,
    *,
    c: ArrayLike | None = None,
    starts: int = STARTS,
    steps: int = STEPS,
    seed: int = 0,
    width: int | None = None,
    init: str = DEFAULT_INIT,
    scale: float | str = 1.0,
    runs: int = 0,
    progress: Progress = None,
) -> Atlas:
    """The map at the rates `c`, thresholds, and with `runs` the basins of an initialisation.

    Hidden layers have the `width` of the features unless given; of width 1 they have the same
    orbits, because chains stay chains, and cost less.
    `progress` is told network steps just taken; `work` says how many there will be at most.

    >>> from flatmin.data.sets import paper_samples
    >>> data = paper_samples("linear").regression()
    >>> found = atlas(data, 3, c=[0.95, 1.1, 1.28], starts=1, steps=4000)
    >>> found.orbits.kind.tolist()
    ['settled', 'period 2', 'period 4']
    """
    regression = regression_of(regression)
    depth, rates = check_depth(depth), _rates(RATES if c is None else c)
    if depth < 2:
        raise SettingError("depth must be at least 2: above the ceiling one layer diverges, got 1")
    if regression.targets != 1:
        raise SettingError(f"an atlas is for one target, got {regression.targets}")
    starts, steps = check_count("starts", starts), check_count("steps", steps)
    runs = 0 if check_nonnegative("runs", runs) == 0.0 else check_count("runs", runs)
    if (total := work(rates, starts, steps, runs)) > MOST_WORK:
        raise SettingError(
            f"an atlas of {total:.3g} steps in all is too large, at most {MOST_WORK:.0e}: ask for "
            "fewer steps, rates, starts or runs"
        )
    least = minimal_sharpness(regression, depth).exact
    near = Architecture.mlp(regression.d, depth, width)
    near.check_size(starts * len(rates))
    networks = _near_flattest(regression, near, starts, seed)
    drawn = None
    if runs:
        network = architecture_for(init, regression, depth, width=width, seed=seed)
        scale = resolve_scale(scale, init, regression, network)
        network.check_size(runs * min(len(rates), BASIN_RATES))
        addresses = [("basin", depth, i) for i in range(runs)]
        drawn = initialise(network, init, scale, seed, addresses, regression)

    def follow(start: Ensemble, c: Float, first: float | None = None) -> Orbits:
        """Every network of `start` at every c."""
        every = np.tile(start.flat(), (len(c), 1))
        etas = np.repeat(2.0 * c / least, len(start))
        return follow_orbits(
            regression, Ensemble.from_flat(start.architecture, every), etas, steps,
            first_rates=None if first is None else 2.0 * first / least, seed=seed, progress=advance,
        )  # fmt: skip

    def run(c: Float) -> tuple[Float, Orbits]:
        return np.repeat(c, starts), follow(networks, c, FIRST_RATE)

    label = f"depth {depth}: following orbits"
    with advancing(progress, label, work(rates, starts, steps, runs)) as advance:
        every, orbits = run(rates)
        basins = None
        if drawn is not None:
            some = rates[np.unique(np.linspace(0, len(rates) - 1, BASIN_RATES).round().astype(int))]
            kind = follow(drawn, some).kind.reshape(len(some), runs)
            shares = {
                str(one): tuple(np.mean(kind == one, axis=1).tolist()) for one in np.unique(kind)
            }
            basins = Basins(
                depth=depth,
                init=init,
                scale=float(scale),
                runs=runs,
                c=tuple(some.tolist()),
                shares=shares,
            )
        return Atlas(
            depth=depth,
            minimal_sharpness=least,
            steps=steps,
            c=every,
            start=np.tile(np.arange(starts), len(rates)),
            orbits=orbits,
            c_2=second(run, rates),
            c_4=fourth(run, every, orbits),
            c_div=divergence(run, every, orbits),
            basins=basins,
            preparation=tuple(regression.preparation),
        )


def work(c: Float, starts: int, steps: int, runs: int) -> int:
    """The network steps of an atlas, at most."""
    return steps * ((len(c) + 4 * REFINED) * starts + min(BASIN_RATES, len(c)) * runs)


def _rates(c: ArrayLike) -> Float:
    rates = np.unique(numbers("rates c", c))
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
