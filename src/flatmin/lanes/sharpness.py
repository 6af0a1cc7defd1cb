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

from flatmin.lanes.algebra import input_gradient, larger, sweep_backward
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.entries import TILE, in_tiles
from flatmin.lanes.lanczos import inverse_or_zero
from flatmin.lanes.layout import scratch, unfilled
from flatmin.lanes.sweeps import Nodes, dimension, rise, sweep, weigh
from flatmin.lanes.tiles import outer, put, scaled, take
from flatmin.lanes.tridiagonal import top_of_tridiagonal
from flatmin.lanes.vectors import absolute, all_lanes, fma, root, splat, vectors, where

# The residual at which a round ends, and the least share that rounding leaves of a difference.
_LOOSE, ROUNDING = 1e-7, 1e-15


@inlined
def padded(layout):
    """The room of a vector: its coordinates and zeros, in whole tiles."""
    return in_tiles(dimension(layout))


@helper
def sharpness_scratch(lanes, network, basis, like):
    """The memory that `largest_eigenvalue` works in, most of which is seldom touched."""
    size, depth = network.layout.nodes[-1], len(network.layout.widths) - 1
    numbers = size + 4 * depth + 5 * (basis + 1) + (basis + 2) * padded(network.layout)
    numbers += size
    return unfilled(numbers * len(lanes), like)


@inlined
def places(network, basis, room):
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
def _next(q, size, m, along, between):
    """A tile of q_{m+1}, of which (H - 1) q_m is in its place."""
    less = outer(take(q[(m - 1) * size :], TILE, 1), -along, take(q[m * size :], TILE, 1))
    return outer(take(q[max(m - 2, 0) * size :], TILE, 1), -between, less)


@helper
def largest_eigenvalue(
    w, network, a, b, form, expected, done, goes_on, begun, onward, wanted, tolerance,
    max_products, basis, room,
):  # fmt: skip
    """Value, residual and number of products, from the first vector of q, which it replaces.

    w, a, b    weights of a block, a_k and b_k as `layout` has nodes
    expected   about the value, or 0
    done       lanes of which nothing is asked
    goes_on    whether the first product is in q, `weigh` done, and
    begun      what `sweep` returned of it
    onward     1 to keep H v, 0 to keep v itself
    wanted     how many coordinates of it
    basis      vectors of a round
    """
    c, alpha, beta, per_b, moved, diagonal, beside, s, norms, shares, found, q = places(
        network, basis, room
    )
    size, scale, rounds = padded(network.layout), expected, 0
    value = residual = splat(c, np.nan)
    products = splat(c, 0.0)
    finished, nothing = done, products > 0.0
    while True:
        known = scale > 0.0
        guessed, shift = all_lanes(known), where(known, 1.0, 0.0)
        inverse = 1.0 / where(known, scale, 1.0)
        nodes_of = Nodes(a, b, c, inverse, alpha, beta, per_b, moved)
        if rounds > 0 or not goes_on:
            weigh(network, nodes_of)
        kept, ended, used = finished, finished, 0
        along = between = before = miss = theta = splat(c, 0.0)
        while True:
            here, there = q[used * size :], q[(used + 1) * size :]
            if used > 0:
                for i in range(0, size, TILE):
                    put(here[i:], 1, _next(q[i:], size, used, along, between))
            own, across, square = begun
            if used > 0 or rounds > 0 or not goes_on:
                own, across, square = sweep(w, network, nodes_of, here, shift, there, form)
            per = inverse_or_zero(own)
            if not guessed:
                break
            along = per * across
            between = own * inverse_or_zero(before)
            before = own
            told = fma(along, along, between)
            rest = where(nothing, 0.0, larger(per * square - told, ROUNDING * told))
            # Of a vector that is 0, and where H is, nothing is left to find.
            # Lanes that have ended keep their theta, so that it is soon found again.
            diagonal[used] = where((own > 0.0) & ~nothing & ~ended, 1.0 + along, 0.0)
            norms[used], s[used] = root(inverse * per), 1.0
            if used > 0:
                beside[used - 1] = where(ended, 0.0, root(between))
            used += 1
            if used > 1:
                # of the two rows of which the old theta is one
                near = theta + miss * miss * inverse_or_zero(theta - diagonal[used - 1])
                theta = top_of_tridiagonal(diagonal, beside, used, near, s)
            else:
                theta = diagonal[0]
            error, bound = root(rest) * absolute(s[used - 1]), absolute(theta)
            miss = error
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
        kept_size = in_tiles(wanted) if all_lanes(finished) else size
        for i in range(0, kept_size, TILE):
            total = scaled(shares[0], take(q[i:], TILE, 1))
            for m in range(1, used):
                total = outer(take(q[m * size + i :], TILE, 1), shares[m], total)
            put(q[i:], 1, outer(_next(q[i:], size, used, along, between), shares[used], total))
        if rounds > 0:
            for i in range(kept_size):
                q[i] = where(kept, found[i], q[i])
        if all_lanes(finished):
            return value, residual, products
        for i in range(size):
            found[i] = q[i]
        scale, rounds = where(value > 0.0, value, scale), rounds + 1


@helper
def _of_block(
    lanes, weights, network, starts, tolerance, max_products, basis, memory, room
):  # fmt: skip
    """`blocks_sharpness` of one block; memory for a_k, b_k and the error, room of its scratch."""
    size, d = network.layout.nodes[-1], network.layout.widths[0]
    w, start, a = vectors(lanes, weights), vectors(lanes, starts), vectors(lanes, memory)
    b, error = a[size:], a[2 * size :]
    _, _, _, _, _, _, _, _, _, _, _, q = places(network, basis, vectors(lanes, room))
    sweep_backward(w, network, b)
    for j in range(d):
        error[j] = b[j] - network.target[j]
    input_gradient(network.sigma, error, a)
    rise(w, network, a)
    for i in range(padded(network.layout)):
        q[i] = start[i] if i < dimension(network.layout) else splat(lanes, 0.0)
    nothing = splat(lanes, 0.0)
    result = largest_eigenvalue(
        w, network, a, b, None, nothing, nothing > 0.0, False, (nothing, nothing, nothing), 0.0,
        dimension(network.layout), tolerance, max_products, basis, vectors(lanes, room),
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
