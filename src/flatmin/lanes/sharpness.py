"""The sharpness of linear networks with one output: Lanczos with the products of `sweeps`.

A round of Lanczos begins with q_1 and takes q_{m+1} = (H - 1) q_m - alpha_m q_m - beta_m q_{m-1},
of H divided by its expected largest eigenvalue, with alpha_m = <q_m, (H - 1) q_m>/|q_m|^2 and
beta_m = |q_m|^2/|q_{m-1}|^2. So the tridiagonal matrix has 1 + alpha_m on its diagonal and the
roots of beta_m beside it. With s its top unit vector, theta its eigenvalue, the Ritz vector is
sum_i s_i q_i/|q_i|, and its residual is s_m |q_{m+1}|/|q_m|.

    |q_{m+1}|^2/|q_m|^2 = |(H - 1) q_m|^2/|q_m|^2 - alpha_m^2 - beta_m

is small only as the square of the residual, so what rounding leaves of it is taken to be its least:
a residual is never shown smaller than it may be. Once it has fallen to about the root of the
machine's precision the q_m are no longer orthogonal. A round ends before that, and another begins
with its Ritz vector, whose residual is measured anew.

What is kept is not the Ritz vector v but H v, a step of the power method that costs no product.

Each lane does the same arithmetic whatever its neighbours do, and one whose round has ended keeps
what it had: results do not depend on the block.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import numpy as np

from flatmin.lanes.algebra import input_gradient, larger, smaller, sweep_backward
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.entries import PROBE_EVERY, TILE, in_tiles
from flatmin.lanes.lanczos import inverse_or_zero
from flatmin.lanes.layout import scratch
from flatmin.lanes.sweeps import (
    Nodes,
    chain,
    coordinates,
    dimension,
    rise,
    straighten,
    sweep,
    weigh,
)
from flatmin.lanes.tiles import outer, put, scaled, take
from flatmin.lanes.tridiagonal import top_of_tridiagonal
from flatmin.lanes.vectors import absolute, all_lanes, fma, root, splat, vectors, where

# The residual at which a round ends, and the least share that rounding leaves of a difference.
_LOOSE, _ROUNDING = 1e-7, 1e-15
# Of the fit of a vector's course: the part of unity that keeps it solvable, the largest factor.
_RIDGE, _LARGEST = 1e-12, 4.0
# Up to so many products a round may end after each, then after every second.
_EACH = 4


@inlined
def padded(layout):
    """The room of a vector: its coordinates and zeros, in whole tiles."""
    return in_tiles(dimension(layout))


@helper
def sharpness_scratch(lanes, network, basis, like):
    """The memory that `largest_eigenvalue` works in."""
    size, depth = network.layout.nodes[-1], len(network.layout.widths) - 1
    numbers = size + 4 * depth + 5 * (basis + 1) + (basis + 2) * padded(network.layout)
    return scratch(numbers * len(lanes), like)


@inlined
def _places(network, basis, room):
    """c and four vectors a layer of `Nodes`; diagonal, beside it, s, 1/|q_m|, the Ritz vector's
    coordinates; the vector found; q."""
    size, depth = network.layout.nodes[-1], len(network.layout.widths) - 1
    layers = room[size:]
    matrix = layers[4 * depth :]
    step = basis + 1
    found = matrix[5 * step :]
    return (
        room, layers, layers[depth:], layers[2 * depth :], layers[3 * depth :],
        matrix, matrix[step:], matrix[2 * step :], matrix[3 * step :], matrix[4 * step :],
        found, found[padded(network.layout) :],
    )  # fmt: skip


@inlined
def add_probe(network, b, probe, q):
    """Add V_k = b_k/|b_k| y_k', the y_k of a probe: every eigenvector has a part of that kind."""
    widths, _, nodes = network.layout
    for k in range(len(widths) - 1):
        y_at, _ = coordinates(network.layout, k)
        b_k = b[nodes[k + 1] :]
        inverse = inverse_or_zero(root(chain(b_k, b_k, widths[k + 1])))
        for j in range(widths[k]):
            q[y_at + j] = fma(probe[nodes[k] + j], inverse, q[y_at + j])


@inlined
def _next(q, size, m, along, between):
    """A tile of q_{m+1}, of which (H - 1) q_m is in its place."""
    less = outer(take(q[(m - 1) * size :], TILE, 1), -along, take(q[m * size :], TILE, 1))
    return outer(take(q[max(m - 2, 0) * size :], TILE, 1), -between, less)


@helper
def largest_eigenvalue(
    w, network, a, b, form, expected, onward, tolerance, max_products, basis, room
):  # fmt: skip
    """Value, residual and number of products, from the first vector of q, which it replaces.

    w, a, b    weights of a block, a_k and b_k as `layout` has nodes
    expected   about the value, or 0
    onward     1 to keep H v, 0 to keep v itself
    basis      vectors of a round
    """
    c, alpha, beta, per_b, moved, diagonal, beside, s, norms, shares, found, q = _places(
        network, basis, room
    )
    size, scale, rounds = padded(network.layout), expected, 0
    value = residual = splat(c, np.nan)
    products = splat(c, 0.0)
    finished = nothing = products > 0.0
    while True:
        known = scale > 0.0
        guessed, shift = all_lanes(known), where(known, 1.0, 0.0)
        inverse = 1.0 / where(known, scale, 1.0)
        nodes_of = Nodes(a, b, c, inverse, alpha, beta, per_b, moved)
        weigh(network, nodes_of)
        kept, ended, used = finished, finished, 0
        along = between = before = splat(c, 0.0)
        while True:
            here, there = q[used * size :], q[(used + 1) * size :]
            if used > 0:
                for i in range(0, size, TILE):
                    put(here[i:], 1, _next(q[i:], size, used, along, between))
            own, across, square = sweep(w, network, nodes_of, here, shift, there, form)
            per = inverse_or_zero(own)
            if not guessed:
                break
            along = per * across
            between = own * inverse_or_zero(before)
            before = own
            told = fma(along, along, between)
            rest = where(nothing, 0.0, larger(per * square - told, _ROUNDING * told))
            # Of a vector that is 0, and where H is, nothing is left to find.
            diagonal[used] = where((own > 0.0) & ~nothing, 1.0 + along, 0.0)
            norms[used], s[used] = root(inverse * per), 1.0
            if used > 0:
                beside[used - 1] = root(between)
            used += 1
            if used > _EACH and used % 2 == 1 and used < basis:
                shares[used] = 0.0
                continue
            theta = diagonal[0]
            if used > 1:
                theta = top_of_tridiagonal(diagonal, beside, used, s)
            error, bound = root(rest) * absolute(s[used - 1]), absolute(theta)
            whole = products + (used + 1) >= max_products
            done = whole | ~(error > tolerance * bound)
            ends = done
            if used > 1 and tolerance < _LOOSE:
                done, ends = whole, whole | ~(error > _LOOSE * bound)
            if used == basis:
                ends = ~ended
            ends = ends & ~ended
            value = where(ends, scale * theta, value)
            residual = where(ends, scale * error, residual)
            products = where(ends, products + used, products)
            for i in range(used):
                shares[i] = where(ends, s[i] * norms[i], shares[i])
            power = onward * (s[used - 1] * norms[used - 1]) * inverse_or_zero(theta)
            shares[used] = where(ends, power, 0.0)
            ended, finished = ended | ends, finished | (ends & done)
            if all_lanes(ended):
                break
        if not guessed:
            products = products + where(known, 0.0, 1.0)
            # Where H q = 0 there is no residual.
            nothing = ~known & (square == 0.0)
            scale = where(known, scale, root(per * square))
            scale = where(scale > 0.0, scale, 1.0)
            continue
        for i in range(0, size, TILE):
            total = scaled(shares[0], take(q[i:], TILE, 1))
            for m in range(1, used):
                total = outer(take(q[m * size + i :], TILE, 1), shares[m], total)
            put(q[i:], 1, outer(_next(q[i:], size, used, along, between), shares[used], total))
        if rounds > 0:
            for i in range(size):
                q[i] = where(kept, found[i], q[i])
        if all_lanes(finished):
            return value, residual, products
        for i in range(size):
            found[i] = q[i]
        scale, rounds = where(value > 0.0, value, scale), rounds + 1


@helper
def follow(lanes, w, network, a, b, form, spectrum, block, turn, room):
    """The sharpness of a block at its turn-th measurement in a run, as `largest_eigenvalue`.

    The eigenvector v_n of turn n is looked for near v + g d_n + h d_{n-1}, with d_n the last change
    of v, d_{n-1} the one before, and the g and h for which d_n is nearest g d_{n-1} + h d_{n-2}.
    Where a run goes on smoothly this extrapolates; where it swings to and fro g is about -1, which
    is the eigenvector before the last one. Changes are compared by their y_k in the metric.
    """
    widths = network.layout.widths
    state, size = vectors(lanes, spectrum.starts[block].reshape(-1)), padded(network.layout)
    even = turn % 2
    newer, older = state[(1 + even) * size :], state[(2 - even) * size :]
    numbers = state[3 * size :]
    _, _, beta, _, _, _, _, _, _, _, _, q = _places(network, spectrum.basis, vectors(lanes, room))
    g, h = numbers[1], numbers[2]
    for i in range(0, size, TILE):
        ahead = outer(take(newer[i:], TILE, 1), g, take(state[i:], TILE, 1))
        put(q[i:], 1, outer(take(older[i:], TILE, 1), h, ahead))
    if turn % PROBE_EVERY == 0:
        add_probe(network, b, spectrum.probe, q)
    rise(w, network, a, form)
    straighten(network, a, b, q)
    value, residual, products = largest_eigenvalue(
        w, network, a, b, form, numbers[0], 1.0, spectrum.tolerance, spectrum.max_products,
        spectrum.basis, vectors(lanes, room),
    )  # fmt: skip
    numbers[0] = where(value > 0.0, value, 1.0)
    if spectrum.steady:
        first = cross = second = by_first = by_second = splat(lanes, 0.0)
        for k in range(len(widths) - 1):
            y_at, weight = coordinates(network.layout, k)[0], beta[k]
            for i in range(y_at, y_at + widths[k]):
                change = q[i] - state[i]
                weighed = weight * newer[i]
                more = weight * older[i]
                first = fma(weighed, newer[i], first)
                cross = fma(weighed, older[i], cross)
                second = fma(more, older[i], second)
                by_first = fma(weighed, change, by_first)
                by_second = fma(more, change, by_second)
        ridge = _RIDGE * (first + second)
        first, second = first + ridge, second + ridge
        inverse = inverse_or_zero(fma(first, second, -(cross * cross)))
        g = inverse * fma(by_first, second, -(by_second * cross))
        h = inverse * fma(by_second, first, -(by_first * cross))
        numbers[1] = larger(smaller(g, _LARGEST), -_LARGEST)
        numbers[2] = larger(smaller(h, _LARGEST), -_LARGEST)
    minus = splat(lanes, -1.0)
    for i in range(0, size, TILE):
        new = take(q[i:], TILE, 1)
        put(older[i:], 1, outer(take(state[i:], TILE, 1), minus, new))
        put(state[i:], 1, new)
    return value, residual, products


@helper
def _of_block(
    lanes, weights, network, starts, tolerance, max_products, basis, memory, room
):  # fmt: skip
    """`blocks_sharpness` of one block; memory for a_k, b_k and the error, room of its scratch."""
    size, d = network.layout.nodes[-1], network.layout.widths[0]
    w, start, a = vectors(lanes, weights), vectors(lanes, starts), vectors(lanes, memory)
    b, error = a[size:], a[2 * size :]
    _, _, _, _, _, _, _, _, _, _, _, q = _places(network, basis, vectors(lanes, room))
    sweep_backward(w, network, b)
    for j in range(d):
        error[j] = b[j] - network.target[j]
    input_gradient(network.sigma, error, a)
    rise(w, network, a, None)
    for i in range(padded(network.layout)):
        q[i] = start[i] if i < dimension(network.layout) else splat(lanes, 0.0)
    result = largest_eigenvalue(
        w, network, a, b, None, splat(lanes, 0.0), 0.0, tolerance, max_products, basis,
        vectors(lanes, room),
    )  # fmt: skip
    for i in range(dimension(network.layout)):
        start[i] = q[i]
    return result


@compiled
def blocks_sharpness(
    lanes, weights, network, starts, tolerance, max_products, basis, results, first, last
):  # fmt: skip
    """Values, residuals and products of blocks first..last-1: results [block, 3, n].

    starts [block, dimension, n] are coordinates of `sweeps`, replaced by those of eigenvectors.
    """
    numbers = 2 * network.layout.nodes[-1] + network.layout.widths[0]
    memory = scratch(numbers * len(lanes), weights)
    room = sharpness_scratch(lanes, network, basis, weights)
    for block in range(first, last):
        found = _of_block(
            lanes, weights[block], network, starts[block], tolerance, max_products, basis,
            memory, room,
        )  # fmt: skip
        put(vectors(lanes, results[block]), 1, found)
