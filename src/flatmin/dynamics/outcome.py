"""What a run leaves behind: final weights, how it ended, and the trace that was asked for."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.errors import SettingError
from flatmin.core.pages import Listing, Page
from flatmin.core.shown import Shown
from flatmin.dynamics.endings import State
from flatmin.dynamics.recording import Trace
from flatmin.dynamics.rule import PLAIN, Rule
from flatmin.network.ensemble import Ensemble

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Outcome(Shown):
    """The end of every run of an ensemble, in the order given (see `endings`).

    `learned` says which have an excess risk of at most `goal` (or had, of runs that were to end
    there). `period` of an oscillation is 0 if none was found; `more_steps` is how many a run that
    is still learning would need at its present speed, NaN for the others and for gradient flow.
    `beside` `[network, copies * P]` is what the rule of a descent kept beside the weights.
    """

    ensemble: Ensemble
    state: NDArray[np.str_]
    steps: Whole
    excess_risk: Float
    distance: Float
    gradient_norm: Float
    goal: float
    learned: Yes
    period: Whole
    more_steps: Float
    recorded: Trace | None = None
    extras: dict[str, Float] = field(default_factory=dict)
    rule: Rule = PLAIN
    beside: Float = field(default_factory=lambda: np.empty((0, 0)))

    def __repr__(self) -> str:
        states = [f"{state.value}={self.count(state)}" for state in State if self.count(state)]
        learned = f"learned={int(self.learned.sum())}"
        return f"Outcome({', '.join([f'networks={len(self.ensemble)}', learned, *states])})"

    def contents(self) -> dict[str, Any]:
        """A list for each number, one entry a network."""
        names = ("state", "learned", "steps", "excess_risk", "distance", "gradient_norm", "period")
        return {name: getattr(self, name) for name in (*names, "more_steps")} | self.extras

    def page(self) -> Page:
        """How many learned, how they ended, and the range of steps and of the excess risk."""
        states = [state for state in State if self.count(state)]
        rows = [
            ("Networks", str(len(self.ensemble))),
            ("  learned", str(int(self.learned.sum()))),
            *((f"  {state.value}", str(self.count(state))) for state in states),
            ("Steps", _range(self.steps)),
            ("Final risk above R_min", _range(self.excess_risk)),
        ]
        return [Listing(("After training", ""), rows)]

    def count(self, state: State) -> int:
        """How many runs ended so."""
        return int(np.sum(self.state == state.value))

    def plot(self, network: int = 0) -> Figure:
        """What was recorded of one run: distance and risk, sharpness, layers."""
        from flatmin.dynamics.figures import training_figure

        title = f"network {network}, depth {self.ensemble.architecture.depth}"
        return training_figure(self._recorded().frame(network), title, None, None)

    @property
    def trace(self) -> pd.DataFrame:
        """What was recorded, a row an entry; of several networks with the column `network`."""
        import pandas as pd

        found = self._recorded()
        if len(self.ensemble) == 1:
            return found.frame()
        frames = [found.frame(i) for i in range(len(self.ensemble))]
        return pd.concat(frames, keys=range(len(frames)), names=["network"]).reset_index(0)

    def _recorded(self) -> Trace:
        if self.recorded is None:
            raise SettingError("nothing was recorded; run with recording=Recording(every=...)")
        return self.recorded

    @property
    def settled(self) -> Yes:
        """Which runs settled at a minimiser."""
        return np.asarray(self.state == State.SETTLED.value)


def _range(values: Float | Whole) -> str:
    """From the least to the largest."""
    known = values[np.isfinite(values)]
    return f"{known.min():.6g} to {known.max():.6g}" if len(known) else "none"
