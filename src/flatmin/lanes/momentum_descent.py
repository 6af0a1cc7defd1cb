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

from typing import Any

from flatmin.lanes.algebra import dot
from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.tiles import in_twos, outer, put, scaled, take, zeros
from flatmin.lanes.vectors import fma, where


def _rows(rows: int) -> Any:
    @inlined
    def tile(w, v, columns, x, y, descent, b, keep, push, pull):
        kick = scaled(descent, take(b, rows, 1))
        pulled = scaled(pull, kick)
        total = zeros(w, rows)
        for j in range(columns):
            old = take(w[j:], rows, columns)
            total = outer(old, x[j], total)
            speed = outer(kick, x[j], scaled(keep, take(v[j:], rows, columns)))
            put(v[j:], columns, speed)
            put(w[j:], columns, outer(speed, push, outer(pulled, x[j], old)))
        put(y, 1, total)

    return tile


_some_rows = in_twos(_rows)


@inlined
def times_and_step_with_velocity(w, v, rows, columns, x, y, move, b, momentum):
    """y = W x with the old W, and the step of W and V by the rate `move`, in the same pass."""
    keep, push = where(move > 0.0, momentum[0], 1.0), where(move > 0.0, momentum[1], 0.0)
    i = 0
    while i < rows:
        at = i * columns
        i += _some_rows(
            rows - i, w[at:], v[at:], columns, x, y[i:], -move, b[i:], keep, push, momentum[2]
        )


@helper
def steady_square(v, size, eta, momentum):
    """|(1 - beta) V / eta|^2: the squared gradient that would keep up this velocity."""
    factor = (1.0 - momentum[0]) / eta
    return factor * factor * dot(v, v, size)


@inlined
def step_with_velocity(w, v, g, size, move, momentum):
    """The step of all weights and velocities by a gradient that is at hand."""
    keep, push = where(move > 0.0, momentum[0], 1.0), where(move > 0.0, momentum[1], 0.0)
    for e in range(size):
        # A lane that rests keeps its bits, whatever its gradient is.
        change = where(move > 0.0, -move * g[e], 0.0)
        v[e] = fma(keep, v[e], change)
        w[e] = fma(push, v[e], fma(momentum[2], change, w[e]))
