"""Activations on lane vectors: phi, phi' and phi'' of the rows of `network.activations`, by name.

A new one is a function under `@row(name)`; the kernel's code of it is its place among them.

Signals may have any scale c: of inputs c x all z and h are c times as large, and nothing else
changes, if the activation is z -> c phi(z/c). Where some c spares multiplications, that is a second
function under `@scaled_row(name, c)`, for kernels that need no phi''.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flatmin.core.checks import check_choice
from flatmin.lanes.compiling import apart, inlined, slow_divider, wide_registers
from flatmin.lanes.functions import (
    LOG2E,
    between,
    gaussian,
    logistic_of_power,
    logistic_terms,
    sigmoid,
    softplus,
    split_power,
    tanh,
)
from flatmin.lanes.tiles import take, times
from flatmin.lanes.vectors import alone, fma, splat, where

# gelu, tanh form: x (1 + tanh(u))/2 = x/(1 + 2^t), t = -2 log2(e) u = T1 x + T3 x^3
_SLOPE, _CUBIC = float(np.sqrt(2.0 / np.pi)), 0.044715
_U1, _U3 = 2.0 * _SLOPE, 6.0 * _SLOPE * _CUBIC  # 2 u' = U1 + U3 x^2
_T1, _T3 = -LOG2E * 2.0 * _SLOPE, -LOG2E * 2.0 * _SLOPE * _CUBIC
# with z = c x and c^3 = T3: t = z (z^2 + T1/c), and x 2 u' = z (U1/c + U3/T3 z^2)
_C = -((-_T3) ** (1.0 / 3.0))
_C1, _V1, _V3 = _T1 / _C, _U1 / _C, _U3 / _T3

LEAK = 0.01  # as `network.activations` has it
_FAR = 800.0  # beyond, phi'' is 0; products of 0 and an overflow would not be numbers

_ROWS: dict[str, Callable[..., Any]] = {}
_SCALED: dict[str, tuple[float, Callable[..., Any], Callable[..., Any]]] = {}


def row(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function x -> (phi, phi', phi'') under the name of the activation."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        _ROWS[name] = inlined(function)
        return _ROWS[name]

    return enter


def scaled_row(
    name: str, scale: float, over: Callable[..., Any]
) -> Callable[[Callable[..., Any]], None]:
    """Enters loops over all signals for c = scale: c x -> (c phi, phi'), and the same of a product
    with five columns."""

    def enter(of_five: Callable[..., Any]) -> None:
        _SCALED[name] = scale, apart(over), apart(of_five)

    return enter


def code_of(name: str) -> int:
    """What `activate` calls the activation of this name."""
    return list(_ROWS).index(check_choice("activation", name, _ROWS))


@row("linear")
def _linear(x):
    """phi' = 1."""
    return x, splat(x, 1.0), splat(x, 0.0)


@row("gelu-tanh")
def _gelu_tanh(x):
    """g = 1/(1 + 2^t), v = 2 u': phi = x g, phi' = g + phi (1 - g) v and
    phi'' = g (1 - g) (2 v + x (v' + (1 - 2 g) v^2))."""
    square = x * x
    g = logistic_of_power(x * fma(_T3, square, _T1))
    phi, rest, v = x * g, 1.0 - g, fma(_U3, square, _U1)
    near = between(-_FAR, x, _FAR)
    slope = fma(_U3, near * near, _U1)
    bend = fma(near, fma(rest - g, slope * slope, (2.0 * _U3) * near), 2.0 * slope)
    return phi, fma(phi * v, rest, g), g * rest * bend


# The scaled GELU: g = 1/(1 + 2^t), c phi = z g and phi' = g + z g (1 - g) v, v = 2 u'/c; in stages.
#
# One after another the operations on a vector take 60 to 110 cycles, and hold the units that do
# them for 6 (Zen 5) to 16 (Intel, a division): up to ten vectors would have to be under way, more
# than a core looks ahead. So a pass of the loop has one stage each of five successive vectors, none
# of which waits for another. From the first stage to the last z is kept in h, and v in s.


@inlined
def _gelu_begun(h, s, e, z):
    """The first stage of vector e: t."""
    square = z * z
    h[e], s[e] = z, fma(_V3, square, _V1)
    return z * (square + _C1)


@inlined
def _gelu_pass(h, s, e, begun, under_way):
    """The other stages: the last one of vector e, and one each of the three after it."""
    t, power, f, a, both, g = under_way
    next_power, next_f = split_power(t)
    next_a, next_both = logistic_terms(power, f)
    quotient = a / both
    if e >= 0:
        phi, rest = h[e] * g, 1.0 - g
        h[e], s[e] = phi, fma(phi * s[e], rest, g)
    return begun, next_power, next_f, next_a, next_both, quotient


@inlined
def _gelu_ended(h, s, size, under_way):
    """What is left to do of the last four vectors."""
    for e in range(size - 4, size):
        under_way = _gelu_pass(h, s, e, under_way[0], under_way)


def _gelu_tanh_scaled(h, s, c, size):
    """Of all signals."""
    alone()
    z = h[0]
    under_way = z, z, z, z, z, z
    for e in range(size):
        under_way = _gelu_pass(h, s, e - 4, _gelu_begun(h, s, e, h[e]), under_way)
    _gelu_ended(h, s, size, under_way)


@scaled_row("gelu-tanh", _C, _gelu_tanh_scaled)
def _gelu_tanh_of_five(w, x, h, s, rows, size):
    """Of W x with five columns, where the units would wait for divisions. It loads four times as
    much as a product of its own."""
    alone()
    z = x[0]
    under_way, e = (z, z, z, z, z, z), 0
    for i in range(rows):
        weights = take(w[5 * i :], 5, 1)
        for sample in range(size):
            z = times(weights, take(x[sample:], 5, size))[0]
            under_way = _gelu_pass(h, s, e - 4, _gelu_begun(h, s, e, z), under_way)
            e += 1
    _gelu_ended(h, s, e, under_way)


@row("gelu-erf")
def _gelu_erf(x):
    """phi = x Phi(x), phi' = Phi(x) + x Phi'(x) and phi'' = (2 - x^2) Phi'(x), Phi the Gaussian
    distribution."""
    distribution, density = gaussian(x)
    near = between(-_FAR, x, _FAR)
    return x * distribution, fma(x, density, distribution), fma(-near, near, 2.0) * density


@row("tanh")
def _tanh(x):
    """phi' = 1 - phi^2 and phi'' = -2 phi phi'."""
    phi = tanh(x)
    slope = fma(-phi, phi, 1.0)
    return phi, slope, -2.0 * phi * slope


@row("softplus")
def _softplus(x):
    """phi' = g is the sigmoid, and phi'' = g (1 - g)."""
    g = sigmoid(x)
    return softplus(x), g, g * (1.0 - g)


@row("silu")
def _silu(x):
    """g the sigmoid: phi = x g, phi' = g + phi (1 - g), phi'' = g (1 - g) (2 + x (1 - 2 g))."""
    g = sigmoid(x)
    phi, rest, near = x * g, 1.0 - g, between(-_FAR, x, _FAR)
    return phi, fma(phi, rest, g), g * rest * fma(near, rest - g, 2.0)


@row("relu")
def _relu(x):
    """phi = max(x, 0), and phi' = 0 at 0. NaN stays NaN."""
    return where(x < 0.0, 0.0, x), where(x > 0.0, 1.0, 0.0), splat(x, 0.0)


@row("leaky-relu")
def _leaky_relu(x):
    """phi = x, or LEAK x below 0."""
    return where(x < 0.0, LEAK * x, x), where(x < 0.0, LEAK, 1.0), splat(x, 0.0)


@inlined
def _none(code, h, s, c, size):
    """There is no activation of this code."""


def _once(phi: Any) -> Any:
    """x -> (phi, phi')."""

    @inlined
    def first_two(x):
        value, slope, _ = phi(x)
        return value, slope

    return first_two


def _over(phi: Any) -> Any:
    """(phi, phi') over all signals."""

    @apart
    def over(h, s, c, size):
        alone()
        for e in range(size):
            h[e], s[e] = phi(h[e])

    return over


def _over_twice(phi: Any) -> Any:
    """(phi, phi', phi'') over all signals."""

    @apart
    def over(h, s, c, size):
        alone()
        for e in range(size):
            h[e], s[e], c[e] = phi(h[e])

    return over


def _choice(number: int, over: Any, others: Any) -> Any:
    """What `over` does if the code is this number, else what the others do."""

    @inlined
    def activate(code, h, s, c, size):
        if code == number:
            over(h, s, c, size)
        else:
            others(code, h, s, c, size)

    return activate


IDENTITY = code_of("linear")


def _by_code(overs: list[Any]) -> Any:
    chosen = _none
    for number, over in reversed(list(enumerate(overs))):
        if number != IDENTITY:
            chosen = _choice(number, over, chosen)
    return chosen


@inlined
def _no_product(code, w, x, h, s, rows, size):
    """An activation of this code is not joined with a product."""
    return False


def _joined(number: int, of_five: Any, others: Any) -> Any:
    """What `of_five` does if the code is this number, else what the others do."""

    @inlined
    def activate_product(code, w, x, h, s, rows, size):
        if code == number:
            of_five(w, x, h, s, rows, size)
            return True
        return others(code, w, x, h, s, rows, size)

    return activate_product


def _of_five_by_code() -> Any:
    chosen = _no_product
    for name, (_, _, of_five) in _GIVEN.items() if slow_divider() else ():
        chosen = _joined(code_of(name), of_five, chosen)
    return chosen


# With 16 registers the scaled GELU is the slower one.
_GIVEN = _SCALED if wide_registers() else {}
_SCALES = tuple(_GIVEN[name][0] if name in _GIVEN else 1.0 for name in _ROWS)
activate = _by_code(
    [_GIVEN[name][1] if name in _GIVEN else _over(_once(phi)) for name, phi in _ROWS.items()]
)
"""h <- phi(h) and s <- phi'(h) on `size` vectors, h of the scale of `scale_of`; c is not used."""
activate_product_of_five = _of_five_by_code()
"""h <- phi(W x) and s <- phi'(W x) for W of five columns, and whether that could be done."""
activate_twice = _by_code([_over_twice(phi) for phi in _ROWS.values()])
"""Also c <- phi''(h), and h as it is. Nothing to do for the identity, as above."""


@inlined
def scale_of(code):
    """The scale c of signals for `activate`."""
    return _SCALES[code]
