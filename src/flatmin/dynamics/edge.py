"""How near the edge of stability a run ended: its sharpness over the method's edge.

At the edge sharpness swings about 2/eta from step to step, so one value says little. Of a run that
has not settled the sharpness is taken midway between its last weights and the next ones, where the
oscillation cancels to first order. (Measured on 100 networks of depth 10 on the paper's data at
0.9 of the critical rate, after 400 steps: 0.98 to 0.99 of 2/eta, where the last weights alone
give 0.66 to 1.38.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Yes
from flatmin.data.samples import Problem
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import State
from flatmin.dynamics.outcome import Outcome
from flatmin.network.ensemble import Ensemble

# From here on a run counts as being at the edge of stability.
EDGE_SHARE = 0.9


def swinging(outcome: Outcome) -> Yes:
    """Runs whose last weights are one of two sides: neither settled nor diverged."""
    ended = (State.SETTLED.value, State.DIVERGED.value)
    return np.asarray(~np.isin(outcome.state, ended))


def midway(problem: Problem, outcome: Outcome, learning_rate: ArrayLike, chosen: Yes) -> Ensemble:
    """Weights midway between the last ones and the next, of the chosen runs."""
    last = outcome.ensemble[chosen]
    if not len(last):
        return last
    rates = np.broadcast_to(np.asarray(learning_rate, dtype=float), (len(chosen),))[chosen]
    after = descend(
        problem, last, rates, 1, rule=outcome.rule, beside=outcome.beside[chosen],
        until_learned=True, observe_ends=False,
    )  # fmt: skip
    return Ensemble.from_flat(last.architecture, 0.5 * (last.flat() + after.ensemble.flat()))
