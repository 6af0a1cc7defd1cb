"""Gradient flow of many deep linear networks at once, on lane vectors.

A block holds n networks of one architecture, one per lane; weight e of lane v is
weights[block, e, v], layer k row-major [out, in]. With b_L = p, b_{k-1} = W_k' b_k, w = b_0 and
a_1 = 2 Sigma (w - w*), a_{k+1} = W_k a_k the flow is

    dW_k/dt = -b_k a_k'                                  excess risk (w - w*)' Sigma (w - w*)

integrated by the explicit Runge-Kutta method of `tableau`. Every lane has its own time, step,
error control and end, by lane-wise selection: its bits depend neither on its neighbours, nor on
the lane count, nor on where a run is cut into calls.

The derivatives have rank one in every layer and are kept as their factors. The weights of a stage
are therefore never formed; with b_m, a_m the factors of the earlier stages m,

    (W_k - h sum_m A_m b_m a_m')' x = W_k' x - h sum_m A_m (b_m . x) a_m

costs 4d per layer and earlier stage, for both directions, where forming them costs d^2.

A step of error e in the tolerance's units is accepted if e < 1, and the next has the length

    0.9 h e_previous^(1/32) / e^(3/32)      or      0.9 h / e^(1/8) after a rejection

within limits of growth; the powers are square roots. A step must also err by less than a twentieth
of its own length. This matters only near a minimiser, where h is at the edge of stability: the
tolerance alone would let the fastest mode grow up to it, and the gradient would stay that large.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.lanes.compiling import compiled, helper, inlined
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
from flatmin.lanes.vectors import (
    absolute,
    all_less,
    fma,
    load,
    minus,
    over,
    plus,
    root,
    splat,
    store,
    times,
    where_less,
)
from flatmin.network.ensemble import aligned

# States of a lane
RUNNING, CONVERGED, REACHED, STALLED = 0, 1, 2, 3

# Rows of a block's record
TIME, TIME_LOW, STEP, PREVIOUS, CEILING, END = 0, 1, 2, 3, 4, 5
STATE, ACCEPTED, REJECTED, EXCESS, GRADIENT, ERROR = 6, 7, 8, 9, 10, 11
FIELDS = 12

SAFETY = 0.9
SLOWEST, FASTEST = 0.2, 10.0  # least and greatest ratio of successive steps
CUT = 0.1  # the ratio after a step whose error is not a number or infinite
SHARE = 0.05  # greatest error of a step, as a share of its length
ROUNDING = 1e-15  # what this asks of an error at least, as a share of |W|
LAST = 1.01  # a step is the last if so many steps pass the end
LEAST_ERROR = 1e-4  # smallest error the controller remembers
TINY, HUGE = 1e-300, 1e300


def new_record(networks: int, lanes: int) -> Float:
    """Records [block, FIELDS, lane] for `networks` lanes at time 0, to be run without end.

    The lanes that fill up the last block have ended.
    """
    blocks = -(-networks // lanes)
    record = aligned((blocks, FIELDS, lanes))
    record[:, PREVIOUS] = LEAST_ERROR
    record[:, CEILING] = FASTEST
    record[:, END] = np.inf
    record[-1, STATE, networks - (blocks - 1) * lanes :] = STALLED
    return record


# --- derivatives; n is the lane count, so element e of a buffer begins at index e n ---------------


@inlined
def _inner(zero, n, x, i, j, width):
    """x_i . x_j for the vectors of x that begin at i and j."""
    total = zero
    for e in range(0, width * n, n):
        total = fma(load(zero, x, i + e), load(zero, x, j + e), total)
    return total


@inlined
def _three(
    zero, n, w, row, across, along, x, x_s, ins, v, v_0, span, stages, count, dots, y, y_s
):  # fmt: skip
    """Three entries of `_product`."""
    total0 = zero
    total1 = zero
    total2 = zero
    for e in range(ins):
        x_e = load(zero, x, x_s + e * n)
        at = row + e * along
        total0 = fma(load(zero, w, at), x_e, total0)
        total1 = fma(load(zero, w, at + across), x_e, total1)
        total2 = fma(load(zero, w, at + 2 * across), x_e, total2)
    for m in range(count):
        dot = load(zero, dots, m * n)
        at = v_0 + stages[m] * span
        total0 = fma(load(zero, v, at), dot, total0)
        total1 = fma(load(zero, v, at + n), dot, total1)
        total2 = fma(load(zero, v, at + 2 * n), dot, total2)
    store(y, y_s, total0)
    store(y, y_s + n, total1)
    store(y, y_s + 2 * n, total2)


@inlined
def _two(
    zero, n, w, row, across, along, x, x_s, ins, v, v_0, span, stages, count, dots, y, y_s
):  # fmt: skip
    """Two entries of `_product`."""
    total0 = zero
    total1 = zero
    for e in range(ins):
        x_e = load(zero, x, x_s + e * n)
        at = row + e * along
        total0 = fma(load(zero, w, at), x_e, total0)
        total1 = fma(load(zero, w, at + across), x_e, total1)
    for m in range(count):
        dot = load(zero, dots, m * n)
        at = v_0 + stages[m] * span
        total0 = fma(load(zero, v, at), dot, total0)
        total1 = fma(load(zero, v, at + n), dot, total1)
    store(y, y_s, total0)
    store(y, y_s + n, total1)


@inlined
def _one(
    zero, n, w, row, across, along, x, x_s, ins, v, v_0, span, stages, count, dots, y, y_s
):  # fmt: skip
    """One entry of `_product`."""
    total = zero
    for e in range(ins):
        total = fma(load(zero, w, row + e * along), load(zero, x, x_s + e * n), total)
    for m in range(count):
        total = fma(load(zero, v, v_0 + stages[m] * span), load(zero, dots, m * n), total)
    store(y, y_s, total)


@inlined
def _product(
    zero, n, w, layer, across, along, x, x_node, ins, v, y, node, outs, s, count, step, dots
):  # fmt: skip
    """y_s = W x_s + step sum_m A_sm (x_m . x_s) v_m, m over the `count` stages that s uses.

    Entry (o, e) of W, seen as the map from x to y, is at layer + o across + e along; v and y are
    at the same node. The entries of y are taken in threes, the last ones in twos or alone.
    """
    stages = STAGES[s]
    x_s = x_node + s * ins * n
    for m in range(count):
        scale = times(step, splat(zero, COEFFICIENTS[s, m]))
        dot = _inner(zero, n, x, x_s, x_node + stages[m] * ins * n, ins)
        store(dots, m * n, times(scale, dot))
    span = outs * n
    y_s = node + s * span
    o = 0
    while o < outs:
        row = layer + o * across
        v_0 = node + o * n
        y_0 = y_s + o * n
        left = outs - o
        if left >= 3 and left != 4:
            _three(
                zero, n, w, row, across, along, x, x_s, ins, v, v_0, span, stages, count, dots,
                y, y_0,
            )  # fmt: skip
            o += 3
        elif left >= 2:
            _two(
                zero, n, w, row, across, along, x, x_s, ins, v, v_0, span, stages, count, dots,
                y, y_0,
            )  # fmt: skip
            o += 2
        else:
            _one(
                zero, n, w, row, across, along, x, x_s, ins, v, v_0, span, stages, count, dots,
                y, y_0,
            )  # fmt: skip
            o += 1


@helper
def _derive(zero, n, w, widths, layers, nodes, p, sigma, target, a, b, dots, s, step, excess):
    """The factors a_s, b_s of stage s of a step, and its excess risk; `step` is -h."""
    depth = len(widths) - 1
    count = COUNTS[s]
    top = nodes[depth] + s * widths[depth] * n
    for i in range(widths[depth]):
        store(b, top + i * n, splat(zero, p[i]))
    for k in range(depth - 1, -1, -1):
        _product(
            zero, n, w, layers[k], n, widths[k] * n,
            b, nodes[k + 1], widths[k + 1], a, b, nodes[k], widths[k], s, count, step, dots,
        )  # fmt: skip
    d = widths[0]
    first = s * d * n
    risk = zero
    for j in range(d):
        at = first + j * n
        store(b, at, minus(load(zero, b, at), splat(zero, target[j])))
    for i in range(d):
        g = zero
        for j in range(d):
            g = fma(splat(zero, sigma[i, j]), load(zero, b, first + j * n), g)
        risk = fma(g, load(zero, b, first + i * n), risk)
        store(a, first + i * n, plus(g, g))
    store(excess, 0, risk)
    for k in range(depth - 1):
        _product(
            zero, n, w, layers[k], widths[k] * n, n,
            a, nodes[k], widths[k], b, a, nodes[k + 1], widths[k + 1], s, count, step, dots,
        )  # fmt: skip


# --- new weights and errors ----------------------------------------------------------------------


@inlined
def _weigh(zero, n, w, new, at, change, e5, e3, rtol, atol, sums):
    """Store one new weight and add its change and errors to the sums of squares."""
    old = load(zero, w, at)
    moved = plus(old, change)
    store(new, at, moved)
    x = absolute(old)
    y = absolute(moved)
    unit = fma(rtol, where_less(x, y, y, x), atol)
    r5 = over(e5, unit)
    r3 = over(e3, unit)
    store(sums, 0, fma(r5, r5, load(zero, sums, 0)))
    store(sums, n, fma(r3, r3, load(zero, sums, n)))
    store(sums, 2 * n, fma(e5, e5, load(zero, sums, 2 * n)))
    store(sums, 3 * n, fma(e3, e3, load(zero, sums, 3 * n)))
    store(sums, 4 * n, fma(change, change, load(zero, sums, 4 * n)))
    store(sums, 5 * n, fma(moved, moved, load(zero, sums, 5 * n)))


@inlined
def _combine_two(zero, n, w, new, at, a, node, width, factors, rtol, atol, sums):
    """Two weights of `_combine`."""
    finals = len(FINAL)
    change0 = zero
    change1 = zero
    e0 = zero
    e1 = zero
    for m in range(finals):
        x = node + FINAL[m] * width
        x0 = load(zero, a, x)
        x1 = load(zero, a, x + n)
        f = load(zero, factors, m * n)
        change0 = fma(f, x0, change0)
        change1 = fma(f, x1, change1)
        f = load(zero, factors, (finals + m) * n)
        e0 = fma(f, x0, e0)
        e1 = fma(f, x1, e1)
    t0 = change0
    t1 = change1
    for m in range(len(THIRD_AT)):
        x = node + FINAL[THIRD_AT[m]] * width
        f = load(zero, factors, (2 * finals + m) * n)
        t0 = fma(f, load(zero, a, x), t0)
        t1 = fma(f, load(zero, a, x + n), t1)
    _weigh(zero, n, w, new, at, change0, e0, t0, rtol, atol, sums)
    _weigh(zero, n, w, new, at + n, change1, e1, t1, rtol, atol, sums)


@inlined
def _combine_one(zero, n, w, new, at, a, node, width, factors, rtol, atol, sums):
    """One weight of `_combine`."""
    finals = len(FINAL)
    change = zero
    e5 = zero
    for m in range(finals):
        x = load(zero, a, node + FINAL[m] * width)
        change = fma(load(zero, factors, m * n), x, change)
        e5 = fma(load(zero, factors, (finals + m) * n), x, e5)
    e3 = change
    for m in range(len(THIRD_AT)):
        x = load(zero, a, node + FINAL[THIRD_AT[m]] * width)
        e3 = fma(load(zero, factors, (2 * finals + m) * n), x, e3)
    _weigh(zero, n, w, new, at, change, e5, e3, rtol, atol, sums)


@helper
def _combine(zero, n, w, new, widths, layers, nodes, a, b, factors, sums, step, rtol, atol):
    """W + change and six sums of squares: e5 and e3 in the tolerance's units, e5, e3, change, W."""
    finals = len(FINAL)
    for j in range(6):
        store(sums, j * n, zero)
    for k in range(len(widths) - 1):
        rows, cols = widths[k + 1], widths[k]
        for i in range(rows):
            for m in range(finals):
                x = times(step, load(zero, b, nodes[k + 1] + (FINAL[m] * rows + i) * n))
                store(factors, m * n, times(splat(zero, UPDATE[m]), x))
                store(factors, (finals + m) * n, times(splat(zero, FIFTH[m]), x))
            for m in range(len(THIRD_AT)):
                x = times(step, load(zero, b, nodes[k + 1] + (FINAL[THIRD_AT[m]] * rows + i) * n))
                store(factors, (2 * finals + m) * n, times(splat(zero, -THIRD[m]), x))
            c = 0
            while c < cols:
                at = layers[k] + (i * cols + c) * n
                node = nodes[k] + c * n
                if cols - c >= 2:
                    _combine_two(zero, n, w, new, at, a, node, cols * n, factors, rtol, atol, sums)
                else:
                    _combine_one(zero, n, w, new, at, a, node, cols * n, factors, rtol, atol, sums)
                c += 2


@inlined
def _gradient_square(zero, n, a, b, widths, nodes):
    """|gradient|^2 = sum over layers of |b_above|^2 |a_below|^2."""
    total = zero
    for k in range(len(widths) - 1):
        above = _inner(zero, n, b, nodes[k + 1], nodes[k + 1], widths[k + 1])
        below = _inner(zero, n, a, nodes[k], nodes[k], widths[k])
        total = fma(above, below, total)
    return total


@helper
def _scaled_norms(zero, n, w, widths, layers, nodes, a, b, rtol, atol, sums):
    """|W|, |K_0| and |K_1 - K_0|, root mean square in the tolerance's units."""
    d0 = zero
    d1 = zero
    d2 = zero
    one = splat(zero, 1.0)
    for k in range(len(widths) - 1):
        rows, cols = widths[k + 1], widths[k]
        for i in range(rows):
            b0 = load(zero, b, nodes[k + 1] + i * n)
            b1 = load(zero, b, nodes[k + 1] + (rows + i) * n)
            for c in range(cols):
                x = load(zero, w, layers[k] + (i * cols + c) * n)
                weight = over(one, fma(rtol, absolute(x), atol))
                g0 = times(b0, load(zero, a, nodes[k] + c * n))
                g1 = minus(times(b1, load(zero, a, nodes[k] + (cols + c) * n)), g0)
                x = times(x, weight)
                g0 = times(g0, weight)
                g1 = times(g1, weight)
                d0 = fma(x, x, d0)
                d1 = fma(g0, g0, d1)
                d2 = fma(g1, g1, d2)
    size = splat(zero, 1.0 * (layers[len(widths) - 1] // n))
    store(sums, 0, root(over(d0, size)))
    store(sums, n, root(over(d1, size)))
    store(sums, 2 * n, root(over(d2, size)))


# --- the integrator ------------------------------------------------------------------------------


@inlined
def _larger(x, y):
    """max(x, y); y where x is not a number."""
    return where_less(y, x, x, y)


@inlined
def _smaller(x, y):
    """min(x, y); y where x is not a number."""
    return where_less(x, y, x, y)


@inlined
def _eighth(x):
    """x^(1/8)."""
    return root(root(root(x)))


@inlined
def _next_state(zero, state, converged, t, remaining, h, tries, most):
    """The states after a step, of the lanes still running; h = 0 is a lane not yet begun."""
    stalled = splat(zero, 1.0 * STALLED)
    half = splat(zero, 0.5)
    floor = fma(splat(zero, 2.0**-100), t, splat(zero, TINY))
    after = where_less(tries, most, zero, stalled)
    after = where_less(floor, h, after, where_less(absolute(h), splat(zero, TINY), after, stalled))
    after = where_less(zero, remaining, after, splat(zero, 1.0 * REACHED))
    after = where_less(half, converged, splat(zero, 1.0 * CONVERGED), after)
    return where_less(state, half, after, state)


@helper
def _scratch(size):
    """Zeros that begin at a cache line."""
    buffer = np.zeros(size + 8)
    start = -(buffer.ctypes.data // 8) % 8
    return buffer[start : start + size]


@compiled
def flow(
    lanes, weights, widths, p, sigma, target, record,
    rtol, atol, tolerance, settled, max_steps, steps, first, last,
):  # fmt: skip
    """Integrate the running lanes of blocks first..last-1 by at most `steps` attempted steps each.

    lanes       tuple of n floats; only its length, the lane count, is used
    weights     [block, P, n], changed in place; layer k is [out, in] row major
    widths      int64 d_0 .. d_L;  p [d_L];  sigma [d_0, d_0];  target [d_0]
    record      [block, FIELDS, n], changed in place; a new one is made by `new_record`. Its rows:
                TIME + TIME_LOW     time, as a sum of two numbers, so that steps far below the
                                    rounding of a large time still count
                STEP                next step, 0 if not yet begun
                PREVIOUS, CEILING   last accepted error; greatest ratio of the next step to this one
                END                 time to stop at exactly, may be infinite
                STATE               RUNNING, or why the lane ended: CONVERGED, REACHED (its END),
                                    STALLED (step below rounding, or max_steps attempted)
                ACCEPTED, REJECTED  numbers of steps
                EXCESS, GRADIENT    excess risk and squared gradient norm at the weights
                ERROR               sum over accepted steps of |local error estimate|_2
    rtol, atol  a step's error is the rms of its entries over atol + rtol max(|W|, |W_new|)
    tolerance, settled
                a lane has converged if |gradient| <= tolerance and excess risk <= settled
    max_steps   attempted steps of a lane in all calls together, after which it is STALLED

    A lane that has REACHED its END goes on from there if its END is raised and its STATE cleared.
    """
    n = len(lanes)
    depth = len(widths) - 1
    zero = splat(lanes, 0.0)
    one = splat(lanes, 1.0)
    half = splat(lanes, 0.5)
    tiny = splat(lanes, TINY)
    huge = splat(lanes, HUGE)
    hundredth = splat(lanes, 0.01)
    safety = splat(lanes, SAFETY)
    slowest = splat(lanes, SLOWEST)
    least = splat(lanes, LEAST_ERROR)
    relative = splat(lanes, rtol)
    fixed = splat(lanes, atol)
    most = splat(lanes, 1.0 * max_steps)
    flat = splat(lanes, np.nextafter(tolerance * tolerance, np.inf))
    low = splat(lanes, np.nextafter(settled, np.inf))

    # layer k+1 begins at layers[k] of a block; a_{k+1} and b_k of all stages begin at nodes[k]
    layers = np.zeros(depth + 1, np.int64)
    nodes = np.zeros(depth + 2, np.int64)
    for k in range(depth + 1):
        nodes[k + 1] = nodes[k] + SIZE * widths[k] * n
    for k in range(depth):
        layers[k + 1] = layers[k] + widths[k + 1] * widths[k] * n
    parameters = splat(lanes, 1.0 * (layers[depth] // n))
    a = _scratch(nodes[depth + 1])
    b = _scratch(nodes[depth + 1])
    new = _scratch(layers[depth])
    dots = _scratch(SIZE * n)
    factors = _scratch(3 * SIZE * n)
    sums = _scratch(6 * n)
    excess = _scratch(n)

    for block in range(first, last):
        w = weights[block].reshape(-1)
        row = record[block].reshape(-1)
        state = load(zero, row, STATE * n)
        if all_less(half, state):
            continue
        t = load(zero, row, TIME * n)
        t_low = load(zero, row, TIME_LOW * n)
        h = load(zero, row, STEP * n)
        previous = load(zero, row, PREVIOUS * n)
        ceiling = load(zero, row, CEILING * n)
        end = load(zero, row, END * n)
        accepted = load(zero, row, ACCEPTED * n)
        rejected = load(zero, row, REJECTED * n)
        error = load(zero, row, ERROR * n)
        tried = 0
        while True:
            _derive(
                zero, n, w, widths, layers, nodes, p, sigma, target, a, b, dots, 0, zero, excess
            )
            risk = load(zero, excess, 0)
            square = _gradient_square(zero, n, a, b, widths, nodes)
            converged = where_less(square, flat, where_less(risk, low, one, zero), zero)
            tries = plus(accepted, rejected)
            remaining = minus(minus(end, t), t_low)
            state = _next_state(zero, state, converged, t, remaining, h, tries, most)
            if tried == steps or all_less(half, state):
                break

            if not all_less(zero, where_less(state, half, h, one)):
                # a first step, after Hairer: 1 % of W along K_0, then (0.01 / max(K, K'))^(1/8)
                _scaled_norms(zero, n, w, widths, layers, nodes, a, b, relative, fixed, sums)
                slope = load(zero, sums, n)
                guess = over(times(hundredth, load(zero, sums, 0)), slope)
                guess = where_less(tiny, guess, _smaller(guess, huge), splat(lanes, 1e-6))
                euler = over(guess, splat(lanes, -COEFFICIENTS[1, 0]))
                _derive(
                    zero,
                    n,
                    w,
                    widths,
                    layers,
                    nodes,
                    p,
                    sigma,
                    target,
                    a,
                    b,
                    dots,
                    1,
                    euler,
                    excess,
                )
                _scaled_norms(zero, n, w, widths, layers, nodes, a, b, relative, fixed, sums)
                slope = _larger(over(load(zero, sums, 2 * n), guess), slope)
                begin = _eighth(over(hundredth, plus(slope, tiny)))
                begin = _smaller(begin, times(splat(lanes, 100.0), guess))
                h = where_less(zero, h, h, where_less(state, half, begin, h))

            # one attempted step, the last one fitted to what remains
            free = where_less(times(splat(lanes, LAST), h), remaining, one, zero)
            move = where_less(half, free, h, remaining)
            step = minus(zero, move)
            for s in range(1, SIZE):
                _derive(
                    zero, n, w, widths, layers, nodes, p, sigma, target, a, b, dots, s, step, excess
                )
            _combine(
                zero, n, w, new, widths, layers, nodes, a, b, factors, sums, step, relative, fixed
            )

            # |e5|^2 / sqrt(|e5|^2 + |e3|^2 / 100), in the tolerance's units and in the weights'
            e5 = load(zero, sums, 0)
            e3 = load(zero, sums, n)
            scaled = over(e5, root(fma(parameters, fma(hundredth, e3, e5), tiny)))
            e5 = load(zero, sums, 2 * n)
            e3 = load(zero, sums, 3 * n)
            local = over(e5, root(plus(fma(hundredth, e3, e5), tiny)))
            share = fma(splat(lanes, ROUNDING), root(load(zero, sums, 5 * n)), tiny)
            share = fma(splat(lanes, SHARE), root(load(zero, sums, 4 * n)), share)
            e = _larger(over(local, share), scaled)

            running = where_less(state, half, one, zero)
            accept = where_less(e, one, running, zero)
            bounded = _larger(e, splat(lanes, 1e-30))
            e8 = _eighth(bounded)
            e16 = root(e8)
            up = over(times(safety, root(root(_eighth(previous)))), times(e16, root(e16)))
            up = _larger(_smaller(up, ceiling), slowest)
            down = _larger(over(safety, e8), slowest)
            down = where_less(e, huge, down, splat(lanes, CUT))

            # a step fitted to the end leaves h for what follows
            grown = times(move, up)
            grown = _smaller(where_less(half, free, grown, _larger(grown, h)), huge)
            addend = plus(t_low, move)
            ahead = plus(t, addend)
            gained = minus(ahead, t)
            rest = plus(minus(t, minus(ahead, gained)), minus(addend, gained))
            ahead = where_less(half, free, ahead, end)
            rest = where_less(half, free, rest, zero)
            h = where_less(half, running, where_less(half, accept, grown, times(move, down)), h)
            t = where_less(half, accept, ahead, t)
            t_low = where_less(half, accept, rest, t_low)
            previous = where_less(half, accept, _larger(bounded, least), previous)
            ceiling = where_less(half, running, one, ceiling)
            ceiling = where_less(half, accept, splat(lanes, FASTEST), ceiling)
            accepted = plus(accepted, accept)
            rejected = plus(rejected, minus(running, accept))
            error = where_less(half, accept, plus(error, local), error)
            for j in range(0, len(w), n):
                store(w, j, where_less(half, accept, load(zero, new, j), load(zero, w, j)))
            tried += 1

        store(row, TIME * n, t)
        store(row, TIME_LOW * n, t_low)
        store(row, STEP * n, h)
        store(row, PREVIOUS * n, previous)
        store(row, CEILING * n, ceiling)
        store(row, STATE * n, state)
        store(row, ACCEPTED * n, accepted)
        store(row, REJECTED * n, rejected)
        store(row, EXCESS * n, risk)
        store(row, GRADIENT * n, square)
        store(row, ERROR * n, error)
