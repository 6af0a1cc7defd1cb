"""Activations phi with their first and second derivatives, as NumPy functions.

The Hessian of a non-linear network needs phi'', so each activation is a triple. `linear` is among
them: a deep linear network is the special case phi(x) = x. ReLU and leaky ReLU have a kink at 0:
their phi'' is 0 almost everywhere and taken as 0 at the kink too, so that a Hessian is that of the
pieces, without what the kinks between them would add. Kernels find the compiled form of a row by
its name (`lanes.activations`).

>>> float(ACTIVATIONS["tanh"].first(0.0))
1.0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Activation:
    """phi, phi' and phi'' of one activation."""

    name: str
    value: Function
    first: Function
    second: Function


def _sigmoid(x: Any) -> Any:
    # 1/(1+e^-x) without overflow, and with all its digits where it is small.
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def _softplus(x: Any) -> Any:
    # log(1+e^x) without overflow.
    return np.logaddexp(0.0, x)


def _silu_first(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1.0 + x * _sigmoid(-x))


def _silu_second(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s))


def _tanh_first(x: Any) -> Any:
    # 1 - tanh^2 without the difference.
    return 4.0 * _sigmoid(2.0 * x) * _sigmoid(-2.0 * x)


# gelu, tanh form: x (1 + tanh(u))/2 = x s(2u), s the sigmoid, u = sqrt(2/pi) (x + 0.044715 x^3)
_GELU_SLOPE = np.sqrt(2.0 / np.pi)
_GELU_CUBIC = 0.044715


# Beyond this the derivatives are those of the limits, to the last digit; products of zero and an
# overflow would not be numbers.
_FAR = 100.0


def _gelu_inner(x: Any) -> tuple[Any, Any, Any, Any]:
    """s(2u), s(-2u), 2u' and 2u''; at +-100 for arguments beyond."""
    x = np.clip(x, -_FAR, _FAR)
    u = 2.0 * _GELU_SLOPE * (x + _GELU_CUBIC * x**3)
    first = 2.0 * _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBIC * x**2)
    return _sigmoid(u), _sigmoid(-u), first, 12.0 * _GELU_SLOPE * _GELU_CUBIC * x


def _gelu_tanh(x: Any) -> Any:
    return x * _gelu_inner(x)[0]


def _gelu_tanh_first(x: Any) -> Any:
    s, t, du, _ = _gelu_inner(x)
    return s * (1.0 + np.clip(x, -_FAR, _FAR) * t * du)


def _gelu_tanh_second(x: Any) -> Any:
    s, t, du, ddu = _gelu_inner(x)
    x = np.clip(x, -_FAR, _FAR)
    return s * t * (2.0 * du + x * (ddu + (t - s) * du * du))


# gelu, error-function form: x Phi(x), with Phi and its density those of the standard Gaussian.
def _density(x: Any) -> Any:
    return np.exp(-0.5 * np.clip(x, -_FAR, _FAR) ** 2) / np.sqrt(2.0 * np.pi)


def _distribution(x: Any) -> Any:
    from scipy.special import ndtr

    # SciPy has it for doubles; of a longer number the rest is a step along the density.
    near = np.asarray(x).astype(np.float64)
    return ndtr(near) + (x - near) * _density(near)


def _gelu_erf_first(x: Any) -> Any:
    return _distribution(x) + np.clip(x, -_FAR, _FAR) * _density(x)


def _gelu_erf_second(x: Any) -> Any:
    x = np.clip(x, -_FAR, _FAR)
    return (2.0 - x * x) * _density(x)


LEAK = 0.01

ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("linear", lambda x: x, np.ones_like, np.zeros_like),
        Activation("gelu-tanh", _gelu_tanh, _gelu_tanh_first, _gelu_tanh_second),
        Activation("gelu-erf", lambda x: x * _distribution(x), _gelu_erf_first, _gelu_erf_second),
        Activation("tanh", np.tanh, _tanh_first, lambda x: -2.0 * np.tanh(x) * _tanh_first(x)),
        Activation("softplus", _softplus, _sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
        Activation("silu", lambda x: x * _sigmoid(x), _silu_first, _silu_second),
        Activation("relu", lambda x: np.maximum(x, 0.0), lambda x: 1.0 * (x > 0.0), np.zeros_like),
        Activation(
            "leaky-relu",
            lambda x: np.where(x < 0.0, LEAK * x, x),
            lambda x: np.where(x < 0.0, LEAK, 1.0),
            np.zeros_like,
        ),
    )
}
