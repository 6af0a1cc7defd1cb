"""The sharpness of ensembles of small networks, by the compiled kernels.

Run as a module it compiles the kernels for a few networks, and keeps them.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.threads import over_blocks, thread_count
from flatmin.curvature.interval import in_range, judged
from flatmin.curvature.linear import LinearHessian
from flatmin.curvature.nonlinear import Rows
from flatmin.curvature.record import INERTIA, Sharpness
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.lanes import samples_sharpness
from flatmin.lanes.activations import code_of
from flatmin.lanes.inertia import blocks_interval
from flatmin.lanes.kept import compile_beside
from flatmin.lanes.lanczos import BASIS, start_vector
from flatmin.lanes.layout import linear, sampled
from flatmin.lanes.sharpness import blocks_sharpness
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble, laid_out


def compile_for_later() -> None:
    """Have the kernels compiled by another process, where they are not yet."""
    if thread_count() > 1:
        compile_beside(__name__, blocks_sharpness, blocks_interval)


def on_rows(
    rows: Rows | Samples,
    ensemble: Ensemble,
    tolerance: float,
    max_products: int,
    start: Float | None = None,
) -> Sharpness:
    """The records, without intervals, of networks on rows."""
    architecture, n = ensemble.architecture, len(ensemble)
    network = sampled(
        (architecture.inputs, *architecture.widths), architecture.biases,
        architecture.output or (), rows.X, np.atleast_2d(rows.y.T),
        code_of(architecture.activation_name), 0.0,
    )  # fmt: skip
    blocks, size, lanes = ensemble.lanes.shape
    vectors = laid_out(np.tile(start_vector(size), (n, 1)) if start is None else start, lanes)
    results = np.empty((blocks, 3, lanes))
    given = ((0.0,) * lanes, ensemble.lanes, network, vectors, tolerance, max_products)
    over_blocks(
        lambda *some: samples_sharpness.blocks_sharpness(
            *given, min(BASIS, size), results, *some
        ),
        blocks,
    )  # fmt: skip
    values, residuals, products = results.transpose(1, 0, 2).reshape(3, -1)[:, :n]
    return Sharpness(
        value=values,
        residual=residuals,
        products=products.astype(np.int64),
        method="lanczos",
        converged=np.zeros(n, dtype=bool),
        vector=vectors.transpose(0, 2, 1).reshape(-1, size)[:n].copy(),
    )


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
    architecture = ensemble.architecture
    widths = (architecture.inputs, *architecture.widths)
    network = linear(widths, architecture.p, regression.sigma, regression.w_star)
    blocks, _, lanes = ensemble.lanes.shape
    dimension = sum(map(sum, architecture.shapes))
    vectors = np.empty((blocks, dimension, lanes))
    hessian = LinearHessian(regression, architecture, ensemble.flat())
    if start is None:
        vectors[:] = start_vector(dimension)[None, :, None]
    else:
        coordinates = np.zeros((blocks * lanes, dimension))
        coordinates[: len(ensemble)] = hessian.restrict(start)
        vectors[:] = coordinates.reshape(blocks, lanes, dimension).transpose(0, 2, 1)
    results = np.empty((blocks, 3, lanes))
    given = ((0.0,) * lanes, ensemble.lanes, network, vectors)
    how = (tolerance, max_products, min(BASIS, dimension), results)
    over_blocks(lambda *some: blocks_sharpness(*given, *how, *some), blocks)
    if certify:
        ends = np.empty((blocks, 3, lanes))
        over_blocks(lambda *some: blocks_interval(*given, 0.9 * tolerance, ends, *some), blocks)
    n = len(ensemble)
    coordinates = vectors.transpose(0, 2, 1).reshape(-1, dimension)[:n]
    values, residuals, products = results.transpose(1, 0, 2).reshape(3, -1)[:, :n]
    record = Sharpness(
        value=values,
        residual=residuals,
        products=products.astype(np.int64),
        method="lanczos",
        converged=np.zeros(n, dtype=bool),
        vector=hessian.lift(coordinates),
    )
    if not certify:
        return record
    _, low, high = ends.transpose(1, 0, 2).reshape(3, -1)[:, :n]
    return judged(record, np.maximum(low, 0.0), in_range(high), INERTIA, tolerance)


if __name__ == "__main__":
    one = Ensemble.from_flat(Architecture.mlp(1, 1), np.ones((1, 1)))
    ensemble_sharpness(Regression.from_arrays(np.ones((1, 1)), np.ones(1)), one, 1e-10, 1)
