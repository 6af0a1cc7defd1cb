"""Tiles: tuples of lane vectors that stay in registers, and functions that go over rows by tiles.

A tile of r rows and c columns is a tuple of r c vectors, row by row. In memory row i begins i
strides after the first, and its columns follow one another.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from flatmin.lanes.compiling import inlined
from flatmin.lanes.vectors import Lanes, intrinsic, llvm_function, load, store

_literal: Any = intrinsic(prefer_literal=True)


def in_twos(tile: Callable[[int], Any]) -> Any:
    """f(left, ...): tile(2) or, of the last row, tile(1) of ...; returns how many rows these are.

    One row leaves the arithmetic units waiting for loads, more than two spill registers where
    weights are stored as well (measured at d = 5, 20 and 64).
    """
    two, one = tile(2), tile(1)

    @inlined
    def first_rows(left, *given):
        if left >= 2:
            two(*given)
            return 2
        one(*given)
        return 1

    return first_rows


def in_threes(tile: Callable[[int], Any]) -> Any:
    """As `in_twos`, three at a time where that leaves none alone."""
    three, fewer = tile(3), in_twos(tile)

    @inlined
    def first_rows(left, *given):
        if left == 3 or left > 4:
            three(*given)
            return 3
        return fewer(left, *given)

    return first_rows


def in_fives(tile: Callable[[int], Any], fewer: Any) -> Any:
    """Five at a time, for 32 registers, where that leaves none alone; else as `fewer` has it."""
    five, rest = tile(5), fewer(tile)

    @inlined
    def first_rows(left, *given):
        if left == 5 or left > 6:
            five(*given)
            return 5
        return rest(left, *given)

    return first_rows


def _places(builder: Any, count: int, columns: int, stride: Any, step: Any = None) -> list[Any]:
    """Where the `count` vectors of a tile are, those of a row `step` apart (1 if left out)."""
    step = stride.type(1) if step is None else step
    rows, columns_at = (
        [builder.mul(by.type(i), by) for i in range(number)]
        for by, number in ((stride, count // columns), (step, columns))
    )
    return [builder.add(row, column) for row in rows for column in columns_at]


def _columns(given: Any) -> tuple[Any, int]:
    """The type and the number of columns, which may be left out."""
    left_out = not isinstance(given, types.Type)
    return (types.Omitted(given), given) if left_out else (given, given.literal_value)


@_literal
def zeros(typing, like, count):
    """A tile of `count` vectors that hold 0."""
    kind = types.UniTuple(like.vector, count.literal_value)

    def codegen(context, builder, signature, arguments):
        return ir.Constant(context.get_value_type(kind), None)

    return kind(like, count), codegen


@_literal
def take(typing, place, rows, stride, columns=1):
    """The tile of so many rows and columns at a place."""
    columns, wide = _columns(columns)
    kind = types.UniTuple(place.vector, rows.literal_value * wide)

    def codegen(context, builder, signature, arguments):
        places = _places(builder, kind.count, wide, arguments[2])
        return cgutils.pack_array(builder, [load(builder, place, arguments[0], e) for e in places])

    return kind(place, rows, types.intp, columns), codegen


@_literal
def spaced(typing, place, rows, down, columns, across):
    """The tile of so many rows and columns whose vector ij is at i down + j across."""
    kind = types.UniTuple(place.vector, rows.literal_value * columns.literal_value)

    def codegen(context, builder, signature, arguments):
        places = _places(builder, kind.count, columns.literal_value, arguments[2], arguments[4])
        return cgutils.pack_array(builder, [load(builder, place, arguments[0], e) for e in places])

    return kind(place, rows, types.intp, columns, types.intp), codegen


@_literal
def put(typing, place, stride, tile, columns=1):
    """The tile becomes what is at a place."""
    columns, wide = _columns(columns)

    def codegen(context, builder, signature, arguments):
        for i, e in enumerate(_places(builder, tile.count, wide, arguments[1])):
            store(builder, place, arguments[0], e, builder.extract_value(arguments[2], i))
        return context.get_dummy_value()

    return types.none(place, types.intp, tile, columns), codegen


def _fused_over(pairs: Callable[[Any, Any], list[tuple[Any, Any]]]) -> Callable[..., Any]:
    """Code for tile + products of pairs of vectors; a vector stands for a tile of one."""

    def generate(context, builder, signature, arguments):
        rows, columns, tile = (
            [value] if isinstance(kind, Lanes) else cgutils.unpack_tuple(builder, value, kind.count)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        kind, fused = signature.return_type, llvm_function("fma")
        if isinstance(kind, Lanes):
            (total,) = tile
            for x, y in pairs(rows, columns):
                total = fused(builder, kind, x, y, total)
            return total
        products = zip(pairs(rows, columns), tile, strict=True)
        return cgutils.pack_array(
            builder, [fused(builder, kind.dtype, x, y, z) for (x, y), z in products]
        )

    return generate


@intrinsic
def outer(typing, rows, columns, tile):
    """tile_ij + rows_i columns_j, each fused; rows or columns may be a single vector."""
    code = _fused_over(lambda a, b: [(x, y) for x in a for y in b])
    return tile(rows, columns, tile), code


@intrinsic
def inner(typing, x, y, total):
    """total + x_1 y_1 + x_2 y_2 + ..., fused, one after another."""
    code = _fused_over(lambda a, b: list(zip(a, b, strict=True)))
    return x.dtype(x, y, x.dtype), code


@intrinsic
def times(typing, tile, x):
    """The sums tile_i1 x_1 + tile_i2 x_2 + ..., fused, one after another."""
    columns, kind = x.count, types.UniTuple(x.dtype, tile.count // x.count)

    def codegen(context, builder, signature, arguments):
        weights, given = (cgutils.unpack_tuple(builder, part) for part in arguments)
        fused = llvm_function("fma")
        total = [builder.fmul(weight, given[0]) for weight in weights[::columns]]
        for j in range(1, columns):
            pairs = zip(weights[j::columns], total, strict=True)
            total = [fused(builder, x.dtype, weight, given[j], sum) for weight, sum in pairs]
        return cgutils.pack_array(builder, total)

    return kind(tile, x), codegen


@intrinsic
def scaled(typing, factor, tile):
    """Each vector of a tile times a factor, or times that of another tile."""
    several = isinstance(factor, types.UniTuple)

    def codegen(context, builder, signature, arguments):
        parts = cgutils.unpack_tuple(builder, arguments[1])
        given = cgutils.unpack_tuple(builder, arguments[0]) if several else [arguments[0]]
        pairs = zip(given * (len(parts) // len(given)), parts, strict=True)
        return cgutils.pack_array(builder, [builder.fmul(a, b) for a, b in pairs])

    return tile(factor if several else tile.dtype, tile), codegen


def _term_by_term(operation: str) -> Callable[..., Any]:
    """Code for an operation on each vector of a tile and that of another."""

    def generate(context, builder, signature, arguments):
        pairs = zip(*(cgutils.unpack_tuple(builder, one) for one in arguments), strict=True)
        return cgutils.pack_array(builder, [getattr(builder, operation)(a, b) for a, b in pairs])

    return generate


@intrinsic
def plus(typing, x, y):
    """Each vector of a tile and that of another."""
    return x(x, y), _term_by_term("fadd")


@intrinsic
def minus(typing, x, y):
    """Each vector of a tile less that of another."""
    return x(x, y), _term_by_term("fsub")


@intrinsic
def chosen(typing, mask, x, y):
    """The vectors of a tile in the lanes of a mask, those of another elsewhere."""

    def codegen(context, builder, signature, arguments):
        pairs = zip(*(cgutils.unpack_tuple(builder, one) for one in arguments[1:]), strict=True)
        return cgutils.pack_array(builder, [builder.select(arguments[0], a, b) for a, b in pairs])

    return x(mask, x, y), codegen
