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

Every sum over samples, units or outputs runs in one fixed order on the whole lane vector, so a
network's bits do not depend on its lane, block, thread, tile, the lane count, or on how its steps
are cut into calls.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.lanes.activations import IDENTITY, activate
from flatmin.lanes.algebra import widen
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.momentum_descent import steady_square, step_with_velocity
from flatmin.lanes.vectors import all_less, fma, load, minus, over, splat, store, times, where_less

# Half of a second-level cache: from 128 to 400 KB are alike, 32 KB costs a quarter of the speed.
TILE_BYTES = 256 << 10


# --- products: n is the lane count, so element e of a buffer begins at index e n -----------------


@inlined
def _put(zero, y, at, n, first, second, scaled):
    """Store the values of two samples, times what is there if `scaled`."""
    if scaled:
        first = times(first, load(zero, y, at))
        second = times(second, load(zero, y, at + n))
    store(y, at, first)
    store(y, at + n, second)


@inlined
def _three_rows(zero, n, m, at, down, across, columns, x, x_at, y, y_at, size, scaled):
    """Three rows of `_product`."""
    for s in range(0, size, 2 * n):
        a0 = zero
        a1 = zero
        b0 = zero
        b1 = zero
        c0 = zero
        c1 = zero
        e = at
        v = x_at + s
        for _ in range(columns):
            x0 = load(zero, x, v)
            x1 = load(zero, x, v + n)
            a = load(zero, m, e)
            a0 = fma(a, x0, a0)
            a1 = fma(a, x1, a1)
            b = load(zero, m, e + down)
            b0 = fma(b, x0, b0)
            b1 = fma(b, x1, b1)
            c = load(zero, m, e + 2 * down)
            c0 = fma(c, x0, c0)
            c1 = fma(c, x1, c1)
            e += across
            v += size
        _put(zero, y, y_at + s, n, a0, a1, scaled)
        _put(zero, y, y_at + s + size, n, b0, b1, scaled)
        _put(zero, y, y_at + s + 2 * size, n, c0, c1, scaled)


@inlined
def _two_rows(zero, n, m, at, down, across, columns, x, x_at, y, y_at, size, scaled):
    """Two rows of `_product`."""
    for s in range(0, size, 2 * n):
        a0 = zero
        a1 = zero
        b0 = zero
        b1 = zero
        e = at
        v = x_at + s
        for _ in range(columns):
            x0 = load(zero, x, v)
            x1 = load(zero, x, v + n)
            a = load(zero, m, e)
            a0 = fma(a, x0, a0)
            a1 = fma(a, x1, a1)
            b = load(zero, m, e + down)
            b0 = fma(b, x0, b0)
            b1 = fma(b, x1, b1)
            e += across
            v += size
        _put(zero, y, y_at + s, n, a0, a1, scaled)
        _put(zero, y, y_at + s + size, n, b0, b1, scaled)


@inlined
def _one_row(zero, n, m, at, down, across, columns, x, x_at, y, y_at, size, scaled):
    """One row of `_product`."""
    for s in range(0, size, 2 * n):
        a0 = zero
        a1 = zero
        e = at
        v = x_at + s
        for _ in range(columns):
            a = load(zero, m, e)
            a0 = fma(a, load(zero, x, v), a0)
            a1 = fma(a, load(zero, x, v + n), a1)
            e += across
            v += size
        _put(zero, y, y_at + s, n, a0, a1, scaled)


@helper
def _product(zero, n, m, at, down, across, rows, columns, x, x_at, y, y_at, size, scaled):
    """y = M x, or y *= M x if `scaled`, for the samples of a tile, two at a time.

    M_ij begins at m[at + i down + j across], so W and W' are both at hand; `size` is the number
    of samples of the tile, even, times n.
    """
    i = 0
    while i < rows:
        rest = rows - i
        here, there = at + i * down, y_at + i * size
        if rest == 1:
            _one_row(zero, n, m, here, down, across, columns, x, x_at, y, there, size, scaled)
            i += 1
        elif rest == 2 or rest == 4:
            _two_rows(zero, n, m, here, down, across, columns, x, x_at, y, there, size, scaled)
            i += 2
        else:
            _three_rows(zero, n, m, here, down, across, columns, x, x_at, y, there, size, scaled)
            i += 3


@inlined
def _outer_two_three(zero, n, g, at, width, s, s_at, h, h_at, size, count, add):
    """Two rows and three columns of `_outer`."""
    a0 = zero
    a1 = zero
    a2 = zero
    b0 = zero
    b1 = zero
    b2 = zero
    if add:
        a0 = load(zero, g, at)
        a1 = load(zero, g, at + n)
        a2 = load(zero, g, at + 2 * n)
        b0 = load(zero, g, at + width)
        b1 = load(zero, g, at + width + n)
        b2 = load(zero, g, at + width + 2 * n)
    for e in range(0, count, n):
        a = load(zero, s, s_at + e)
        b = load(zero, s, s_at + size + e)
        x = load(zero, h, h_at + e)
        a0 = fma(a, x, a0)
        b0 = fma(b, x, b0)
        x = load(zero, h, h_at + size + e)
        a1 = fma(a, x, a1)
        b1 = fma(b, x, b1)
        x = load(zero, h, h_at + 2 * size + e)
        a2 = fma(a, x, a2)
        b2 = fma(b, x, b2)
    store(g, at, a0)
    store(g, at + n, a1)
    store(g, at + 2 * n, a2)
    store(g, at + width, b0)
    store(g, at + width + n, b1)
    store(g, at + width + 2 * n, b2)


@inlined
def _outer_two_two(zero, n, g, at, width, s, s_at, h, h_at, size, count, add):
    """Two rows and two columns of `_outer`."""
    a0 = zero
    a1 = zero
    b0 = zero
    b1 = zero
    if add:
        a0 = load(zero, g, at)
        a1 = load(zero, g, at + n)
        b0 = load(zero, g, at + width)
        b1 = load(zero, g, at + width + n)
    for e in range(0, count, n):
        a = load(zero, s, s_at + e)
        b = load(zero, s, s_at + size + e)
        x = load(zero, h, h_at + e)
        a0 = fma(a, x, a0)
        b0 = fma(b, x, b0)
        x = load(zero, h, h_at + size + e)
        a1 = fma(a, x, a1)
        b1 = fma(b, x, b1)
    store(g, at, a0)
    store(g, at + n, a1)
    store(g, at + width, b0)
    store(g, at + width + n, b1)


@inlined
def _outer_two_one(zero, n, g, at, width, s, s_at, h, h_at, size, count, add):
    """Two rows and one column of `_outer`."""
    a0 = load(zero, g, at) if add else zero
    b0 = load(zero, g, at + width) if add else zero
    for e in range(0, count, n):
        x = load(zero, h, h_at + e)
        a0 = fma(load(zero, s, s_at + e), x, a0)
        b0 = fma(load(zero, s, s_at + size + e), x, b0)
    store(g, at, a0)
    store(g, at + width, b0)


@inlined
def _outer_one_one(zero, n, g, at, s, s_at, h, h_at, count, add):
    """One row and one column of `_outer`."""
    a0 = load(zero, g, at) if add else zero
    for e in range(0, count, n):
        a0 = fma(load(zero, s, s_at + e), load(zero, h, h_at + e), a0)
    store(g, at, a0)


@inlined
def _outer_one_three(zero, n, g, at, s, s_at, h, h_at, size, count, add):
    """One row and three columns of `_outer`."""
    a0 = load(zero, g, at) if add else zero
    a1 = load(zero, g, at + n) if add else zero
    a2 = load(zero, g, at + 2 * n) if add else zero
    for e in range(0, count, n):
        a = load(zero, s, s_at + e)
        a0 = fma(a, load(zero, h, h_at + e), a0)
        a1 = fma(a, load(zero, h, h_at + size + e), a1)
        a2 = fma(a, load(zero, h, h_at + 2 * size + e), a2)
    store(g, at, a0)
    store(g, at + n, a1)
    store(g, at + 2 * n, a2)


@helper
def _outer(zero, n, g, at, rows, columns, s, s_at, h, h_at, size, count, add):
    """G = S H', or G += S H' if `add`, summed over the first `count`/n samples of a tile."""
    width = columns * n
    i = 0
    while i < rows:
        row, above = at + i * width, s_at + i * size
        j = 0
        if rows - i >= 2:
            while j < columns:
                rest = columns - j
                here, below = row + j * n, h_at + j * size
                if rest == 1:
                    _outer_two_one(zero, n, g, here, width, s, above, h, below, size, count, add)
                    j += 1
                elif rest == 2 or rest == 4:
                    _outer_two_two(zero, n, g, here, width, s, above, h, below, size, count, add)
                    j += 2
                else:
                    _outer_two_three(zero, n, g, here, width, s, above, h, below, size, count, add)
                    j += 3
        else:
            while j < columns:
                here, below = row + j * n, h_at + j * size
                if columns - j >= 3:
                    _outer_one_three(zero, n, g, here, s, above, h, below, size, count, add)
                    j += 3
                else:
                    _outer_one_one(zero, n, g, here, s, above, h, below, count, add)
                    j += 1
        i += 2


# --- one step ------------------------------------------------------------------------------------


@inlined
def _residual(zero, n, p, target, start, s, at, size, count, risk):
    """s_L <- (2/samples) (f - y) [p], and risk plus the squares of f - y."""
    outputs, samples = target.shape
    weight = splat(zero, 2.0 / samples)
    for e in range(0, count, n):
        sample = start + e // n
        if len(p) == 0:
            for i in range(outputs):
                here = at + i * size + e
                error = minus(load(zero, s, here), splat(zero, target[i, sample]))
                risk = fma(error, error, risk)
                store(s, here, times(weight, error))
        else:
            error = minus(zero, splat(zero, target[0, sample]))
            for i in range(len(p)):
                error = fma(splat(zero, p[i]), load(zero, s, at + i * size + e), error)
            risk = fma(error, error, risk)
            error = times(weight, error)
            for i in range(len(p)):
                store(s, at + i * size + e, times(splat(zero, p[i]), error))
    return risk


@inlined
def _update(zero, n, w, g, move):
    """w -= move g in the lanes with move > 0; the others keep their bits whatever g is."""
    descent = minus(zero, move)
    for e in range(0, len(w), n):
        old = load(zero, w, e)
        store(w, e, where_less(zero, move, fma(descent, load(zero, g, e), old), old))


@inlined
def _square(zero, n, g):
    """|g|^2."""
    total = zero
    for e in range(0, len(g), n):
        x = load(zero, g, e)
        total = fma(x, x, total)
    return total


@compiled
def descend_samples(
    lanes, weights, widths, biases, p, inputs, target, activation, floor,
    rate, left, excess, gradient, extremes, begin, steps, check, tolerance, settled, limit, rule,
    first, last,
):  # fmt: skip
    """Descend blocks first..last-1 by at most `steps` steps each.

    lanes             tuple of n floats of the kernel's precision; their values are not used
    weights           [block, P, n], changed in place; layer k is [out, in + biases] row major
    widths, biases    int64 d_0 .. d_L; 1 or 0
    p                 [d_L], or [0] for d_L outputs of their own
    inputs, target    [samples, d_0] and [outputs, samples], outputs = 1 if there is a p
    activation        a code of `activations`
    floor             what is taken off the risk to give the excess, such as the least risk
    rate              [block, n] learning rates, set to 0 in the lanes that have stopped
    left              [block, n] steps left (whole numbers), lowered by one for each step taken
    excess, gradient  [block, n] results: risk - floor and squared gradient norm at the returned
                      weights (infinite for a diverged lane)
    extremes          [block, 6, n] of which rows 0, 1 and 4, 5 are widened by what every step leads
                      to: least and largest excess and squared gradient; or [block, 0, n]
    begin, check      steps taken before this call; when the count of all steps is a multiple of
                      `check`, a lane stops whose squared gradient is <= tolerance and whose
                      excess is < settled (it has arrived, and not at a saddle)
    limit             a lane stops before the step at which its excess is not < limit
    rule              None, or (keep, push, pull) of `momentum_descent`, with 2 P weights
    """
    n = len(lanes)
    depth = len(widths) - 1
    samples = inputs.shape[0]
    zero = splat(lanes, 0.0)
    pair = splat(lanes + lanes, 0.0)
    one = splat(lanes, 1.0)
    bound = splat(lanes, limit)
    small = splat(lanes, tolerance)
    tiny = splat(lanes, 1e-37)
    infinite = splat(lanes, np.inf)

    # W_{k+1} begins at layers[k] of a block; h_k and s_k are units[k] .. units[k+1] of the signals
    layers = np.zeros(depth + 1, np.int64)
    units = np.zeros(depth + 2, np.int64)
    for k in range(depth + 1):
        units[k + 1] = units[k] + widths[k] + biases
    for k in range(depth):
        layers[k + 1] = layers[k] + widths[k + 1] * (widths[k] + biases) * n
    # a tile is a number of samples, even, whose signals fill TILE_BYTES
    bytes_each = 2 * units[depth + 1] * n * weights.itemsize
    tile = min(max(TILE_BYTES // (2 * bytes_each), 1), (samples + 1) // 2) * 2
    h = np.zeros(units[depth + 1] * tile * n, weights.dtype)
    s = np.zeros(units[depth + 1] * tile * n, weights.dtype)
    g = np.zeros(layers[depth], weights.dtype)
    watched = extremes.shape[1] > 0
    present = -1  # the first sample of the tile whose inputs are in h_0

    for block in range(first, last):
        w = weights[block].reshape(-1)
        eta = load(zero, rate[block], 0)
        todo = load(zero, left[block], 0)
        step = 0
        while True:
            # the last pass moves nothing: it only measures the risk and the gradient
            measure = step == steps or (step % check == 0 and all_less(eta, tiny))
            total = zero
            for start in range(0, samples, tile):
                count = min(tile, samples - start) * n
                size = min(tile, (samples - start + 1) // 2 * 2) * n
                if present != start:
                    present = start
                    for j in range(widths[0]):
                        for e in range(0, count, n):
                            x = splat(lanes, inputs[start + e // n, j])
                            store(h, j * size + e, x)
                    for k in range(depth * biases):
                        for e in range(0, size, n):
                            store(h, (units[k] + widths[k]) * size + e, one)
                for k in range(depth):
                    rows, columns = widths[k + 1], widths[k] + biases
                    below, above = units[k] * size, units[k + 1] * size
                    y = h if k < depth - 1 else s
                    _product(
                        zero, n, w, layers[k], columns * n, n, rows, columns,
                        h, below, y, above, size, False,
                    )  # fmt: skip
                    if k < depth - 1:
                        activate(pair, 2 * n, activation, h, s, above, above + rows * size)
                top = units[depth] * size
                total = _residual(zero, n, p, target, start, s, top, size, count, total)
                for k in range(depth - 1, -1, -1):
                    rows, columns = widths[k + 1], widths[k] + biases
                    below, above = units[k] * size, units[k + 1] * size
                    _outer(
                        zero, n, g, layers[k], rows, columns,
                        s, above, h, below, size, count, start > 0,
                    )  # fmt: skip
                    if k > 0:
                        _product(
                            zero, n, w, layers[k], n, columns * n, widths[k], rows,
                            s, above, s, below, size, activation != IDENTITY,
                        )  # fmt: skip
            risk = minus(over(total, splat(lanes, samples)), splat(lanes, floor))

            # a lane stops at rate 0: no steps left, or the risk beyond the limit or NaN
            eta = where_less(zero, todo, eta, zero)
            eta = where_less(risk, bound, eta, zero)
            if watched and step > 0:
                widen(zero, n, extremes[block].reshape(-1), 0, risk)
                widen(zero, n, extremes[block].reshape(-1), 4 * n, _square(zero, n, g))
            if measure:
                store(rate[block], 0, eta)
                store(left[block], 0, todo)
                store(excess[block], 0, risk)
                square = _square(zero, n, g)
                store(gradient[block], 0, where_less(risk, bound, square, infinite))
                break
            todo = minus(todo, where_less(zero, eta, one, zero))
            if rule is None:
                _update(zero, n, w, g, eta)
            else:
                step_with_velocity(zero, n, w, g, eta, rule)
            step += 1
            if (begin + step) % check == 0:
                square = _square(zero, n, g)
                if rule is not None:
                    # A small gradient is no rest if the velocity carries the weights on.
                    steady = steady_square(zero, n, w, g.size, w.size, eta, rule)
                    square = where_less(square, steady, steady, square)
                flat = where_less(small, square, zero, one)
                there = where_less(risk, splat(lanes, settled), flat, zero)
                eta = where_less(zero, there, zero, eta)
