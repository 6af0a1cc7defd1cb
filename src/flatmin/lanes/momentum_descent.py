"""The forward sweep of gradient descent with a velocity beside the weights.

The velocity V_k of a layer is laid out as the layer itself; all velocities follow all weights of a
block. With g_k = b_k a_k' the gradient of layer k (see `linear_descent`),

    V_k <- keep V_k - eta g_k
    W_k <- W_k + V_k                        heavy ball, keep = beta, push None
    W_k <- W_k - eta g_k + push V_k         Nesterov as PyTorch's SGD: W are the points where
                                            gradients are taken; keep = push = beta

A lane that rests (it has stopped, or is only measured) keeps its weights and, with keep 1 and rate
0, its velocity, so that it can go on later. Each weight and its velocity are loaded and stored in
the same pass that takes a_{k+1} = W_k a_k with the old W_k.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from flatmin.lanes.algebra import dot
from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.held import by_rows, fused
from flatmin.lanes.tiles import scaled
from flatmin.lanes.vectors import fma, intrinsic, load, store, where


@inlined
def moved(old, speed, kick, push, going):
    """The weight that follows from the new velocity and from kick = -eta g.

    A lane that rests has kick 0; with push 0 it needs no choice.
    """
    if push is None:
        return where(going, old + speed, old)
    return fma(speed, where(going, push, 0.0), old + kick)


@inlined
def times_and_step_with_velocity(w, v, rows, columns, x, y, move, b, momentum):
    """y = W x with the old W, and the step of W and V by the rate `move`, in the same pass."""
    going, push = move > 0.0, momentum[1]
    keep = where(going, momentum[0], 1.0)
    for i in range(rows):
        descent, total, at = -move * b[i], 0.0, i * columns
        for j in range(columns):
            old, kick = w[at + j], descent * x[j]
            total = fma(old, x[j], total)
            speed = fma(keep, v[at + j], kick)
            v[at + j], w[at + j] = speed, moved(old, speed, kick, push, going)
        y[i] = total


@intrinsic
def _step_held(typing, w, v, x, descent, keep, push, going):
    def codegen(context, builder, signature, arguments):
        place, velocity, _, _, kept, pushed, mask = arguments
        given, moves = (cgutils.unpack_tuple(builder, one) for one in arguments[2:4])
        heavy = isinstance(push, types.NoneType)
        if not heavy:
            pushed = builder.select(mask, pushed, ir.Constant(pushed.type, None))

        def step(e, i, x_j, old):
            kick = builder.fmul(moves[i], x_j)
            speed = fused(builder, w.vector, kept, load(builder, v, velocity, e), kick)
            store(builder, v, velocity, e, speed)
            if heavy:
                return builder.select(mask, builder.fadd(old, speed), old)
            return fused(builder, w.vector, speed, pushed, builder.fadd(old, kick))

        return by_rows(builder, w, place, given, len(moves), step)

    pushing = push if isinstance(push, types.NoneType) else w.vector
    return descent(w, v, x, descent, keep, pushing, going), codegen


@inlined
def step_held_with_velocity(w, v, x, move, b, momentum):
    """As `times_and_step_with_velocity`, of held vectors x and b; returns W x."""
    going, push = move > 0.0, momentum[1]
    keep = where(going, momentum[0], 1.0)
    return _step_held(w, v, x, scaled(-move, b), keep, push, going)


@helper
def steady_square(v, size, eta, momentum):
    """|(1 - beta) V / eta|^2: the squared gradient that would keep up this velocity."""
    factor = (1.0 - momentum[0]) / eta
    return factor * factor * dot(v, v, size)


@inlined
def step_with_velocity(w, v, g, size, move, momentum):
    """The step of all weights and velocities by a gradient that is at hand."""
    going, push = move > 0.0, momentum[1]
    keep = where(going, momentum[0], 1.0)
    for e in range(size):
        # A lane that rests keeps its bits, whatever its gradient is.
        kick = where(going, -move * g[e], 0.0)
        speed = fma(keep, v[e], kick)
        v[e], w[e] = speed, moved(w[e], speed, kick, push, going)
