"""Elementary functions on lane vectors: exp, sigmoid, tanh, softplus, the Gaussian distribution.

All exponentials rest on one rational approximation. With t = k + f, k whole and |f| <= 1/2,

    2^t = 2^k B/A,    A = Q - f P,  B = Q + f P,    P and Q quadratic in f^2,

since tanh(f log(2)/2) = f P/Q. The quotient B/A need not be taken: sigmoid and tanh are quotients
of sums of the same terms, so each costs one division. The logistic function of GELU has, with
AVX-512, k in sixteenths and P = 1.

Coefficients: the Remez exchange, or interpolation at Chebyshev points, in 60 digits; the errors
stated beside them are the largest on a dense grid. Relative errors of the functions, measured
against 50 digits on random and extreme arguments (tests/test_samples_kernel.py repeats it):
exp 4e-16, sigmoid and logistic 4e-16, tanh 5e-16, softplus 6e-16, Gaussian 9e-16. NaN stays NaN.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from flatmin.lanes.compiling import inlined, wide_registers
from flatmin.lanes.vectors import absolute, fma, llvm_function, where

# untyped: an intrinsic is called without its first argument
intrinsic: Any = extending.intrinsic
overload: Any = extending.overload

# log2(e) - float64(log2(e)) and log2(e) - float32(log2(e)): x log2(e) - k to its last bit
LOG2E = 1.4426950408889634
LOG2E_REST, LOG2E_REST_SINGLE = 2.0355273740931033e-17, 1.925963033500011e-08
DENSITY = 0.3989422804014327  # 1/sqrt(2 pi)


def _constant(vector: Any, value: float) -> Any:
    scalar = float(np.float32(value)) if vector.element == ir.FloatType() else value
    return ir.Constant(vector, [ir.Constant(vector.element, scalar)] * vector.count)


def polynomial(coefficients: tuple[float, ...]) -> Any:
    """The intrinsic x -> c_0 + c_1 x + ... by Horner's rule."""

    @intrinsic
    def evaluate(typing, x):
        def codegen(context, builder, signature, arguments):
            vector, fused = context.get_value_type(x), llvm_function("fma")
            total = _constant(vector, coefficients[-1])
            for c in coefficients[-2::-1]:
                total = fused(builder, x, total, arguments[0], _constant(vector, c))
            return total

        return x(x), codegen

    return evaluate


@intrinsic
def by_precision(typing, like, double, single):
    """The vector of `double` if the lanes are float64, of `single` if they are float32."""
    place = 2 if like.element == types.float32 else 1
    return like(like, like, like), lambda context, builder, signature, given: given[place]


@intrinsic
def exponent(typing, biased):
    """2^k from t + `rounding`, whose low bits are the exponent field of 2^k."""

    def codegen(context, builder, signature, arguments):
        bits, shift = (32, 23) if biased.element == types.float32 else (64, 52)
        integers = ir.VectorType(ir.IntType(bits), biased.count)
        shifts = ir.Constant(integers, [shift] * biased.count)
        shifted = builder.shl(builder.bitcast(arguments[0], integers), shifts)
        return builder.bitcast(shifted, context.get_value_type(biased))

    return biased(biased), codegen


@inlined
def rounding(like):
    """The number whose sum with t has the nearest whole k, plus the exponent bias, as low bits."""
    return by_precision(like, 1.5 * 2.0**52 + 1023.0, 1.5 * 2.0**23 + 127.0)


@inlined
def between(low, x, high):
    """x moved into [low, high]; NaN stays NaN."""
    x = where(x > high, high, x)
    return where(x < low, low, x)


# P and Q: relative error 4.8e-18 of P/Q = tanh(f log(2)/2)/f on 0 <= f^2 <= 1/4
_P = polynomial((1513.8603572565964, 20.20166727470167, 0.023094408441696634))
_Q = polynomial((4368.077660024972, 233.17769678877792, 1.0))


@inlined
def logistic_of_power(t):
    """1/(1 + 2^t) = A/(A + 2^k B)."""
    power, f = split_power(t)
    a, both = logistic_terms(power, f)
    return a / both


def split_power(t):
    """2^k for a k near t, and f = t - k."""


def logistic_terms(power, f):
    """A and A + 2^k B."""


@overload(split_power, jit_options={"forceinline": True})
def _split_power(t):
    return (lambda t: _sixteenths(t)) if _in_sixteenths(t) else (lambda t: _ones(t))


@overload(logistic_terms, jit_options={"forceinline": True})
def _logistic_terms(power, f):
    if _in_sixteenths(f):
        return lambda power, f: _terms_by_sixteenths(power, f)
    return lambda power, f: _terms_by_ones(power, f)


def _in_sixteenths(kind: Any) -> bool:
    return kind.element == types.float64 and wide_registers()


@inlined
def _ones(t):
    """Whole k, with |t| held below 1000 (float32: 100)."""
    bound = by_precision(t, 1000.0, 100.0)
    t = between(-bound, t, bound)
    magic = rounding(t)
    biased = t + magic
    return exponent(biased), t - (biased - magic)


@inlined
def _terms_by_ones(power, f):
    z = f * f
    p, q = _P(z), _Q(z)
    a = fma(-f, p, q)
    return a, fma(power, fma(f, p, q), a)


# With k a multiple of 1/16, |f| <= 1/32, P may be 1, and three terms of Q = f coth(f log(2)/2) have
# an error of 1.2e-18 in B/A. Then A and B are sums, for which AMD's Zen has other units than for
# products: those have f^2, two steps of Q, the divisor and the quotient.
_COTH = polynomial((2.885390081777928, 0.11552453008449394, -0.0009250503932317778))
_SIXTEENTHS = [2.0 ** (j / 16) for j in range(16)]
_ROUNDING = 1.5 * 2.0**48  # its sum with t has 16 t, rounded, as low bits


@inlined
def _terms_by_sixteenths(power, f):
    q = _COTH(f * f)
    a = q - f
    return a, fma(power, q + f, a)


@intrinsic
def _sixteenths(typing, t):
    """2^k for the nearest sixteenth k of t, and f = t - k; of float64.

    Where 2^t overflows or vanishes 2^k is infinite or 0, and |f| <= 1/32 all the same.
    """

    def codegen(context, builder, signature, arguments):
        numbers, lane, byte = ir.VectorType(ir.DoubleType(), 8), ir.IntType(32), ir.IntType(8)
        # all lanes, and the rounding mode as it is
        masked = (ir.Constant(numbers, None), byte(-1), lane(4))

        def call(name: str, *given: Any) -> Any:
            kinds = ir.FunctionType(numbers, [value.type for value in given])
            function = cgutils.get_or_insert_function(
                builder.module, kinds, f"llvm.x86.avx512.{name}.pd.512"
            )
            return builder.call(function, given)

        def chosen(first: Any, second: Any, places: Any) -> Any:
            kind = ir.VectorType(lane, len(places))
            return builder.shuffle_vector(first, second, ir.Constant(kind, [*places]))

        def of_eight(x: Any) -> tuple[Any, Any]:
            rounding = ir.Constant(numbers, [_ROUNDING] * 8)
            biased = builder.fadd(x, rounding)
            low, high = (ir.Constant(numbers, some) for some in (_SIXTEENTHS[:8], _SIXTEENTHS[8:]))
            place = builder.bitcast(biased, ir.VectorType(ir.IntType(64), 8))
            root = call("vpermi2var", low, place, high)
            # 2^(j/16) times 2 to the floor of k; and what is left of x beyond four binary digits
            k = builder.fsub(biased, rounding)
            power = call("mask.scalef", root, k, *masked)
            return power, call("mask.reduce", x, lane(4 << 4), *masked)

        # The vector by eight lanes; a shorter one with some lanes again, which are then left out.
        x, count = arguments[0], t.count
        parts = [
            of_eight(chosen(x, x, [(first + i) % count for i in range(8)]))
            for first in range(0, count, 8)
        ]
        joined = [chosen(some[0], some[-1], range(count)) for some in zip(*parts, strict=True)]
        return cgutils.pack_array(builder, joined)

    if t.count > 16:
        raise TypeError(f"at most 16 lanes, got {t.count}")
    return types.UniTuple(t, 2)(t), codegen


@inlined
def _reduce(x, magic):
    """t = x log2(e) rounded into `magic`, and the fraction f of t to its last bit."""
    biased = fma(x, LOG2E, magic)
    f = fma(x, LOG2E, magic - biased)
    return biased, fma(x, by_precision(x, LOG2E_REST, LOG2E_REST_SINGLE), f)


@inlined
def exp(x):
    """e^x; 0 where e^x is below the least normal number, infinite where it overflows.

    2^(k-1) is formed instead of 2^k, because 2^1024 is not a number though e^709.7 is.
    """
    low = by_precision(x, -708.0, -87.0)
    inside = between(low, x, by_precision(x, 710.0, 89.0))
    biased, f = _reduce(inside, rounding(x) - 1.0)
    z = f * f
    p, q = _P(z), _Q(z)
    value = exponent(biased) * (fma(f, p, q) / fma(-f, p, q))
    return where(x < low, 0.0, value + value)


@inlined
def sigmoid(x):
    """1/(1 + e^-x) = A/(A + 2^k B) for -x, with |x| held below 690 (float32: 69)."""
    bound = by_precision(x, 690.0, 69.0)
    biased, f = _reduce(-between(-bound, x, bound), rounding(x))
    z = f * f
    p, q = _P(z), _Q(z)
    a = fma(-f, p, q)
    return a / fma(exponent(biased), fma(f, p, q), a)


@inlined
def tanh(x):
    """(2^k B - A)/(2^k B + A) for 2 x, as ((2^k-1) Q + (2^k+1) f P)/((2^k+1) Q + (2^k-1) f P).

    2^k - 1 is exact and 0 for k = 0, so small x lose no digits. |x| is held below 30.
    """
    x = between(-30.0, x, 30.0)
    biased, f = _reduce(x + x, rounding(x))
    z = f * f
    p, q = f * _P(z), _Q(z)
    power = exponent(biased)
    less, more = power - 1.0, power + 1.0
    return fma(less, q, more * p) / fma(more, q, less * p)


# 2 atanh(s)/s in s^2 on [0, 1/9]: relative error 1.2e-18
_LOGARITHM = polynomial(
    (
        2.0, 0.6666666666666613, 0.40000000000190317, 0.28571428544926086, 0.2222222411172226,
        0.1818173978930791, 0.15386635423873507, 0.1330010287548264, 0.1211224631846442,
        0.08315695139726438, 0.17060043591316504,
    )
)  # fmt: skip


@inlined
def softplus(x):
    """log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|; log(1 + y) = 2 atanh(y/(2 + y))."""
    y = exp(-absolute(x))
    s = y / (2.0 + y)
    # NaN in x is still NaN in s
    return where(x > 0.0, x, 0.0) + s * _LOGARITHM(s * s)


# e^(a^2/2) times the distribution at -a, on 0 <= a <= 39: relative error 1.8e-18
_MILLS_ABOVE = polynomial(
    (
        2289174.035331086, 3783725.4546280596, 3100609.796281233, 1627470.3560669627,
        600254.1100738328, 161803.74089315702, 32237.40107574724, 4693.134441826222,
        479.5503979357137, 31.270679200711115, 1.0,
    )
)  # fmt: skip
_MILLS_BELOW = polynomial(
    (
        4578348.070662172, 11220444.148819054, 12864664.708924934, 9126900.40206899,
        4462301.659544475, 1583042.0283122065, 417189.0087920427, 82004.22232470383,
        11842.327458132553, 1204.5612148361238, 78.38396865155585, 2.506628274630412,
    )
)  # fmt: skip


@inlined
def gaussian(x):
    """The standard Gaussian's distribution and density at x, |x| held below 38 (float32: 13).

    e^(-x^2/2) is corrected by 1 - (x^2 - x*x)/2 for the rounding of the square.
    """
    bound = by_precision(x, 38.0, 13.0)
    x = between(-bound, x, bound)
    square = x * x
    rest = -0.5 * fma(x, x, -square)
    e = exp(-0.5 * square)
    e = fma(e, rest, e)
    a = absolute(x)
    tail = e * (_MILLS_ABOVE(a) / _MILLS_BELOW(a))
    distribution = where(x > 0.0, 1.0 - tail, tail)
    return distribution, DENSITY * e
