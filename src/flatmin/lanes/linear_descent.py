"""Gradient descent of linear networks with one output, a block of lanes at a time.

Backward b_L = p, b_{k-1} = W_k' b_k; error w - w* with w = b_0; a_1 = 2 Sigma (w - w*); forward
a_{k+1} = W_k a_k with the old W_k, and in the same pass W_k -= eta b_k a_k'. So each weight is
loaded twice and stored once a step, for three fused multiply-adds: 6 P flops a network step,
whatever the number of samples. With momentum, velocities follow the weights in a block and the
forward pass is that of `momentum_descent`.

Every operation acts on the whole lane vector in a fixed order, so a network's bits do not depend
on its lane, block, thread, or on how its steps are cut into calls.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.lanes.algebra import dot, transposed_times, widen
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.momentum_descent import forward_with_velocity, steady_square
from flatmin.lanes.vectors import (
    absolute,
    all_less,
    fma,
    load,
    minus,
    splat,
    store,
    times,
    where_less,
)


@inlined
def _two_rows(zero, n, w, row, b, a, above, width, below, descent):
    """Two rows of `_forward`."""
    c0 = times(descent, load(zero, b, above))
    c1 = times(descent, load(zero, b, above + n))
    total0 = zero
    total1 = zero
    for j in range(0, width, n):
        x = load(zero, a, below + j)
        w0 = load(zero, w, row + j)
        total0 = fma(w0, x, total0)
        store(w, row + j, fma(c0, x, w0))
        w1 = load(zero, w, row + width + j)
        total1 = fma(w1, x, total1)
        store(w, row + width + j, fma(c1, x, w1))
    store(a, above, total0)
    store(a, above + n, total1)


@inlined
def _one_row(zero, n, w, row, b, a, above, width, below, descent):
    """One row of `_forward`."""
    c0 = times(descent, load(zero, b, above))
    total0 = zero
    for j in range(0, width, n):
        x = load(zero, a, below + j)
        w0 = load(zero, w, row + j)
        total0 = fma(w0, x, total0)
        store(w, row + j, fma(c0, x, w0))
    store(a, above, total0)


@inlined
def _forward(zero, n, w, layer, b, a, rows, above, cols, below, descent):
    """a_above = W a_below with the old W, and W += descent b_above a_below', in the same pass."""
    width = cols * n
    i = 0
    while i < rows:
        row = layer + i * width
        if rows - i >= 2:
            _two_rows(zero, n, w, row, b, a, above + i * n, width, below, descent)
        else:
            _one_row(zero, n, w, row, b, a, above + i * n, width, below, descent)
        i += 2


@inlined
def input_gradient(zero, n, sigma, error, a, d):
    """a_1 = 2 Sigma e; returns e' Sigma e, the excess risk. Four rows at a time."""
    two = splat(zero, 2.0)
    excess = zero
    for i in range(0, d - 3, 4):
        g0 = zero
        g1 = zero
        g2 = zero
        g3 = zero
        for j in range(d):
            e = load(zero, error, j * n)
            g0 = fma(splat(zero, sigma[i, j]), e, g0)
            g1 = fma(splat(zero, sigma[i + 1, j]), e, g1)
            g2 = fma(splat(zero, sigma[i + 2, j]), e, g2)
            g3 = fma(splat(zero, sigma[i + 3, j]), e, g3)
        excess = fma(g0, load(zero, error, i * n), excess)
        excess = fma(g1, load(zero, error, i * n + n), excess)
        excess = fma(g2, load(zero, error, i * n + 2 * n), excess)
        excess = fma(g3, load(zero, error, i * n + 3 * n), excess)
        store(a, i * n, times(two, g0))
        store(a, i * n + n, times(two, g1))
        store(a, i * n + 2 * n, times(two, g2))
        store(a, i * n + 3 * n, times(two, g3))
    for i in range(d - d % 4, d):
        g0 = zero
        for j in range(d):
            g0 = fma(splat(zero, sigma[i, j]), load(zero, error, j * n), g0)
        excess = fma(g0, load(zero, error, i * n), excess)
        store(a, i * n, times(two, g0))
    return excess


@helper
def _gradient_square(zero, n, a, b, widths, nodes):
    """|gradient|^2 = sum over layers of |b_k|^2 |a_k|^2."""
    total = zero
    for k in range(len(widths) - 1):
        squares_a = dot(zero, n, a, nodes[k], a, nodes[k], widths[k] * n)
        squares_b = dot(zero, n, b, nodes[k + 1], b, nodes[k + 1], widths[k + 1] * n)
        total = fma(squares_a, squares_b, total)
    return total


@inlined
def _small(zero, n, square, risk, b, nodes, widths, tolerance, relative, settled):
    """1 in the lanes that have arrived: a small gradient, and not at the saddle w = 0.

    Small means |grad|^2 <= tolerance or |grad|^2 <= relative |b_1|^4 (see `descent`).
    """
    one = splat(zero, 1.0)
    b_1 = dot(zero, n, b, nodes[1], b, nodes[1], widths[1] * n)
    bound = times(times(b_1, b_1), splat(zero, relative))
    least = splat(zero, tolerance)
    bound = where_less(bound, least, least, bound)
    return where_less(bound, square, zero, where_less(risk, splat(zero, settled), one, zero))


@helper
def _clear_lanes(zero, n, excess, limit, vectors):
    """Zero the diverged lanes of a buffer: their products vanish instead of becoming NaN."""
    for j in range(0, len(vectors), n):
        store(vectors, j, where_less(excess, limit, load(zero, vectors, j), zero))


@helper
def descend_block(
    lanes, w, widths, p, sigma, target, rate, left, excess, gradient, distance, extremes,
    begin, steps, check, tolerance, relative, settled, limit, momentum,
):  # fmt: skip
    """Descend one block by at most `steps` steps.

    lanes       tuple of n numbers; only its length and type are used
    w           flat weights of the block, changed in place
    widths      d_0 .. d_L;  p [d_L];  sigma [d_0, d_0];  target w* [d_0]
    rate        [n] learning rates, set to 0 in the lanes that have stopped
    left        [n] steps left (whole numbers), lowered by one for each step taken
    excess, gradient, distance   [n] results at the returned weights: excess risk, squared
                gradient norm, |w - w*|^2; infinite for a diverged lane
    extremes    [6 n] widened by what every step leads to: least and largest excess, distance,
                squared gradient; or empty
    begin       steps taken before this call; a lane may stop as arrived (see `_small`) when the
                count of all steps is a multiple of `check`, however they are cut into calls
    limit       a lane stops as diverged before the step at which its excess risk is not < limit
    momentum    None, or (keep, push, pull) of `momentum_descent`; what does not apply to the type
                given is not compiled
    """
    n, depth, d = len(lanes), len(widths) - 1, widths[0]
    zero, one, half = splat(lanes, 0.0), splat(lanes, 1.0), splat(lanes, 0.5)
    bound, infinite = splat(lanes, limit), splat(lanes, np.inf)
    tiny = splat(lanes, 1e-30)

    # layer k+1 begins at layers[k] of a block, the node vectors a_{k+1} and b_k at nodes[k]
    layers = np.zeros(depth + 1, np.int64)
    nodes = np.zeros(depth + 2, np.int64)
    for k in range(depth + 1):
        nodes[k + 1] = nodes[k] + widths[k] * n
    for k in range(depth):
        layers[k + 1] = layers[k] + widths[k + 1] * widths[k] * n
    a = np.zeros(nodes[depth + 1], w.dtype)
    b = np.zeros(nodes[depth + 1], w.dtype)
    error = np.zeros(d * n, w.dtype)
    watched = len(extremes) > 0

    eta = load(zero, rate, 0)
    todo = load(zero, left, 0)
    step = 0
    while True:
        # the last pass has rate 0: it only measures the risk and the gradient
        measure = step == steps or (step % check == 0 and all_less(eta, tiny))
        for i in range(widths[depth]):
            store(b, nodes[depth] + i * n, splat(zero, p[i]))
        for k in range(depth - 1, -1, -1):
            transposed_times(
                zero, n, w, layers[k], widths[k + 1], widths[k], b, nodes[k + 1], b, nodes[k], False
            )
        for j in range(d):
            store(error, j * n, minus(load(zero, b, j * n), splat(zero, target[j])))
        # In a lane that overflows e' Sigma e can come out as -inf.
        risk = absolute(input_gradient(zero, n, sigma, error, a, d))

        # a lane stops at rate 0: no steps left, or the risk beyond the limit or NaN
        eta = where_less(half, todo, eta, zero)
        eta = where_less(risk, bound, eta, zero)
        if not all_less(risk, bound):
            _clear_lanes(zero, n, risk, bound, a)
            _clear_lanes(zero, n, risk, bound, b)
        move = zero if measure else eta
        todo = minus(todo, where_less(zero, move, one, zero))

        descent = minus(zero, move)
        for k in range(depth):
            if momentum is None:
                _forward(
                    zero, n, w, layers[k], b, a,
                    widths[k + 1], nodes[k + 1], widths[k], nodes[k], descent,
                )  # fmt: skip
            else:
                forward_with_velocity(
                    zero, n, w, layers[k], layers[depth] + layers[k], b, a,
                    widths[k + 1], nodes[k + 1], widths[k], nodes[k], move, momentum,
                )  # fmt: skip
        if watched and step > 0:
            widen(zero, n, extremes, 0, risk)
            widen(zero, n, extremes, 2 * n, dot(zero, n, error, 0, error, 0, d * n))
            widen(zero, n, extremes, 4 * n, _gradient_square(zero, n, a, b, widths, nodes))
        if measure:
            square = _gradient_square(zero, n, a, b, widths, nodes)
            apart = dot(zero, n, error, 0, error, 0, d * n)
            store(rate, 0, eta)
            store(left, 0, todo)
            store(excess, 0, where_less(risk, bound, risk, infinite))
            store(gradient, 0, where_less(risk, bound, square, infinite))
            store(distance, 0, where_less(risk, bound, apart, infinite))
            return
        step += 1
        if (begin + step) % check == 0:
            square = _gradient_square(zero, n, a, b, widths, nodes)
            if momentum is not None:
                # A small gradient is no rest if the velocity carries the weights on.
                steady = steady_square(zero, n, w, layers[depth], w.size, eta, momentum)
                square = where_less(square, steady, steady, square)
            there = _small(zero, n, square, risk, b, nodes, widths, tolerance, relative, settled)
            eta = where_less(zero, there, zero, eta)


@compiled
def descend(
    lanes, weights, widths, p, sigma, target, rate, left, excess, gradient, distance, extremes,
    begin, steps, check, tolerance, relative, settled, limit, momentum, first, last,
):  # fmt: skip
    """`descend_block` for blocks first..last-1; per-lane arrays are [block, n], extremes
    [block, 6 or 0, n]."""
    for block in range(first, last):
        descend_block(
            lanes, weights[block].reshape(-1), widths, p, sigma, target,
            rate[block], left[block], excess[block], gradient[block], distance[block],
            extremes[block].reshape(-1), begin, steps, check, tolerance, relative, settled, limit,
            momentum,
        )  # fmt: skip
