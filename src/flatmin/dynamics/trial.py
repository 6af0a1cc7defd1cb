"""Do networks learn within a number of steps, and still know it at the end?

A run at the edge of stability may dip below the goal at one step and be above it at the next, or
settle into an oscillation above it long after it had arrived. So what counts is where a run is when
its steps are over, or at a minimiser where it has settled before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatmin.core.arrays import Whole, Yes
from flatmin.data.samples import Problem
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import State
from flatmin.network.ensemble import Ensemble

# Further steps of the runs that have not learned, to tell the unstable from the slow.
_WATCHED = 64
_UNSTABLE = (State.DIVERGED.value, State.OSCILLATING.value)


@dataclass(frozen=True, eq=False)
class Trial:
    """Which runs learned, which were unstable instead, which ever arrived, when, and all steps."""

    learned: Yes
    unstable: Yes
    arrived: Yes
    arrival: Whole
    network_steps: int


def trial(
    problem: Problem,
    start: Ensemble,
    learning_rate: ArrayLike,
    steps: int,
    learned_at: float,
    *,
    why: bool = True,
) -> Trial:
    """Run every network for so many steps: to its first arrival at the goal, then on to the end.

    Without `why` only those that diverged count as unstable.
    """
    rates = np.broadcast_to(np.asarray(learning_rate, dtype=float), (len(start),))
    flat, learned = start.flat(), np.zeros(len(start), dtype=bool)
    diverged, taken = np.zeros(len(start), dtype=bool), np.zeros(len(start), dtype=np.int64)

    def go_on(which: NDArray[np.intp], further: Whole, until_learned: bool) -> None:
        if len(which):
            outcome = descend(
                problem,
                Ensemble.from_flat(start.architecture, flat[which]),
                rates[which],
                further,
                learned_at=learned_at,
                until_learned=until_learned,
                observe_ends=False,
            )
            learned[which] = outcome.learned
            diverged[which] = outcome.state == State.DIVERGED.value
            flat[which] = outcome.ensemble.flat()
            taken[which] += outcome.steps

    go_on(np.arange(len(start)), np.full(len(start), steps), until_learned=True)
    arrived, arrival = learned.copy(), taken.copy()
    further = np.flatnonzero(arrived & (arrival < steps))
    go_on(further, steps - arrival[further], until_learned=False)
    unstable = diverged.copy()
    left = np.flatnonzero(~learned & ~diverged)
    if why and len(left):
        some = Ensemble.from_flat(start.architecture, flat[left])
        state = descend(problem, some, rates[left], _WATCHED, learned_at=learned_at).state
        unstable[left] = np.isin(state, _UNSTABLE)
    return Trial(learned, unstable, arrived, arrival, int(taken.sum()))
