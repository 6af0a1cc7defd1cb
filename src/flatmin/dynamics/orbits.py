"""Many long runs at rates of their own, what their orbits are, and how fast neighbours part.

A run begins at a rate, raises it step by step to its last one, is kicked lightly now and then (by a
10^-7 of its weights, so that it leaves what is not stable), and is watched at the end:

| kind          | what is seen in the last steps                                              |
| ------------- | --------------------------------------------------------------------------- |
| settled        | at a minimiser: the output is 1 and no longer moves                         |
| period 2, ...  | the output returns after so many steps, to a thousandth of its swing        |
| quasi-periodic | it does not return, and nearby runs do not part                             |
| chaotic        | it does not return, and nearby runs part: a positive Lyapunov exponent      |
| stalled        | most steps hardly move it, and it is at no minimiser: it was thrown near    |
|                | the saddle w = 0, where the gradient of a deep network is tiny              |
| diverged       | it is not finite, or the excess risk is astronomical                        |

The output is w'Sigma w*/(w*'Sigma w*), 1 at every minimiser.
"""

from __future__ import annotations

from dataclasses import field
from threading import Event, Lock

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatmin.core.arrays import Float, Whole
from flatmin.core.errors import SettingError
from flatmin.core.memory import check_memory
from flatmin.core.pages import Listing, Page
from flatmin.core.progress import Advance
from flatmin.core.seeds import generator
from flatmin.core.shown import Shown
from flatmin.core.threads import over_each, thread_count
from flatmin.data.regression import Regression
from flatmin.dynamics.measures import units_of
from flatmin.lanes.layout import linear
from flatmin.lanes.orbits import COLUMNS, Rising, follow
from flatmin.network.architecture import Architecture, Family
from flatmin.network.ensemble import Ensemble, laid_out, lane_count
from flatmin.theory.oscillation import imbalance_exponent
from flatmin.theory.units import nth_root

SETTLED, QUASI, CHAOTIC = "settled", "quasi-periodic", "chaotic"
STALLED, DIVERGED = "stalled", "diverged"

# The steps watched at the end of a run, at most a quarter of it; tangents need the first of them.
WATCHED, WARMING = 2048, 512
KICK, KICK_EVERY = 1e-7, 250
LONGEST_PERIOD = 64
# An output that moves less than this a step is still; one that returns to within this share of its
# swing is periodic; and the least exponent that is chaos.
STILL, RETURN, CHAOS = 1e-5, 1e-3, 2e-3
LARGEST_EXCESS = 1e30  # of the unit of risk


class Orbits(Shown):
    """The ends of runs, one entry a run; `output` is `[step, run]` over the steps watched.

    `period` is that of periodic runs, 1 if settled, 0 of the others. `exponent` is the largest
    Lyapunov exponent of the chain that the run follows, a step; `transverse` that of an imbalance
    or misalignment of layers 2..L, NaN at depth 2. `excess` is the mean excess risk over the steps
    watched, `swing` the largest less the smallest output.
    """

    rate: Float
    kind: NDArray[np.str_]
    period: Whole
    exponent: Float
    transverse: Float
    excess: Float
    swing: Float
    output: Float = field(repr=False)

    def __len__(self) -> int:
        return len(self.rate)

    def __repr__(self) -> str:
        kinds, counts = np.unique(self.kind, return_counts=True)
        told = ", ".join(f"{count} {kind}" for kind, count in zip(kinds, counts, strict=True))
        return f"Orbits({told})"

    def page(self) -> Page:
        """How many runs are of each kind, and at which rates."""
        rows = []
        for kind in np.unique(self.kind):
            rates = self.rate[self.kind == kind]
            span = f"{rates.min():.6g} to {rates.max():.6g}"
            rows.append((str(kind), str(len(rates)), span))
        return [Listing(("Kind", "runs", "learning rates"), rows)]


def follow_orbits(
    regression: Regression,
    start: Ensemble,
    rates: ArrayLike,
    steps: int,
    *,
    first_rates: ArrayLike | None = None,
    seed: int = 0,
    progress: Advance | None = None,
) -> Orbits:
    """Run every network of a linear ensemble with one output to its rate, and watch it there.

    The rate rises from `first_rates` (by default it is the last from the beginning) over the
    first quarter of the steps. `progress` is called with the numbers of network steps just taken.
    """
    architecture = start.architecture
    if architecture.family is not Family.ONE_OUTPUT:
        raise SettingError("orbits are followed for linear networks with one output only")
    architecture.check_fits(regression)
    count, parameters = len(start), architecture.parameters
    last = np.broadcast_to(np.asarray(rates, dtype=float), (count,))
    first = np.minimum(last if first_rates is None else np.asarray(first_rates, dtype=float), last)
    watched = min(WATCHED, max(8, steps // 4))
    warming = min(WARMING, watched // 4)
    free, kept = steps - watched, watched - warming
    columns = len(COLUMNS)
    check_memory(f"the orbits of {count} runs", 8.0 * count * (columns * kept + 4 * parameters))

    lanes, flat = lane_count(parameters, -(-count // thread_count())), start.flat()
    noise = np.reshape(
        [generator(seed, "kick", i).standard_normal(parameters) for i in range(count)], flat.shape
    )
    weights, tangents = laid_out(flat, lanes), laid_out(noise, lanes)
    pushes = laid_out(noise * KICK * np.sqrt(np.mean(flat**2, axis=1, keepdims=True)), lanes)
    slope = (last - first) / max(1, steps // 4)
    rising = Rising(*(laid_out(one[:, None], lanes)[:, 0] for one in (first, slope, last)))
    rows = np.zeros((len(weights), kept, columns, lanes))
    network = linear(
        (architecture.inputs, *architecture.widths), architecture.p, regression.sigma,
        regression.w_star,
    )  # fmt: skip
    tag, lock = (0.0,) * lanes, Lock()

    def work(block: int, cancelled: Event) -> None:
        def go(carried: Float, out: Float, begin: int, length: int) -> None:
            follow(tag, weights, carried, network, rising, out, begin, length, block)
            if progress is not None:
                with lock:
                    progress(length * min(lanes, count - block * lanes))

        for number, begin in enumerate(range(0, free, KICK_EVERY)):
            if cancelled.is_set():
                return
            weights[block] += np.roll(pushes[block], number, axis=0)
            go(tangents[:, :0], rows[:, :0], begin, min(KICK_EVERY, free - begin))
        # What the tangent does while it turns counts for nothing.
        go(tangents, rows[:, :0], free, warming)
        go(tangents, rows, free + warming, kept)

    with np.errstate(all="ignore"):
        over_each(work, len(weights), thread_count())
        seen = rows.transpose(2, 1, 0, 3).reshape(columns, kept, -1)[:, :, :count]
        return _judged(regression, architecture, last, seen)


def _judged(
    regression: Regression, architecture: Architecture, rates: Float, seen: Float
) -> Orbits:
    """What the watched steps show, `[column, step, run]` with the columns of `lanes.orbits`."""
    gain, excess, pull, inner, stretch = seen
    depth, risk = architecture.depth, units_of(regression, architecture).risk
    # w'Sigma w* = w*'Sigma w* + g'w*/2
    output = 1.0 + 0.5 * gain / (regression.w_star @ regression.sigma @ regression.w_star)
    finite = np.all(np.isfinite(output) & (excess < LARGEST_EXCESS * risk), axis=0)
    swing = np.where(finite, np.ptp(output, axis=0), np.nan)
    exponent = np.where(finite, np.sum(np.log(stretch), axis=0) / len(output), np.nan)
    transverse = np.full(len(rates), np.nan)
    if depth > 2:
        # Of layers in balance r^2 = |b_1|^{2/(L-1)}, for |p| = 1, and m = 1 - eta g/r^2.
        transverse = imbalance_exponent(1.0 - pull / nth_root(inner, depth - 1))
    period = np.where(finite, _periods(output, swing), 0)
    kind = np.where(exponent > CHAOS, CHAOTIC, QUASI).astype("<U16")
    moves = np.median(np.abs(np.diff(output, axis=0)), axis=0)
    settled, still = np.max(np.abs(output - 1.0), axis=0) <= STILL, moves <= STILL
    period[settled] = 1
    period[still & ~settled] = 0
    kind[period > 0] = [f"period {p}" for p in period[period > 0]]
    kind[still] = STALLED
    kind[settled] = SETTLED
    kind[~finite] = DIVERGED
    mean = np.where(finite, np.mean(excess, axis=0), np.nan)
    return Orbits(
        rate=rates,
        kind=kind,
        period=period,
        exponent=exponent,
        transverse=np.where(finite, transverse, np.nan),
        excess=mean,
        swing=swing,
        output=output,
    )


def _periods(output: Float, swing: Float) -> Whole:
    """The least period of each run, 0 if it has none."""
    last = output[-4 * LONGEST_PERIOD :]
    period = np.zeros(output.shape[1], dtype=np.int64)
    for length in range(min(LONGEST_PERIOD, len(last) // 2), 1, -1):
        apart = np.max(np.abs(last[length:] - last[:-length]), axis=0)
        period[apart <= RETURN * swing] = length
    return period
