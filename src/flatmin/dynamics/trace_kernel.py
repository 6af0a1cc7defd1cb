"""Descent of one block with measurements in between, all compiled.

Between two records lie `every` steps; a record is the kernel's own measuring pass plus, if asked
for, the sharpness by Lanczos from the last eigenvector. Nothing here touches the weights but the
steps themselves, so recording does not change a trajectory.

A start vector that follows one eigenvector does not notice when another overtakes it. So every
PROBE_EVERY-th record a fixed random vector is added to the start.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.compiling import compiled
from flatmin.curvature.lanes import block_sharpness
from flatmin.dynamics.linear_kernel import descend_block

PROBE_EVERY = 8


@compiled
def trace_block(
    lanes, w, widths, p, sigma, target, rate, left, excess, gradient, distance,
    number, begin, every, check, tolerance, relative, settled, limit,
    table, vector, probe, accuracy, max_products, basis, out,
):  # fmt: skip
    """Take `every` steps, then fill out[record], for each record; returns how many were filled.

    number    of the first of these records in the whole run
    vector    flat start coordinates of the block;  probe [dimension], of norm 1
    out       [record, quantity, n]: excess risk, distance, squared gradient, and if it has six
              quantities sharpness, its residual and its products. Lanes that had stopped before
              the steps of a record are NaN in it; it ends early when all have.
    """
    n = len(lanes)
    measured = out.shape[1] > 3
    before, value, residual, products = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for record in range(out.shape[0]):
        running = False
        for lane in range(n):
            before[lane] = left[lane]
            running = running or (rate[lane] > 0.0 and left[lane] > 0.0)
        if not running:
            return record
        descend_block(
            lanes, w, widths, p, sigma, target, rate, left, excess, gradient, distance,
            begin + record * every, every, check, tolerance, relative, settled, limit,
        )  # fmt: skip
        if measured:
            if (number + record) % PROBE_EVERY == 0:
                for i in range(probe.size):
                    for lane in range(n):
                        vector[i * n + lane] += probe[i]
            block_sharpness(
                lanes, w, table, sigma, target, p, vector, accuracy, max_products, basis,
                value, residual, products,
            )  # fmt: skip
        for lane in range(n):
            # A record belongs to a lane that took all of its steps and did not diverge in them.
            whole = before[lane] - left[lane] == every and excess[lane] < np.inf
            out[record, 0, lane] = excess[lane] if whole else np.nan
            out[record, 1, lane] = distance[lane] if whole else np.nan
            out[record, 2, lane] = gradient[lane] if whole else np.nan
            if measured:
                out[record, 3, lane] = value[lane] if whole else np.nan
                out[record, 4, lane] = residual[lane] if whole else np.nan
                out[record, 5, lane] = products[lane] if whole else np.nan
    return out.shape[0]
