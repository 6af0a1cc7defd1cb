"""Momentum: a velocity beside the weights, and what it does to the edge of stability.

| name       | a step                                       | edge: the largest stable S      |
| ---------- | -------------------------------------------- | ------------------------------- |
| heavy-ball | V <- beta V - eta g, W <- W + V              | 2 (1 + beta)/eta                |
| nesterov   | V <- beta V - eta g, W <- W + beta V - eta g | 2 (1 + beta)/((1 + 2 beta) eta) |

Heavy ball is Polyak's (1964). Nesterov's method is in the form of PyTorch's SGD with nesterov=True;
its W are the points y = U + beta V of the form with a look ahead, V <- beta V - eta g(y),
U <- U + V, and started at rest both begin at the same weights.

On a quadratic of curvature S a mode is multiplied by the roots of

    heavy ball    z^2 - (1 + beta - eta S) z + beta
    Nesterov      z^2 - (1 + beta)(1 - eta S) z + beta (1 - eta S)

The product of the roots is below 1 in modulus while eta S <= `reach`; there the first root leaves
the unit disc, at z = -1: eta S = 2 (1 + beta) for heavy ball, 2 (1 + beta)/(1 + 2 beta) for
Nesterov. A steady gradient moves the weights by eta/(1 - beta) of it a step. A step takes 11 P
flops, gradient descent's 6 P.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flatmin.core.checks import number_of, shown
from flatmin.core.errors import SettingError
from flatmin.dynamics.method import GradientDescent, Own
from flatmin.dynamics.rule import Rule


def check_momentum(name: str, value: object) -> float:
    """A number of at least 0 and below 1, or a SettingError that names it."""
    number = number_of(value)
    if number is None or isinstance(value, bool) or not 0.0 <= number < 1.0:
        raise SettingError(f"{name} must be a number of at least 0 and below 1, got {shown(value)}")
    return number


@dataclass(frozen=True)
class HeavyBall(GradientDescent):
    """V <- beta V - eta g, W <- W + V.

    >>> float(HeavyBall(learning_rate=0.1, momentum=0.5).edge)
    30.0
    """

    momentum: float

    name: ClassVar[str] = "heavy-ball"
    title: ClassVar[str] = "Heavy ball"
    edge_formula: ClassVar[str] = "2(1 + beta)/eta"
    edge_label: ClassVar[str] = "edge of stability"
    own: ClassVar[dict[str, Own]] = {
        "momentum": Own(
            check_momentum,
            help="Heavy ball with this momentum, from 0 to below 1.",
            label="Momentum β",
            usual=0.9,
        )
    }

    def __post_init__(self) -> None:
        check_momentum("momentum", self.momentum)

    @property
    def rule(self) -> Rule:
        """The velocity moves the weights."""
        beta = float(self.momentum)
        return _rule(beta, 2.0 * (1.0 + beta), (beta, None))


@dataclass(frozen=True)
class Nesterov(HeavyBall):
    """V <- beta V - eta g, W <- W + beta V - eta g.

    >>> float(Nesterov(learning_rate=0.1, momentum=0.5).edge)
    15.0
    """

    name: ClassVar[str] = "nesterov"
    title: ClassVar[str] = "Nesterov's method"
    edge_formula: ClassVar[str] = "2(1 + beta)/((1 + 2 beta) eta)"
    flag: ClassVar[tuple[str, str]] = ("nesterov", "With --momentum: Nesterov's method.")

    @property
    def rule(self) -> Rule:
        """The velocity and the gradient move the weights."""
        beta = float(self.momentum)
        return _rule(beta, 2.0 * (1.0 + beta) / (1.0 + 2.0 * beta), (beta, beta))


def _rule(beta: float, reach: float, kernel: tuple[float, float | None]) -> Rule:
    """A velocity beside the weights; `kernel` is (keep, push) of `lanes.momentum_descent`."""
    return Rule(reach=reach, pace=1.0 / (1.0 - beta), cost=11.0 / 6.0, copies=1, kernel=kernel)
