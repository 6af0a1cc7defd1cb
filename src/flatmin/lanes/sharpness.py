"""The sharpness of linear networks with one output: their Hessian for `lanczos`.

The mathematics is that of `curvature.linear`, in range coordinates.

Per layer a vector of the Hessian's range has coordinates x_k, then y_k; they begin at
nodes[k] + nodes[k + 1] - d_0.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.lanes.algebra import (
    add_scaled,
    add_times,
    dot,
    input_gradient,
    scale_into,
    sweep_backward,
    transposed_times,
)
from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.lanczos import Operator, inverse_or_zero, normalise, search
from flatmin.lanes.vectors import fma, root


@inlined
def _vectors(network):
    return 4 * network.layout.nodes[-1] + 2 * (len(network.layout.widths) - 1)


@inlined
def _places(network, room):
    """b_k, a_k, two more of their size for a product, |b_k| and |a_k|."""
    size, depth = network.layout.nodes[-1], len(network.layout.widths) - 1
    norms = room[4 * size :]
    return room, room[size:], room[2 * size :], room[3 * size :], norms, norms[depth:]


@inlined
def coordinates(layout, k):
    """Where the coordinates x_k and y_k of a layer begin."""
    x = layout.nodes[k] + layout.nodes[k + 1] - layout.widths[0]
    return x, x + layout.widths[k + 1]


@helper
def _prepare(w, network, room):
    """b_k, unit vectors of a_k (in place of a_k) and both norms, for one block of weights."""
    b, a, _, error, b_norm, a_norm = _places(network, room)
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
        a_norm[k] = normalise(below, below, widths[k])
    return ~(a_norm[0] < np.inf)


@helper
def _product(w, network, room, v, out):
    """out = H v in range coordinates. `a` holds unit vectors A; `c` and `e` are scratch."""
    b, a, c, e, b_norm, a_norm = _places(network, room)
    widths, layers, nodes = network.layout
    depth = len(widths) - 1
    # c_{k-1} = W_k' c_k + A (x.b_k) + |b_k| y, with c_L = 0
    for k in range(depth - 1, -1, -1):
        rows, columns = widths[k + 1], widths[k]
        x_at, y_at = coordinates(network.layout, k)
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
        x_at, y_at = coordinates(network.layout, k)
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
def _enter(network, room, vector, q, size):
    """Range coordinates of X A' + B Y': x = X + (Y.A) B, y = Y - (Y.A) A.

    Between calls vectors are kept as (X, Y) with X orthogonal to B. At the end of training a_k is
    rounding noise whose direction A jumps, and X vanishes, so (X, Y) stays put where (x, y) jumps.
    """
    b, a, _, _, b_norm, _ = _places(network, room)
    widths, nodes = network.layout.widths, network.layout.nodes
    for k in range(len(widths) - 1):
        x, y = coordinates(network.layout, k)
        along = dot(vector[y:], a[nodes[k] :], widths[k])
        unit = along * inverse_or_zero(b_norm[k])
        for i in range(widths[k + 1]):
            q[x + i] = fma(unit, b[nodes[k + 1] + i], vector[x + i])
        for j in range(widths[k]):
            q[y + j] = fma(-along, a[nodes[k] + j], vector[y + j])


@inlined
def _leave(network, room, vector):
    """The way back, in place: X = x - (x.B) B, Y = y + (x.B) A."""
    b, a, _, _, b_norm, _ = _places(network, room)
    widths, nodes = network.layout.widths, network.layout.nodes
    for k in range(len(widths) - 1):
        x, y = coordinates(network.layout, k)
        above, inverse = b[nodes[k + 1] :], inverse_or_zero(b_norm[k])
        along = dot(vector[x:], above, widths[k + 1]) * inverse
        add_scaled(-(along * inverse), above, vector[x:], widths[k + 1])
        add_scaled(along, a[nodes[k] :], vector[y:], widths[k])


sharpness_scratch, block_sharpness, blocks_sharpness = search(
    "linear", Operator(_vectors, _prepare, _product, _enter, _leave)
)
