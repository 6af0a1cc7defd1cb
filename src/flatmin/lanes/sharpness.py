"""Compiled Lanczos for ensembles of small linear networks: one block of lanes at a time.

The mathematics is that of `linear` (range coordinates) and `lanczos`; here the network index is
innermost (see `flatmin.network.ensemble`), so one instruction works on several networks. Each lane
does the same arithmetic whatever its neighbours do, and a lane that has converged keeps the basis
size it had: results do not depend on the block. It exists because it is over ten times faster than
`lanczos` on an ensemble of 200 networks of d = 5, L = 10.

Per layer a vector of the Hessian's range has coordinates x_k, then y_k; they begin at
nodes[k] + nodes[k + 1] - d_0.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.seeds import generator
from flatmin.lanes.algebra import (
    add_scaled,
    add_times,
    dot,
    input_gradient,
    scale_into,
    transposed_times,
)
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.layout import scratch
from flatmin.lanes.linear_descent import sweep_backward
from flatmin.lanes.tiles import put
from flatmin.lanes.tridiagonal import top_of_tridiagonal
from flatmin.lanes.vectors import absolute, all_lanes, fma, root, vectors, where

BASIS = 48
# Without reorthogonalisation Lanczos vectors lose orthogonality once the residual has fallen to
# about the root of the machine's precision; a looser tolerance is reached before that.
_LOOSE = 1e-7


@inlined
def _inverse(x):
    """1/x, or 0 where x is not positive."""
    return where(x > 0.0, 1.0 / where(x > 0.0, x, 1.0), 0.0)


@inlined
def _normalise(x, y, size):
    """y = x/|x|, or 0 where x is 0; returns |x|."""
    norm = root(dot(x, x, size))
    scale_into(_inverse(norm), x, y, size)
    return norm


@inlined
def _coordinates(layout, k):
    """Where the coordinates x_k and y_k of a layer begin."""
    x = layout.nodes[k] + layout.nodes[k + 1] - layout.widths[0]
    return x, x + layout.widths[k + 1]


@helper
def _frames(w, network, b, a, b_norm, a_norm, error):
    """b_k, unit vectors of a_k (in place of a_k) and both norms, for one block of weights."""
    widths, layers, nodes = network.layout
    depth = len(widths) - 1
    sweep_backward(w, network, b)
    for i in range(widths[0]):
        error[i] = b[i] - network.target[i]
    input_gradient(network.sigma, error, a)
    for k in range(depth - 1):
        above = a[nodes[k + 1] :]
        for i in range(widths[k + 1]):
            above[i] = 0.0
        add_times(w[layers[k] :], widths[k + 1], widths[k], a[nodes[k] :], above)
    for k in range(depth):
        above, below = b[nodes[k + 1] :], a[nodes[k] :]
        b_norm[k] = root(dot(above, above, widths[k + 1]))
        a_norm[k] = _normalise(below, below, widths[k])


@helper
def _product(w, network, b, a, b_norm, a_norm, v, out, c, e):
    """out = H v in range coordinates. `a` holds unit vectors A; `c` and `e` are scratch."""
    widths, layers, nodes = network.layout
    depth = len(widths) - 1
    # c_{k-1} = W_k' c_k + A (x.b_k) + |b_k| y, with c_L = 0
    for k in range(depth - 1, -1, -1):
        rows, columns = widths[k + 1], widths[k]
        x_at, y_at = _coordinates(network.layout, k)
        y, below, unit = v[y_at:], c[nodes[k] :], a[nodes[k] :]
        along = dot(v[x_at:], b[nodes[k + 1] :], rows)
        for j in range(columns):
            below[j] = fma(along, unit[j], b_norm[k] * y[j])
        if k < depth - 1:
            transposed_times(w[layers[k] :], rows, columns, c[nodes[k + 1] :], below, True)
    # e_1 = 2 Sigma c_0
    input_gradient(network.sigma, c, e)
    # x = |a_k| c_k + (e_k.A) b_k,  y = |b_k| (e_k - (e_k.A) A),  e_{k+1} = W_k e_k + |a_k| x
    for k in range(depth):
        rows, columns = widths[k + 1], widths[k]
        x_at, y_at = _coordinates(network.layout, k)
        x, y, above = out[x_at:], out[y_at:], e[nodes[k + 1] :]
        here, unit, b_k, c_k = e[nodes[k] :], a[nodes[k] :], b[nodes[k + 1] :], c[nodes[k + 1] :]
        along = dot(here, unit, columns)
        for j in range(columns):
            y[j] = b_norm[k] * fma(-along, unit[j], here[j])
        if k < depth - 1:
            for i in range(rows):
                x[i] = fma(a_norm[k], c_k[i], along * b_k[i])
                above[i] = a_norm[k] * v[x_at + i]
            add_times(w[layers[k] :], rows, columns, here, above)
        else:
            scale_into(along, b_k, x, rows)


@inlined
def _enter(layout, a, b, b_norm, vector, q):
    """Range coordinates of X A' + B Y': x = X + (Y.A) B, y = Y - (Y.A) A.

    Between calls vectors are kept as (X, Y) with X orthogonal to B. At the end of training a_k is
    rounding noise whose direction A jumps, and X vanishes, so (X, Y) stays put where (x, y) jumps.
    """
    widths, nodes = layout.widths, layout.nodes
    for k in range(len(widths) - 1):
        x, y = _coordinates(layout, k)
        along = dot(vector[y:], a[nodes[k] :], widths[k])
        unit = along * _inverse(b_norm[k])
        for i in range(widths[k + 1]):
            q[x + i] = fma(unit, b[nodes[k + 1] + i], vector[x + i])
        for j in range(widths[k]):
            q[y + j] = fma(-along, a[nodes[k] + j], vector[y + j])


@inlined
def _leave(layout, a, b, b_norm, vector):
    """The way back, in place: X = x - (x.B) B, Y = y + (x.B) A."""
    widths, nodes = layout.widths, layout.nodes
    for k in range(len(widths) - 1):
        x, y = _coordinates(layout, k)
        above, inverse = b[nodes[k + 1] :], _inverse(b_norm[k])
        along = dot(vector[x:], above, widths[k + 1]) * inverse
        add_scaled(-(along * inverse), above, vector[x:], widths[k + 1])
        add_scaled(along, a[nodes[k] :], vector[y:], widths[k])


@helper
def sharpness_scratch(lanes, network, vector, basis):
    """The memory that `block_sharpness` works in."""
    size, depth = network.layout.nodes[-1], len(network.layout.widths) - 1
    return scratch(
        (4 * size + 2 * depth + 4 * basis) * len(lanes) + (basis + 1) * len(vector), vector
    )


@helper
def block_sharpness(
    lanes, weights, network, start, tolerance, max_products, basis, memory
):  # fmt: skip
    """Largest eigenvalue of each lane of one block, started from `start`, which it replaces.

    Returns values, residuals and numbers of products.

    lanes     tuple of n floats; only its length is used
    weights   flat weights of the block; network of `layout`
    start     flat [dimension * n], as `_enter` takes it; need not be normalised or in the range
    basis     largest Krylov basis; a lane that fills it restarts from its Ritz vector
    memory    of `sharpness_scratch`
    """
    layout, size, depth = network.layout, network.layout.nodes[-1], len(network.layout.widths) - 1
    width = len(start) // len(lanes)
    w, vector = vectors(lanes, weights), vectors(lanes, start)
    b = vectors(lanes, memory)
    a, c, e, b_norm = b[size:], b[2 * size :], b[3 * size :], b[4 * size :]
    a_norm, alpha = b_norm[depth:], b_norm[2 * depth :]
    beta, s, ritz, q = alpha[basis:], alpha[2 * basis :], alpha[3 * basis :], alpha[4 * basis :]
    _frames(w, network, b, a, b_norm, a_norm, e)
    finished = ~(a_norm[0] < np.inf)
    value = residual = np.nan
    products = 0.0
    while not all_lanes(finished):
        _enter(layout, a, b, b_norm, vector, q)
        _normalise(q, q, width)
        spans = where(finished, 1.0, 0.0)  # basis size at which a lane stopped; 0: still going
        used = 0
        while True:
            here, there = q[used * width :], q[(used + 1) * width :]
            _product(w, network, b, a, b_norm, a_norm, here, there, c, e)
            along = dot(here, there, width)
            add_scaled(-along, here, there, width)
            if tolerance < _LOOSE:
                for i in range(used, -1, -1):
                    before = q[i * width :]
                    add_scaled(-dot(before, there, width), before, there, width)
            elif used > 0:
                add_scaled(-beta[used - 1], q[(used - 1) * width :], there, width)
            norm = _normalise(there, there, width)
            alpha[used], beta[used], ritz[used] = along, norm, 0.0
            used += 1
            if used == 1:
                # The start vector may already be good enough: this is its own residual.
                good = (spans == 0.0) & ~(norm > tolerance * absolute(along))
                value, residual = where(good, along, value), where(good, norm, residual)
                products, spans = where(good, products + 1.0, products), where(good, 1.0, spans)
                finished = finished | good
                for i in range(width):
                    vector[i] = where(good, q[i], vector[i])
                if all_lanes(finished):
                    break
            # A lane may stop at every second product, or when its basis or its products are whole.
            going = spans == 0.0
            whole = products + (used + 1) >= max_products
            broken = norm == 0.0
            if used < basis and used % 2 == 1 and all_lanes(~going | ~(whole | broken)):
                continue
            theta = top_of_tridiagonal(alpha, beta, used, s)
            close = ~(norm * absolute(s[used - 1]) > 0.5 * tolerance * absolute(theta))
            if used % 2 == 1:
                close = close & broken
            stop = going & (whole | close)
            if used == basis:
                stop = going
            spans = where(stop, used, spans)
            for i in range(used):
                ritz[i] = where(stop, s[i], ritz[i])
            if all_lanes(spans > 0.0):
                break
        if all_lanes(finished):
            break
        # Ritz vector of each lane, then its own value and residual.
        v = q[basis * width :]
        scale_into(ritz[0], q, v, width)
        for j in range(1, used):
            add_scaled(ritz[j], q[j * width :], v, width)
        _normalise(v, v, width)
        _product(w, network, b, a, b_norm, a_norm, v, q, c, e)
        theta = dot(v, q, width)
        add_scaled(-theta, v, q, width)
        error = root(dot(q, q, width))
        value, residual = where(finished, value, theta), where(finished, residual, error)
        products = where(finished, products, products + (spans + 1.0))
        for i in range(width):
            vector[i] = where(finished, vector[i], v[i])
        finished = finished | ~(error > tolerance * absolute(theta)) | (products >= max_products)
    _leave(layout, a, b, b_norm, vector)
    return value, residual, products


@compiled
def blocks_sharpness(
    lanes, weights, network, starts, tolerance, max_products, basis, results, first, last
):  # fmt: skip
    """`block_sharpness` for blocks first..last-1: starts [block, dimension, n], results
    [block, 3, n]."""
    memory = sharpness_scratch(lanes, network, starts[0].reshape(-1), basis)
    for block in range(first, last):
        found = block_sharpness(
            lanes, weights[block].reshape(-1), network, starts[block].reshape(-1), tolerance,
            max_products, basis, memory,
        )  # fmt: skip
        put(vectors(lanes, results[block]), 1, found)


def start_vector(dimension: int) -> Float:
    """The same start for every network, so that results do not depend on its place."""
    vector: Float = generator(0, "lanczos start").standard_normal(dimension)
    return vector
