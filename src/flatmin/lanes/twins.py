"""Wide networks two at a time, where there are 32 registers for the columns of a row.

Blocks have two lanes. A vector holds four columns of a row of both networks, one after the other,
so a row of d numbers, d a multiple of four, is d/4 vectors. Rows are gone through in the order in
which they lie in memory, while the sums over them, or the vector that they are multiplied with,
stay in registers. What follows from a layer is waited for once for two networks.

Sums have the order of `wide`: a network's bits do not depend on which of the two is used.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from flatmin.lanes.compiling import inlined
from flatmin.lanes.held import at, fused
from flatmin.lanes.tiles import put, take, zeros
from flatmin.lanes.vectors import Lanes, fma, intrinsic, load, splat, store, vectors
from flatmin.lanes.wide import along, picked

_FOUR, _EIGHT = (0.0,) * 4, (0.0,) * 8
# Sums of rows that are begun anew beside those that go on, at a time.
_BESIDE = 8


def _both(builder: Any, pair: Any) -> Any:
    """A number of both networks, for each of four columns."""
    return picked(builder, pair, pair, [0, 1] * 4)


def _columns(builder: Any, kind: Any, place: Any, index: Any) -> Any:
    """Four columns of both networks; numbers that they share are taken twice."""
    vector = load(builder, kind, place, index)
    shared = kind.vector.count == 4
    return picked(builder, vector, vector, [0, 0, 1, 1, 2, 2, 3, 3]) if shared else vector


@intrinsic
def _shared(typing, numbers, index):
    """Vector `index` of four columns of numbers that both networks share."""

    def codegen(context, builder, signature, arguments):
        return _columns(builder, numbers, *arguments)

    return Lanes(8, numbers.vector.element)(numbers, types.intp), codegen


@intrinsic
def _of_both(typing, like, pair):
    """A number of both networks, for each column of a vector like those at a place."""
    return like.vector(like, pair), lambda context, builder, signature, given: _both(
        builder, given[1]
    )


@intrinsic
def _over_columns(typing, vector):
    """The sum over the four columns of a vector, for both networks."""

    def codegen(context, builder, signature, arguments):
        (x,) = arguments
        two = builder.fadd(picked(builder, x, x, [0, 1, 2, 3]), picked(builder, x, x, [4, 5, 6, 7]))
        return builder.fadd(picked(builder, two, two, [0, 1]), picked(builder, two, two, [2, 3]))

    return Lanes(2, vector.element)(vector), codegen


def _added_rows(rows: int) -> Any:
    @intrinsic
    def add(typing, w, x, total):
        """total + x_i w_i over so many rows i; of eight the second half has its own sum."""

        def codegen(context, builder, signature, arguments):
            place, numbers, sums = arguments
            factors = [_both(builder, load(builder, x, numbers, at(i))) for i in range(rows)]
            result, width = list(cgutils.unpack_tuple(builder, sums)), total.count
            for first in range(0, width, _BESIDE):
                some = range(first, min(first + _BESIDE, width))
                for begin in range(0, rows, 4):
                    part = {e: result[e] for e in some}
                    if begin > 0:
                        part = dict.fromkeys(some, ir.Constant(result[0].type, None))
                    for i in range(begin, min(begin + 4, rows)):
                        for e in some:
                            weight = _columns(builder, w, place, at(i * width + e))
                            part[e] = fused(builder, total.dtype, weight, factors[i], part[e])
                    for e in some:
                        result[e] = builder.fadd(result[e], part[e]) if begin > 0 else part[e]
            return cgutils.pack_array(builder, result)

        return total(w, x, total), codegen

    return add


_add_8, _add_4, _add_1 = map(_added_rows, (8, 4, 1))


def _stepped_rows(rows: int) -> Any:
    @intrinsic
    def step(typing, w, x, factor, b):
        """W += factor b x'; of W x with the old W, vectors whose columns are yet to be added."""

        def codegen(context, builder, signature, arguments):
            place, inputs, rate, numbers = arguments
            given, parts = cgutils.unpack_tuple(builder, inputs), []
            chains = 2 - x.count % 2
            for i in range(rows):
                above = _both(builder, load(builder, b, numbers, at(i)))
                change = builder.fmul(rate, above)
                totals = [ir.Constant(rate.type, None)] * chains
                for e, x_e in enumerate(given):
                    where = at(i * x.count + e)
                    old = load(builder, w, place, where)
                    totals[e % chains] = fused(builder, x.dtype, old, x_e, totals[e % chains])
                    store(builder, w, place, where, fused(builder, x.dtype, change, x_e, old))
                parts.append(totals[0] if chains == 1 else builder.fadd(*totals))
            return cgutils.pack_array(builder, parts)

        return types.UniTuple(x.dtype, rows)(w, x, factor, b), codegen

    return step


_step_4, _step_1 = map(_stepped_rows, (4, 1))


@intrinsic
def _sums_of_rows(typing, parts):
    """The sums over the columns of four rows, row by row."""

    def codegen(context, builder, signature, arguments):
        def added(x, y):
            even, odd = [0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]
            return builder.fadd(picked(builder, x, y, even), picked(builder, x, y, odd))

        a, b, c, d = cgutils.unpack_tuple(builder, arguments[0])
        return added(added(a, b), added(c, d))

    return parts.dtype(parts), codegen


@inlined
def _transposed_times(w, rows, x, y, row):
    """y = W' x; w and y have vectors of four columns, w maybe of numbers shared."""
    total, width, i = zeros(y, len(row)), len(row), 0
    while rows - i >= 8:
        total = _add_8(w[i * width :], x[i:], total)
        i += 8
    if rows - i >= 4:
        total = _add_4(w[i * width :], x[i:], total)
        i += 4
    while i < rows:
        total = _add_1(w[i * width :], x[i:], total)
        i += 1
    put(y, 1, total)


@inlined
def _times_and_step(w, rows, x, y, factor, b, row):
    """y = W x with the old W, and W += factor b x'."""
    given, width, i = take(x, len(row), 1), len(row), 0
    while rows - i >= 4:
        parts = _step_4(w[i * width :], given, factor, b[i:])
        along(y[i:], _EIGHT)[0] = _sums_of_rows(parts)
        i += 4
    while i < rows:
        y[i] = _over_columns(_step_1(w[i * width :], given, factor, b[i:])[0])
        i += 1


@inlined
def backward_twins(w, network, b, error, a, row):
    """`backward` of `linear_descent`."""
    widths, layers, nodes = network.layout
    whole, last = along(w, _EIGHT), len(widths) - 2
    for i in range(len(network.p)):
        b[nodes[-2] + i] = network.p[i]
    for k in range(last, -1, -1):
        here, below = b[nodes[k + 1] :], along(b[nodes[k] :], _EIGHT)
        _transposed_times(whole[layers[k] // 4 :], widths[k + 1], here, below, row)
    below, e, x = along(b, _EIGHT), along(error, _EIGHT), along(a, _EIGHT)
    target, sigma = vectors(_FOUR, network.target), vectors(_FOUR, network.sigma)
    for j in range(len(row)):
        e[j] = below[j] - _shared(target, j)
    _transposed_times(sigma, widths[0], error, x, row)
    even = odd = splat(whole, 0.0)
    for j in range(len(row)):
        if len(row) % 2 == 0 and j % 2 == 1:
            odd = fma(x[j], e[j], odd)
        else:
            even = fma(x[j], e[j], even)
        x[j] = x[j] + x[j]
    return _over_columns(even + odd)


@inlined
def forward_twins(w, network, b, a, move, row):
    """`forward` of `linear_descent`, of plain descent."""
    widths, layers, nodes = network.layout
    whole = along(w, _EIGHT)
    factor = -_of_both(whole, move)
    for k in range(len(widths) - 1):
        x, y, above = along(a[nodes[k] :], _EIGHT), a[nodes[k + 1] :], b[nodes[k + 1] :]
        _times_and_step(whole[layers[k] // 4 :], widths[k + 1], x, y, factor, above, row)
