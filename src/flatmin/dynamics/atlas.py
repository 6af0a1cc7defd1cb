"""An atlas of what gradient descent does above the ceiling, for one data set.

Rates are told as c = eta S_min/2, so that c = 1 is the ceiling 2/S_min. Every run of the map begins
next to a flattest minimiser, where runs from elsewhere are driven near the ceiling, at c = 0.9,
and is raised to its rate (`orbits`): so the attractor is followed and not lost to divergence on
the way. Which starts find it is another question, and another set of runs: basins, from a given
initialisation at the rate from the first step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float, Whole
from flatmin.core.checks import check_count, check_depth
from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory, writing
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.progress import Progress, advancing
from flatmin.core.seeds import generator
from flatmin.core.shown import Shown
from flatmin.data.regression import Regression
from flatmin.data.sets import paper_samples
from flatmin.dynamics.orbits import CHAOTIC, DIVERGED, Orbits, follow_orbits
from flatmin.dynamics.thresholds import NEAR_TWO, REFINED, Threshold, divergence, fourth, second
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import DEFAULT_INIT, architecture_for, initialise
from flatmin.theory.minimal_sharpness import CONVENTION, minimal_sharpness
from flatmin.theory.minimisers import flattest_minimiser

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FIRST_RATE, RATES = 0.9, np.linspace(0.9, 3.0, 400)
DEPTH, STARTS, STEPS = 10, 4, 20_000
# How far from a flattest minimiser runs begin, as a share of its weights.
NOISE = 1e-3
# Rates of the basins, at most, and how many of them a table tells.
BASIN_RATES, TOLD = 36, 9
# Outputs kept of every run in a table.
KEPT = 128


class Basins(Shown):
    """Of `runs` from one initialisation: for every rate c, the share of each kind."""

    depth: int
    init: str
    scale: float
    runs: int
    c: tuple[float, ...]
    shares: dict[str, tuple[float, ...]]

    def page(self) -> Page:
        """At a few rates, what became of the runs, until all diverge."""
        rows = []
        for i in range(0, len(self.c), max(1, len(self.c) // TOLD)):
            kinds = {name: found[i] for name, found in self.shares.items() if found[i] > 0.0}
            order = sorted(kinds, key=lambda name: -kinds[name])
            told = ", ".join(f"{100 * kinds[name]:.0f} % {name}" for name in order)
            rows.append((f"{self.c[i]:.3f}", told))
            if order == [DIVERGED]:
                break
        start = f"starts from {self.init} (scale {self.scale:g})"
        return [Listing(("c", f"of {self.runs} {start}, depth {self.depth}"), rows)]


class Atlas(Shown):
    """One depth: runs at the rates `c` from every `start`, the thresholds found, and the basins."""

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
    preparation: tuple[str, ...] = ()

    @property
    def critical_rate(self) -> float:
        """The ceiling 2/S_min, where c = 1."""
        return 2.0 / self.minimal_sharpness

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

    def contents(self) -> dict[str, Any]:
        """Thresholds, one entry a rate, and basins."""
        means = ["learning_rate", "exponent", "transverse_exponent", "excess_risk"]
        rates = [
            {"c": c, "kinds": rows["kind"].value_counts().to_dict(), **rows[means].mean()}
            for c, rows in self.table().groupby("c")
        ]
        return {
            "depth": self.depth,
            "minimal_sharpness": self.minimal_sharpness,
            "critical_learning_rate": self.critical_rate,
            "steps": self.steps,
            "thresholds": {"c_2": self.c_2, "c_4": self.c_4, "c_div": self.c_div},
            "rates": rates,
            "basins": self.basins,
        }

    def sentence(self) -> str:
        """What was found, in words."""
        words = f"At depth {self.depth} "
        if self.c_2 is None:
            words += "no orbit of period two was seen just above the ceiling"
            near = (self.c > NEAR_TWO[0]) & (self.c < NEAR_TWO[1])
            kinds, counts = np.unique(self.orbits.kind[near], return_counts=True)
            most = f": most runs there are {kinds[counts.argmax()]}" if near.any() else ""
            return f"{words}{most}."
        eta = self.critical_rate
        words += f"gradient descent starts to oscillate at rate {eta * self.c_2.c:.4g}"
        if self.c_4 is not None:
            words += f", doubles its period at {eta * self.c_4.c:.4g}"
        if self.c_div is None:
            return f"{words} and diverges at none of the rates tried."
        return f"{words} and begins to diverge at {eta * self.c_div.c:.4g}."

    def row(self) -> tuple[str, ...]:
        """The depth in the table of `page`."""
        told = [
            "none seen" if one is None else str(one) for one in (self.c_2, self.c_4, self.c_div)
        ]
        rates, chaos = self.c[self.orbits.kind == CHAOTIC], "none"
        if len(rates):
            share = 100 * len(rates) / len(self.c)
            chaos = f"{share:.0f} %, {rates.min():.3g} to {rates.max():.3g}"
        return (str(self.depth), number(self.critical_rate), *told, chaos)

    def page(self) -> Page:
        """As that of several depths."""
        return Atlases(depths=(self,)).page()

    def plot(self) -> Figure:
        """Orbits, exponents and basins against the rate."""
        from flatmin.dynamics.atlas_figure import atlas_figure

        return atlas_figure(self)


class Atlases(Shown):
    """The atlases of one data set, by depth."""

    depths: tuple[Atlas, ...]

    def __repr__(self) -> str:
        return f"Atlases(depths={[one.depth for one in self.depths]})"

    def page(self) -> Page:
        """What `flatmin atlas` prints."""
        heads = ("Depth", "ceiling 2/S_min", "c_2", "c_4", "c_div", "chaotic")
        notes = [
            *self.depths[0].preparation,
            "rates c are multiples of the ceiling; from c_2 on descent oscillates with period 2, "
            "from c_4 on with period 4; c_div is the least rate at which a run diverged",
            "chaotic: the share of runs that were, and the rates between which they lie",
            f"sharpness: {CONVENTION}",
        ]
        page: Page = [Listing(heads, [one.row() for one in self.depths])]
        page.append(Remarks(" ".join(one.sentence() for one in self.depths), notes))
        for one in self.depths:
            page += [] if one.basins is None else one.basins.page()
        return page

    def plot(self) -> Figure:
        """Orbits alone, a panel a depth."""
        from flatmin.dynamics.atlas_figure import orbits_figure

        return orbits_figure(self.depths)

    def save(self, directory: str | Path) -> list[Path]:
        """A picture a depth, and one table of all runs."""
        import pandas as pd

        from flatmin.core.figures import save

        folder = make_directory(Path(directory))
        written = [folder / f"depth-{one.depth}.png" for one in self.depths]
        for one, path in zip(self.depths, written, strict=True):
            save(one.plot(), path)
        with writing(folder / "atlas.parquet") as temporary:
            pd.concat([one.table() for one in self.depths]).to_parquet(temporary, index=False)
        return [*written, folder / "atlas.parquet"]


def atlases(
    regression: Regression | None = None,
    depth: int | None = None,
    *,
    depths: Sequence[int] = (),
    **settings: Any,
) -> Atlases:
    """The atlas at a depth (by default 10), or at several; of the paper's data if none are given.

    `settings` are those of `atlas`.
    """
    if depth is not None and depths:
        raise SettingError("depth and depths exclude each other: give one of them")
    data = paper_samples("linear").regression() if regression is None else regression
    chosen = depths or (DEPTH if depth is None else depth,)
    return Atlases(depths=tuple(atlas(data, one, **settings) for one in sorted(set(chosen))))


def atlas(
    regression: Regression,
    depth: int,
    *,
    c: ArrayLike | None = None,
    starts: int = STARTS,
    steps: int = STEPS,
    seed: int = 0,
    width: int | None = None,
    init: str = DEFAULT_INIT,
    scale: float = 1.0,
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
    depth, rates = check_depth(depth), _rates(RATES if c is None else c)
    if depth < 2:
        raise SettingError("depth must be at least 2: above the ceiling one layer diverges, got 1")
    if regression.targets != 1:
        raise SettingError(f"an atlas is for one target, got {regression.targets}")
    starts, steps = check_count("starts", starts), check_count("steps", steps)
    least = minimal_sharpness(regression, depth).exact
    networks = _near_flattest(
        regression, Architecture.mlp(regression.d, depth, width), starts, seed
    )
    drawn = None
    if runs:
        network = architecture_for(init, regression, depth, width=width, seed=seed)
        addresses = [("basin", depth, i) for i in range(check_count("runs", runs))]
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
                scale=scale,
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
    return steps * ((len(c) + 3 * REFINED) * starts + min(BASIN_RATES, len(c)) * runs)


def _rates(c: ArrayLike) -> Float:
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
