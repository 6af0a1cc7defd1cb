"""Activations on lane vectors: phi and phi' of the rows of `network.activations`, by their names.

A new one is a function under `@row(name)`; the kernel's code of it is its place among them.
"""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flatmin.core.checks import check_choice
from flatmin.lanes.compiling import inlined
from flatmin.lanes.functions import LOG2E, gaussian, logistic_of_power, sigmoid, softplus, tanh
from flatmin.lanes.vectors import fma, splat, where

# gelu, tanh form: x (1 + tanh(u))/2 = x/(1 + 2^t), t = -2 log2(e) u = T1 x + T3 x^3
_SLOPE, _CUBIC = float(np.sqrt(2.0 / np.pi)), 0.044715
_U1, _U3 = 2.0 * _SLOPE, 6.0 * _SLOPE * _CUBIC  # 2 u' = U1 + U3 x^2
_T1, _T3 = -LOG2E * 2.0 * _SLOPE, -LOG2E * 2.0 * _SLOPE * _CUBIC

LEAK = 0.01  # as `network.activations` has it

_ROWS: dict[str, Callable[..., Any]] = {}


def row(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function x -> (phi, phi') under the name of the activation."""

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
    return x, splat(x, 1.0)


@row("gelu-tanh")
def _gelu_tanh(x):
    """g = 1/(1 + 2^t): phi = x g and phi' = g + phi (1 - g) 2 u'."""
    square = x * x
    g = logistic_of_power(x * fma(_T3, square, _T1))
    phi = x * g
    return phi, fma(phi * fma(_U3, square, _U1), 1.0 - g, g)


@row("gelu-erf")
def _gelu_erf(x):
    """phi = x Phi(x) and phi' = Phi(x) + x Phi'(x), Phi the Gaussian distribution."""
    distribution, density = gaussian(x)
    return x * distribution, fma(x, density, distribution)


@row("tanh")
def _tanh(x):
    """phi' = 1 - phi^2."""
    phi = tanh(x)
    return phi, fma(-phi, phi, 1.0)


@row("softplus")
def _softplus(x):
    """phi' is the sigmoid."""
    return softplus(x), sigmoid(x)


@row("silu")
def _silu(x):
    """g the sigmoid: phi = x g and phi' = g + phi (1 - g)."""
    g = sigmoid(x)
    phi = x * g
    return phi, fma(phi, 1.0 - g, g)


@row("relu")
def _relu(x):
    """phi = max(x, 0), and phi' = 0 at 0. NaN stays NaN."""
    return where(x < 0.0, 0.0, x), where(x > 0.0, 1.0, 0.0)


@row("leaky-relu")
def _leaky_relu(x):
    """phi = x, or LEAK x below 0."""
    return where(x < 0.0, LEAK * x, x), where(x < 0.0, LEAK, 1.0)


@inlined
def _none(code, h, s, size):
    """There is no activation of this code."""


def _choice(number: int, phi: Any, others: Any) -> Any:
    """h <- phi(h), s <- phi'(h) if the code is this number, else what the others do."""

    @inlined
    def activate(code, h, s, size):
        if code == number:
            for e in range(size):
                h[e], s[e] = phi(h[e])
        else:
            others(code, h, s, size)

    return activate


IDENTITY = code_of("linear")
activate = _none
"""On `size` vectors of h and s; nothing to do for the identity."""
for _number, _phi in reversed(list(enumerate(_ROWS.values()))):
    if _number != IDENTITY:
        activate = _choice(_number, _phi, activate)
