"""The sharpness of ensembles of small linear networks, by the compiled kernel."""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.threads import over_blocks
from flatmin.curvature.interval import in_range, judged
from flatmin.curvature.linear import LinearHessian
from flatmin.curvature.record import INERTIA, Sharpness
from flatmin.data.regression import Regression
from flatmin.lanes.inertia import blocks_interval
from flatmin.lanes.sharpness import BASIS, blocks_sharpness, layout, start_vector
from flatmin.network.ensemble import Ensemble


def ensemble_sharpness(
    regression: Regression,
    ensemble: Ensemble,
    tolerance: float,
    max_products: int,
    start: Float | None = None,
    certify: bool = True,
) -> Sharpness:
    """The records of an ensemble of linear networks with one output.

    Their intervals are those of `lanes.inertia`, with an infinite high end where it proves nothing.
    """
    architecture, table = ensemble.architecture, layout(ensemble.architecture)
    blocks, _, lanes = ensemble.lanes.shape
    dimension = int(table[-1, 0] + table[-1, 1] + table[-1, 5])
    vectors = np.empty((blocks, dimension, lanes))
    hessian = LinearHessian(regression, architecture, ensemble.flat())
    if start is None:
        vectors[:] = start_vector(dimension)[None, :, None]
    else:
        coordinates = np.zeros((blocks * lanes, dimension))
        coordinates[: len(ensemble)] = hessian.restrict(start)
        vectors[:] = coordinates.reshape(blocks, lanes, dimension).transpose(0, 2, 1)
    value, residual, products = np.empty((3, blocks, lanes))
    over_blocks(
        lambda first, last: blocks_sharpness(
            (0.0,) * lanes,
            ensemble.lanes,
            table,
            regression.sigma,
            regression.w_star,
            architecture.p,
            vectors,
            tolerance,
            max_products,
            min(BASIS, dimension),
            value,
            residual,
            products,
            first,
            last,
        ),
        blocks,
    )
    if certify:
        low, high = np.empty((2, blocks, lanes))
        over_blocks(
            lambda first, last: blocks_interval(
                (0.0,) * lanes,
                ensemble.lanes,
                table,
                regression.sigma,
                regression.w_star,
                architecture.p,
                vectors,
                0.9 * tolerance,
                value,
                low,
                high,
                first,
                last,
            ),
            blocks,
        )
    n = len(ensemble)
    coordinates = vectors.transpose(0, 2, 1).reshape(-1, dimension)[:n]
    values, residuals = value.ravel()[:n], residual.ravel()[:n]
    record = Sharpness(
        value=values,
        residual=residuals,
        products=products.ravel()[:n].astype(np.int64),
        method="lanczos",
        converged=np.zeros(n, dtype=bool),
        vector=hessian.lift(coordinates),
    )
    if not certify:
        return record
    ends = np.maximum(low.ravel()[:n], 0.0), in_range(high.ravel()[:n])
    return judged(record, *ends, INERTIA, tolerance)
