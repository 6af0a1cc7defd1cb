"""Square layers of few units, whose vectors stay in registers from layer to layer.

A tuple of d lane vectors stands for a vector of d numbers; its length is the width, so loops over
rows and columns become straight code. Each sum goes over the same terms in the same order as in
`algebra`: a network's bits do not depend on which of the two is used.

Of a layer of d = 5 the 75 fused multiply-adds are then left with 50 loads and 25 stores of weights,
5 loads and 5 stores of b.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from flatmin.lanes.vectors import Vectors, intrinsic, llvm_function, llvm_vector, load, store

fused = llvm_function("fma")
at = ir.IntType(64)


def _zero(kind: Any) -> Any:
    return ir.Constant(llvm_vector(kind), None)


@intrinsic
def held(typing, place, like):
    """The vectors at a place, as many as `like` has."""
    kind = types.UniTuple(place.vector, like.count)

    def codegen(context, builder, signature, arguments):
        values = [load(builder, place, arguments[0], at(e)) for e in range(like.count)]
        return cgutils.pack_array(builder, values)

    return kind(place, like), codegen


def _numbers(context: Any, builder: Any, vector: Any, kind: Any, value: Any, count: int) -> Any:
    """The first numbers of an array, or of a place with vectors of one number, in every lane."""
    if isinstance(kind, Vectors):
        element, data = (
            kind.vector.element,
            builder.bitcast(value, llvm_vector(kind.vector).element.as_pointer()),
        )
    else:
        element, data = kind.dtype, context.make_array(kind)(context, builder, value).data
    loaded = [builder.load(builder.gep(data, [at(e)])) for e in range(count)]
    return [context.cast(builder, one, element, vector) for one in loaded]


@intrinsic
def spread(typing, place, numbers, like):
    """The first of `numbers`, as many as `like` has, each in every lane of a vector of `place`."""
    kind = types.UniTuple(place.vector, like.count)

    def codegen(context, builder, signature, arguments):
        values = _numbers(context, builder, place.vector, numbers, arguments[1], like.count)
        return cgutils.pack_array(builder, values)

    return kind(place, numbers, like), codegen


@intrinsic
def times_held(typing, matrix, x):
    """A x for a square matrix A of numbers that all lanes share."""

    def codegen(context, builder, signature, arguments):
        given = cgutils.unpack_tuple(builder, arguments[1])
        entries = _numbers(context, builder, x.dtype, matrix, arguments[0], x.count**2)
        result = []
        for i in range(x.count):
            total = _zero(x.dtype)
            for entry, x_j in zip(entries[i * x.count : (i + 1) * x.count], given, strict=True):
                total = fused(builder, x.dtype, entry, x_j, total)
            result.append(total)
        return cgutils.pack_array(builder, result)

    return x(matrix, x), codegen


def _begun(builder: Any, w: Any, like: Any, value: Any) -> list[Any]:
    """The vectors of a tuple, or as many zeros as it has numbers."""
    if like.dtype == w.vector:
        return list(cgutils.unpack_tuple(builder, value))
    return [_zero(w.vector)] * like.count


@intrinsic
def transposed_held(typing, w, x, like):
    """W' x, of as many columns as `like` has; if these are vectors, they are added to."""
    kind = types.UniTuple(w.vector, like.count)

    def codegen(context, builder, signature, arguments):
        total = _begun(builder, w, like, arguments[2])
        for i, x_i in enumerate(cgutils.unpack_tuple(builder, arguments[1])):
            for j in range(like.count):
                entry = load(builder, w, arguments[0], at(i * like.count + j))
                total[j] = fused(builder, w.vector, entry, x_i, total[j])
        return cgutils.pack_array(builder, total)

    return kind(w, x, like), codegen


@intrinsic
def product_held(typing, w, x, like):
    """W x, of as many rows as `like` has; if these are vectors, they are added to."""
    kind = types.UniTuple(w.vector, like.count)

    def codegen(context, builder, signature, arguments):
        total = _begun(builder, w, like, arguments[2])
        for j, x_j in enumerate(cgutils.unpack_tuple(builder, arguments[1])):
            for i in range(like.count):
                entry = load(builder, w, arguments[0], at(i * x.count + j))
                total[i] = fused(builder, w.vector, entry, x_j, total[i])
        return cgutils.pack_array(builder, total)

    return kind(w, x, like), codegen


def by_rows(builder: Any, w: Any, place: Any, given: Any, rows: int, step: Any) -> Any:
    """Code for W x with the old W, and W_ij = step(where, i, x_j, W_ij), row by row."""
    result = []
    for i in range(rows):
        total = _zero(w.vector)
        places = [at(i * len(given) + j) for j in range(len(given))]
        row = [load(builder, w, place, e) for e in places]
        for old, x in zip(row, given, strict=True):
            total = fused(builder, w.vector, old, x, total)
        for e, old, x in zip(places, row, given, strict=True):
            store(builder, w, place, e, step(e, i, x, old))
        result.append(total)
    return cgutils.pack_array(builder, result)


@intrinsic
def step_held(typing, w, x, change):
    """W x with the old W, and W += change x'."""

    def codegen(context, builder, signature, arguments):
        given, moves = (cgutils.unpack_tuple(builder, one) for one in arguments[1:])

        def step(e, i, x_j, old):
            return fused(builder, w.vector, moves[i], x_j, old)

        return by_rows(builder, w, arguments[0], given, len(moves), step)

    return change(w, x, change), codegen


@intrinsic
def step_and_transposed(typing, w, change, a, x, c, begun):
    """W += change a', and with the new W: W' x, and W' c + begun."""
    kind = types.UniTuple(x, 2)

    def codegen(context, builder, signature, arguments):
        moves, given, one, other, second = (
            cgutils.unpack_tuple(builder, value) for value in arguments[1:]
        )
        first = [_zero(w.vector)] * len(given)
        for i, (move, x_i, c_i) in enumerate(zip(moves, one, other, strict=True)):
            for j, a_j in enumerate(given):
                place = at(i * len(given) + j)
                old = load(builder, w, arguments[0], place)
                new = fused(builder, w.vector, move, a_j, old)
                store(builder, w, arguments[0], place, new)
                first[j] = fused(builder, w.vector, new, x_i, first[j])
                second[j] = fused(builder, w.vector, new, c_i, second[j])
        both = [cgutils.pack_array(builder, total) for total in (first, second)]
        return context.make_tuple(builder, kind, both)

    return kind(w, change, a, x, c, begun), codegen
