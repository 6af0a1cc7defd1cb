"""The interval of a sharpness, compiled: one block of lanes of linear networks with one output.

The mathematics is that of `flatmin.curvature.inertia` for one output, in double precision: a
Rayleigh quotient less its rounding from below, a factorisation of high I - H over the layers from
above, and the matrices E that carry the errors of b_k, a_k and c_k. The vector is that of
`sweeps`: V_k = x a_k' + b_k y' with the computed a_k and b_k, taken as exact.

Matrices lie row by row.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flatmin.lanes.algebra import (
    add_times,
    dot,
    input_gradient,
    scale_into,
    sweep_backward,
    transposed_times,
)
from flatmin.lanes.compiling import compiled, helper
from flatmin.lanes.lanczos import inverse_or_zero
from flatmin.lanes.layout import scratch
from flatmin.lanes.sweeps import coordinates
from flatmin.lanes.tiles import put
from flatmin.lanes.vectors import absolute, fma, root, vectors, where

_EPS = float(np.finfo(np.float64).eps)


class Sweeps(NamedTuple):
    """b_k and a_k of one block, as `layout` has nodes; the rest has one vector a layer."""

    b: Any
    a: Any
    w_norm: Any
    b_error: Any  # bounds on the norms of the errors of b_k and a_k
    a_error: Any


# Not inlined: each is called in many places, a few times a layer.


@helper
def _dot(x, y, size):
    return dot(x, y, size)


@helper
def _norm(x, size):
    return root(dot(x, x, size))


@helper
def _frobenius(sigma):
    """The norm of a matrix shared by all lanes."""
    square = 0.0
    for i in range(sigma.shape[0]):
        for j in range(sigma.shape[1]):
            square += sigma[i, j] ** 2
    return np.sqrt(square)


@helper
def _clear(x, size):
    for e in range(size):
        x[e] = 0.0


@helper
def congruence(m, size, x, row, column, columns, half):
    """m = X' m X in place; X[i, j] is at i row + j column. Returns |m X|^2."""
    square = 0.0
    for i in range(size):
        for j in range(columns):
            total = 0.0
            for k in range(size):
                total = fma(m[i * size + k], x[k * row + j * column], total)
            half[i * columns + j] = total
            square = fma(total, total, square)
    for i in range(columns):
        for j in range(i + 1):
            total = 0.0
            for k in range(size):
                total = fma(x[k * row + i * column], half[k * columns + j], total)
            m[i * columns + j] = total
            m[j * columns + i] = total
    return square


@helper
def spread(depth, m, size, x, row, column, columns, added, half):
    """E = (1 + 1/depth) X'EX + (1 + depth) added^2 I; returns a bound on the error's norm."""
    congruence(m, size, x, row, column, columns, half)
    scale_into(1.0 + 1.0 / depth, m, m, columns * columns)
    extra = (1.0 + depth) * (added * added)
    trace = 0.0
    for i in range(columns):
        here = i * (columns + 1)
        m[here] = m[here] + extra
        trace = trace + m[here]
    return 1.01 * root(trace)


@helper
def errors(w, network, found, m, half, twice):
    """b_k and a_k with bounds on their errors, and the layers' norms."""
    widths, layers, nodes = network.layout
    b, a, w_norm, b_error, a_error = found
    depth, d = len(widths) - 1, widths[0]
    sweep_backward(w, network, b)
    _clear(m, widths[depth] * widths[depth])
    b_error[depth - 1] = 0.0
    for k in range(depth - 1, -1, -1):
        rows, columns, layer = widths[k + 1], widths[k], w[layers[k] :]
        w_norm[k] = _norm(layer, rows * columns)
        added = (rows + 4) * _EPS * (w_norm[k] * _norm(b[nodes[k + 1] :], rows))
        error = spread(depth + 1, m, rows, layer, columns, 1, columns, added, half)
        if k > 0:
            b_error[k - 1] = error
    size = _norm(b, d)
    for i in range(d):
        half[i] = b[i] - network.target[i]
    size = size + _norm(half, d)
    input_gradient(network.sigma, half, a)
    for i in range(d):
        for j in range(d):
            twice[i * d + j] = 2.0 * network.sigma[i, j]
    added = (d + 4) * _EPS * (2.0 * _frobenius(network.sigma)) * size
    a_error[0] = spread(depth + 1, m, d, twice, d, 1, d, added, half)
    for k in range(depth - 1):
        rows, columns, layer = widths[k + 1], widths[k], w[layers[k] :]
        here, above = a[nodes[k] :], a[nodes[k + 1] :]
        _clear(above, rows)
        add_times(layer, rows, columns, here, above)
        added = (columns + 4) * _EPS * (w_norm[k] * _norm(here, columns))
        a_error[k + 1] = spread(depth + 1, m, columns, layer, 1, columns, rows, added, half)


@helper
def quotient(w, network, found, vector, c, m, half):
    """V'HV/|V|^2 and a bound on its error; V from its coordinates."""
    widths, layers, nodes = network.layout
    b, a, w_norm, b_error, a_error = found
    depth, d = len(widths) - 1, widths[0]
    _clear(m, widths[depth] * widths[depth])
    _clear(c, nodes[-1])
    total = error = square = c_error = 0.0
    for k in range(depth - 1, -1, -1):
        rows, columns, layer = widths[k + 1], widths[k], w[layers[k] :]
        y_at, x_at = coordinates(network.layout, k)
        x, y, a_k, b_k = vector[x_at:], vector[y_at:], a[nodes[k] :], b[nodes[k + 1] :]
        c_k, below = c[nodes[k + 1] :], c[nodes[k] :]
        a_square, b_square = _dot(a_k, a_k, columns), _dot(b_k, b_k, rows)
        a_norm, b_norm = root(a_square), root(b_square)
        # x_L = 0 is not kept
        inside = rows if k < depth - 1 else 0
        x_norm, y_norm = _norm(x, inside), _norm(y, columns)
        x_b, y_a = _dot(x, b_k, inside), _dot(y, a_k, columns)
        v_norm = fma(x_norm, a_norm, y_norm * b_norm)
        square = fma(x_norm * x_norm, a_square, square)
        square = fma(y_norm * y_norm, b_square, fma(2.0, x_b * y_a, square))
        # 2 c_k.(V a_k), V a_k = x |a|^2 + b (y.a)
        c_x, c_b = _dot(c_k, x, inside), _dot(c_k, b_k, rows)
        total = fma(2.0, fma(c_x, a_square, c_b * y_a), total)
        c_norm, lost = _norm(c_k, rows), (rows + columns + 12) * _EPS
        wrong_a = fma(lost, a_norm, a_error[k])
        error = fma(2.0, c_norm * v_norm * wrong_a, error)
        error = fma(2.0, c_error * v_norm * (a_norm + wrong_a), error)
        added = fma(lost, fma(c_norm, w_norm[k], v_norm * b_norm), v_norm * b_error[k])
        # c_{k-1} = W'c_k + a (x.b) + |b|^2 y
        for j in range(columns):
            below[j] = fma(x_b, a_k[j], b_square * y[j])
        if k < depth - 1:
            transposed_times(layer, rows, columns, c_k, below, True)
        c_error = spread(depth + 1, m, rows, layer, columns, 1, columns, added, half)
    total = fma(2.0, input_gradient(network.sigma, c, half), total)
    pulled, c_norm, size = _norm(half, d), _norm(c, d), 2.0 * _frobenius(network.sigma)
    error = fma(c_error, fma(2.0, pulled, size * c_error), error)
    error = fma(2.0 * (d + 8) * _EPS, size * (c_norm * c_norm), error)
    inverse = inverse_or_zero(square)
    value = total * inverse
    return value, fma(1.01, error * inverse, (depth + 40) * _EPS * absolute(value))


@helper
def factorised(pivot, size, inverse):
    """Cholesky of `pivot` in place and the inverse of the factor; a mask of where it succeeds.

    Lower triangles; the inverse of the triangle column by column.
    """
    good = pivot[0] > 0.0
    for j in range(size):
        total = pivot[j * size + j]
        for k in range(j):
            left = pivot[j * size + k]
            total = total - left * left
        good = good & (total > 0.0)
        diagonal = root(where(total > 0.0, total, 1.0))
        pivot[j * size + j] = diagonal
        scale = 1.0 / diagonal
        for i in range(j + 1, size):
            total = pivot[i * size + j]
            for k in range(j):
                total = total - pivot[i * size + k] * pivot[j * size + k]
            pivot[i * size + j] = total * scale
    for j in range(size):
        inverse[j * size + j] = 1.0 / pivot[j * size + j]
        for i in range(j + 1, size):
            total = 0.0
            for k in range(j, i):
                total = total - pivot[i * size + k] * inverse[k * size + j]
            inverse[i * size + j] = total * (1.0 / pivot[i * size + i])
    return good


@helper
def _lower_norm(m, size):
    total = 0.0
    for i in range(size):
        for j in range(i + 1):
            total = fma(m[i * size + j], m[i * size + j], total)
    return root(total)


@helper
def all_below(w, network, found, high, q, pivot, inverse, z, psi):
    """A mask of the lanes where all eigenvalues are proved to be below `high`."""
    widths, layers, nodes = network.layout
    b, a, w_norm, b_error, a_error = found
    depth, d = len(widths) - 1, widths[0]
    for i in range(d):
        for j in range(d):
            q[i * d + j] = 2.0 * network.sigma[i, j]
    good = high > 0.0
    high = where(good, high, 1.0)
    per = 1.0 / high
    for k in range(depth):
        rows, columns, layer = widths[k + 1], widths[k], w[layers[k] :]
        b_k, a_k, u = b[nodes[k + 1] :], a[nodes[k] :], (columns // 2 + 4) * _EPS
        b_norm, a_norm = _norm(b_k, rows), _norm(a_k, columns)
        wrong_b, wrong_a = fma(_EPS, b_norm, b_error[k]), fma(_EPS, a_norm, a_error[k])
        # |b| or a little more
        size = fma((rows + 20) * _EPS, b_norm, b_norm + wrong_b)
        b_square, q_norm = size * size, _norm(q, columns * columns)
        free = high - 2.0 * u * fma(b_square, q_norm, columns * high)
        for i in range(columns):
            for j in range(i + 1):
                pivot[i * columns + j] = -b_square * q[i * columns + j]
            pivot[i * columns + i] = free + pivot[i * columns + i]
        good = good & factorised(pivot, columns, inverse)
        if k == depth - 1:
            break
        # z = |b| L^{-1} q, then q + z'z = sigma N in place of q
        z_square = 0.0
        for i in range(columns):
            for j in range(columns):
                total = 0.0
                for k2 in range(i + 1):
                    total = fma(inverse[i * columns + k2], q[k2 * columns + j], total)
                total = size * total
                z[i * columns + j] = total
                z_square = fma(total, total, z_square)
        for i in range(columns):
            for j in range(i + 1):
                total = q[i * columns + j]
                for k2 in range(columns):
                    total = fma(z[k2 * columns + i], z[k2 * columns + j], total)
                q[i * columns + j] = total
                q[j * columns + i] = total
        z_norm = root(z_square)
        factor, reach = _lower_norm(pivot, columns), 2.0 * u * _lower_norm(inverse, columns)
        z_error = reach * fma(factor, z_norm, size * q_norm)
        inner_error = fma(u, z_square + q_norm, z_error * fma(2.0, z_norm, z_error))
        inner = _norm(q, columns * columns)
        # Psi[j, i] = W[i, j] + a_j b_i / sigma
        for j in range(columns):
            share = per * a_k[j]
            for i in range(rows):
                psi[j * rows + i] = fma(share, b_k[i], layer[i * columns + j])
        psi_norm = _norm(psi, columns * rows)
        psi_error = fma(b_norm, wrong_a, wrong_b * (a_norm + wrong_a))
        psi_error = per * fma(4 * _EPS, b_norm * a_norm, psi_error)
        psi_error = fma(_EPS, w_norm[k], psi_error)
        half = root(congruence(q, columns, psi, rows, 1, rows, z))
        both = fma(2.0, half, psi_error * inner)
        both = fma(2.0, psi_norm * inner_error, both)
        error = fma(psi_error, both, psi_norm * psi_norm * inner_error)
        error = fma(u * psi_norm, fma(psi_norm, inner, half), error)
        error = fma(2 * _EPS, _norm(q, rows * rows), error)
        last = a_norm * a_norm * per
        error = fma(wrong_a * fma(2.0, a_norm, wrong_a), per, error)
        error = fma((columns + 12) * _EPS, last, error)
        for i in range(rows):
            q[i * (rows + 1)] = q[i * (rows + 1)] + fma(2.0, error, last)
    return good


@helper
def _block_interval(lanes, weights, network, square, vector, share, memory):
    depth, size = len(network.layout.widths) - 1, network.layout.nodes[-1]
    w, v, b = vectors(lanes, weights), vectors(lanes, vector), vectors(lanes, memory)
    a, c, rest = b[size:], b[2 * size :], b[3 * size :]
    found = Sweeps(b, a, rest, rest[depth:], rest[2 * depth :])
    m, half, z = rest[3 * depth :], rest[3 * depth + square :], rest[3 * depth + 2 * square :]
    inverse, psi = z[square:], z[2 * square :]
    errors(w, network, found, m, half, z)
    value, wrong = quotient(w, network, found, v, c, m, half)
    high = value * (1.0 + share)
    good = all_below(w, network, found, high, m, half, inverse, z, psi)
    return value, value - wrong, where(good, high, np.inf)


@compiled
def blocks_interval(lanes, weights, network, starts, share, results, first, last):
    """Quotient, low end and high end of blocks first..last-1: vectors [block, dimension, n],
    results [block, 3, n]. The high end is the quotient times 1 + share where that is proved,
    infinite elsewhere."""
    layout = network.layout
    depth, widest = len(layout.widths) - 1, 0
    # max() of an array takes a third of a second to compile, and loads SciPy with the kernel
    for width in layout.widths:
        widest = max(widest, width)
    square = widest * widest
    size = 3 * layout.nodes[-1] + 3 * depth + 5 * square
    memory = scratch(size * len(lanes), starts[0].reshape(-1))
    for block in range(first, last):
        w, start = weights[block].reshape(-1), starts[block].reshape(-1)
        found = _block_interval(lanes, w, network, square, start, share, memory)
        put(vectors(lanes, results[block]), 1, found)
