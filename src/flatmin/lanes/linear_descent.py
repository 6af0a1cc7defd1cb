"""Gradient descent of linear networks with one output, a block of lanes at a time.

Backward b_L = p, b_{k-1} = W_k' b_k; error w - w* with w = b_0; a_1 = 2 Sigma (w - w*); forward
a_{k+1} = W_k a_k with the old W_k, and in the same pass W_k -= eta b_k a_k'. So each weight is
loaded twice and stored once a step, for three fused multiply-adds: 6 P flops a network step,
whatever the number of samples. Small square layers are stepped as in `held`, wide networks as in
`wide` or `twins`. With momentum, velocities follow the weights in a block and the forward pass is
that of `momentum_descent`.

Every operation acts on the whole lane vector in a fixed order, so a network's bits do not depend
on its lane, block, thread, or on how its steps are cut into calls.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import numpy as np
from numba import extending

from flatmin.lanes.algebra import (
    dot,
    gradient_square,
    input_gradient,
    larger,
    smaller,
    sweep_backward,
    times_and_step,
    widen,
)
from flatmin.lanes.compiling import borrower, compiled, helper, inlined
from flatmin.lanes.entries import (
    PLAIN,
    SHARP,
    fetch_row,
    put_entry,
    put_row,
    put_sharpness,
    rows_of,
)
from flatmin.lanes.following import follow
from flatmin.lanes.held import held, spread, step_held, transposed_held
from flatmin.lanes.joined import may_wait, step_and_down, take_error
from flatmin.lanes.layout import Held, Twins, Wide, block_of, is_form, scratch
from flatmin.lanes.momentum_descent import (
    steady_square,
    step_held_with_velocity,
    times_and_step_with_velocity,
)
from flatmin.lanes.sharpness import sharpness_scratch
from flatmin.lanes.tiles import put, scaled
from flatmin.lanes.twins import backward_twins, forward_twins
from flatmin.lanes.vectors import absolute, all_lanes, splat, vectors, where
from flatmin.lanes.wide import backward_wide, forward_wide

overload: Any = extending.overload


@inlined
def _backward(w, network, b, error, a):
    sweep_backward(w, network, b)
    for j in range(network.layout.widths[0]):
        error[j] = b[j] - network.target[j]
    return input_gradient(network.sigma, error, a)


@inlined
def _backward_held(w, network, b, error, a, hold):
    widths, layers, nodes = network.layout
    last, like = len(widths) - 2, hold.layer
    top = spread(w, network.p, hold.top)
    put(b[nodes[last + 1] :], 1, top)
    x = transposed_held(w[layers[last] :], top, like)
    put(b[nodes[last] :], 1, x)
    for k in range(last - 1, -1, -1):
        x = transposed_held(w[layers[k] :], x, like)
        put(b[nodes[k] :], 1, x)
    return take_error(w, network, x, error, a, like)


@inlined
def _forward(w, network, b, a, move, momentum):
    widths, layers, nodes = network.layout
    velocity = w[layers[-1] :]
    for k in range(len(widths) - 1):
        rows, columns, layer = widths[k + 1], widths[k], w[layers[k] :]
        x, y, above = a[nodes[k] :], a[nodes[k + 1] :], b[nodes[k + 1] :]
        if momentum is None:
            times_and_step(layer, rows, columns, x, y, -move, above)
        else:
            times_and_step_with_velocity(
                layer, velocity[layers[k] :], rows, columns, x, y, move, above, momentum
            )


@inlined
def _step_one(w, v, x, move, b, momentum):
    """One held layer: W x with the old W, and the step of W."""
    if momentum is None:
        return step_held(w, x, scaled(-move, b))
    return step_held_with_velocity(w, v, x, move, b, momentum)


@inlined
def _forward_held(w, network, b, a, move, momentum, hold, keep):
    widths, layers, nodes = network.layout
    velocity, last, like = w[layers[-1] :], len(widths) - 2, hold.layer
    signal = held(a, like)
    for k in range(last):
        layer, above = w[layers[k] :], held(b[nodes[k + 1] :], like)
        signal = _step_one(layer, velocity[layers[k] :], signal, move, above, momentum)
        if keep:
            put(a[nodes[k + 1] :], 1, signal)
    above = held(b[nodes[last + 1] :], hold.top)
    _step_one(w[layers[last] :], velocity[layers[last] :], signal, move, above, momentum)


def backward(w, network, b, error, a, form):
    """All b_k, the error w - w* and a_1; returns the excess risk."""


def forward(w, network, b, a, move, momentum, form, keep):
    """a_{k+1} = W_k a_k with the old W_k, and the step of W_k by the rate `move`.

    Of held layers the a_k are in memory afterwards only if `keep`.
    """


@overload(backward, jit_options={"forceinline": True})
def _any_backward(w, network, b, error, a, form):
    if is_form(form, Twins):
        return lambda w, network, b, error, a, form: backward_twins(
            w, network, b, error, a, form.row
        )
    if is_form(form, Wide):
        return lambda w, network, b, error, a, form: backward_wide(w, network, b, error, a, form)
    if is_form(form, Held):
        return lambda w, network, b, error, a, form: _backward_held(w, network, b, error, a, form)
    return lambda w, network, b, error, a, form: _backward(w, network, b, error, a)


@overload(forward, jit_options={"forceinline": True})
def _any_forward(w, network, b, a, move, momentum, form, keep):
    if is_form(form, Twins):
        return lambda w, network, b, a, move, momentum, form, keep: forward_twins(
            w, network, b, a, move, form.row
        )
    if is_form(form, Wide):
        return lambda w, network, b, a, move, momentum, form, keep: forward_wide(
            w, network, b, a, move, momentum, form
        )
    if is_form(form, Held):
        return lambda w, network, b, a, move, momentum, form, keep: _forward_held(
            w, network, b, a, move, momentum, form, keep
        )
    return lambda w, network, b, a, move, momentum, form, keep: _forward(
        w, network, b, a, move, momentum
    )


@helper
def _clear(diverged, x, size):
    """Zero the diverged lanes of a buffer: their products vanish instead of becoming NaN."""
    for j in range(size):
        x[j] = where(diverged, 0.0, x[j])


@inlined
def _scratch(lanes, network, weights):
    """The memory that a block is descended in."""
    numbers = 2 * _room(network) + network.layout.widths[0] + PLAIN + SHARP
    return scratch(numbers * len(lanes), weights)


@inlined
def _room(network):
    """What all a_k, or all b_k, take, rounded up so that what follows begins at a cache line."""
    return -(-network.layout.nodes[-1] // 8) * 8


@inlined
def _window(spectrum, every, number):
    """Before how many steps the measurements of an entry begin; of the first weights is but one."""
    return max(min(spectrum.window, every), 1) if number > 0 else 1


@inlined
def _turn(spectrum, every, entry, due, step):
    """Whether sharpness is measured in a step before the entry that is due, the number of that
    measurement in the run, and in its entry."""
    number = spectrum.number + entry
    window = _window(spectrum, every, number)
    of_window = step - due + window - 1
    return of_window >= 0, max((number - 1) * window + 1, 0) + of_window, of_window


@borrower
def _descend_block(
    lanes, weights, network, runs, stop, momentum, form, begin, steps, goes_on, every, due, rows,
    spectrum, states, memory, room,
):  # fmt: skip
    """`descend` of one block: its flat weights, and velocities after them, its runs and rows.

    states         flat, of spectrum.starts
    memory, room   of `_scratch` and, for the sharpness, of `sharpness_scratch`
    """
    widths, layers, nodes = network.layout
    depth, d, size = len(widths) - 1, widths[0], _room(network)
    w, a, extremes = vectors(lanes, weights), vectors(lanes, memory), vectors(lanes, runs.extremes)
    b, error, velocity = a[size:], a[2 * size :], w[layers[depth] :]
    row, watched = error[d:], len(runs.extremes) > 0
    sharp, entries = len(rows.table) > (PLAIN if watched else 0), rows.end - rows.entry

    eta, todo = vectors(lanes, runs.rate)[0], vectors(lanes, runs.left)[0]
    step, entry, stride, before = 0, 0, due, todo
    low = high = value = residual = spent = splat(lanes, np.nan)
    measured, turn, of_window, of_y = False, 0, 0, eta
    if spectrum is not None:
        measured, turn, of_window = _turn(spectrum, every, entry, due, step)
        measured = measured and sharp and entry < entries
    # whether a step by this rate waits for the next way down
    waits, rate = False, eta
    while True:
        if step == steps and goes_on and all_lanes((eta > 0.0) & (todo > 0.5)):
            vectors(lanes, runs.rate)[0], vectors(lanes, runs.left)[0] = eta, todo
            return
        # the last pass has rate 0: it only measures the excess risk and the gradient
        measure = step == steps or (step % stop.check == 0 and all_lanes(eta == 0.0))
        if spectrum is not None and measured:
            fetch_row(lanes, rows.table, rows.entry + entry, rows.network)
        # In a lane that overflows e' Sigma e can come out as -inf.
        if spectrum is not None and waits:
            excess, of_y = step_and_down(
                lanes, w, network, b, error, a, rate, spectrum, states, room, form
            )
        else:
            excess = backward(w, network, b, error, a, form)
        excess = absolute(excess)

        # a lane stops at rate 0: no steps left, or the excess beyond the limit or NaN
        fine = excess < stop.limit
        eta = where(fine & (todo > 0.5), eta, 0.0)
        if not all_lanes(fine):
            _clear(~fine, a, 2 * size)
        recorded = step == due and entry < entries
        if spectrum is not None and measured:
            pace = eta * (every / _window(spectrum, every, spectrum.number + entry))
            if momentum is not None:
                pace = pace / (1.0 - momentum[0])
            value, residual, products = follow(
                lanes, w, network, a, b, form, spectrum, vectors(lanes, states), turn, pace, room,
                waits, of_y,
            )  # fmt: skip
            first = of_window == 0
            low = smaller(value, splat(lanes, np.inf) if first else low)
            high = larger(value, splat(lanes, -np.inf) if first else high)
            spent = products + (splat(lanes, 0.0) if first else spent)
        move, left = splat(lanes, 0.0) if measure else eta, todo
        todo = todo - where(move > 0.0, 1.0, 0.0)
        check = (begin + step + 1) % stop.check == 0
        # a measurement has found all a_k
        waits, rate = measured and momentum is None and may_wait(form) and step + 1 < steps, move
        if spectrum is not None:
            gone = 1 if recorded else 0
            measured, turn, of_window = _turn(
                spectrum, every, entry + gone, due + gone * every, step + 1
            )
            measured = measured and sharp and entry + gone < entries
            waits = waits and measured and not measure
        if not waits:
            forward(w, network, b, a, move, momentum, form, check or measure or watched)
        if recorded:
            # An entry belongs to a lane that took all of its steps and did not diverge in them.
            whole = fine & (before - left == stride)
            if watched:
                square, apart = gradient_square(a, b, network.layout), dot(error, error, d)
                put_entry(row, extremes, excess, apart, square, whole)
            if spectrum is not None and sharp:
                begins = PLAIN if watched else 0
                put_sharpness(row[begins:], value, residual, spent, low, high, whole)
            put_row(lanes, rows.table, rows.entry + entry, rows.network, row)
            entry, due, stride, before = entry + 1, due + every, every, left
        elif watched and step > 0:
            widen(extremes, excess)
            widen(extremes[2:], dot(error, error, d))
            widen(extremes[4:], gradient_square(a, b, network.layout))
        if measure:
            square, apart = gradient_square(a, b, network.layout), dot(error, error, d)
            vectors(lanes, runs.rate)[0] = eta
            vectors(lanes, runs.left)[0] = todo
            vectors(lanes, runs.excess)[0] = where(fine, excess, np.inf)
            vectors(lanes, runs.gradient)[0] = where(fine, square, np.inf)
            vectors(lanes, runs.distance)[0] = where(fine, apart, np.inf)
            # entries that nobody came to
            for column in range(len(rows.table)):
                row[column] = np.nan
            for missing in range(rows.entry + entry, rows.end):
                put_row(lanes, rows.table, missing, rows.network, row)
            return
        step += 1
        if check:
            square = gradient_square(a, b, network.layout)
            if momentum is not None:
                # A small gradient is no rest if the velocity carries the weights on.
                square = larger(steady_square(velocity, layers[depth], eta, momentum), square)
            b_1 = b[nodes[1] :]
            small = dot(b_1, b_1, widths[1])
            small = larger(small * small * stop.relative, stop.tolerance)
            eta = where((square <= small) & (excess < stop.settled), 0.0, eta)


@inlined
def _starts(spectrum, weights, block):
    if spectrum is None:
        return weights[block].reshape(-1)
    return spectrum.starts[block].reshape(-1)


@inlined
def _spectral_scratch(lanes, network, spectrum, weights):
    if spectrum is None:
        return weights[0, 0]
    return sharpness_scratch(lanes, network, spectrum.basis, weights)


@compiled
def descend(
    lanes, weights, network, runs, stop, momentum, form, begin, steps, goes_on, every, due, rows,
    spectrum, first, last,
):  # fmt: skip
    """Descend blocks first..last-1 by at most `steps` steps each.

    lanes      tuple of n numbers; only its length and type are used
    weights    [block, P, n], changed in place; velocities after them in a block
    network, runs, stop
               of `layout`
    momentum   None, or (keep, push) of `momentum_descent`; what does not apply to the type
               given is not compiled
    form       None, or a `Held`, `Wide` or `Twins` of `layout`
    begin      steps taken before this call
    goes_on    without a trace: blocks all of whose lanes still go are not measured at the end
    every      after so many steps, and again, an entry is made and runs.extremes begin anew,
    due        the first time after so many, while
    rows       the `Rows` of the first block, with the others beside it, have room for it; without
               runs.extremes only the sharpness. Lanes that did not take all its steps are NaN in it
    spectrum   None, or a `Spectrum` of `entries`
    """
    memory = _scratch(lanes, network, weights)
    room = _spectral_scratch(lanes, network, spectrum, weights)
    for block in range(first, last):
        _descend_block(
            lanes, weights[block].reshape(-1), network, block_of(runs, block), stop, momentum,
            form, begin, steps, goes_on, every, due,
            rows_of(rows, (block - first) * len(lanes)), spectrum,
            _starts(spectrum, weights, block), memory, room,
        )  # fmt: skip
