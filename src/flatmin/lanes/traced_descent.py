"""Descent of one block with measurements in between, all compiled.

Between two records lie `every` steps, a stride. A record is the kernel's own measuring pass, the
least and the largest excess risk, distance and gradient over the steps of its stride, and, if asked
for, the sharpness by Lanczos from the last eigenvector, at the last `window` steps of the stride:
at the edge of stability all of them may alternate from step to step, which a value per stride
would not show. Nothing here touches the weights but the steps themselves, so recording does not
change a trajectory.

A start vector that follows one eigenvector does not notice when another overtakes it. So at every
PROBE_EVERY-th measurement a fixed random vector is added to the start. That finds others, but does
not prove that there are none: what is recorded is a value with its residual, without an interval.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.lanes.compiling import compiled
from flatmin.lanes.linear_descent import descend_block
from flatmin.lanes.sharpness import block_sharpness

PROBE_EVERY = 8

COLUMNS = (
    *("excess_risk", "distance", "gradient"),
    *("excess_risk_low", "excess_risk_high"),
    *("distance_low", "distance_high"),
    *("gradient_low", "gradient_high"),
)
"""What a record holds of a lane, with the gradient squared."""

SHARPNESS_COLUMNS = (
    *("sharpness", "sharpness_residual", "sharpness_products"),
    *("sharpness_low", "sharpness_high"),
)
"""What it holds besides, if sharpness is asked for."""

_PLAIN, _SHARP = len(COLUMNS), len(COLUMNS) + len(SHARPNESS_COLUMNS)


@compiled
def trace_block(
    lanes, w, widths, p, sigma, target, rate, left, excess, gradient, distance, extremes,
    number, begin, every, window, check, tolerance, relative, settled, limit, momentum,
    table, vector, probe, accuracy, max_products, basis, out,
):  # fmt: skip
    """Take `every` steps, then fill out[record], for each record; returns how many were filled.

    extremes  [6 n] as in `descend_block`: what the steps of this stride that were taken before led
              to, or infinities; infinities again after each record
    number    of the first of these records in the whole run
    vector    flat start coordinates of the block;  probe [dimension], of norm 1
    out       [record, quantity, n] with COLUMNS, or COLUMNS and SHARPNESS_COLUMNS: the sharpness,
              its residual and its products in all, and its least and largest value over the last
              min(window, every) steps. Lanes that had stopped before the steps of a record are
              NaN in it; it ends early when all have.
    """
    n = len(lanes)
    measured = out.shape[1] == _SHARP
    one_by_one = min(window, every) if measured else 0
    before, value, residual, products = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    low, high, spent = np.empty(n), np.empty(n), np.empty(n)
    for record in range(out.shape[0]):
        running = False
        for lane in range(n):
            before[lane] = left[lane]
            running = running or (rate[lane] > 0.0 and left[lane] > 0.0)
        if not running:
            return record
        low[:], high[:], spent[:] = np.inf, -np.inf, 0.0
        at = begin + record * every
        if one_by_one < every or every == 0:
            descend_block(
                lanes, w, widths, p, sigma, target, rate, left, excess, gradient, distance,
                extremes, at, every - one_by_one, check, tolerance, relative, settled, limit,
                momentum,
            )  # fmt: skip
        for j in range(max(one_by_one, 1) if measured else 0):
            if one_by_one > 0:
                descend_block(
                    lanes, w, widths, p, sigma, target, rate, left, excess, gradient, distance,
                    extremes, at + every - one_by_one + j, 1,
                    check, tolerance, relative, settled, limit, momentum,
                )  # fmt: skip
            if ((number + record) * window + j) % PROBE_EVERY == 0:
                for i in range(probe.size):
                    for lane in range(n):
                        vector[i * n + lane] += probe[i]
            block_sharpness(
                lanes, w, table, sigma, target, p, vector, accuracy, max_products, basis,
                value, residual, products,
            )  # fmt: skip
            for lane in range(n):
                low[lane] = min(low[lane], value[lane])
                high[lane] = max(high[lane], value[lane])
                spent[lane] += products[lane]
        for lane in range(n):
            # A record belongs to a lane that took all of its steps and did not diverge in them.
            whole = before[lane] - left[lane] == every and excess[lane] < np.inf
            row = out[record, :, lane]
            row[:] = np.nan
            if whole:
                row[0], row[1], row[2] = excess[lane], distance[lane], gradient[lane]
                for i in range(3):
                    row[3 + 2 * i] = min(extremes[2 * i * n + lane], row[i])
                    row[4 + 2 * i] = max(extremes[(2 * i + 1) * n + lane], row[i])
                if measured:
                    row[_PLAIN], row[_PLAIN + 1] = value[lane], residual[lane]
                    row[_PLAIN + 2], row[_PLAIN + 3], row[_PLAIN + 4] = (
                        spent[lane], low[lane], high[lane],
                    )  # fmt: skip
            for i in range(3):
                extremes[2 * i * n + lane], extremes[(2 * i + 1) * n + lane] = np.inf, -np.inf
    return out.shape[0]
