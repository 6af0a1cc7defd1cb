"""Training methods as values: what each is called, where its edge lies, and how it runs.

| name       | a step                                       | edge: the largest stable S      |
| ---------- | -------------------------------------------- | ------------------------------- |
| descent    | W <- W - eta g                               | 2/eta                           |
| heavy-ball | V <- beta V - eta g, W <- W + V              | 2 (1 + beta)/eta                |
| nesterov   | V <- beta V - eta g, W <- W + beta V - eta g | 2 (1 + beta)/((1 + 2 beta) eta) |
| flow       | dW/dt = -g                                   | none                            |

Here g is the gradient at W; `momentum` derives the edges. A learning rate is one number, one per
network, or text as `resolve_rate` understands it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.core.checks import check_choice
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.dynamics.descent import Progress, descend
from flatmin.dynamics.endings import LEARNED_AT
from flatmin.dynamics.flow import RTOL, TOLERANCE, flow
from flatmin.dynamics.momentum import Momentum
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording
from flatmin.lanes.tableau import SIZE
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.theory.prediction import resolve_rate


@dataclass(frozen=True)
class GradientDescent:
    """W <- W - eta g.

    >>> float(GradientDescent(learning_rate=0.1).edge)
    20.0
    """

    learning_rate: ArrayLike

    name: ClassVar[str] = "descent"
    title: ClassVar[str] = "Gradient descent"
    continuous: ClassVar[bool] = False
    edge_formula: ClassVar[str] = "2/eta"
    edge_label: ClassVar[str] = "2 / learning rate"

    def resolved(self, regression: Regression, architecture: Architecture) -> Self:
        """The method with its learning rate as a number, for these data: "0.5critical" is one."""
        if not isinstance(self.learning_rate, str):
            return self
        depth, norm = architecture.depth, architecture.output_norm
        rate = resolve_rate(self.learning_rate, regression, depth, norm, self.reach)
        return replace(self, learning_rate=rate)

    @property
    def velocity_rule(self) -> Momentum | None:
        """How a velocity is kept; None without one."""
        return None

    @property
    def reach(self) -> float:
        """The largest eta S at which a minimiser is stable."""
        return 2.0 if self.velocity_rule is None else self.velocity_rule.reach

    @property
    def cost(self) -> float:
        """Flops of a step against gradient descent."""
        return 1.0 if self.velocity_rule is None else self.velocity_rule.cost

    @property
    def edge(self) -> Float:
        """The largest sharpness at which a minimiser is stable, for each learning rate."""
        return np.asarray(self.reach / np.asarray(self.learning_rate, dtype=float))

    def describe(self) -> str:
        """In words, for a title."""
        words = f"{self.title}, learning rate {float(np.max(self.learning_rate)):.4g}"
        rule = self.velocity_rule
        return words if rule is None else f"{words}, momentum {rule.beta:g}"

    def run(
        self,
        problem: Regression | Samples,
        ensemble: Ensemble,
        *,
        steps: ArrayLike,
        recording: Recording | None = None,
        tolerance: float | None = None,
        learned_at: float = LEARNED_AT,
        threads: int | None = None,
        progress: bool | Progress | None = None,
    ) -> Outcome:
        """Every network of an ensemble, to its end."""
        regression = problem.regression() if isinstance(problem, Samples) else problem
        return descend(
            problem,
            ensemble,
            self.resolved(regression, ensemble.architecture).learning_rate,
            steps,
            momentum=self.velocity_rule,
            recording=recording,
            tolerance=tolerance,
            learned_at=learned_at,
            threads=threads,
            progress=progress,
        )


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

    def __post_init__(self) -> None:
        assert self.velocity_rule is not None  # made here, so that a wrong momentum is told at once

    @property
    def velocity_rule(self) -> Momentum | None:
        """The velocity moves the weights."""
        return Momentum(beta=self.momentum)


@dataclass(frozen=True)
class Nesterov(HeavyBall):
    """V <- beta V - eta g, W <- W + beta V - eta g.

    >>> float(Nesterov(learning_rate=0.1, momentum=0.5).edge)
    15.0
    """

    name: ClassVar[str] = "nesterov"
    title: ClassVar[str] = "Nesterov's method"
    edge_formula: ClassVar[str] = "2(1 + beta)/((1 + 2 beta) eta)"

    @property
    def velocity_rule(self) -> Momentum | None:
        """The velocity and the gradient move the weights."""
        return Momentum(beta=self.momentum, nesterov=True)


@dataclass(frozen=True)
class GradientFlow:
    """dW/dt = -g, integrated to a relative tolerance."""

    rtol: float = RTOL

    name: ClassVar[str] = "flow"
    title: ClassVar[str] = "Gradient flow"
    continuous: ClassVar[bool] = True
    learning_rate: ClassVar[None] = None
    velocity_rule: ClassVar[None] = None
    edge: ClassVar[None] = None
    reach: ClassVar[float] = np.inf
    cost: ClassVar[float] = float(SIZE)
    edge_formula: ClassVar[str] = ""
    edge_label: ClassVar[str] = ""

    def resolved(self, regression: Regression, architecture: Architecture) -> Self:
        """Itself: there is no learning rate."""
        return self

    def describe(self) -> str:
        """In words, for a title."""
        return self.title

    def run(
        self,
        problem: Regression | Samples,
        ensemble: Ensemble,
        *,
        steps: ArrayLike,
        recording: Recording | None = None,
        tolerance: float | None = None,
        learned_at: float = LEARNED_AT,
        threads: int | None = None,
        progress: bool | Progress | None = None,
    ) -> Outcome:
        """Every network of an ensemble, to its end; all have one limit of steps."""
        return flow(
            problem.regression() if isinstance(problem, Samples) else problem,
            ensemble,
            rtol=self.rtol,
            tolerance=TOLERANCE if tolerance is None else tolerance,
            max_steps=int(np.max(steps)),
            learned_at=learned_at,
            recording=recording,
            threads=threads,
            progress=progress,
        )


Method = GradientDescent | GradientFlow

METHODS: dict[str, type[GradientDescent] | type[GradientFlow]] = {
    method.name: method for method in (GradientDescent, GradientFlow, HeavyBall, Nesterov)
}


def settings(name: str) -> tuple[str, ...]:
    """What the method of this name takes: keys of a study's [method].

    >>> settings("nesterov")
    ('learning_rate', 'momentum')
    """
    kind = METHODS[check_choice("method", name, METHODS)]
    return tuple(field.name for field in fields(kind))


def method_of(name: str, **values: Any) -> Method:
    """The method of this name, from those of the values that it takes and that are given.

    >>> method_of("heavy-ball", learning_rate=0.1, momentum=0.9, rtol=None)
    HeavyBall(learning_rate=0.1, momentum=0.9)
    """
    taken = settings(name)
    given = {key: value for key, value in values.items() if key in taken and value is not None}
    return METHODS[name](**given)
