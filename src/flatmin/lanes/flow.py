"""Gradient flow of many linear networks at once, on lane vectors.

The explicit Runge-Kutta method of `tableau` under `step_control`, for any way to compute and keep
the derivatives of its stages: `flow_one_output` and `flow_several_outputs`. Every lane has its own
time, step, error control and end, by lane-wise selection.

Networks end at very different steps. A lane whose network has ended takes the next one from a queue
that all threads share, so no lane waits for another and no thread for another, until the queue is
empty. A network's bits depend neither on its lane, nor on its neighbours, nor on the lane count,
nor on where a run is cut into calls.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from flatmin.lanes.algebra import larger
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.layout import scratch
from flatmin.lanes.step_control import (
    ACCEPTED,
    EMPTY,
    FIELDS,
    REJECTED,
    RUNNING,
    STATE,
    Control,
    Sums,
    first_step,
    fitted,
    judged,
    step_error,
    stepped,
)
from flatmin.lanes.tableau import FIFTH, FINAL, SIZE, THIRD, THIRD_AT, UPDATE
from flatmin.lanes.tiles import in_threes, outer, put, take, zeros
from flatmin.lanes.vectors import (
    absolute,
    all_lanes,
    fma,
    intrinsic,
    root,
    splat,
    vectors,
    where,
)


class Slopes(NamedTuple):
    """How the derivatives K_s of the stages s = 0 .. SIZE - 1 of a step are computed and kept.

    numbers(network)                      lane vectors of memory
    derive(w, network, memory, s, step)   K_s, from those before it, or K_0; returns the excess risk
                                          there. `step` is -h
    row(network, memory, k, i)            (a, across, b, along) where row i of layer k of K_s is
                                          b[s along] a[s across + c], c = 0, 1, ...
    """

    numbers: Any
    derive: Any
    row: Any


class Queue(NamedTuple):
    """Networks to be advanced, for all threads."""

    waiting: Any  # their numbers
    taken: Any  # [1] how many of them are taken
    until: float  # a network leaves its lane after so many attempted steps in all


# --- seats ---------------------------------------------------------------------------------------


@intrinsic
def _counted(typing, counter):
    """counter[0], which becomes one more, at once for all threads."""

    def codegen(context, builder, signature, arguments):
        place = context.make_array(counter)(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), codegen


@helper
def _sit(lane, network, weights, controls, w, row):
    """A network takes a lane of w and row."""
    for j in range(len(w)):
        w[j, lane] = weights[network, j]
    for j in range(FIELDS):
        row[j, lane] = controls[network, j]


@helper
def _rise(lane, network, weights, controls, w, row):
    """A network's numbers return from its lane; returns how many steps it attempted there."""
    before = controls[network, ACCEPTED] + controls[network, REJECTED]
    for j in range(len(w)):
        weights[network, j] = w[j, lane]
    for j in range(FIELDS):
        controls[network, j] = row[j, lane]
    return controls[network, ACCEPTED] + controls[network, REJECTED] - before


@helper
def _fill(lane, seats, queue, weights, controls, w, row):
    """The next network of the queue takes a lane, or none does."""
    seats[lane] = -1
    row[STATE, lane] = EMPTY
    # The counter stays where it is once the queue is empty, or nearly.
    if queue.taken[0] < len(queue.waiting):
        place = _counted(queue.taken)
        if place < len(queue.waiting):
            seats[lane] = queue.waiting[place]
            _sit(lane, seats[lane], weights, controls, w, row)


# --- new weights and errors ----------------------------------------------------------------------


def _changes(count: int) -> Any:
    @inlined
    def tile(a, across, factors, change, columns):
        finals = len(FINAL)
        total, fifth = zeros(a, count), zeros(a, count)
        for m in range(finals):
            x = take(a[FINAL[m] * across :], count, 1)
            total = outer(x, factors[m], total)
            fifth = outer(x, factors[finals + m], fifth)
        third = total
        for m in range(len(THIRD_AT)):
            x = take(a[FINAL[THIRD_AT[m]] * across :], count, 1)
            third = outer(x, factors[2 * finals + m], third)
        put(change, 1, total)
        put(change[columns:], 1, fifth)
        put(change[2 * columns :], 1, third)

    return tile


_some_changes = in_threes(_changes)


@inlined
def _weigh(w, new, change, columns, settings, sums):
    """Store a row of new weights and add its changes and errors to the sums of squares."""
    for c in range(columns):
        moved, e5, e3 = w[c] + change[c], change[columns + c], change[2 * columns + c]
        unit = fma(settings.rtol, larger(absolute(moved), absolute(w[c])), settings.atol)
        new[c] = moved
        sums = Sums(
            fma(e5 / unit, e5 / unit, sums.fifth),
            fma(e3 / unit, e3 / unit, sums.third),
            fma(e5, e5, sums.local_fifth),
            fma(e3, e3, sums.local_third),
            fma(change[c], change[c], sums.change),
            fma(moved, moved, sums.weights),
        )
    return sums


def integrator(slopes: Slopes) -> Any:
    """The compiled integrator with these derivatives."""
    numbers_of, derive, row_of = slopes

    @helper
    def combine(w, new, network, memory, factors, change, step, settings):
        """The new weights; returns the step's sums of squares."""
        layout, finals = network.layout, len(FINAL)
        zero = splat(w, 0.0)
        sums = Sums(zero, zero, zero, zero, zero, zero)
        for k in range(len(layout.widths) - 1):
            columns = layout.widths[k]
            for i in range(layout.widths[k + 1]):
                a, across, b, along = row_of(network, memory, k, i)
                for m in range(finals):
                    x = step * b[FINAL[m] * along]
                    factors[m] = UPDATE[m] * x
                    factors[finals + m] = FIFTH[m] * x
                for m in range(len(THIRD_AT)):
                    factors[2 * finals + m] = -THIRD[m] * (step * b[FINAL[THIRD_AT[m]] * along])
                c = 0
                while c < columns:
                    c += _some_changes(columns - c, a[c:], across, factors, change[c:], columns)
                at = layout.layers[k] + i * columns
                sums = _weigh(w[at:], new[at:], change, columns, settings, sums)
        return sums

    @helper
    def begun(w, network, memory, settings):
        """The first step, from |W| and |K_0|, root mean square in the tolerance's units."""
        layout, weights, slopes = network.layout, splat(w, 0.0), splat(w, 0.0)
        for k in range(len(layout.widths) - 1):
            columns = layout.widths[k]
            for i in range(layout.widths[k + 1]):
                a, _, b, _ = row_of(network, memory, k, i)
                for c in range(columns):
                    x = w[layout.layers[k] + i * columns + c]
                    unit = fma(settings.rtol, absolute(x), settings.atol)
                    x, g = x / unit, b[0] * a[c] / unit
                    weights, slopes = fma(x, x, weights), fma(g, g, slopes)
        size = layout.layers[-1]
        return first_step(root(weights / size), root(slopes / size))

    @helper
    def gradient_square(network, memory):
        """|K_0|^2."""
        layout, total = network.layout, splat(memory, 0.0)
        for k in range(len(layout.widths) - 1):
            for i in range(layout.widths[k + 1]):
                a, _, b, _ = row_of(network, memory, k, i)
                squares = splat(memory, 0.0)
                for c in range(layout.widths[k]):
                    squares = fma(a[c], a[c], squares)
                total = fma(squares, b[0] * b[0], total)
        return total

    def flow(lanes, weights, network, controls, settings, queue, seats, steps):
        """Advance networks of the queue, as many at once as lanes, by `steps` steps of all lanes.

        lanes      tuple of n floats; only its length, the lane count, is used
        weights    [network, P], changed in place
        network    a `Linear` of `layout`
        controls   [network, FIELDS], changed in place: a `Control` each, of `new_controls`
        settings   of `step_control`
        queue      a `Queue`
        seats      [n] the network in each lane or -1: what a thread has begun and goes on with

        Returns the number of steps attempted, of all networks together; there is no more to do if
        nobody sits. A network that has REACHED its end goes on from there if its end is raised and
        its state cleared.
        """
        n, size, width = len(lanes), len(weights[0]), 0
        for columns in network.layout.widths:
            width = max(width, columns)
        numbers = 2 * size + FIELDS + 1 + 3 * SIZE + 3 * width + numbers_of(network)
        buffer = scratch(numbers * n, weights)
        w = vectors(lanes, buffer)
        new, row, gone = w[size:], w[2 * size :], w[2 * size + FIELDS :]
        factors, change, memory = gone[1:], gone[1 + 3 * SIZE :], gone[1 + 3 * SIZE + 3 * width :]
        # The same numbers, lane by lane.
        own = buffer[: size * n].reshape(size, n)
        fields = buffer[2 * size * n : (2 * size + FIELDS + 1) * n].reshape(FIELDS + 1, n)
        for lane in range(n):
            if seats[lane] >= 0:
                _sit(lane, seats[lane], weights, controls, own, fields)
            else:
                _fill(lane, seats, queue, weights, controls, own, fields)
        attempted, tried = 0.0, 0
        while True:
            c = Control(*take(row, FIELDS, 1))
            # In a lane that overflows e' Sigma e can come out as -inf.
            excess = absolute(derive(w, network, memory, 0, splat(lanes, 0.0)))
            c = judged(c, excess, gradient_square(network, memory), settings)
            put(row, 1, c)
            running = (c.state == RUNNING) & (c.accepted + c.rejected < queue.until)
            if tried == steps or all_lanes(c.state == EMPTY):
                break
            if not all_lanes(running | (c.state == EMPTY)):
                gone[0] = where(running | (c.state == EMPTY), 0.0, 1.0)
                for lane in range(n):
                    if fields[FIELDS, lane] > 0.0:
                        attempted += _rise(lane, seats[lane], weights, controls, own, fields)
                        _fill(lane, seats, queue, weights, controls, own, fields)
                continue
            h = c.step
            if not all_lanes(~running | (h > 0.0)):
                h = where(running & ~(h > 0.0), begun(w, network, memory, settings), h)
            free, move = fitted(c, h)
            for s in range(1, SIZE):
                derive(w, network, memory, s, -move)
            sums = combine(w, new, network, memory, factors, change, -move, settings)
            e, local = step_error(sums, size)
            put(row, 1, stepped(c, h, move, free, e, local))
            for j in range(size):
                w[j] = where(running & (e < 1.0), new[j], w[j])
            tried += 1
        for lane in range(n):
            if seats[lane] >= 0:
                attempted += _rise(lane, seats[lane], weights, controls, own, fields)
        return attempted

    # Compiled forms are kept by this name.
    flow.__module__, flow.__qualname__ = derive.py_func.__module__, "flow"
    return compiled(flow)


def queue_of(waiting: Any, until: float = np.inf) -> Queue:
    """A queue of these networks, nobody taken yet."""
    return Queue(np.asarray(waiting, dtype=np.int64), np.zeros(1, dtype=np.int64), float(until))


def empty_seats(lanes: int) -> Any:
    """The seats of a thread that has not begun."""
    return np.full(lanes, -1, dtype=np.int64)
