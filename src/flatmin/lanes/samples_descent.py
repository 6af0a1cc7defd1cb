"""Gradient descent on samples, for networks of any activation and any number of outputs.

x -> f = W_L h_{L-1}, or p' W_L h_{L-1} with a fixed p, where h_0 = x, z_k = W_k h_{k-1} and
h_k = phi(z_k) for k < L. With biases a layer is [W_k b_k], and every h_k has a last unit that is 1:
z_k = W_k h_{k-1} + b_k is the same product, and no signal goes back to that unit. The risk is the
sum over n samples and the outputs of (f - y)^2, over n:

    forward    z_k = W_k h_{k-1},  h_k = phi(z_k),  s_k = phi'(z_k)
    residual   s_L = (2/n) (f - y), times p if there is one
    backward   grad_k = s_k h_{k-1}',  s_{k-1} <- s_{k-1} * (W_k' s_k)
    update     W_k -= eta grad_k, all layers after the backward pass; or that of `momentum_descent`.

Signals are [unit, sample, lane]. Samples pass through the network a tile at a time, so that the
signals of a tile stay in cache; the derivative s_k is overwritten by the signal that replaces it.
All z_k and h_k are times the scale that suits the activation (see `activations`), all signals that
go back are over it, and gradients are what they are.

Every sum over samples, units or outputs runs in one fixed order on the whole lane vector, so a
network's bits do not depend on its lane, block, thread, tile, the lane count, or on how its steps
are cut into calls.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import numpy as np

from flatmin.lanes.activations import (
    IDENTITY,
    activate,
    activate_product_of_five,
    scale_of,
)
from flatmin.lanes.algebra import larger, widen
from flatmin.lanes.compiling import compiled, helper, inlined, wide_registers
from flatmin.lanes.entries import put_entry
from flatmin.lanes.layout import block_of, scratch
from flatmin.lanes.momentum_descent import steady_square, step_with_velocity
from flatmin.lanes.tiles import (
    in_fives,
    in_threes,
    in_twos,
    outer,
    put,
    scaled,
    spaced,
    take,
    times,
    zeros,
)
from flatmin.lanes.vectors import all_lanes, fma, paired, splat, vectors, where

# Within a second-level cache: from 128 to 400 KB differ by 3 %, 32 KB costs a quarter of the speed.
# Fifty samples of the paper's GELU networks are one tile.
TILE_BYTES = 320 << 10


# --- products of a layer with the signals of a tile of samples -----------------------------------


def _rows(rows: int) -> Any:
    both = 2 * rows

    @inlined
    def streamed(m, down, across, columns, x, y, size, multiply):
        for s in range(0, size, 2):
            total = zeros(m, both)
            for j in range(columns):
                pair = take(x[j * size + s :], 2, 1)
                total = outer(take(m[j * across :], rows, down), pair, total)
            if multiply:
                total = scaled(total, take(y[s:], rows, size, 2))
            put(y[s:], size, total, 2)

    if rows < 5:
        return streamed

    @inlined
    def tile(m, down, across, columns, x, y, size, multiply):
        if columns != 5:
            streamed(m, down, across, columns, x, y, size, multiply)
            return
        # 25 numbers of M stay in registers: a sample then waits for the multiplications alone.
        held = spaced(m, rows, down, 5, across)
        if multiply:
            for s in range(size):
                total = times(held, take(x[s:], 5, size))
                put(y[s:], size, scaled(total, take(y[s:], rows, size)))
        else:
            for s in range(size):
                put(y[s:], size, times(held, take(x[s:], 5, size)))

    return tile


_some_rows = in_fives(_rows, in_threes) if wide_registers() else in_threes(_rows)


@helper
def product(m, down, across, rows, columns, x, y, size, multiply):
    """y = M x, or y *= M x if `multiply`, for the `size` samples of a tile, two at a time.

    M_ij is m[i down + j across], so W and W' are both at hand.
    """
    i = 0
    while i < rows:
        here, there = m[i * down :], y[i * size :]
        i += _some_rows(rows - i, here, down, across, columns, x, there, size, multiply)


def _block(rows: int, columns: int) -> Any:
    numbers = rows * columns

    @inlined
    def tile(g, width, s, h, size, count, add):
        total = zeros(g, numbers)
        if add:
            total = take(g, rows, width, columns)
        for e in range(count):
            total = outer(take(s[e:], rows, size), take(h[e:], columns, size), total)
        put(g, width, total, columns)

    return tile


def _columns(rows: int) -> Any:
    def block(columns: int) -> Any:
        return _block(rows, columns)

    some_columns = in_fives(block, in_twos) if wide_registers() else in_threes(block)

    @inlined
    def tile(g, columns, s, h, size, count, add):
        j = 0
        while j < columns:
            left = columns - j
            j += some_columns(left, g[j:], columns, s, h[j * size :], size, count, add)

    return tile


_some_columns = in_fives(_columns, in_twos) if wide_registers() else in_twos(_columns)


@helper
def outer_product(g, rows, columns, s, h, size, count, add):
    """G = S H', or G += S H' if `add`, summed over the first `count` samples of a tile."""
    i = 0
    while i < rows:
        here, above = g[i * columns :], s[i * size :]
        i += _some_columns(rows - i, here, columns, above, h, size, count, add)


# --- one step ------------------------------------------------------------------------------------


@inlined
def fill_inputs(h, network, scale, start, count, size):
    """h_0: the inputs of `count` samples; and the ones that biases multiply; times the scale."""
    widths, _, nodes = network.layout
    for j in range(widths[0]):
        for e in range(count):
            h[j * size + e] = scale * network.inputs[start + e, j]
    for k in range((len(widths) - 1) * network.biases):
        for e in range(size):
            h[(nodes[k] + widths[k]) * size + e] = scale


@inlined
def residual(network, scale, start, s, size, count, total):
    """s_L <- (2/samples) (f - y) [p] over the scale of f, and total plus the squares of f - y."""
    p, target, back = network.p, network.target, 1.0 / scale
    outputs, samples = target.shape
    for e in range(count):
        if len(p) == 0:
            for i in range(outputs):
                error = fma(back, s[i * size + e], -target[i, start + e])
                total = fma(error, error, total)
                s[i * size + e] = back * (2.0 / samples) * error
        else:
            error = fma(back * p[0], s[e], -target[0, start + e])
            for i in range(1, len(p)):
                error = fma(back * p[i], s[i * size + e], error)
            total = fma(error, error, total)
            for i in range(len(p)):
                s[i * size + e] = back * p[i] * (2.0 / samples * error)
    return total


@inlined
def _activated_product(network, w, rows, columns, x, h, s, size):
    """h = phi(W x) and s = phi'(W x)."""
    code = network.activation
    if columns != 5 or not activate_product_of_five(code, w, x, h, s, rows, size):
        product(w, columns, 1, rows, columns, x, h, size, False)
        activate(code, paired(h), paired(s), paired(s), rows * size // 2)


@helper
def _sweeps(w, network, h, s, g, tile, fill):
    """The gradient into g; returns the sum of squared errors. `fill` if h_0 is not yet there."""
    widths, layers, nodes = network.layout
    depth, samples, scale = len(widths) - 1, len(network.inputs), scale_of(network.activation)
    total = 0.0
    for start in range(0, samples, tile):
        count = min(tile, samples - start)
        size = count + count % 2
        if fill or samples > tile:
            fill_inputs(h, network, scale, start, count, size)
        for k in range(depth):
            rows, columns = widths[k + 1], widths[k] + network.biases
            x, layer, above = h[nodes[k] * size :], w[layers[k] :], nodes[k + 1] * size
            if k == depth - 1:
                product(layer, columns, 1, rows, columns, x, s[above:], size, False)
            else:
                _activated_product(network, layer, rows, columns, x, h[above:], s[above:], size)
        total = residual(network, scale, start, s[nodes[depth] * size :], size, count, total)
        for k in range(depth - 1, -1, -1):
            rows, columns = widths[k + 1], widths[k] + network.biases
            above, below, layer = s[nodes[k + 1] * size :], nodes[k] * size, w[layers[k] :]
            outer_product(g[layers[k] :], rows, columns, above, h[below:], size, count, start > 0)
            if k > 0:
                bent = network.activation != IDENTITY
                product(layer, 1, columns, widths[k], rows, above, s[below:], size, bent)
    return total


@inlined
def _square(g, size):
    """|g|^2."""
    total = 0.0
    for e in range(size):
        total = fma(g[e], g[e], total)
    return total


@helper
def _descend_block(
    lanes, weights, network, runs, stop, momentum, begin, steps, every, rows, tile, memory
):  # fmt: skip
    """`descend_samples` of one block of flat weights, and velocities after them."""
    size, units = network.layout.layers[-1], network.layout.nodes[-1] * tile
    w, h, extremes = vectors(lanes, weights), vectors(lanes, memory), vectors(lanes, runs.extremes)
    s, g, velocity = h[units:], h[2 * units :], w[size:]
    watched = len(runs.extremes) > 0
    eta, todo = vectors(lanes, runs.rate)[0], vectors(lanes, runs.left)[0]
    before = todo
    step = 0
    while True:
        # the last pass moves nothing: it only measures the excess risk and the gradient
        measure = step == steps or (step % stop.check == 0 and all_lanes(eta == 0.0))
        total = _sweeps(w, network, h, s, g, tile, step == 0)
        excess = total / len(network.inputs) - network.floor

        # a lane stops at rate 0: no steps left, or the excess beyond the limit or NaN
        fine = excess < stop.limit
        eta = where(fine & (todo > 0.0), eta, 0.0)
        if watched and step > 0:
            widen(extremes, excess)
            widen(extremes[4:], _square(g, size))
            if step % every == 0 and step // every <= len(rows):
                row, whole = vectors(lanes, rows[step // every - 1]), before - todo == every
                put_entry(
                    row, extremes, excess, splat(excess, np.nan), _square(g, size), fine & whole
                )
                before = todo
        if measure:
            vectors(lanes, runs.rate)[0] = eta
            vectors(lanes, runs.left)[0] = todo
            vectors(lanes, runs.excess)[0] = excess
            vectors(lanes, runs.gradient)[0] = where(fine, _square(g, size), np.inf)
            return
        moving = eta > 0.0
        todo = todo - where(moving, 1.0, 0.0)
        if momentum is None:
            # The lanes that rest keep their bits whatever g is.
            for e in range(size):
                w[e] = where(moving, fma(-eta, g[e], w[e]), w[e])
        else:
            step_with_velocity(w, velocity, g, size, eta, momentum)
        step += 1
        if (begin + step) % stop.check == 0:
            square = _square(g, size)
            if momentum is not None:
                # A small gradient is no rest if the velocity carries the weights on.
                square = larger(steady_square(velocity, size, eta, momentum), square)
            eta = where((square <= stop.tolerance) & (excess < stop.settled), 0.0, eta)


@compiled
def descend_samples(
    lanes, weights, network, runs, stop, momentum, begin, steps, every, rows, first, last
):  # fmt: skip
    """Descend blocks first..last-1 by at most `steps` steps each.

    lanes     tuple of n floats of the kernel's precision; their values are not used
    weights   [block, P, n], changed in place; with momentum [block, 2 P, n]
    network   a `Sampled`; runs and stop of `layout`, `relative` and distances without a meaning
    momentum  None, or (keep, push) of `momentum_descent`
    begin     steps taken before this call
    every     after so many steps, and again, an entry is made and runs.extremes begin anew, while
    rows      [block - first, entry, 9, n] has room for it; its columns are those of `entries`
              with distances NaN, and lanes that did not take all steps are NaN
    """
    n, layout, samples = len(lanes), network.layout, len(network.inputs)
    # a tile is a number of samples, even, whose signals fill TILE_BYTES
    bytes_each = 2 * layout.nodes[-1] * n * weights.itemsize
    tile = min(max(TILE_BYTES // (2 * bytes_each), 1), (samples + 1) // 2) * 2
    memory = scratch((2 * layout.nodes[-1] * tile + layout.layers[-1]) * n, weights)
    for block in range(first, last):
        _descend_block(
            lanes, weights[block].reshape(-1), network, block_of(runs, block), stop, momentum,
            begin, steps, every, rows[block - first], tile, memory,
        )  # fmt: skip
