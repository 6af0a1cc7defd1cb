"""Descent of one block with measurements in between, all compiled.

Between two entries of a trace lie `every` steps, a stride. An entry is the kernel's own measuring
pass, the least and the largest excess risk, distance and gradient over the steps of its stride,
and, if asked for, the sharpness by Lanczos from the last eigenvector, at the last `window` steps of
the stride: at the edge of stability all of them may alternate from step to step, which a value per
stride would not show. Nothing here touches the weights but the steps themselves, so recording does
not change a trajectory.

A start vector that follows one eigenvector does not notice when another overtakes it. So at every
PROBE_EVERY-th measurement a fixed random vector is added to the start. That finds others, but does
not prove that there are none: what is recorded is a value with its residual, without an interval.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatmin.lanes.algebra import larger, smaller
from flatmin.lanes.compiling import compiled
from flatmin.lanes.layout import block_of
from flatmin.lanes.linear_descent import descend_block, descent_scratch
from flatmin.lanes.sharpness import block_sharpness, sharpness_scratch
from flatmin.lanes.tiles import put
from flatmin.lanes.vectors import all_lanes, splat, vectors, where

PROBE_EVERY = 8

COLUMNS = (
    *("excess_risk", "distance", "gradient"),
    *("excess_risk_low", "excess_risk_high"),
    *("distance_low", "distance_high"),
    *("gradient_low", "gradient_high"),
)
"""What an entry holds of a lane, with the gradient squared."""

SHARPNESS_COLUMNS = (
    *("sharpness", "sharpness_residual", "sharpness_products"),
    *("sharpness_low", "sharpness_high"),
)
"""What it holds besides, if sharpness is asked for."""

_PLAIN = len(COLUMNS)


class Spectrum(NamedTuple):
    """How sharpness is measured along a run."""

    starts: NDArray[Any]  # [block, dimension, n] start coordinates; [block, 0, n]: not measured
    probe: NDArray[Any]  # [dimension], of norm 1
    window: int  # measured at so many steps at the end of a stride
    tolerance: float
    max_products: int
    basis: int


@compiled
def trace_block(
    lanes, weights, network, runs, stop, rule, form, begin, every, number, spectrum, block, out
):  # fmt: skip
    """Take `every` steps, then fill out[entry], for each entry of a block.

    runs      whose extremes hold what the steps of this stride that were taken before led to, or
              infinities; infinities again after each entry
    begin     steps taken before;  number: of the first of these entries in the whole run
    out       [entry, quantity, n] with COLUMNS, or COLUMNS and SHARPNESS_COLUMNS: the sharpness,
              its residual and its products in all, and its least and largest value over the last
              min(window, every) steps. Lanes that had stopped before the steps of an entry are
              NaN in it; it ends early when all have.
    """
    w, mine, vector = weights[block].reshape(-1), block_of(runs, block), spectrum.starts[block]
    rate, left, excess = (
        vectors(lanes, mine.rate),
        vectors(lanes, mine.left),
        vectors(lanes, mine.excess),
    )
    distance, gradient = vectors(lanes, mine.distance), vectors(lanes, mine.gradient)
    extremes, start = vectors(lanes, mine.extremes), vectors(lanes, vector)
    measured = len(vector) > 0
    one_by_one = min(spectrum.window, every) if measured else 0
    memory = descent_scratch(lanes, network, weights)
    room = sharpness_scratch(lanes, network, vector.reshape(-1), spectrum.basis)
    for entry in range(out.shape[0]):
        before = left[0]
        if all_lanes(~((rate[0] > 0.0) & (before > 0.0))):
            return
        low, high, spent = np.inf, -np.inf, 0.0
        value = residual = splat(lanes, np.nan)
        done = 0
        # First the steps without a measurement, then one after another those with one.
        for part in range(1 + max(one_by_one, 1 if measured else 0)):
            steps = min(every - one_by_one if part == 0 else 1, every - done)
            if steps > 0 or every == 0:
                at = begin + entry * every + done
                descend_block(lanes, w, network, mine, stop, rule, form, at, steps, memory)
            done += steps
            if part == 0:
                continue
            if ((number + entry) * spectrum.window + part - 1) % PROBE_EVERY == 0:
                for i in range(len(spectrum.probe)):
                    start[i] = start[i] + spectrum.probe[i]
            value, residual, products = block_sharpness(
                lanes, w, network, vector.reshape(-1), spectrum.tolerance, spectrum.max_products,
                spectrum.basis, room,
            )  # fmt: skip
            low, high, spent = smaller(value, low), larger(value, high), spent + products
        # An entry belongs to a lane that took all of its steps and did not diverge in them.
        whole = (before - left[0] == every) & (excess[0] < np.inf)
        row = vectors(lanes, out[entry])
        row[0], row[1], row[2] = excess[0], distance[0], gradient[0]
        for i in range(3):
            row[3 + 2 * i] = smaller(extremes[2 * i], row[i])
            row[4 + 2 * i] = larger(extremes[2 * i + 1], row[i])
            extremes[2 * i], extremes[2 * i + 1] = np.inf, -np.inf
        if measured:
            put(row[_PLAIN:], 1, (value, residual, spent, low, high))
        for i in range(out.shape[1]):
            row[i] = where(whole, row[i], np.nan)
