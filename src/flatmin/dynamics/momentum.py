"""Momentum: a velocity beside the weights, and what it does to the edge of stability.

Heavy ball (Polyak 1964) takes V <- beta V - eta g(W), W <- W + V. Nesterov's method in the form of
PyTorch's SGD with nesterov=True takes V <- beta V - eta g(W), W <- W + beta V - eta g(W); its W
are the points y = U + beta V of the form with a look ahead, V <- beta V - eta g(y), U <- U + V,
and started at rest both begin at the same weights.

On a quadratic of curvature S a mode is multiplied by the roots of

    heavy ball    z^2 - (1 + beta - eta S) z + beta
    Nesterov      z^2 - (1 + beta)(1 - eta S) z + beta (1 - eta S)

The product of the roots is below 1 in modulus while eta S <= `reach`; there the first root leaves
the unit disc, at z = -1: eta S = 2 (1 + beta) for heavy ball, 2 (1 + beta)/(1 + 2 beta) for
Nesterov. A steady gradient moves the weights by eta/(1 - beta) of it a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatmin.core.errors import SettingError


def check_momentum(name: str, value: object) -> float:
    """A number of at least 0 and below 1, or a SettingError that names it."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0.0 <= number < 1.0:
        raise SettingError(f"{name} must be a number of at least 0 and below 1, got {value!r}")
    return number


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """How a velocity is kept and used.

    >>> Momentum(beta=0.5).reach, Momentum(beta=0.5, nesterov=True).reach
    (3.0, 1.5)
    """

    beta: float
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_momentum("momentum", self.beta)

    @property
    def reach(self) -> float:
        """The largest eta S at which a minimiser is stable; 2 without momentum."""
        return 2.0 * (1.0 + self.beta) / ((1.0 + 2.0 * self.beta) if self.nesterov else 1.0)

    @property
    def pace(self) -> float:
        """How far a steady gradient moves the weights, against gradient descent."""
        return 1.0 / (1.0 - self.beta)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """(keep, push, pull) of `lanes.momentum_descent`."""
        beta = float(self.beta)
        return (beta, beta, 1.0) if self.nesterov else (beta, 1.0, 0.0)

    @property
    def cost(self) -> float:
        """Flops of a step, 11 P, against gradient descent's 6 P."""
        return 11.0 / 6.0
