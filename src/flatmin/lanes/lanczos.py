"""Compiled Lanczos for ensembles of small networks: one block of lanes at a time.

The mathematics is that of `curvature.lanczos`; here the network index is innermost (see
`flatmin.network.ensemble`), so one instruction works on several networks. Each lane does the same
arithmetic whatever its neighbours do, and a lane that has converged keeps the basis size it had:
results do not depend on the block.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.seeds import generator
from flatmin.lanes.algebra import add_scaled, dot, scale_into
from flatmin.lanes.compiling import compiled, helper, inlined
from flatmin.lanes.layout import scratch
from flatmin.lanes.tiles import put
from flatmin.lanes.tridiagonal import top_of_tridiagonal
from flatmin.lanes.vectors import absolute, all_lanes, root, splat, vectors, where

BASIS = 48
# Without reorthogonalisation Lanczos vectors lose orthogonality once the residual has fallen to
# about the root of the machine's precision; a looser tolerance is reached before that.
_LOOSE = 1e-7


class Operator(NamedTuple):
    """A Hessian in coordinates, as functions that kernels call; `room` is memory of its own."""

    vectors: Any  # (network): how many lane vectors the room has
    prepare: Any  # (w, network, room): at these weights; the lanes where they are of no use
    product: Any  # (w, network, room, v, out): out = H v
    enter: Any  # (network, room, vector, q, size): q = coordinates of a vector between calls
    leave: Any  # (network, room, vector): the way back, in place


class Search(NamedTuple):
    """What `search` makes of an operator."""

    scratch: Any
    block: Any
    blocks: Any


@inlined
def inverse_or_zero(x):
    """1/x, or 0 where x is not positive."""
    return where(x > 0.0, 1.0 / where(x > 0.0, x, 1.0), 0.0)


@inlined
def normalise(x, y, size):
    """y = x/|x|, or 0 where x is 0; returns |x|."""
    norm = root(dot(x, x, size))
    scale_into(inverse_or_zero(norm), x, y, size)
    return norm


@lru_cache(maxsize=8)
def start_vector(dimension: int) -> Float:
    """The same start for every network, so that results do not depend on its place; read-only."""
    vector: Float = generator(0, "lanczos start").standard_normal(dimension)
    vector.flags.writeable = False
    return vector


def search(name: str, operator: Operator) -> Search:
    """Kernels that find the largest eigenvalue of such Hessians, kept under this name."""
    vectors_of, prepare, product, enter, leave = operator

    @helper
    def sharpness_scratch(lanes, network, vector, basis):
        """The memory that `block_sharpness` works in."""
        own = vectors_of(network)
        return scratch((own + 4 * basis) * len(lanes) + (basis + 1) * len(vector), vector)

    @helper
    def block_sharpness(
        lanes, weights, network, start, tolerance, max_products, basis, memory
    ):  # fmt: skip
        """Largest eigenvalue of each lane of one block, started from `start`, which it replaces.

        Returns values, residuals and numbers of products.

        lanes     tuple of n floats; only its length is used
        weights   flat weights of the block; network of `layout`
        start     flat [dimension * n], as `enter` takes it; need not be normalised or in the range
        basis     largest Krylov basis; a lane that fills it restarts from its Ritz vector
        memory    of `sharpness_scratch`
        """
        width = len(start) // len(lanes)
        w, vector, room = vectors(lanes, weights), vectors(lanes, start), vectors(lanes, memory)
        alpha = room[vectors_of(network) :]
        beta, s, ritz, q = alpha[basis:], alpha[2 * basis :], alpha[3 * basis :], alpha[4 * basis :]
        finished = prepare(w, network, room)
        value = residual = np.nan
        products = 0.0
        while not all_lanes(finished):
            enter(network, room, vector, q, width)
            normalise(q, q, width)
            spans = where(finished, 1.0, 0.0)  # basis size at which a lane stopped; 0: still going
            used = 0
            while True:
                here, there = q[used * width :], q[(used + 1) * width :]
                product(w, network, room, here, there)
                along = dot(here, there, width)
                add_scaled(-along, here, there, width)
                if tolerance < _LOOSE:
                    for i in range(used, -1, -1):
                        before = q[i * width :]
                        add_scaled(-dot(before, there, width), before, there, width)
                elif used > 0:
                    add_scaled(-beta[used - 1], q[(used - 1) * width :], there, width)
                norm = normalise(there, there, width)
                alpha[used], beta[used], ritz[used] = along, norm, 0.0
                used += 1
                if used == 1:
                    # The start vector may already be good enough: this is its own residual.
                    good = (spans == 0.0) & ~(norm > tolerance * absolute(along))
                    value, residual = where(good, along, value), where(good, norm, residual)
                    products, spans = where(good, products + 1.0, products), where(good, 1.0, spans)
                    finished = finished | good
                    for i in range(width):
                        vector[i] = where(good, q[i], vector[i])
                    if all_lanes(finished):
                        break
                # A lane may stop at every second product, or when basis or products are whole.
                going = spans == 0.0
                whole = products + (used + 1) >= max_products
                broken = norm == 0.0
                if used < basis and used % 2 == 1 and all_lanes(~going | ~(whole | broken)):
                    continue
                theta = top_of_tridiagonal(alpha, beta, used, splat(alpha, np.inf), s)
                close = ~(norm * absolute(s[used - 1]) > 0.5 * tolerance * absolute(theta))
                if used % 2 == 1:
                    close = close & broken
                stop = going & (whole | close)
                if used == basis:
                    stop = going
                spans = where(stop, used, spans)
                for i in range(used):
                    ritz[i] = where(stop, s[i], ritz[i])
                if all_lanes(spans > 0.0):
                    break
            if all_lanes(finished):
                break
            # Ritz vector of each lane, then its own value and residual.
            v = q[basis * width :]
            scale_into(ritz[0], q, v, width)
            for j in range(1, used):
                add_scaled(ritz[j], q[j * width :], v, width)
            normalise(v, v, width)
            product(w, network, room, v, q)
            theta = dot(v, q, width)
            add_scaled(-theta, v, q, width)
            error = root(dot(q, q, width))
            value, residual = where(finished, value, theta), where(finished, residual, error)
            products = where(finished, products, products + (spans + 1.0))
            for i in range(width):
                vector[i] = where(finished, vector[i], v[i])
            finished = (
                finished | ~(error > tolerance * absolute(theta)) | (products >= max_products)
            )
        leave(network, room, vector)
        return value, residual, products

    def blocks_sharpness(
        lanes, weights, network, starts, tolerance, max_products, basis, results, first, last
    ):  # fmt: skip
        """`block_sharpness` for blocks first..last-1: starts [block, dimension, n], results
        [block, 3, n]."""
        memory = sharpness_scratch(lanes, network, starts[0].reshape(-1), basis)
        for block in range(first, last):
            found = block_sharpness(
                lanes, weights[block].reshape(-1), network, starts[block].reshape(-1), tolerance,
                max_products, basis, memory,
            )  # fmt: skip
            put(vectors(lanes, results[block]), 1, found)

    blocks_sharpness.__qualname__ = name
    return Search(sharpness_scratch, block_sharpness, compiled(blocks_sharpness))
