"""What an atlas shows: runs at every rate, the thresholds between kinds of orbits, basins.

Rates are told as c = eta S_min/2, so that c = 1 is the ceiling 2/S_min.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.arrays import Float, Whole
from flatmin.core.files import make_directory, writing
from flatmin.core.pages import Listing, Page, Remarks, number
from flatmin.core.shown import Shown
from flatmin.dynamics.orbits import CHAOTIC, DIVERGED, Orbits
from flatmin.dynamics.thresholds import NEAR_TWO, Threshold
from flatmin.theory.minimal_sharpness import CONVENTION

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Outputs kept of every run in a table; rates that the table of basins tells, about.
KEPT, TOLD = 128, 9

TABLE = "atlas.parquet"


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
            "from c_4 on with period 4; all runs survive below c_div, and some diverge above",
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
        with writing(folder / TABLE) as temporary:
            pd.concat([one.table() for one in self.depths]).to_parquet(temporary, index=False)
        return [*written, folder / TABLE]
