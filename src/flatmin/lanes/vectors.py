"""Lane vectors for compiled kernels: arithmetic lane by lane, masks, places in memory.

A kernel takes a tuple such as (0.0,) * 8; its length and type choose the vector, `<8 x double>`;
its values are not used. `vectors(lanes, array)` sees an array as lane vectors one after another:
`x[e]` is vector e, `x[e:]` the vectors from there on. Like a pointer it knows neither a length nor
an owner: the array must be an argument of the kernel, or be named again after the last use.

    x + y, x - y, x * y, x / y, -x, fma(x, y, z), root(x), absolute(x)      vectors
    x < y, x <= y, x > y, x >= y, x == y, m & n, m | n, ~m                  masks: yes or no a lane
    where(m, x, y), all_lanes(m)                                                 a choice; all lanes

A number stands for the vector that holds it in every lane, also where a sum begins with 0.0.

Why explicit vectors: every lane does the same operations in the same order, with fused
multiply-adds where they are written and nowhere else, so a network's bits do not depend on its
lane, its block, or how a compiler vectorised a loop. They are also faster here: generic loops of
`linear_descent` reach twice what the same loops left to automatic vectorisation do at d = 5.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.core.typeconv.castgraph import Conversion
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from flatmin.lanes.compiling import wide_registers

# Intrinsics exist for the compiler only, so they have no useful Python type.
intrinsic: Any = extending.intrinsic
_INDEX = ir.IntType(32)


class Lanes(types.Type):
    """Numba type of a vector of `count` lanes of float64 or float32."""

    def __init__(self, count: int, element: Any) -> None:
        self.count, self.element = count, element
        super().__init__(name=f"Lanes({count}, {element})")

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        """A number becomes the vector that holds it in every lane."""
        return Conversion.safe if isinstance(other, types.Number) else None


class Mask(types.Type):
    """Numba type of a yes or no for each of the lanes of `vector`."""

    def __init__(self, vector: Lanes) -> None:
        self.vector = vector
        super().__init__(name=f"Mask({vector})")

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        """What was taken for a number, and its comparison for a yes or no, may yet be lanes."""
        return Conversion.safe if isinstance(other, types.Boolean | types.Integer) else None


class Vectors(types.Type):
    """Numba type of a place in memory from which on lie lane vectors, one after another."""

    def __init__(self, vector: Lanes) -> None:
        self.vector = vector
        super().__init__(name=f"Vectors({vector})")


def llvm_vector(kind: Lanes) -> Any:
    """The LLVM type of a vector."""
    scalar = ir.FloatType() if kind.element == types.float32 else ir.DoubleType()
    return ir.VectorType(scalar, kind.count)


def _model(kind: Any, llvm: Callable[[Any], Any]) -> None:
    """Values of the Numba type `kind` are of the LLVM type `llvm(kind)`."""

    class Model(extending.models.PrimitiveModel):
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, llvm(kind))

    extending.register_model(kind)(Model)


_model(Lanes, llvm_vector)
_model(Mask, lambda kind: ir.VectorType(ir.IntType(1), kind.vector.count))
_model(Vectors, lambda kind: llvm_vector(kind.vector).as_pointer())


@extending.lower_cast(types.Number, Lanes)
def _spread(context: Any, builder: Any, number: Any, kind: Any, value: Any) -> Any:
    """The vector all of whose lanes hold a number."""
    vector = llvm_vector(kind)
    scalar = context.cast(builder, value, number, kind.element)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _INDEX(0))
    zeros = ir.Constant(ir.VectorType(_INDEX, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, first, zeros)


# --- arithmetic ----------------------------------------------------------------------------------


def _lanes_of(arguments: Any) -> Lanes | None:
    """The vector type of an operation on these, numbers beside vectors; None if it is not ours."""
    found = [kind for kind in arguments if isinstance(kind, Lanes)]
    found += [kind.vector for kind in arguments if isinstance(kind, Mask)]
    plain = (Lanes, Mask, types.Number)
    return found[0] if found and all(isinstance(kind, plain) for kind in arguments) else None


def _operation(function: Any, kinds: str, generate: Callable[..., Any]) -> None:
    """Let kernels call `function`. `kinds` has a letter for the result and for each argument:
    v a vector, m a mask, b a yes or no."""

    def resolve(letter: str, lanes: Lanes) -> Any:
        return {"v": lanes, "m": Mask(lanes), "b": types.boolean}[letter]

    class Template(AbstractTemplate):
        def generic(self, arguments: Any, keywords: Any) -> Any:
            lanes = _lanes_of(arguments)
            if lanes is None or len(arguments) != len(kinds) - 1:
                return None
            wanted = [resolve(letter, lanes) for letter in kinds]
            fits = zip(arguments, wanted[1:], strict=True)
            if any(isinstance(given, Mask) != isinstance(want, Mask) for given, want in fits):
                return None
            return signature(*wanted)

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return generate(builder, signature.args[0], *arguments)

    infer_global(function)(Template)
    kind = {"v": Lanes, "m": Mask}
    extending.lower_builtin(function, *(kind[letter] for letter in kinds[1:]))(lower)


def llvm_function(name: str) -> Callable[..., Any]:
    """An LLVM intrinsic on vectors, such as llvm.fma."""

    def generate(builder: Any, kind: Lanes, *arguments: Any) -> Any:
        vector, suffix = llvm_vector(kind), "f32" if kind.element == types.float32 else "f64"
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(vector, [vector] * len(arguments)),
            f"llvm.{name}.v{kind.count}{suffix}",
        )
        return builder.call(function, arguments)

    return generate


def fma(a: Any, b: Any, c: Any) -> Any:
    """a b + c with one rounding."""
    return a * b + c


def root(a: Any) -> Any:
    """The square root."""
    return np.sqrt(a)


def absolute(a: Any) -> Any:
    """|a|."""
    return np.abs(a)


def where(mask: Any, yes: Any, no: Any) -> Any:
    """yes in the lanes of the mask, no elsewhere."""
    return np.where(mask, yes, no)


def all_lanes(mask: Any) -> Any:
    """Whether all lanes are in the mask."""
    return np.all(mask)


def _all_lanes(builder: Any, kind: Mask, mask: Any) -> Any:
    bits = ir.IntType(kind.vector.count)
    return builder.icmp_unsigned("==", builder.bitcast(mask, bits), ir.Constant(bits, -1))


_operation(operator.add, "vvv", lambda builder, kind, a, b: builder.fadd(a, b))
_operation(operator.sub, "vvv", lambda builder, kind, a, b: builder.fsub(a, b))
_operation(operator.mul, "vvv", lambda builder, kind, a, b: builder.fmul(a, b))
_operation(operator.truediv, "vvv", lambda builder, kind, a, b: builder.fdiv(a, b))
_operation(operator.neg, "vv", lambda builder, kind, a: builder.fneg(a))
_operation(fma, "vvvv", llvm_function("fma"))
_operation(root, "vv", llvm_function("sqrt"))
_operation(absolute, "vv", llvm_function("fabs"))
# A comparison with NaN is no.
_operation(operator.lt, "mvv", lambda builder, kind, a, b: builder.fcmp_ordered("<", a, b))
_operation(operator.le, "mvv", lambda builder, kind, a, b: builder.fcmp_ordered("<=", a, b))
_operation(operator.gt, "mvv", lambda builder, kind, a, b: builder.fcmp_ordered(">", a, b))
_operation(operator.ge, "mvv", lambda builder, kind, a, b: builder.fcmp_ordered(">=", a, b))
_operation(operator.eq, "mvv", lambda builder, kind, a, b: builder.fcmp_ordered("==", a, b))
_operation(operator.and_, "mmm", lambda builder, kind, a, b: builder.and_(a, b))
_operation(operator.or_, "mmm", lambda builder, kind, a, b: builder.or_(a, b))
_operation(operator.invert, "mm", lambda builder, kind, a: builder.not_(a))
_operation(where, "vmvv", lambda builder, kind, mask, a, b: builder.select(mask, a, b))
_operation(all_lanes, "bm", _all_lanes)


# --- places in memory ----------------------------------------------------------------------------


@intrinsic
def vectors(typing, lanes, array):
    """The contiguous array as lane vectors; `lanes` is a tuple of as many numbers as lanes."""
    kind = Vectors(Lanes(lanes.count, lanes.dtype))

    def codegen(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[1]).data
        return builder.bitcast(data, context.get_value_type(kind))

    return kind(lanes, array), codegen


def load(builder: Any, kind: Vectors, place: Any, index: Any) -> Any:
    return builder.load(builder.gep(place, [index]), align=kind.vector.element.bitwidth // 8)


def store(builder: Any, kind: Vectors, place: Any, index: Any, value: Any) -> None:
    builder.store(value, builder.gep(place, [index]), align=kind.vector.element.bitwidth // 8)


@infer_global(operator.getitem)
class _Get(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        place, index = arguments
        if isinstance(place, Vectors) and isinstance(index, types.SliceType):
            return signature(place, place, index)
        if isinstance(place, Vectors) and isinstance(index, types.Integer):
            return signature(place.vector, place, types.intp)
        return None


@infer_global(operator.setitem)
class _Set(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        place, _, _ = arguments
        if isinstance(place, Vectors):
            return signature(types.none, place, types.intp, place.vector)
        return None


@extending.lower_builtin(operator.getitem, Vectors, types.Integer)
def _lower_get(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return load(builder, signature.args[0], *arguments)


@extending.lower_builtin(operator.getitem, Vectors, types.SliceType)
def _lower_from(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    start = context.make_helper(builder, signature.args[1], arguments[1]).start
    return builder.gep(arguments[0], [start])


@extending.lower_builtin(operator.setitem, Vectors, types.Integer, Lanes)
def _lower_set(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    store(builder, signature.args[0], *arguments)
    return context.get_dummy_value()


@intrinsic
def splat(typing, like, number):
    """The vector all of whose lanes hold a number; `like` is a place, a vector or a tuple.

    For values that change type otherwise: what begins as a number and is compared in a loop.
    """
    if isinstance(like, types.UniTuple):
        kind = Lanes(like.count, like.dtype)
    else:
        kind = like.vector if isinstance(like, Vectors) else like
    return kind(like, kind), lambda context, builder, signature, arguments: arguments[1]


@intrinsic
def fetch(typing, place):
    """Have the first vector at a place brought near, as it is to be written soon."""

    def codegen(context, builder, signature, arguments):
        kinds = [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3]
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0i8"
        )
        near = [
            ir.Constant(kind, number) for kind, number in zip(kinds[1:], (1, 3, 1), strict=True)
        ]
        builder.call(function, [builder.bitcast(arguments[0], kinds[0]), *near])
        return context.get_dummy_value()

    return types.none(place), codegen


@intrinsic
def paired(typing, place):
    """The same place, with vectors of twice the lanes."""
    kind = Vectors(Lanes(2 * place.vector.count, place.vector.element))

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(kind))

    return kind(place), codegen


@intrinsic
def alone(typing):
    """The function that calls this is inlined nowhere, so that registers hold its constants.

    In a large kernel the compiler sees more constants than registers and makes some of them again
    in every pass of a loop. With 16 registers nothing is gained by it, and nothing is done.
    """

    def codegen(context, builder, signature, arguments):
        if wide_registers():
            builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.none(), codegen
