"""What a run leaves behind: final weights, how it ended, and the trace that was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.errors import SettingError
from flatmin.dynamics.endings import State
from flatmin.dynamics.recording import Trace
from flatmin.dynamics.rule import PLAIN, Rule
from flatmin.network.ensemble import Ensemble

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Outcome:
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
    gradient: Float
    goal: float
    learned: Yes
    period: Whole
    more_steps: Float
    trace: Trace | None = None
    extras: dict[str, Float] = field(default_factory=dict)
    rule: Rule = PLAIN
    beside: Float = field(default_factory=lambda: np.empty((0, 0)))

    def __repr__(self) -> str:
        states = [f"{state.value}={self.count(state)}" for state in State if self.count(state)]
        learned = f"learned={int(self.learned.sum())}"
        return f"Outcome({', '.join([f'networks={len(self.ensemble)}', learned, *states])})"

    def count(self, state: State) -> int:
        """How many runs ended so."""
        return int(np.sum(self.state == state.value))

    def plot(self, network: int = 0) -> Figure:
        """What was recorded of one run: distance and risk, sharpness, layers."""
        from flatmin.dynamics.figures import training_figure

        if self.trace is None:
            raise SettingError("nothing was recorded; run with recording=Recording(every=...)")
        title = f"network {network}, depth {self.ensemble.architecture.depth}"
        return training_figure(self.trace.frame(network), title, None, None)

    @property
    def settled(self) -> Yes:
        """Which runs settled at a minimiser."""
        return np.asarray(self.state == State.SETTLED.value)
