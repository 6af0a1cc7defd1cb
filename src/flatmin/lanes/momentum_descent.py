"""The forward sweep of gradient descent with a velocity beside the weights.

The velocity V_k of a layer is laid out as the layer itself; all velocities follow all weights of a
block. With g_k = b_k a_k' the gradient of layer k (see `linear_descent`),

    V_k <- keep V_k - eta g_k
    W_k <- W_k + push V_k - pull eta g_k

| method     | keep | push | pull |                                                              |
| ---------- | ---- | ---- | ---- | ------------------------------------------------------------ |
| heavy ball | beta | 1    | 0    | W <- W + V                                                   |
| Nesterov   | beta | beta | 1    | as PyTorch's SGD: W are the points where gradients are taken |

A lane that rests (it has stopped, or is only measured) has keep 1, push 0 and rate 0: neither its
weights nor its velocity change, so that it can go on later. Each weight and its velocity are
loaded and stored in the same pass that takes a_{k+1} = W_k a_k with the old W_k.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from flatmin.lanes.algebra import dot
from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.vectors import fma, load, minus, over, splat, store, times, where_less


@inlined
def _two_rows(zero, n, w, row, speed, b, a, above, width, below, descent, keep, push, pull):
    """Two rows of `forward_with_velocity`."""
    c0 = times(descent, load(zero, b, above))
    c1 = times(descent, load(zero, b, above + n))
    p0 = times(pull, c0)
    p1 = times(pull, c1)
    total0 = zero
    total1 = zero
    for j in range(0, width, n):
        x = load(zero, a, below + j)
        w0 = load(zero, w, row + j)
        total0 = fma(w0, x, total0)
        v0 = fma(c0, x, times(keep, load(zero, w, speed + j)))
        store(w, speed + j, v0)
        store(w, row + j, fma(push, v0, fma(p0, x, w0)))
        w1 = load(zero, w, row + width + j)
        total1 = fma(w1, x, total1)
        v1 = fma(c1, x, times(keep, load(zero, w, speed + width + j)))
        store(w, speed + width + j, v1)
        store(w, row + width + j, fma(push, v1, fma(p1, x, w1)))
    store(a, above, total0)
    store(a, above + n, total1)


@inlined
def _one_row(zero, n, w, row, speed, b, a, above, width, below, descent, keep, push, pull):
    """One row of `forward_with_velocity`."""
    c0 = times(descent, load(zero, b, above))
    p0 = times(pull, c0)
    total0 = zero
    for j in range(0, width, n):
        x = load(zero, a, below + j)
        w0 = load(zero, w, row + j)
        total0 = fma(w0, x, total0)
        v0 = fma(c0, x, times(keep, load(zero, w, speed + j)))
        store(w, speed + j, v0)
        store(w, row + j, fma(push, v0, fma(p0, x, w0)))
    store(a, above, total0)


@inlined
def forward_with_velocity(
    zero, n, w, layer, velocity, b, a, rows, above, cols, below, move, momentum
):
    """a_above = W a_below with the old W, and the step of W and V, in the same pass.

    `velocity` is where the velocity of this layer begins in w; `momentum` is (keep, push, pull).
    """
    width = cols * n
    one = splat(zero, 1.0)
    descent = minus(zero, move)
    keep = where_less(zero, move, splat(zero, momentum[0]), one)
    push = where_less(zero, move, splat(zero, momentum[1]), zero)
    pull = splat(zero, momentum[2])
    i = 0
    while i < rows:
        row, speed, here = layer + i * width, velocity + i * width, above + i * n
        if rows - i >= 2:
            _two_rows(zero, n, w, row, speed, b, a, here, width, below, descent, keep, push, pull)
        else:
            _one_row(zero, n, w, row, speed, b, a, here, width, below, descent, keep, push, pull)
        i += 2


@helper
def steady_square(zero, n, w, begin, end, eta, momentum):
    """|(1 - beta) V / eta|^2: the squared gradient that would keep up this velocity."""
    factor = over(splat(zero, 1.0 - momentum[0]), eta)
    return times(times(factor, factor), dot(zero, n, w, begin, w, begin, end - begin))


@inlined
def step_with_velocity(zero, n, w, g, move, momentum):
    """The step of all weights and velocities by a gradient that is at hand."""
    keep = where_less(zero, move, splat(zero, momentum[0]), splat(zero, 1.0))
    push = where_less(zero, move, splat(zero, momentum[1]), zero)
    pull = splat(zero, momentum[2])
    for e in range(0, len(g), n):
        # A lane that rests keeps its bits, whatever its gradient is.
        change = where_less(zero, move, times(minus(zero, move), load(zero, g, e)), zero)
        speed = fma(keep, load(zero, w, len(g) + e), change)
        store(w, len(g) + e, speed)
        store(w, e, fma(push, speed, fma(pull, change, load(zero, w, e))))
