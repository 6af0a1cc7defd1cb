"""Lane vectors for compiled kernels: the LLVM vector type and the few operations kernels need.

A kernel takes a tuple such as (0.0,) * 8; its length and type choose the vector, `<8 x double>`;
its values are not used. Inside, `splat`, `load` and `store` move whole vectors, `fma`, `plus`,
`minus`, `times` and `over` compute lane by lane, `where_less` chooses lane by lane.

Why explicit vectors: every lane does the same operations in the same order, with fused
multiply-adds where they are written and nowhere else, so a network's bits do not depend on its
lane, its block, or how a compiler vectorised a loop. They are also faster here: the step of
`dynamics.linear_kernel` reaches 33 to 37 % of the machine's peak at d = 5, against 18 % for the
same loops left to automatic vectorisation.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, register_model

# Intrinsics exist for the compiler only, so they have no useful Python type.
intrinsic: Any = _intrinsic


class Lanes(types.Type):
    """Numba type of a vector of `count` lanes of float64 or float32."""

    def __init__(self, count: int, element: Any) -> None:
        self.count, self.element = count, element
        super().__init__(name=f"Lanes({count}, {element})")


def _scalar(element: Any) -> Any:
    return ir.FloatType() if element == types.float32 else ir.DoubleType()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, ir.VectorType(_scalar(kind.element), kind.count))


def _lanes_like(like: Any) -> Lanes:
    return like if isinstance(like, Lanes) else Lanes(like.count, like.dtype)


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any, lanes: Lanes) -> Any:
    """Pointer to the vector that begins at array[index] (no bounds check)."""
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(_scalar(lanes.element), lanes.count)
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


@intrinsic
def splat(typing, like, number):
    """The vector all of whose lanes hold `number`; `like` is a vector or a tuple of lane count."""
    lanes = _lanes_like(like)

    def codegen(context, builder, signature, arguments):
        vector = context.get_value_type(lanes)
        value = arguments[1]
        if lanes.element == types.float32 and number == types.float64:
            value = builder.fptrunc(value, ir.FloatType())
        elif lanes.element == types.float64 and number == types.float32:
            value = builder.fpext(value, ir.DoubleType())
        index = ir.VectorType(ir.IntType(32), lanes.count)
        first = builder.insert_element(
            ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
        )
        return builder.shuffle_vector(first, first, ir.Constant(index, [0] * lanes.count))

    number = number if number in (types.float32, types.float64) else types.float64
    return lanes(like, number), codegen


@intrinsic
def load(typing, like, array, index):
    """array[index : index + lanes] of a contiguous one-dimensional array."""

    def codegen(context, builder, signature, arguments):
        address = _address(context, builder, array, arguments[1], arguments[2], like)
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return like(like, array, types.intp), codegen


@intrinsic
def store(typing, array, index, vector):
    """array[index : index + lanes] = vector."""

    def codegen(context, builder, signature, arguments):
        address = _address(context, builder, array, arguments[0], arguments[1], vector)
        builder.store(arguments[2], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, vector), codegen


def _call_llvm(name: str, operands: int) -> Any:
    """An LLVM intrinsic on vectors, such as llvm.fma."""

    def generate(context, builder, signature, arguments):
        kind = signature.return_type
        vector = context.get_value_type(kind)
        suffix = "f32" if kind.element == types.float32 else "f64"
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(vector, [vector] * operands),
            f"llvm.{name}.v{kind.count}{suffix}",
        )
        return builder.call(function, arguments)

    return generate


@intrinsic
def fma(typing, a, b, c):
    """a b + c with one rounding."""
    return a(a, b, c), _call_llvm("fma", 3)


@intrinsic
def root(typing, a):
    """The square root."""
    return a(a), _call_llvm("sqrt", 1)


@intrinsic
def absolute(typing, a):
    """|a|."""
    return a(a), _call_llvm("fabs", 1)


@intrinsic
def plus(typing, a, b):
    """a + b."""
    return a(a, b), lambda context, builder, signature, arguments: builder.fadd(*arguments)


@intrinsic
def minus(typing, a, b):
    """a - b."""
    return a(a, b), lambda context, builder, signature, arguments: builder.fsub(*arguments)


@intrinsic
def times(typing, a, b):
    """a b."""
    return a(a, b), lambda context, builder, signature, arguments: builder.fmul(*arguments)


@intrinsic
def over(typing, a, b):
    """a / b."""
    return a(a, b), lambda context, builder, signature, arguments: builder.fdiv(*arguments)


@intrinsic
def where_less(typing, a, b, yes, no):
    """yes in the lanes with a < b, no elsewhere (also where a or b is NaN)."""

    def codegen(context, builder, signature, arguments):
        a, b, yes, no = arguments
        return builder.select(builder.fcmp_ordered("<", a, b), yes, no)

    return yes(a, b, yes, no), codegen


@intrinsic
def all_less(typing, a, b):
    """Whether a < b in every lane (false if one is NaN)."""

    def codegen(context, builder, signature, arguments):
        bits = ir.IntType(signature.args[0].count)
        mask = builder.bitcast(builder.fcmp_ordered("<", *arguments), bits)
        return builder.icmp_unsigned("==", mask, ir.Constant(bits, -1))

    return types.boolean(a, b), codegen
