"""Wide networks, one at a time: vectors along the rows of a layer instead of across networks.

A block of one lane is one network, with its numbers one after another, and a vector holds several
columns of a row. So the cache holds the weights of one network instead of those of eight. Sums over
columns are those of a vector's entries, added in halves at the end of a row. The widths of all
layers' inputs must be multiples of the vector's length.

W' x goes through eight rows at a time, the step through four: of each weight two loads, one store
and three fused multiply-adds, and an eighth and a fourth of a load and store of the vectors.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from flatmin.lanes.compiling import inlined
from flatmin.lanes.held import spread
from flatmin.lanes.momentum_descent import moved
from flatmin.lanes.tiles import inner, outer, put, scaled, take, zeros
from flatmin.lanes.vectors import Lanes, Vectors, fma, intrinsic, splat, vectors, where

_INDEX = ir.IntType(32)
_FOUR = (0.0,) * 4


@intrinsic
def along(typing, place, lanes):
    """The same place, with vectors of as many numbers as `lanes` has."""
    kind = Vectors(Lanes(lanes.count, place.vector.element))

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(kind))

    return kind(place, lanes), codegen


@intrinsic
def filled(typing, like, one):
    """A vector like those at a place, of the number that is the only lane of `one`."""

    def codegen(context, builder, signature, arguments):
        number = builder.extract_element(arguments[1], _INDEX(0))
        return context.cast(builder, number, like.vector.element, like.vector)

    return like.vector(like, one), codegen


def picked(builder: Any, x: Any, y: Any, entries: list[int]) -> Any:
    """The vector of these entries of x and, counted on, of y."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_INDEX, len(entries)), entries))


def _halved(builder: Any, total: Any, size: int) -> Any:
    """The first half of a vector plus the second."""
    low, high = list(range(size // 2)), list(range(size // 2, size))
    return builder.fadd(picked(builder, total, total, low), picked(builder, total, total, high))


@intrinsic
def summed(typing, vector):
    """The sum of a vector's entries, as a vector of one."""

    def codegen(context, builder, signature, arguments):
        total, size = arguments[0], vector.count
        while size > 1:
            total, size = _halved(builder, total, size), size // 2
        return total

    return Lanes(1, vector.element)(vector), codegen


@intrinsic
def put_sums(typing, place, tile):
    """The sums of the entries of four vectors become what is at a place.

    They are stored at once: whoever loads them as a vector would have to wait for four stores.
    """

    def added(builder, x, y, firsts, seconds):
        return builder.fadd(picked(builder, x, y, firsts), picked(builder, x, y, seconds))

    def codegen(context, builder, signature, arguments):
        totals, size = cgutils.unpack_tuple(builder, arguments[1]), tile.dtype.count
        while size > 4:
            totals, size = [_halved(builder, total, size) for total in totals], size // 2
        a, b, c, d = totals
        ab = added(builder, a, b, [0, 4, 2, 6], [1, 5, 3, 7])
        cd = added(builder, c, d, [0, 4, 2, 6], [1, 5, 3, 7])
        sums = added(builder, ab, cd, [0, 1, 4, 5], [2, 3, 6, 7])
        four = builder.bitcast(arguments[0], sums.type.as_pointer())
        builder.store(sums, four, align=place.vector.element.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(place, tile), codegen


def _transposed(rows: int) -> Any:
    like = (0.0,) * rows

    @inlined
    def tile(w, columns, x, y, first):
        part = spread(w, x, like)
        if first:
            for j in range(columns):
                y[j] = inner(take(w[j:], rows, columns), part, 0.0)
        else:
            for j in range(columns):
                y[j] = inner(take(w[j:], rows, columns), part, y[j])

    return tile


@inlined
def _transposed_8(w, columns, x, y, first):
    """Of eight rows, in two chains."""
    low, high = spread(w, x, _FOUR), spread(w, x[4:], _FOUR)
    for j in range(columns):
        begun = splat(w, 0.0) if first else y[j]
        begun = inner(take(w[j:], 4, columns), low, begun)
        y[j] = begun + inner(take(w[4 * columns + j :], 4, columns), high, 0.0)


@inlined
def _stepped_4(w, columns, x, y, factor, b):
    """Four rows of the step."""
    change = scaled(factor, spread(w, b, _FOUR))
    total = zeros(w, 4)
    for j in range(columns):
        old = take(w[j:], 4, columns)
        total = outer(old, x[j], total)
        put(w[j:], columns, outer(change, x[j], old))
    put_sums(y, total)


@inlined
def _stepped_1(w, columns, x, y, factor, b):
    """One row of it."""
    change, total = factor * filled(w, b[0]), splat(w, 0.0)
    for j in range(columns):
        old = w[j]
        total = fma(old, x[j], total)
        w[j] = fma(change, x[j], old)
    y[0] = summed(total)


_transposed_4, _transposed_1 = _transposed(4), _transposed(1)


@inlined
def _transposed_times(w, rows, columns, x, y):
    """y = W' x; columns and y are counted in vectors."""
    i = 0
    while rows - i >= 8:
        _transposed_8(w[i * columns :], columns, x[i:], y, i == 0)
        i += 8
    if rows - i >= 4:
        _transposed_4(w[i * columns :], columns, x[i:], y, i == 0)
        i += 4
    while i < rows:
        _transposed_1(w[i * columns :], columns, x[i:], y, i == 0)
        i += 1


@inlined
def _times_and_step(w, rows, columns, x, y, factor, b):
    """y = W x with the old W, and W += factor b x'."""
    i = 0
    while rows - i >= 4:
        _stepped_4(w[i * columns :], columns, x, y[i:], factor, b[i:])
        i += 4
    while i < rows:
        _stepped_1(w[i * columns :], columns, x, y[i:], factor, b[i:])
        i += 1


@inlined
def _times_and_step_with_velocity(w, v, rows, columns, x, y, move, b, momentum):
    """As `times_and_step_with_velocity` of `momentum_descent`."""
    going, push = move > 0.0, momentum[1]
    keep = where(going, momentum[0], 1.0)
    for i in range(rows):
        descent, at = -move * filled(w, b[i]), i * columns
        total = descent * 0.0
        for j in range(columns):
            old, kick = w[at + j], descent * x[j]
            total = fma(old, x[j], total)
            speed = fma(keep, v[at + j], kick)
            v[at + j], w[at + j] = speed, moved(old, speed, kick, push, going)
        y[i] = summed(total)


@inlined
def backward_wide(w, network, b, error, a, form):
    """`backward` of `linear_descent`."""
    widths, layers, nodes = network.layout
    lanes, row, last = form.vector, len(form.row), len(widths) - 2
    wide, size, d = along(w, lanes), len(lanes), widths[0]
    for i in range(len(network.p)):
        b[nodes[-2] + i] = network.p[i]
    for k in range(last, -1, -1):
        here, below = b[nodes[k + 1] :], along(b[nodes[k] :], lanes)
        layer = wide[layers[k] // size :]
        if row > 0 and k < last:
            _transposed_times(layer, row * size, row, here, below)
        else:
            _transposed_times(layer, widths[k + 1], widths[k] // size, here, below)
    target, e, x = vectors(lanes, network.target), along(error, lanes), along(a, lanes)
    below, sigma = along(b, lanes), vectors(lanes, network.sigma)
    for j in range(d // size):
        e[j] = below[j] - target[j]
    if row > 0:
        _transposed_times(sigma, row * size, row, error, x)
    else:
        _transposed_times(sigma, d, d // size, error, x)
    excess = splat(wide, 0.0)
    for j in range(d // size):
        excess = fma(x[j], e[j], excess)
        x[j] = x[j] + x[j]
    return summed(excess)


@inlined
def forward_wide(w, network, b, a, move, momentum, form):
    """`forward` of `linear_descent`."""
    widths, layers, nodes = network.layout
    lanes, row, last = form.vector, len(form.row), len(widths) - 2
    wide, size = along(w, lanes), len(lanes)
    velocity, rate = wide[layers[-1] // size :], filled(wide, move)
    for k in range(len(widths) - 1):
        at, rows, columns = layers[k] // size, widths[k + 1], widths[k] // size
        x, y, above = along(a[nodes[k] :], lanes), a[nodes[k + 1] :], b[nodes[k + 1] :]
        if momentum is not None:
            _times_and_step_with_velocity(
                wide[at:], velocity[at:], rows, columns, x, y, rate, above, momentum
            )
        elif row > 0 and k < last:
            _times_and_step(wide[at:], row * size, row, x, y, -rate, above)
        else:
            _times_and_step(wide[at:], rows, columns, x, y, -rate, above)
