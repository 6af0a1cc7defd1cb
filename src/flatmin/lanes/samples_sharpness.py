"""The sharpness of networks on samples: their Hessian for `lanczos`, forward over reverse.

In the notation of `samples_descent`, with delta_k the signal of layer k, V a direction and C the
fixed p', or the identity, the recursions of `curvature.nonlinear` are

    once       h_k, s_k = phi'(z_k);  r_k = W_{k+1}' delta_{k+1},  delta_k = s_k * r_k,
               c_k = phi''(z_k) * r_k
    forward    dz_k = V_k h_{k-1} + W_k dh_{k-1},  dh_k = s_k * dz_k,  e_k = c_k * dz_k
    backward   d delta_L = (2/n) C'C dz_L,
               d delta_k = e_k + s_k * (V_{k+1}' delta_{k+1} + W_{k+1}' d delta_{k+1})
               (H V)_k = d delta_k h_{k-1}' + delta_k dh_{k-1}'.

For the identity s_k = 1 and c_k = 0 are not stored. Signals of all samples stay in memory between
products, [unit, sample, lane]; sums run in one fixed order on the whole lane vector.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import numpy as np

from flatmin.lanes.activations import IDENTITY, activate_twice
from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.lanczos import Operator, search
from flatmin.lanes.samples_descent import fill_inputs, outer_product, product, residual
from flatmin.lanes.tiles import in_threes, outer, put, take, zeros
from flatmin.lanes.vectors import fma


def _rows(rows: int) -> Any:
    both = 2 * rows

    @inlined
    def tile(a, b, down, across, columns, x, more, z, y, size):
        for s in range(0, size, 2):
            total = zeros(a, both)
            for j in range(columns):
                pair = take(x[j * size + s :], 2, 1)
                total = outer(take(a[j * across :], rows, down), pair, total)
            for j in range(more):
                pair = take(z[j * size + s :], 2, 1)
                total = outer(take(b[j * across :], rows, down), pair, total)
            put(y[s:], size, total, 2)

    return tile


_some_rows = in_threes(_rows)


@helper
def _two_products(a, b, down, across, rows, columns, x, more, z, y, size):
    """y = A x + B z; A and B are laid out as M of `product`, with so many and `more` columns."""
    i = 0
    while i < rows:
        first, second, there = a[i * down :], b[i * down :], y[i * size :]
        i += _some_rows(
            rows - i, first, second, down, across, columns, x, more, z, there, size
        )  # fmt: skip


@inlined
def _sizes(network):
    """Samples, rounded up to an even number, and the vectors of a signal in all units."""
    samples = len(network.inputs)
    size = samples + samples % 2
    return size, size * network.layout.nodes[-1]


@inlined
def _vectors(network):
    return 7 * _sizes(network)[1]


@inlined
def _places(network, room):
    """h, delta, dh, and e with d delta in its place; then s, c and what is not yet bent."""
    all_ = _sizes(network)[1]
    return (
        room, room[all_:], room[2 * all_ :], room[3 * all_ :], room[4 * all_ :], room[5 * all_ :],
        room[6 * all_ :],
    )  # fmt: skip


@helper
def _prepare(w, network, room):
    """h, delta, s and c at the weights."""
    widths, layers, nodes = network.layout
    depth, count, bent = len(widths) - 1, len(network.inputs), network.activation != IDENTITY
    size, _ = _sizes(network)
    h, delta, dh, _, s, c, _ = _places(network, room)
    fill_inputs(h, network, 1.0, 0, count, size)
    for e in range(nodes[-1] * size):
        dh[e] = 0.0
    for k in range(depth):
        rows, columns, above = widths[k + 1], widths[k] + network.biases, nodes[k + 1] * size
        y = h[above:] if k < depth - 1 else delta[above:]
        product(w[layers[k] :], columns, 1, rows, columns, h[nodes[k] * size :], y, size, False)
        if k < depth - 1:
            activate_twice(network.activation, y, s[above:], c[above:], rows * size)
    total = residual(network, 1.0, 0, delta[nodes[depth] * size :], size, count, 0.0)
    for k in range(depth - 1, 0, -1):
        rows, columns, here = widths[k + 1], widths[k] + network.biases, nodes[k] * size
        above = delta[nodes[k + 1] * size :]
        product(w[layers[k] :], 1, columns, widths[k], rows, above, delta[here:], size, False)
        for e in range(here, here + widths[k] * size * bent):
            c[e] = c[e] * delta[e]
            delta[e] = s[e] * delta[e]
    return ~(total < np.inf)


@inlined
def _through_output(network, d, size):
    """(2/n) C'C d, in place."""
    p, share = network.p, 2.0 / len(network.inputs)
    for e in range(size):
        if len(p) == 0:
            for i in range(len(network.target)):
                d[i * size + e] = share * d[i * size + e]
        else:
            total = p[0] * d[e]
            for i in range(1, len(p)):
                total = fma(p[i], d[i * size + e], total)
            for i in range(len(p)):
                d[i * size + e] = p[i] * (share * total)


@helper
def _product(w, network, room, v, out):
    """out = H v."""
    widths, layers, nodes = network.layout
    depth, count, bent = len(widths) - 1, len(network.inputs), network.activation != IDENTITY
    size, _ = _sizes(network)
    h, delta, dh, d, s, c, y = _places(network, room)
    for k in range(depth):
        rows, columns, above = widths[k + 1], widths[k] + network.biases, nodes[k + 1] * size
        x, z, more = h[nodes[k] * size :], dh[nodes[k] * size :], widths[k] if k > 0 else 0
        to = d[above:] if k == depth - 1 else (y if bent else dh[above:])
        _two_products(
            v[layers[k] :], w[layers[k] :], columns, 1, rows, columns, x, more, z, to, size
        )  # fmt: skip
        if k < depth - 1 and bent:
            for e in range(rows * size):
                dh[above + e] = s[above + e] * y[e]
                d[above + e] = c[above + e] * y[e]
    _through_output(network, d[nodes[depth] * size :], size)
    for k in range(depth - 1, -1, -1):
        rows, columns, here = widths[k + 1], widths[k] + network.biases, nodes[k] * size
        old, new, g = delta[nodes[k + 1] * size :], d[nodes[k + 1] * size :], out[layers[k] :]
        outer_product(g, rows, columns, new, h[here:], size, count, False)
        if k > 0:
            outer_product(g, rows, columns, old, dh[here:], size, count, True)
            to = y if bent else d[here:]
            _two_products(
                v[layers[k] :], w[layers[k] :], 1, columns, widths[k], rows, old, rows, new, to,
                size,
            )  # fmt: skip
            for e in range(here, here + widths[k] * size * bent):
                d[e] = fma(s[e], y[e - here], d[e])


@inlined
def _enter(network, room, vector, q, size):
    """Coordinates are the flat parameters."""
    for e in range(size):
        q[e] = vector[e]


@inlined
def _leave(network, room, vector):
    """Nothing to do."""


_, _, blocks_sharpness = search("samples", Operator(_vectors, _prepare, _product, _enter, _leave))
