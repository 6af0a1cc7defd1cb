"""The sharpness along a run of linear networks with one output: an eigenvector is followed.

The next eigenvector is foreseen from the course of the last ones (`foreseen`), one product tells
its value and residual, and Lanczos (`sharpness`) goes on from there in the lanes where the residual
is too large. Now and then a random vector is added, so that another that overtakes is noticed.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from numba import extending

from flatmin.lanes.algebra import dot, larger, smaller
from flatmin.lanes.compiling import helper, inlined
from flatmin.lanes.entries import CHANGES, PROBE_EVERY, TILE, in_tiles
from flatmin.lanes.held import held
from flatmin.lanes.lanczos import inverse_or_zero
from flatmin.lanes.layout import Held, is_form
from flatmin.lanes.sharpness import ROUNDING, largest_eigenvalue, padded, places
from flatmin.lanes.sweeps import Nodes, chain, down, up, x_of
from flatmin.lanes.tiles import chosen, inner, minus, outer, plus, put, scaled, take, zeros
from flatmin.lanes.vectors import absolute, all_lanes, fma, root, splat, vectors, where

overload: Any = extending.overload

# Of the fit of a vector's course: the part of unity that keeps it solvable, what there is of no
# course in a vector, of the tolerance, and the largest factor.
_RIDGE, _NOISE, _LARGEST = 1e-12, 0.3, 50.0
# Where a layer has changed by this share since the last probe, and every so many turns.
_STIRRED, _SELDOM = 1e-3, 128


@helper
def add_probe(network, b, probe, share, y):
    """Add share times V_k = b_k/|b_k| y_k', the y_k of a probe: every eigenvector has a part of
    that kind."""
    widths, _, nodes = network.layout
    for k in range(len(widths) - 1):
        b_k = b[nodes[k + 1] :]
        part = share * inverse_or_zero(root(chain(b_k, b_k, widths[k + 1])))
        for j in range(nodes[k], nodes[k + 1]):
            y[j] = fma(probe[j], part, y[j])


@inlined
def _course(found, known, noise):
    """The factors g, h, i for which a change d_n is nearest g d_{n-1} + h d_{n-2} + i d_{n-3}.

    found  d_n . d_{n-1}, d_n . d_{n-2}, d_n . d_{n-3}
    known  the products of the three changes with one another: 11, 12, 13, 22, 23, 33
    noise  what there is in a change of no course, squared
    """
    ridge = fma(_RIDGE, known[0] + known[3] + known[5], noise)
    # L D L' of the matrix, with the ridge on its diagonal
    first = inverse_or_zero(known[0] + ridge)
    l_2, l_3 = first * known[1], first * known[2]
    second = inverse_or_zero(fma(-l_2, known[1], known[3] + ridge))
    rest = fma(-l_2, known[2], known[4])
    l_32 = second * rest
    third = inverse_or_zero(fma(-l_32, rest, fma(-l_3, known[2], known[5] + ridge)))
    z_2 = fma(-l_2, found[0], found[1])
    z_3 = fma(-l_32, z_2, fma(-l_3, found[0], found[2]))
    i = third * z_3
    h = fma(-l_32, i, second * z_2)
    g = fma(-l_3, i, fma(-l_2, h, first * found[0]))
    return g, h, i


@inlined
def _within(x, bound):
    return larger(smaller(x, bound), -bound)


@helper
def _search(
    lanes, w, network, nodes_of, form, spectrum, done, goes_on, begun, ahead, last, weights, part,
    side, scale, room,
):  # fmt: skip
    """`largest_eigenvalue` in the lanes that are not done, from the product of `follow`.

    Returns value, residual, products and by what `ahead` is to be multiplied for the y_k of H v, of
    unit v, with the sign of the vector `last`: in the lanes that are done that is `part`, for the
    product. In `apart`, where its difference was, nothing is left.
    """
    q = places(network, spectrum.basis, vectors(lanes, room))[11]
    size, x_at = padded(network.layout), network.layout.nodes[-2]
    apart, kept = q[size:], in_tiles(x_at)
    for i in range(0, kept, TILE):
        before = take(ahead[i:], TILE, 1)
        put(q[i:], 1, before)
        put(ahead[i:], 1, plus(before, take(apart[i:], TILE, 1)))
    for i in range(x_at, size):
        q[i], apart[i] = 0.0, 0.0
    if goes_on:
        x_of(network, nodes_of, side, q[x_at:], form)
    value, residual, products = largest_eigenvalue(
        w, network, nodes_of.a, nodes_of.b, form, scale, done, goes_on, begun, 1.0, x_at,
        spectrum.tolerance, spectrum.max_products, spectrum.basis, vectors(lanes, room),
    )  # fmt: skip
    for i in range(0, kept, TILE):
        put(ahead[i:], 1, chosen(done, take(ahead[i:], TILE, 1), take(q[i:], TILE, 1)))
        put(apart[i:], 1, zeros(q, TILE))
    # a vector has two signs
    sign = where(_product(network, weights, ahead, last) < 0.0, -1.0, 1.0)
    return value, residual, products, where(done, part, sign)


@helper
def _product(network, weights, x, y):
    """The sum of x_k.y_k over layers, each with its weight."""
    widths, _, nodes = network.layout
    total = 0.0
    for k in range(len(widths) - 1):
        part = chain(x[nodes[k] :], y[nodes[k] :], widths[k])
        total = fma(weights[k], part, total)
    return total


@helper
def _stir(w, network, alpha, beta):
    """By what share of itself a unit rate moves the layer that it moves most: |a_k| |b_k|/|W_k|."""
    layers, most = network.layout.layers, 0.0
    for k in range(len(layers) - 1):
        layer = w[layers[k] :]
        square = dot(layer, layer, layers[k + 1] - layers[k])
        most = larger(alpha[k] * beta[k] * inverse_or_zero(square), most)
    return root(most)


@inlined
def foreseen(lanes, network, a, b, spectrum, state, room):
    """Of what is kept of a run: y_k foreseen, where c_k go, the nodes, with the scale foreseen."""
    size = in_tiles(network.layout.nodes[-2])
    numbers = state[(2 + CHANGES) * size :]
    before, factors = numbers[1:], numbers[10:]
    c, alpha, beta, per_b, moved, _, _, _, _, _, _, q = places(
        network, spectrum.basis, vectors(lanes, room)
    )
    last, g, h, i = numbers[0], factors[0], factors[1], factors[2]
    scale = fma(i, before[2], fma(h, before[1], fma(g, before[0], last)))
    scale = where((scale > 0.5 * last) & (scale < 2.0 * last), scale, last)
    scale = where(scale > 0.0, scale, 1.0)
    side = q[(spectrum.basis + 1) * padded(network.layout) :]
    return state[size:], side, Nodes(a, b, c, 1.0 / scale, alpha, beta, per_b, moved), scale


@inlined
def _onward(network, part, ahead, apart, state, changes, weights, factors):
    nodes, (d_1, d_2, d_3), (g, h, i) = network.layout.nodes, changes, factors
    by_0 = by_1 = by_2 = by_3 = splat(part, 0.0)
    for k in range(len(nodes) - 2):
        for e in range(nodes[k], nodes[k + 1]):
            new = part * (ahead[e] + apart[e])
            change, one, two = new - state[e], d_1[e], d_2[e]
            if k % 2 == 0:
                weighed = weights[k] * change
                by_0 = fma(weighed, change, by_0)
                by_1 = fma(weighed, one, by_1)
                by_2 = fma(weighed, two, by_2)
                by_3 = fma(weighed, d_3[e], by_3)
            state[e], d_3[e] = new, change
            ahead[e] = fma(two, i, fma(one, h, fma(change, g, new)))
    return by_0, by_1, by_2, by_3


@inlined
def _onward_held(network, part, ahead, apart, state, changes, weights, factors, like):
    nodes, (d_1, d_2, d_3), (g, h, i) = network.layout.nodes, changes, factors
    by_0 = by_1 = by_2 = by_3 = splat(part, 0.0)
    for k in range(len(nodes) - 2):
        at = nodes[k]
        new = scaled(part, plus(held(ahead[at:], like), held(apart[at:], like)))
        change = minus(new, held(state[at:], like))
        one, two = held(d_1[at:], like), held(d_2[at:], like)
        if k % 2 == 0:
            weighed = scaled(weights[k], change)
            by_0 = inner(weighed, change, by_0)
            by_1 = inner(weighed, one, by_1)
            by_2 = inner(weighed, two, by_2)
            by_3 = inner(weighed, held(d_3[at:], like), by_3)
        put(state[at:], 1, new)
        put(d_3[at:], 1, change)
        put(ahead[at:], 1, outer(two, i, outer(one, h, outer(change, g, new))))
    return by_0, by_1, by_2, by_3


def onward(network, part, ahead, apart, state, changes, weights, factors, form):
    """What is kept of a vector and its changes, of which the oldest is replaced, and what is
    foreseen of the next in `ahead`. The vector is `part` times the sum of `ahead` and `apart`.

    Returns the sums of the change times itself and the three before it: every second layer tells
    the course.
    """


@overload(onward, jit_options={"forceinline": True})
def _any_onward(network, part, ahead, apart, state, changes, weights, factors, form):
    if is_form(form, Held):
        return lambda network, part, ahead, apart, state, changes, weights, factors, form: (
            _onward_held(network, part, ahead, apart, state, changes, weights, factors, form.layer)
        )
    return lambda network, part, ahead, apart, state, changes, weights, factors, form: _onward(
        network, part, ahead, apart, state, changes, weights, factors
    )


@helper
def follow(
    lanes, w, network, a, b, form, spectrum, state, turn, pace, room, is_down, of_y
):  # fmt: skip
    """The sharpness of a block at its turn-th measurement in a run, as `largest_eigenvalue`.

    The y_k of the next eigenvector are looked for near y + g d_n + h d_{n-1} + i d_{n-2}, with d_n
    the last change of y, d_{n-1} the one before, and the factors that were best the last time
    (`_course`). Where a run goes on smoothly this extrapolates; where it swings to and fro g is
    about -1, which is the eigenvector before the last one. The eigenvalue is foreseen by the same
    factors, and x_k follows from both (`sweeps.down`). So mostly one
    product is enough, and its Rayleigh quotient is the value. Changes are compared in a metric that
    is that of the weights, for units not to matter, but of weights now and then: products of
    changes of different turns are kept.

    state           of the block, as `entries.followed` has it
    pace            what weights move from one turn to the next, of their gradient
    is_down, of_y   whether the way down was taken, and what `sweeps.down` returned
    """
    widths, _, nodes = network.layout
    size = in_tiles(nodes[-2])
    newest = turn % CHANGES
    ahead, side, nodes_of, scale = foreseen(lanes, network, a, b, spectrum, state, room)
    inverse, d_1 = nodes_of.inverse, state[(2 + (newest + 2) % CHANGES) * size :]
    d_2 = state[(2 + (newest + 1) % CHANGES) * size :]
    d_3 = state[(2 + newest) * size :]
    numbers = state[(2 + CHANGES) * size :]
    known, before, factors, weights = numbers[4:], numbers[1:], numbers[10:], numbers[14:]
    q = places(network, spectrum.basis, vectors(lanes, room))[11]
    apart = q[padded(network.layout) :]
    last, g, h, i = numbers[0], factors[0], factors[1], factors[2]
    stirred, begins = numbers[13], turn == 0
    if turn % _SELDOM == 0:
        for k in range(len(widths) - 1):
            b_k = b[nodes[k + 1] :]
            weights[k] = chain(b_k, b_k, widths[k + 1])
    if begins:
        add_probe(network, b, spectrum.probe, splat(lanes, 1.0), ahead)
    if not is_down:
        of_y = down(w, network, nodes_of, ahead, side, form)
    own, across, square = up(w, network, nodes_of, ahead, side, of_y, apart, form)
    if (turn + 1) % PROBE_EVERY == 0:
        stirred = fma(
            PROBE_EVERY * pace, scale * _stir(w, network, nodes_of.alpha, nodes_of.beta), stirred
        )
    per = inverse_or_zero(own)
    along = per * across
    told = along * along
    error = root(larger(per * square - told, ROUNDING * told))
    theta = where(own > 0.0, 1.0 + along, 0.0)
    value, residual, products = scale * theta, scale * error, splat(lanes, 1.0)
    done = ~(error > spectrum.tolerance * absolute(theta))
    if begins:
        # nothing is known of the scale
        done, scale = ~(scale > 0.0), splat(lanes, 0.0)
    # H v of unit v
    part = root(inverse * per) * inverse_or_zero(theta)
    if not all_lanes(done):
        found = _search(
            lanes, w, network, nodes_of, form, spectrum, done, not begins, (own, across, square),
            ahead, state, weights, part, side, scale, room,
        )  # fmt: skip
        value = where(done, value, found[0])
        residual = where(done, residual, found[1])
        products = where(done, products, found[2])
        part = found[3]
    by = onward(network, part, ahead, apart, state, (d_1, d_2, d_3), weights, (g, h, i), form)
    if begins:
        # there is no change yet
        nothing = splat(lanes, 0.0)
        by = (nothing, nothing, nothing, nothing)
        for e in range(nodes[-2]):
            d_3[e] = 0.0
    if spectrum.steady:
        noise = _NOISE * spectrum.tolerance
        g, h, i = _course(by[1:], take(known, 6, 1), noise * noise)
        put(factors, 1, (_within(g, _LARGEST), _within(h, _LARGEST), _within(i, _LARGEST)))
        put(known, 1, (by[0], by[1], by[2], known[0], known[1], known[3]))
    if (turn + 1) % PROBE_EVERY == 0:
        due = stirred > (_STIRRED if (turn + 1) % _SELDOM else -1.0)
        add_probe(network, b, spectrum.probe, where(due, 1.0, 0.0), ahead)
        numbers[13] = where(due, 0.0, stirred)
    value_here = where(value > 0.0, value, 1.0)
    step = splat(lanes, 0.0) if begins else value_here - last
    put(numbers, 1, (value_here, step, before[0], before[1]))
    return value, residual, products
