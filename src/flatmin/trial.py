"""Do networks learn within a number of steps, and still know it at the end?

A run at the edge of stability may dip below the goal at one step and be above it at the next, or
settle into an oscillation above it long after it had arrived. So what counts is where a run is when
its steps are over, or at a minimiser where it has settled before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import State
from flatmin.network import Ensemble
from flatmin.problem import Regression, Samples

_UNSTABLE = (State.DIVERGED.value, State.OSCILLATING.value)


@dataclass(frozen=True, eq=False)
class Trial:
    """Which runs learned, which were unstable instead, when each first arrived, and all steps."""

    learned: NDArray[np.bool_]
    unstable: NDArray[np.bool_]
    arrival: NDArray[np.int64]
    network_steps: int


def trial(
    problem: Regression | Samples,
    start: Ensemble,
    learning_rate: ArrayLike,
    steps: int,
    learned_at: float,
) -> Trial:
    """Run every network for so many steps: to its first arrival at the goal, then on to the end."""
    rates = np.broadcast_to(np.asarray(learning_rate, dtype=float), (len(start),))
    arrived = descend(problem, start, rates, steps, learned_at=learned_at, until_learned=True)
    learned, state = arrived.learned.copy(), arrived.state.copy()
    taken, left = arrived.steps.copy(), steps - arrived.steps
    further = np.flatnonzero(arrived.learned & (left > 0))
    if len(further):
        some = Ensemble.from_flat(start.architecture, arrived.ensemble.flat()[further])
        rest = descend(problem, some, rates[further], left[further], learned_at=learned_at)
        learned[further], state[further] = rest.learned, rest.state
        taken[further] += rest.steps
    unstable = np.isin(state, _UNSTABLE) & ~learned
    return Trial(learned, unstable, arrived.steps, int(taken.sum()))
