"""A training method as a value: what it is called, where its edge lies, and how it runs.

| name       | a step                                       | edge: the largest stable S      |
| ---------- | -------------------------------------------- | ------------------------------- |
| descent    | W <- W - eta g                               | 2/eta                           |
| flow       | dW/dt = -g                                   | none                            |

Here g is the gradient at W. A learning rate is one number, one per network, or text as
`check_rate` understands it. Further methods have modules of their own; `methods` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float, Yes, numbers
from flatmin.core.checks import check_count, check_kind, check_positive
from flatmin.core.errors import SettingError
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, regression_of
from flatmin.dynamics.descent import Progress, descend
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording
from flatmin.dynamics.rule import PLAIN, Rule
from flatmin.lanes.step_control import RTOL
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.prediction import check_rate

WITHOUT_BIASES = "S_min and the critical rate are for networks without biases and do not apply"


class Options(TypedDict, total=False):
    """What `run` of every method takes besides; see `descent.descend`."""

    recording: Recording | None
    tolerance: float | None
    learned_at: float
    threads: int | None
    progress: bool | Progress | None


class Own(NamedTuple):
    """A setting of a method's own besides the learning rate: a key of a study's [method]."""

    check: Callable[[str, object], float]
    help: str = ""
    """Of the option of `flatmin train`, if it has one."""
    label: str = ""
    """Of the field of the lab's page, if it has one, and what stands there at first."""
    usual: float | None = None


class Method:
    """What every method has. One that takes steps has a learning rate and a rule of its own."""

    learning_rate: Any
    name: ClassVar[str]
    title: ClassVar[str]
    edge_formula: ClassVar[str] = ""
    edge_label: ClassVar[str] = ""
    continuous: ClassVar[bool] = False
    """Whether it is a flow, which has neither a learning rate nor an edge."""
    own: ClassVar[dict[str, Own]] = {}
    flag: ClassVar[tuple[str, str]] = ("", "")
    """The option of `flatmin train` that asks for it, with its help; "" if its own settings do."""

    @property
    def rule(self) -> Rule:
        """How a gradient moves the weights."""
        return PLAIN

    @property
    def reach(self) -> float:
        """The largest eta S at which a minimiser is stable."""
        return self.rule.reach

    @property
    def edge(self) -> Float | None:
        """The largest sharpness at which a minimiser is stable, for each learning rate."""
        if self.continuous:
            return None
        return np.asarray(self.reach / np.asarray(self.learning_rate, dtype=float))

    def settings(self) -> dict[str, Any]:
        """Its settings by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    def describe(self) -> str:
        """In words, for a title."""
        given = ((name, float(np.max(value))) for name, value in self.settings().items())
        words = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in given)
        return ", ".join([self.title, *(() if self.continuous else words)])

    def some(self, chosen: Yes) -> Method:
        """The method of some of the networks."""
        if np.ndim(self.learning_rate) == 0:
            return self
        rates = np.asarray(self.learning_rate)[chosen]
        return replace(self, learning_rate=rates)  # type: ignore[type-var]

    def resolved(self, regression: Regression, architecture: Architecture) -> Self:
        """The method with its learning rate as a number, for these data: "0.5critical" is one."""
        if not isinstance(self.learning_rate, str):
            return self
        rate, multiple = check_rate(self.learning_rate)
        if multiple and architecture.biases:
            raise SettingError(f"learning_rate must be a number: {WITHOUT_BIASES}")
        if multiple:  # of the rate at which the edge is S_min
            least = minimal_sharpness(regression, architecture.depth, architecture.output_norm)
            rate = rate * self.reach / least.exact
        return replace(self, learning_rate=rate)  # type: ignore[type-var]

    def run(
        self, problem: Problem, ensemble: Ensemble, *, steps: ArrayLike, **options: Unpack[Options]
    ) -> Outcome:
        """Every network of an ensemble, to its end."""
        network = check_kind("ensemble", ensemble, Ensemble).architecture
        rate = self.resolved(regression_of(problem), network).learning_rate
        return descend(problem, ensemble, rate, steps, rule=self.rule, **options)


@dataclass(frozen=True)
class GradientDescent(Method):
    """W <- W - eta g.

    >>> float(GradientDescent(learning_rate=0.1).edge)
    20.0
    """

    learning_rate: ArrayLike

    name: ClassVar[str] = "descent"
    title: ClassVar[str] = "Gradient descent"
    edge_formula: ClassVar[str] = "2/eta"
    edge_label: ClassVar[str] = "2 / learning rate"


@dataclass(frozen=True)
class GradientFlow(Method):
    """dW/dt = -g, integrated to a relative tolerance."""

    rtol: float = RTOL

    name: ClassVar[str] = "flow"
    title: ClassVar[str] = "Gradient flow"
    continuous: ClassVar[bool] = True
    own: ClassVar[dict[str, Own]] = {"rtol": Own(check_positive)}
    flag: ClassVar[tuple[str, str]] = ("flow", "Gradient flow instead of descent.")
    learning_rate = None

    @property
    def rule(self) -> Rule:
        """No step is too long; one costs as many gradients as the integrator has stages."""
        from flatmin.lanes.tableau import SIZE

        return Rule(reach=np.inf, cost=float(SIZE))

    def run(
        self, problem: Problem, ensemble: Ensemble, *, steps: ArrayLike, **options: Unpack[Options]
    ) -> Outcome:
        """Every network of an ensemble, to its end; all have one limit of steps."""
        from flatmin.dynamics.flow import flow  # with SciPy's integrators, half a second

        most = check_count("steps", max(numbers("steps", steps).ravel().tolist(), default=0))
        return flow(problem, ensemble, rtol=self.rtol, max_steps=most, **options)
