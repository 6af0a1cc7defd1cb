"""Gradient flow of many deep linear networks at once, on lane vectors.

With b_L = p, b_{k-1} = W_k' b_k, w = b_0 and a_1 = 2 Sigma (w - w*), a_{k+1} = W_k a_k the flow is

    dW_k/dt = -b_k a_k'                                  excess risk (w - w*)' Sigma (w - w*)

integrated by the explicit Runge-Kutta method of `tableau` under `step_control`. Every lane has its
own time, step, error control and end, by lane-wise selection: its bits depend neither on its
neighbours, nor on the lane count, nor on where a run is cut into calls.

The derivatives have rank one in every layer and are kept as their factors. The weights of a stage
are therefore never formed; with b_m, a_m the factors of the earlier stages m,

    (W_k - h sum_m A_m b_m a_m')' x = W_k' x - h sum_m A_m (b_m . x) a_m

costs 4d per layer and earlier stage, for both directions, where forming them costs d^2. The factors
of stage s at node k begin at SIZE nodes[k] + s d_k.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from flatmin.lanes.algebra import input_gradient, larger
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.layout import scratch
from flatmin.lanes.step_control import (
    FIELDS,
    RUNNING,
    STATE,
    Control,
    Sums,
    first_guess,
    first_step,
    fitted,
    judged,
    step_error,
    stepped,
)
from flatmin.lanes.tableau import (
    COEFFICIENTS,
    COUNTS,
    FIFTH,
    FINAL,
    SIZE,
    STAGES,
    THIRD,
    THIRD_AT,
    UPDATE,
)
from flatmin.lanes.tiles import in_threes, in_twos, outer, put, take, zeros
from flatmin.lanes.vectors import absolute, all_lanes, fma, root, splat, vectors, where

# --- derivatives ---------------------------------------------------------------------------------


@inlined
def _dot(x, y, size):
    """x.y, in one chain."""
    total = 0.0
    for e in range(size):
        total = fma(x[e], y[e], total)
    return total


def _entries(count: int) -> Any:
    @inlined
    def tile(w, across, along, x, ins, v, span, stages, used, dots, y):
        total = zeros(w, count)
        for e in range(ins):
            total = outer(take(w[e * along :], count, across), x[e], total)
        for m in range(used):
            total = outer(take(v[stages[m] * span :], count, 1), dots[m], total)
        put(y, 1, total)

    return tile


_some_entries = in_threes(_entries)


@inlined
def _product(w, across, along, x, ins, v, y, outs, s, step, dots):
    """y_s = W x_s + step sum_m A_sm (x_m . x_s) v_m, m over the stages that s uses.

    Entry (o, e) of W, seen as the map from x to y, is w[o across + e along]; x, v and y begin with
    stage 0 of their node. The entries of y are taken in threes.
    """
    stages, used, x_s, y_s = STAGES[s], COUNTS[s], x[s * ins :], y[s * outs :]
    for m in range(used):
        dots[m] = step * COEFFICIENTS[s, m] * _dot(x_s, x[stages[m] * ins :], ins)
    o = 0
    while o < outs:
        row, rest = w[o * across :], outs - o
        o += _some_entries(
            rest, row, across, along, x_s, ins, v[o:], outs, stages, used, dots, y_s[o:]
        )


@helper
def _derive(w, network, a, b, dots, s, step):
    """The factors a_s, b_s of stage s of a step; returns its excess risk. `step` is -h."""
    widths, layers, nodes = network.layout
    depth, d = len(widths) - 1, widths[0]
    for i in range(widths[depth]):
        b[SIZE * nodes[depth] + s * widths[depth] + i] = network.p[i]
    for k in range(depth - 1, -1, -1):
        here, there = SIZE * nodes[k], SIZE * nodes[k + 1]
        rows, columns = widths[k + 1], widths[k]
        _product(
            w[layers[k] :], 1, columns, b[there:], rows, a[here:], b[here:], columns, s, step, dots
        )
    error = b[s * d :]
    for j in range(d):
        error[j] = error[j] - network.target[j]
    risk = input_gradient(network.sigma, error, a[s * d :])
    for k in range(depth - 1):
        here, there = SIZE * nodes[k], SIZE * nodes[k + 1]
        rows, columns = widths[k + 1], widths[k]
        _product(
            w[layers[k] :], columns, 1, a[here:], columns, b[there:], a[there:], rows, s, step, dots
        )
    return risk


@inlined
def _gradient_square(layout, a, b):
    """|gradient|^2 = sum over layers of |b_above|^2 |a_below|^2, at stage 0."""
    total = 0.0
    for k in range(len(layout.widths) - 1):
        above, below = b[SIZE * layout.nodes[k + 1] :], a[SIZE * layout.nodes[k] :]
        squares = _dot(above, above, layout.widths[k + 1])
        total = fma(squares, _dot(below, below, layout.widths[k]), total)
    return total


# --- new weights and errors ----------------------------------------------------------------------


def _changes(count: int) -> Any:
    @inlined
    def tile(a, columns, factors, change):
        finals = len(FINAL)
        total, fifth = zeros(a, count), zeros(a, count)
        for m in range(finals):
            x = take(a[FINAL[m] * columns :], count, 1)
            total = outer(x, factors[m], total)
            fifth = outer(x, factors[finals + m], fifth)
        third = total
        for m in range(len(THIRD_AT)):
            x = take(a[FINAL[THIRD_AT[m]] * columns :], count, 1)
            third = outer(x, factors[2 * finals + m], third)
        put(change, 1, total)
        put(change[columns:], 1, fifth)
        put(change[2 * columns :], 1, third)

    return tile


_some_changes = in_twos(_changes)


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


@helper
def _combine(w, new, layout, a, b, factors, change, step, settings):
    """The new weights; returns the step's sums of squares."""
    finals = len(FINAL)
    zero = splat(w, 0.0)
    sums = Sums(zero, zero, zero, zero, zero, zero)
    for k in range(len(layout.widths) - 1):
        rows, columns = layout.widths[k + 1], layout.widths[k]
        below, above = a[SIZE * layout.nodes[k] :], b[SIZE * layout.nodes[k + 1] :]
        for i in range(rows):
            for m in range(finals):
                x = step * above[FINAL[m] * rows + i]
                factors[m] = UPDATE[m] * x
                factors[finals + m] = FIFTH[m] * x
            for m in range(len(THIRD_AT)):
                factors[2 * finals + m] = -THIRD[m] * (step * above[FINAL[THIRD_AT[m]] * rows + i])
            c = 0
            while c < columns:
                c += _some_changes(columns - c, below[c:], columns, factors, change[c:])
            at = layout.layers[k] + i * columns
            sums = _weigh(w[at:], new[at:], change, columns, settings, sums)
    return sums


@helper
def _scaled_norms(w, layout, a, b, settings):
    """|W|, |K_0| and |K_1 - K_0|, root mean square in the tolerance's units."""
    d0 = d1 = d2 = 0.0
    for k in range(len(layout.widths) - 1):
        rows, columns, layer = layout.widths[k + 1], layout.widths[k], w[layout.layers[k] :]
        below, above = a[SIZE * layout.nodes[k] :], b[SIZE * layout.nodes[k + 1] :]
        for i in range(rows):
            for c in range(columns):
                x = layer[i * columns + c]
                weight = 1.0 / fma(settings.rtol, absolute(x), settings.atol)
                slope = above[i] * below[c]
                x, g = x * weight, slope * weight
                change = (above[rows + i] * below[columns + c] - slope) * weight
                d0, d1, d2 = fma(x, x, d0), fma(g, g, d1), fma(change, change, d2)
    size = layout.layers[-1]
    return root(d0 / size), root(d1 / size), root(d2 / size)


# --- the integrator ------------------------------------------------------------------------------


@helper
def _flow_block(lanes, weights, network, record, settings, steps, memory):
    """`flow` of one block of flat weights."""
    layout, size = network.layout, network.layout.layers[-1]
    w, row, a = vectors(lanes, weights), vectors(lanes, record), vectors(lanes, memory)
    b = a[SIZE * layout.nodes[-1] :]
    new = b[SIZE * layout.nodes[-1] :]
    dots, factors, change = new[size:], new[size + SIZE :], new[size + 4 * SIZE :]
    c = Control(*take(row, FIELDS, 1))
    tried = 0
    while True:
        risk = _derive(w, network, a, b, dots, 0, splat(lanes, 0.0))
        c = judged(c, risk, _gradient_square(layout, a, b), settings)
        running = c.state == RUNNING
        if tried == steps or all_lanes(~running):
            break
        h = c.step
        if not all_lanes(~running | (h > 0.0)):
            norm, slope, _ = _scaled_norms(w, layout, a, b, settings)
            guess = first_guess(norm, slope)
            _derive(w, network, a, b, dots, 1, guess / -COEFFICIENTS[1, 0])
            _, _, bend = _scaled_norms(w, layout, a, b, settings)
            h = where(running & ~(h > 0.0), first_step(guess, slope, bend), h)
        free, move = fitted(c, h)
        for s in range(1, SIZE):
            _derive(w, network, a, b, dots, s, -move)
        sums = _combine(w, new, layout, a, b, factors, change, -move, settings)
        e, local = step_error(sums, size)
        c = stepped(c, h, move, free, e, local)
        for j in range(size):
            w[j] = where(running & (e < 1.0), new[j], w[j])
        tried += 1
    put(row, 1, c)


@compiled
def flow(lanes, weights, network, record, settings, steps, first, last):
    """Integrate the running lanes of blocks first..last-1 by at most `steps` attempted steps each.

    lanes      tuple of n floats; only its length, the lane count, is used
    weights    [block, P, n], changed in place
    network    a `Linear` of `layout`
    record     [block, FIELDS, n], changed in place: a `Control` each; `new_record` makes a new one
    settings   of `step_control`

    A lane that has REACHED its end goes on from there if its end is raised and its state cleared.
    """
    layout, n = network.layout, len(lanes)
    numbers = (2 * SIZE + 3) * layout.nodes[-1] + layout.layers[-1] + 4 * SIZE
    memory = scratch(numbers * n, weights)
    for block in range(first, last):
        w, row = weights[block].reshape(-1), record[block].reshape(-1)
        if (record[block, STATE] == RUNNING).any():
            _flow_block(lanes, w, network, row, settings, steps, memory)
