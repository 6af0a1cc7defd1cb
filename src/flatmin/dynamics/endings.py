"""How a run ends, told from its last weights and the steps that would follow them.

Two questions, two answers. *Learned*: is the excess risk at most a share (1e-3 unless said
otherwise) of that of w = 0? And how did it end:

| state       | meaning                                                                        |
| ----------- | ------------------------------------------------------------------------------ |
| settled     | at a minimiser, to within the stopping rule or rounding, where eta S <= 2       |
| learning    | the risk is still falling; `more_steps` would take it to the goal at this speed |
| oscillating | bounded, but steps overshoot and the risk no longer falls                       |
| stalled     | next to no gradient, far from a minimum (a saddle, dead units) or exactly on one |
|             | with eta S > 2, which the least disturbance would leave                         |
| diverged    | the risk passed the limit, or passes it in the steps observed                   |

A run that used up its steps is observed for as many further steps as a quarter of them, from 32 to
256, on a copy of its weights. With e_t the excess risk and g_t the gradient along them,

    falling       the means of e over four quarters fall, the last to at most 0.9 of the first
    overshooting  e_0 - e_T < 1/2 sum_t eta |g_t|^2: small steps would have gained all of the sum,
                  a step across the valley at eta S = 2 gains nothing

Falling is learning; else overshooting is oscillating. What is left moves slowly: either the
data are slow (weak directions of Sigma), which is learning too, or the network passes no gradient
on (`measures.passes_nothing`), which is stalled. Gradient flow does not overshoot: a flow that
ended early is falling if it would lose a thousandth of its excess risk in as much time again.

Of another `rule`, 2 is its `reach`, and a steady gradient gains `pace` times as much a step. What
it keeps beside the weights may carry them through the valley and back, in a swing that dies out
within about `pace` steps: what looks like overshooting is observed again, for `pace` times
as long, and is learning if the largest excess risk of the second half of the steps is at most 0.9
of that of the first (`calming`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.checks import check_positive, shown
from flatmin.core.errors import SettingError

LEARNED_AT = 1e-3
LEAST_WINDOW, LARGEST_WINDOW = 32, 256
LONGEST_PERIOD = 16
_FALLING, _OVERSHOOT, _SAME = 0.9, 0.5, 0.05


class State(StrEnum):
    """How a run ended. The values are the words a user reads."""

    SETTLED = "settled"
    LEARNING = "learning"
    OSCILLATING = "oscillating"
    STALLED = "stalled"
    DIVERGED = "diverged"


def check_share(name: str, value: object) -> float:
    """A number between 0 and 1, or a SettingError."""
    share = check_positive(name, value)
    if share >= 1.0:
        raise SettingError(f"{name} must lie between 0 and 1, got {shown(value)}")
    return share


def learned_note(share: float) -> str:
    """What learned means, wherever it is printed."""
    return f"learned: the excess risk is at most {share:g} of that of w = 0"


def window(steps: Whole) -> Whole:
    """For how many further steps a run of so many steps is observed."""
    return np.clip(steps // 4, LEAST_WINDOW, LARGEST_WINDOW)


@dataclass(frozen=True, eq=False)
class Ending:
    """States of runs; their periods (0: none was found) and further steps needed (NaN: unknown)."""

    state: NDArray[np.str_]
    period: Whole
    more_steps: Float

    def some(self, chosen: Yes) -> Ending:
        """Those of the chosen runs."""
        return Ending(self.state[chosen], self.period[chosen], self.more_steps[chosen])


def observe(excess: Float, gradient: Float, rates: Float, goal: float, idle: Yes) -> Ending:
    """Endings from `[step, run]` excess risks and gradient norms; NaN after a run diverged.

    `idle` says whether a run that neither falls nor overshoots passes no gradient on.
    """
    steps = len(excess) - 1
    quarter = steps // 4
    lost = ~np.isfinite(excess).all(axis=0)
    safe = np.where(lost, 1.0, excess)
    # Sums run along rows, one a run: along columns their rounding would depend on their number.
    along = np.ascontiguousarray(safe.T)
    means = np.stack([along[:, i * quarter : (i + 1) * quarter].mean(axis=1) for i in range(4)])
    falling = (np.diff(means, axis=0) < 0.0).all(axis=0) & (means[3] <= _FALLING * means[0])
    gain = safe[0] - safe[-1]
    squares = np.ascontiguousarray(np.where(lost, 0.0, gradient[:-1]).T) ** 2
    possible = rates * squares.sum(axis=1)
    # Where nothing is to be gained beyond rounding, no step overshoots.
    overshooting = (gain < _OVERSHOOT * possible) & (possible > 1e-12 * np.abs(safe[0]))
    state = np.where(
        falling,
        State.LEARNING.value,
        np.where(
            overshooting,
            State.OSCILLATING.value,
            np.where(idle, State.STALLED.value, State.LEARNING.value),
        ),
    )
    state = np.where(lost, State.DIVERGED.value, state)
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.log(means[0] / means[3]) / (3 * quarter)
        needed = np.where(pace > 0.0, np.log(safe[0] / goal) / pace, np.inf)
    needed = np.where(safe[0] <= goal, 0.0, needed)
    more = np.where(state == State.LEARNING.value, needed, np.nan)
    found = np.where(state == State.OSCILLATING.value, periods(safe), 0)
    return Ending(state, found, more)


def calming(high: Float, stride: int, goal: float) -> Ending:
    """Endings of swings from `[stride, run]` largest excess risks, of strides of so many steps.

    The first row is the excess risk at the start. A swing that calms is still learning.
    """
    half = len(high) // 2
    lost = ~np.isfinite(high).all(axis=0)
    safe = np.where(lost, 1.0, high)
    first, second = safe[:half].max(axis=0), safe[half:].max(axis=0)
    calm = second <= _FALLING * first
    state = np.where(calm, State.LEARNING.value, State.OSCILLATING.value)
    state = np.where(lost, State.DIVERGED.value, state)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.log(safe[0] / goal) * (half * stride) / np.log(first / second)
    more = np.where(calm & ~lost, np.where(safe[0] <= goal, 0.0, needed), np.nan)
    return Ending(state, np.zeros(len(state), dtype=np.int64), more)


def flow_endings(
    settled: Yes, excess: Float, gradient: Float, time: Float, idle: Yes
) -> NDArray[np.str_]:
    """States of gradient flows: d(excess)/dt = -|grad|^2."""
    slow = time * gradient**2 < 1e-3 * excess
    state = np.where(slow & idle, State.STALLED.value, State.LEARNING.value)
    state = np.where(np.isfinite(excess), state, State.DIVERGED.value)
    return np.where(settled, State.SETTLED.value, state)


def periods(excess: Float) -> Whole:
    """The smallest p up to 16 with e_{t+p} = e_t to 5 % of the range of e; 0 if there is none.

    Only the last 64 steps count, so that a slow drift does not hide a period. Where e hardly moves
    though every step overshoots, the error changes its sign at each: period 2.
    """
    excess = excess[-64:]
    spread = np.ptp(excess, axis=0)
    found = np.zeros(excess.shape[1], dtype=np.int64)
    for p in range(min(LONGEST_PERIOD, len(excess) // 4), 1, -1):
        change = np.abs(excess[p:] - excess[:-p]).max(axis=0)
        found = np.where(change <= _SAME * spread, p, found)
    return np.where(spread <= 1e-6 * excess.max(axis=0), 2, found)
