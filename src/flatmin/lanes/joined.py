"""A step of held layers and two ways down after it, in one pass over the weights.

Where the sharpness is followed from step to step all a_k are known before W_k -= eta b_k a_k' is
taken, so that can wait for the next step. That begins with two sweeps down, and what each needs of
a layer is there when the other comes to it:

    W_k -= eta b_k a_k'      with the b_k of the step before
    b_{k-1} = W_k' b_k
    c_{k-1} = W_k' c_k + beta_k y_k      of `sweeps`

A block and what is kept to follow its sharpness fill more than a first cache. So weights are loaded
and stored once for all three, in the order and with the bits of one after another.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from numba import extending

from flatmin.lanes.compiling import inlined
from flatmin.lanes.following import foreseen
from flatmin.lanes.held import (
    held,
    spread,
    step_and_transposed,
    step_held,
    times_held,
    transposed_held,
)
from flatmin.lanes.layout import Held, is_form
from flatmin.lanes.sweeps import leave, leave_last
from flatmin.lanes.tiles import inner, outer, put, scaled
from flatmin.lanes.vectors import splat, vectors

overload: Any = extending.overload


@inlined
def take_error(w, network, b_0, error, a, like):
    """The error w - w* and a_1 of held layers; returns the excess risk."""
    apart = outer(spread(w, network.target, like), splat(w, -1.0), b_0)
    half = times_held(network.sigma, apart)
    put(error, 1, apart)
    put(a, 1, scaled(2.0, half))
    return inner(half, apart, 0.0)


@inlined
def _step_and_down(lanes, w, network, b, error, a, move, spectrum, state, room, hold):
    y, c_of, nodes_of, _ = foreseen(lanes, network, a, b, spectrum, vectors(lanes, state), room)
    widths, layers, nodes = network.layout
    last, like = len(widths) - 2, hold.layer
    top = spread(w, network.p, hold.top)
    change = scaled(-move, held(b[nodes[last + 1] :], hold.top))
    step_held(w[layers[last] :], held(a[nodes[last] :], like), change)
    put(b[nodes[last + 1] :], 1, top)
    x = transposed_held(w[layers[last] :], top, like)
    of_y, c = leave_last(network, nodes_of, held(y[nodes[last] :], like))
    for k in range(last - 1, -1, -1):
        change, y_k = scaled(-move, held(b[nodes[k + 1] :], like)), held(y[nodes[k] :], like)
        put(b[nodes[k + 1] :], 1, x)
        of_y, begun = leave(network, nodes_of, k, x, y_k, c, c_of, of_y)
        x, c = step_and_transposed(w[layers[k] :], change, held(a[nodes[k] :], like), x, c, begun)
    put(b, 1, x)
    put(c_of, 1, c)
    return take_error(w, network, x, error, a, like), of_y


def may_wait(form):
    """Whether a plain step of which all a_k are known may wait for the next way down."""


def step_and_down(lanes, w, network, b, error, a, move, spectrum, state, room, form):
    """The step of all W_k by the rate `move`, if it may wait, then `backward` and `sweeps.down`.

    Returns what these do: the excess risk, and the sum of beta_k |y_k|^2.
    """


@overload(may_wait, jit_options={"forceinline": True})
def _any_may_wait(form):
    is_held = is_form(form, Held)
    return lambda form: is_held


@overload(step_and_down, jit_options={"forceinline": True})
def _any_step_and_down(lanes, w, network, b, error, a, move, spectrum, state, room, form):
    if is_form(form, Held):
        return lambda lanes, w, network, b, error, a, move, spectrum, state, room, form: (
            _step_and_down(lanes, w, network, b, error, a, move, spectrum, state, room, form)
        )
    return lambda lanes, w, network, b, error, a, move, spectrum, state, room, form: (move, move)
