"""Activations on lane vectors: phi, phi' and phi'' of the rows of `network.activations`, by name.

A new one is a function under `@row(name)`; the kernel's code of it is its place among them.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flatmin.core.checks import check_choice
from flatmin.lanes.compiling import apart, inlined
from flatmin.lanes.functions import (
    LOG2E,
    between,
    gaussian,
    logistic_of_power,
    sigmoid,
    softplus,
    tanh,
)
from flatmin.lanes.vectors import alone, fma, splat, where

# gelu, tanh form: x (1 + tanh(u))/2 = x/(1 + 2^t), t = -2 log2(e) u = T1 x + T3 x^3
_SLOPE, _CUBIC = float(np.sqrt(2.0 / np.pi)), 0.044715
_U1, _U3 = 2.0 * _SLOPE, 6.0 * _SLOPE * _CUBIC  # 2 u' = U1 + U3 x^2
_T1, _T3 = -LOG2E * 2.0 * _SLOPE, -LOG2E * 2.0 * _SLOPE * _CUBIC

LEAK = 0.01  # as `network.activations` has it
_FAR = 800.0  # beyond, phi'' is 0; products of 0 and an overflow would not be numbers

_ROWS: dict[str, Callable[..., Any]] = {}


def row(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function x -> (phi, phi', phi'') under the name of the activation."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        _ROWS[name] = inlined(function)
        return _ROWS[name]

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


def _over(phi: Any, twice: bool) -> Any:
    @apart
    def over(h, s, c, size):
        alone()
        for e in range(size):
            h[e], s[e], bend = phi(h[e])
            if twice:
                c[e] = bend

    return over


def _choice(number: int, phi: Any, twice: bool, others: Any) -> Any:
    """h <- phi(h), s <- phi'(h), and c <- phi''(h) if `twice`, if the code is this number, else
    what the others do."""
    over = _over(phi, twice)

    @inlined
    def activate(code, h, s, c, size):
        if code == number:
            over(h, s, c, size)
        else:
            others(code, h, s, c, size)

    return activate


IDENTITY = code_of("linear")


def _by_code(twice: bool) -> Any:
    chosen = _none
    for number, phi in reversed(list(enumerate(_ROWS.values()))):
        if number != IDENTITY:
            chosen = _choice(number, phi, twice, chosen)
    return chosen


activate, activate_twice = _by_code(False), _by_code(True)
"""On `size` vectors of h, s and, the second, c; nothing to do for the identity."""
