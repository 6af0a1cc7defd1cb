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

from flatmin.lanes.algebra import (
    dot,
    gradient_square,
    input_gradient,
    larger,
    times_and_step,
    transposed_times,
    widen,
)
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.layout import block_of, scratch
from flatmin.lanes.momentum_descent import steady_square, times_and_step_with_velocity
from flatmin.lanes.vectors import absolute, all_lanes, splat, vectors, where


@inlined
def sweep_backward(w, network, b):
    """b_L = p and b_{k-1} = W_k' b_k for all layers."""
    widths, layers, nodes = network.layout
    for i in range(len(network.p)):
        b[nodes[-2] + i] = network.p[i]
    for k in range(len(widths) - 2, -1, -1):
        here, below = b[nodes[k + 1] :], b[nodes[k] :]
        transposed_times(w[layers[k] :], widths[k + 1], widths[k], here, below, False)


@helper
def _clear(diverged, x, size):
    """Zero the diverged lanes of a buffer: their products vanish instead of becoming NaN."""
    for j in range(size):
        x[j] = where(diverged, 0.0, x[j])


@helper
def descent_scratch(lanes, network, weights):
    """The memory that `descend_block` works in."""
    return scratch((2 * network.layout.nodes[-1] + network.layout.widths[0]) * len(lanes), weights)


@helper
def descend_block(lanes, weights, network, runs, stop, momentum, begin, steps, memory):
    """Descend one block by at most `steps` steps.

    lanes      tuple of n numbers; only its length and type are used
    weights    flat weights of the block, and velocities after them, changed in place
    network, runs, stop
               of `layout`, runs of this block only
    momentum   None, or (keep, push, pull) of `momentum_descent`; what does not apply to the type
               given is not compiled
    begin      steps taken before this call
    memory     of `descent_scratch`
    """
    widths, layers, nodes = network.layout
    depth, d, size = len(widths) - 1, widths[0], nodes[-1]
    w, a, extremes = vectors(lanes, weights), vectors(lanes, memory), vectors(lanes, runs.extremes)
    b, error, velocity = a[size:], a[2 * size :], w[layers[depth] :]
    watched = len(runs.extremes) > 0

    eta, todo = vectors(lanes, runs.rate)[0], vectors(lanes, runs.left)[0]
    step = 0
    while True:
        # the last pass has rate 0: it only measures the risk and the gradient
        measure = step == steps or (step % stop.check == 0 and all_lanes(eta == 0.0))
        sweep_backward(w, network, b)
        for j in range(d):
            error[j] = b[j] - network.target[j]
        # In a lane that overflows e' Sigma e can come out as -inf.
        risk = absolute(input_gradient(network.sigma, error, a))

        # a lane stops at rate 0: no steps left, or the risk beyond the limit or NaN
        fine = risk < stop.limit
        eta = where(fine & (todo > 0.5), eta, 0.0)
        if not all_lanes(fine):
            _clear(~fine, a, 2 * size)
        move = splat(lanes, 0.0) if measure else eta
        todo = todo - where(move > 0.0, 1.0, 0.0)
        for k in range(depth):
            rows, columns, layer = widths[k + 1], widths[k], w[layers[k] :]
            x, y, above = a[nodes[k] :], a[nodes[k + 1] :], b[nodes[k + 1] :]
            if momentum is None:
                times_and_step(layer, rows, columns, x, y, -move, above)
            else:
                times_and_step_with_velocity(
                    layer, velocity[layers[k] :], rows, columns, x, y, move, above, momentum
                )
        if watched and step > 0:
            widen(extremes, risk)
            widen(extremes[2:], dot(error, error, d))
            widen(extremes[4:], gradient_square(a, b, network.layout))
        if measure:
            square, apart = gradient_square(a, b, network.layout), dot(error, error, d)
            vectors(lanes, runs.rate)[0] = eta
            vectors(lanes, runs.left)[0] = todo
            vectors(lanes, runs.excess)[0] = where(fine, risk, np.inf)
            vectors(lanes, runs.gradient)[0] = where(fine, square, np.inf)
            vectors(lanes, runs.distance)[0] = where(fine, apart, np.inf)
            return
        step += 1
        if (begin + step) % stop.check == 0:
            square = gradient_square(a, b, network.layout)
            if momentum is not None:
                # A small gradient is no rest if the velocity carries the weights on.
                square = larger(steady_square(velocity, layers[depth], eta, momentum), square)
            b_1 = b[nodes[1] :]
            small = dot(b_1, b_1, widths[1])
            small = larger(small * small * stop.relative, stop.tolerance)
            eta = where((square <= small) & (risk < stop.settled), 0.0, eta)


@compiled
def descend(lanes, weights, network, runs, stop, momentum, begin, steps, first, last):
    """`descend_block` for blocks first..last-1 of weights [block, P, n]."""
    memory = descent_scratch(lanes, network, weights)
    for block in range(first, last):
        w, of_block = weights[block].reshape(-1), block_of(runs, block)
        descend_block(lanes, w, network, of_block, stop, momentum, begin, steps, memory)
