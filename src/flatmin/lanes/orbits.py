"""Long runs above the ceiling, a block of lanes at a time: rates that rise, orbits, tangents.

A step is that of `linear_descent`, here without a rule for stopping: a run above the ceiling never
arrives, and one that diverges stays in its lane as infinities. Beside the weights W a block may
carry a tangent V, which follows the derivative of the step,

    V <- V - eta H(W) V,    H V by the two sweeps of `curvature.linear`:
    x_L = 0,  x_{k-1} = W_k' x_k + V_k' b_k;   e_1 = 2 Sigma x_0,  e_{k+1} = W_k e_k + V_k a_k;
    layer k of H V is x_k a_k' + b_k e_k'.

A network above the ceiling follows a chain, W_k along b_k b_{k-1}' (`theory.oscillation`), and
tangents are kept among those of chains: every few steps V_1 becomes b b'V_1 and V_k, k >= 2, its
part along b_k b_{k-1}', with unit vectors b. (Turning hidden layers costs nothing, so that the
largest exponent of all tangents is never below 0 and hides whether an orbit is stable.) Then their
length is set back to 1 and its logarithm added up: divided by the steps, the sum tends to the
largest Lyapunov exponent of the chain. With one neuron a layer this is that of the network itself.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.lanes.algebra import add_times, dot, scaled_symmetric, transposed_times
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.vectors import (
    absolute,
    fma,
    load,
    minus,
    over,
    root,
    splat,
    store,
    times,
    where_less,
)

# Steps between two times that tangents get length 1 again: no product overflows in so many.
RENEWED = 4
# What is kept of every recorded step: see `follow_block`.
COLUMNS = ("output", "excess", "pull", "inner")


@inlined
def _add_outer(zero, n, w, at, rows, columns, factor, left, left_at, right, right_at):
    """W += factor left right'."""
    width = columns * n
    for i in range(rows):
        scale = times(factor, load(zero, left, left_at + i * n))
        row = at + i * width
        for j in range(0, width, n):
            store(w, row + j, fma(scale, load(zero, right, right_at + j), load(zero, w, row + j)))


@helper
def _clear(zero, n, vectors, begin, end):
    for j in range(begin, end, n):
        store(vectors, j, zero)


@helper
def _project(zero, n, v, layers, widths, b, nodes):
    """Keep of every tangent the part among chains."""
    for k in range(len(widths) - 1):
        above, below = nodes[k + 1], nodes[k]
        rows, width = widths[k + 1], widths[k] * n
        square = dot(zero, n, b, above, b, above, rows * n)
        if k > 0:
            square = times(square, dot(zero, n, b, below, b, below, width))
            total = zero
            for i in range(rows):
                row = dot(zero, n, v, layers[k] + i * width, b, below, width)
                total = fma(row, load(zero, b, above + i * n), total)
            total = over(total, square)
            for i in range(rows):
                scale = times(total, load(zero, b, above + i * n))
                for j in range(0, width, n):
                    store(v, layers[k] + i * width + j, times(scale, load(zero, b, below + j)))
        else:
            for j in range(0, width, n):
                total = zero
                for i in range(rows):
                    at = layers[k] + i * width + j
                    total = fma(load(zero, v, at), load(zero, b, above + i * n), total)
                total = over(total, square)
                for i in range(rows):
                    at = layers[k] + i * width + j
                    store(v, at, times(total, load(zero, b, above + i * n)))


@helper
def _renew(zero, n, v, growth, scratch):
    """Set the tangents' length to 1 and add its logarithm to `growth`."""
    length = root(dot(zero, n, v, 0, v, 0, len(v)))
    factor = over(splat(zero, 1.0), length)
    for j in range(0, len(v), n):
        store(v, j, times(factor, load(zero, v, j)))
    store(scratch, 0, length)
    for lane in range(n):
        growth[lane] += np.log(scratch[lane])


@helper
def follow_block(
    lanes, w, v, widths, p, sigma, target, weight, rate, slope, last, growth, rows, begin, steps,
):  # fmt: skip
    """Take `steps` steps with one block; the rate of step k is min(rate + k slope, last).

    lanes   tuple of n numbers; only its length and type are used
    w, v    flat weights, and tangents or an empty array; changed in place
    weight  [d] a covector: the output kept is weight'w
    rate, slope, last   [n] the rate at step 0, what it rises by in a step, and the largest one
    growth  [n] the logarithms of the tangents' growth are added to it
    rows    [steps, 4, n] or empty: before every step weight'w, the excess risk, the pull eta g'w
            with g = 2 Sigma (w - w*), and |b_1|^2
    begin   steps taken before this call
    """
    n, depth, d = len(lanes), len(widths) - 1, widths[0]
    zero = splat(lanes, 0.0)
    layers = np.zeros(depth + 1, np.int64)
    nodes = np.zeros(depth + 2, np.int64)
    for k in range(depth + 1):
        nodes[k + 1] = nodes[k] + widths[k] * n
    for k in range(depth):
        layers[k + 1] = layers[k] + widths[k + 1] * widths[k] * n
    a = np.zeros(nodes[depth + 1], w.dtype)
    b, e, x = a.copy(), a.copy(), a.copy()
    error, scratch = np.zeros(d * n, w.dtype), np.zeros(n, w.dtype)
    tangent, recorded = len(v) > 0, len(rows) > 0
    first, rise, top = load(zero, rate, 0), load(zero, slope, 0), load(zero, last, 0)

    for step in range(steps):
        eta = fma(splat(zero, float(begin + step)), rise, first)
        eta = where_less(eta, top, eta, top)
        descent = minus(zero, eta)
        for i in range(widths[depth]):
            store(b, nodes[depth] + i * n, splat(zero, p[i]))
        for k in range(depth - 1, -1, -1):
            above, below = nodes[k + 1], nodes[k]
            size = (widths[k + 1], widths[k])
            transposed_times(zero, n, w, layers[k], size[0], size[1], b, above, b, below, False)
        if tangent:
            if (begin + step) % RENEWED == 0:
                _project(zero, n, v, layers, widths, b, nodes)
                _renew(zero, n, v, growth, scratch)
            _clear(zero, n, x, nodes[depth], nodes[depth + 1])
            for k in range(depth - 1, -1, -1):
                above, below = nodes[k + 1], nodes[k]
                size = (widths[k + 1], widths[k])
                transposed_times(zero, n, w, layers[k], size[0], size[1], x, above, x, below, False)
                transposed_times(zero, n, v, layers[k], size[0], size[1], b, above, x, below, True)
        for j in range(d):
            store(error, j * n, minus(load(zero, b, j * n), splat(zero, target[j])))
        excess = scaled_symmetric(zero, n, sigma, 2.0, error, a, d)
        if tangent:
            scaled_symmetric(zero, n, sigma, 2.0, x, e, d)
        if recorded:
            output = zero
            for j in range(d):
                output = fma(splat(zero, weight[j]), load(zero, b, j * n), output)
            at = step * 4 * n
            store(rows, at, output)
            store(rows, at + n, times(splat(zero, 0.5), absolute(excess)))
            store(rows, at + 2 * n, times(eta, dot(zero, n, a, 0, b, 0, d * n)))
            inner = dot(zero, n, b, nodes[1], b, nodes[1], widths[1] * n)
            store(rows, at + 3 * n, inner)
        for k in range(depth):
            above, below = nodes[k + 1], nodes[k]
            size = (widths[k + 1], widths[k])
            if k < depth - 1:
                _clear(zero, n, a, above, nodes[k + 2])
                add_times(zero, n, w, layers[k], size[0], size[1], a, below, a, above)
                if tangent:
                    _clear(zero, n, e, above, nodes[k + 2])
                    add_times(zero, n, w, layers[k], size[0], size[1], e, below, e, above)
                    add_times(zero, n, v, layers[k], size[0], size[1], a, below, e, above)
            _add_outer(zero, n, w, layers[k], size[0], size[1], descent, b, above, a, below)
            if tangent:
                _add_outer(zero, n, v, layers[k], size[0], size[1], descent, x, above, a, below)
                _add_outer(zero, n, v, layers[k], size[0], size[1], descent, b, above, e, below)


@compiled
def follow(
    lanes, weights, tangents, widths, p, sigma, target, weight, rate, slope, last, growth, rows,
    begin, steps, block,
):  # fmt: skip
    """`follow_block` for one block; per-lane arrays are [block, n]."""
    follow_block(
        lanes, weights[block].reshape(-1), tangents[block].reshape(-1), widths, p, sigma, target,
        weight, rate[block], slope[block], last[block], growth[block], rows[block].reshape(-1),
        begin, steps,
    )  # fmt: skip
