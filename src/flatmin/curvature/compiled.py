"""The sharpness of ensembles of small networks, by the compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.threads import over_blocks
from flatmin.curvature.interval import in_range, judged
from flatmin.curvature.linear import LinearHessian
from flatmin.curvature.nonlinear import Rows
from flatmin.curvature.record import INERTIA, Sharpness, unproved
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.lanes import samples_sharpness
from flatmin.lanes.activations import code_of
from flatmin.lanes.inertia import blocks_interval
from flatmin.lanes.lanczos import BASIS, start_vector
from flatmin.lanes.layout import linear, sampled
from flatmin.lanes.sharpness import blocks_sharpness
from flatmin.network.ensemble import Ensemble, laid_out


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
    _, size, lanes = ensemble.lanes.shape
    vectors = laid_out(np.tile(start_vector(size), (n, 1)) if start is None else start, lanes)
    results = _of_blocks(
        samples_sharpness.blocks_sharpness, (0.0,) * lanes, ensemble.lanes, network, vectors,
        tolerance, max_products, min(BASIS, size),
    )  # fmt: skip
    value, residual, products = _by_network(results, n)
    return unproved("lanczos", value, residual, products, _by_network(vectors, n).T.copy())


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
    hessian = LinearHessian(regression, ensemble.architecture, ensemble.flat())
    if start is None:
        nodes = sum(columns for _, columns in ensemble.architecture.shapes)
        coordinates = hessian.random(start_vector(nodes))
    else:
        coordinates = hessian.plain(start)
    vectors = laid_out(coordinates, ensemble.lanes.shape[2])
    given = _given(regression, ensemble, vectors)
    how = (tolerance, max_products, min(BASIS, coordinates.shape[1]))
    results = _of_blocks(blocks_sharpness, *given, *how)
    if certify:
        ends = _of_blocks(blocks_interval, *given, 0.9 * tolerance)
    n = len(ensemble)
    value, residual, products = _by_network(results, n)
    vector = hessian.weights_of(_by_network(vectors, n).T)
    norm = np.linalg.norm(vector, axis=1, keepdims=True)
    np.divide(vector, norm, where=norm > 0, out=vector)
    record = unproved("lanczos", value, residual, products, vector)
    if not certify:
        return record
    _, low, high = _by_network(ends, n)
    # An end that is no number proves nothing; the largest eigenvalue is never negative.
    return judged(record, np.fmax(low, 0.0), in_range(high), INERTIA, tolerance)


def _given(regression: Regression, ensemble: Ensemble, vectors: Float) -> tuple[Any, ...]:
    """What both kernels of linear networks take."""
    architecture = ensemble.architecture
    widths = (architecture.inputs, *architecture.widths)
    network = linear(widths, architecture.p, regression.sigma, regression.w_star)
    return (0.0,) * ensemble.lanes.shape[2], ensemble.lanes, network, vectors


def _of_blocks(kernel: Any, lanes: tuple[float, ...], weights: Float, *given: Any) -> Float:
    """What a kernel finds of all blocks, `[block, 3, lane]`."""
    found = np.empty((len(weights), 3, len(lanes)))
    over_blocks(lambda *some: kernel(lanes, weights, *given, found, *some), len(weights))
    return found


def _by_network(lanes: Float, networks: int) -> Float:
    """Numbers `[block, number, lane]` as `[number, network]`."""
    return lanes.transpose(1, 0, 2).reshape(lanes.shape[1], -1)[:, :networks]
