"""The central flow: the smooth path that gradient descent follows on average at its edge.

`CentralFlow` is the method, `central_flow` its engine; the force is in `central_force`. Steps are
Heun's, half of eta long: time t is t/eta steps of descent. Every network is on its own; those that
ended are taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float, Whole, Yes, one_or_each
from flatmin.core.checks import check_count, check_kind, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.progress import advancing
from flatmin.data.samples import Problem, regression_of
from flatmin.dynamics.central_force import Middles
from flatmin.dynamics.descent import Progress
from flatmin.dynamics.endings import LEARNED_AT, check_share, flow_endings
from flatmin.dynamics.measures import LAYER_MEASURES, Task, passes_nothing, units_of
from flatmin.dynamics.method import Method, Options, Own
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording, Trace
from flatmin.dynamics.rule import Rule
from flatmin.network.architecture import Family
from flatmin.network.ensemble import Ensemble

ORDERS = (1, 2)
ARRIVED = 1e-8  # units of the gradient
# A start without a random part could follow an eigenvector that is no longer the top one.
_FRESH = 16
# A multiple of the excess risk at w = 0 that only a network on its way to infinity has.
_DIVERGED = 1e6


def _check_order(name: str, value: object) -> float:
    if value not in ORDERS:
        raise SettingError(f"{name} must be 1 or 2, got {value!r}")
    return 1.0 if value == 1 else 2.0


@dataclass(frozen=True)
class CentralFlow(Method):
    """The mean path of gradient descent at its edge of stability.

    `steps` count those of the descent that it predicts.

    >>> float(CentralFlow(learning_rate=0.1).edge)
    20.0
    """

    learning_rate: ArrayLike
    order: int = 2

    name: ClassVar[str] = "central-flow"
    title: ClassVar[str] = "Central flow"
    edge_formula: ClassVar[str] = "2/eta"
    edge_label: ClassVar[str] = "2 / learning rate"
    own: ClassVar[dict[str, Own]] = {"order": Own(_check_order)}
    flag: ClassVar[tuple[str, str]] = (
        "central", "Central flow: the mean path of descent at its edge.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        _check_order("order", self.order)

    @property
    def rule(self) -> Rule:
        """That of gradient descent, whose mean it is; a step costs about a hundred of its steps."""
        return Rule(cost=100.0)

    def run(
        self, problem: Problem, ensemble: Ensemble, *, steps: ArrayLike, **options: Unpack[Options]
    ) -> Outcome:
        """Every network of an ensemble, to its end."""
        count = len(check_kind("ensemble", ensemble, Ensemble))
        limits = one_or_each("steps", steps, count).tolist()
        total = sum(check_count("steps", limit) for limit in limits)
        with advancing(options.get("progress"), "central flow", total) as advance:
            return central_flow(
                problem,
                ensemble,
                self.learning_rate,
                steps,
                order=self.order,
                recording=options.get("recording"),
                tolerance=options.get("tolerance"),
                learned_at=options.get("learned_at", LEARNED_AT),
                progress=advance,
            )


def central_flow(
    regression: Problem,
    ensemble: Ensemble,
    learning_rate: ArrayLike,
    steps: ArrayLike,
    *,
    order: int = 2,
    recording: Recording | None = None,
    tolerance: float | None = None,
    learned_at: float = LEARNED_AT,
    progress: Progress | None = None,
) -> Outcome:
    """The central flow of every network, for the time of so many steps of descent.

    A run ends early where the mean force is at most `tolerance`, by default 1e-8 Lam |w*|^2 / c,
    where c is the unit of weights (`theory.units`). What is recorded is that of the
    middle; besides it a trace holds the `amplitude` x of the swing and the `mean_excess_risk` of
    its two ends, which is what gradient descent has on average. The outcome's `extras` hold both of
    the end.

    >>> from flatmin.data.generators import gaussian_samples
    >>> from flatmin.network.architecture import Architecture
    >>> from flatmin.network.initialisation import initialise
    >>> data = gaussian_samples(seed=0).regression()
    >>> start = initialise(Architecture.mlp(5, 4), "gaussian", 0.4, 0, networks=3)
    >>> central_flow(data, start, 0.05, 2000)
    Outcome(networks=3, learned=3, settled=3)
    """
    regression = regression_of(regression)
    count = len(check_kind("ensemble", ensemble, Ensemble))
    architecture = ensemble.architecture
    if architecture.family is not Family.ONE_OUTPUT:
        raise SettingError("the central flow is for linear networks with one output")
    architecture.check_fits(regression)
    _check_order("order", order)
    if recording is not None:
        check_kind("recording", recording, Recording).check_for(architecture)
    rates = one_or_each("learning_rate", learning_rate, count)
    wanted = one_or_each("steps", steps, count)
    for rate, most in zip(rates.tolist(), wanted.tolist(), strict=True):
        check_positive("learning_rate", rate)
        check_count("steps", most)
    budget = wanted.astype(np.int64)
    if tolerance is None:
        tolerance = ARRIVED * units_of(regression, architecture).gradient
    tolerance = check_positive("tolerance", tolerance)
    goal = check_share("learned_at", learned_at) * regression.excess_at_zero
    networks = Middles(regression, architecture, ensemble.flat(), rates, order)
    trace = None if recording is None else _Entries(networks, recording)
    limit = _DIVERGED * regression.excess_at_zero
    going, taken = np.arange(count), np.zeros(count, dtype=np.int64)
    force = np.full(count, np.inf)
    for step in range(int(budget.max()) + 1):
        with np.errstate(over="ignore", invalid="ignore"):
            velocity = networks.velocity(going, step % _FRESH == 0)
            force[going] = np.linalg.norm(velocity, axis=1)
        if trace is not None and step % trace.every == 0:
            trace.keep(going)
        taken[going] = step
        lost = ~(networks.excess[going] <= limit)
        ended = lost | (force[going] <= tolerance) | (budget[going] <= step)
        going, velocity = going[~ended], velocity[~ended]
        if not len(going):
            break
        moved = networks.advance(going, velocity)
        networks.excess[going[~moved]] = np.inf
        going = going[moved]
        if not len(going):
            break
        if progress is not None:
            progress(len(going))
    if progress is not None:
        progress(int((budget - taken).sum()))
    return _outcome(networks, taken, force <= tolerance, goal, None if trace is None else trace.all)


class _Entries:
    """Rows of a trace; NaN after the end of a run."""

    def __init__(self, networks: Middles, recording: Recording) -> None:
        self.every, self._recording, self._networks = recording.every, recording, networks
        self._task = Task.of(networks.regression, networks.architecture)
        self._values: dict[str, list[Float]] = {}

    def keep(self, going: Whole) -> None:
        """One entry."""
        networks = self._networks
        row = {
            "amplitude": networks.swing[going],
            "mean_excess_risk": networks.mean_excess[going],
            "excess_risk": networks.excess[going],
            "gradient": networks.gradient[going],
            "sharpness": networks.sharpness[going],
            "sharpness_residual": networks.residual[going],
        }
        chosen = self._recording.quantities
        unwanted = {"excess_risk", "gradient", "sharpness"} - set(chosen)
        if "sharpness" in unwanted:
            unwanted.add("sharpness_residual")
        row = {name: values for name, values in row.items() if name not in unwanted}
        if "distance" in chosen:
            row["distance"] = networks.distance(going)
        split = networks.architecture.split
        layers, initial = split(networks.flat[going]), split(networks.initial[going])
        for name in self._recording.layers:
            row[name] = LAYER_MEASURES[name](layers, initial, self._task)
        for name, values in row.items():
            full = np.full((len(networks.flat), *values.shape[1:]), np.nan)
            full[going] = values
            self._values.setdefault(name, []).append(full)

    @property
    def all(self) -> Trace:
        """The whole trace."""
        values = {name: np.stack(rows) for name, rows in self._values.items()}
        steps = np.arange(len(values["amplitude"]), dtype=np.int64) * self.every
        return Trace(step=steps, values=values)


def _outcome(
    networks: Middles, taken: Whole, settled: Yes, goal: float, trace: Trace | None
) -> Outcome:
    architecture, everyone = networks.architecture, np.arange(len(networks.flat))
    final = Ensemble.from_flat(architecture, networks.flat)
    time = taken * networks.rates
    with np.errstate(over="ignore", invalid="ignore"):
        distance = networks.distance(everyone)
        idle = passes_nothing(networks.regression, final, networks.excess, networks.gradient)
    limit = _DIVERGED * networks.regression.excess_at_zero
    excess = np.where(networks.excess <= limit, networks.excess, np.inf)
    return Outcome(
        ensemble=final,
        state=flow_endings(settled & ~idle, excess, networks.gradient, time, idle),
        steps=taken,
        excess_risk=excess,
        distance=distance,
        gradient_norm=networks.gradient,
        goal=goal,
        learned=excess <= goal,
        period=np.zeros(len(final), dtype=np.int64),
        more_steps=np.full(len(final), np.nan),
        recorded=trace,
        extras={"amplitude": networks.swing, "mean_excess_risk": networks.mean_excess},
        beside=np.empty((len(final), 0)),
    )
