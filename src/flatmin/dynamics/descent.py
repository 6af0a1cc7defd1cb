"""Descent of an ensemble: every run to its end, and how it ended. The engine is `rounds`.

When a run has settled. Let lam be the smallest non-zero eigenvalue of Sigma. Near a
minimiser |grad|^2 >= mu (R - R_min) with mu = 4 lam |b_1|^2, so gradient flow still moves the
weights by at most 2 |grad| / mu. A run stops when this is below 1e-11 of a lower bound of |W|,

    |grad| <= 1e-11 * 2 lam |b_1|^2 * sqrt(L) (|w*|/|p|)^{1/L},

or below the tolerance given. Every critical point that is not a minimiser has w = 0, hence the
excess risk of w = 0: a run must also be below half of that, so that it cannot stop at the saddle.
On ill-conditioned data rounding keeps the gradient above this; a run also counts as settled if its
excess risk is what rounding of w leaves of it.

A run may come that close to a minimiser with eta S > 2 by chance (1 in 12 000 runs at the edge of
stability did): it would leave again, slowly. Such a run is done again without the rule, for all its
steps, and counts as settled only if it ends as close to a minimiser with eta S <= 2. If it meets
one with eta S > 2 to the last bit, so that no gradient is left to take it away, it has stalled.

What became of the others is told in `endings`. Wherever 2 stands above, it is the `reach` of the
method's rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float, Whole, Yes, numbers, one_or_each, plain_array
from flatmin.core.checks import check_choice, check_count, check_kind, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.progress import advancing
from flatmin.core.threads import thread_count
from flatmin.curvature import minimiser_spectrum, sharpness
from flatmin.data.samples import Problem, check_problem
from flatmin.dynamics import backends
from flatmin.dynamics.endings import (
    LEARNED_AT,
    Ending,
    State,
    calming,
    check_share,
    observe,
    window,
)
from flatmin.dynamics.measures import Task, passes_nothing, rounding_of_risk
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording, Trace
from flatmin.dynamics.rounds import Progress as Progress
from flatmin.dynamics.rounds import Rounds
from flatmin.dynamics.rule import PLAIN, Rule
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

MAX_STEPS = 10**12
# A gradient norm that switches the rule for convergence off.
_NO_TOLERANCE = 1e-200
# The state of a run that used up its steps, until it is told.
_OPEN = ""


def descend(
    problem: Problem,
    ensemble: Ensemble,
    learning_rate: ArrayLike,
    steps: ArrayLike,
    *,
    rule: Rule = PLAIN,
    beside: Float | None = None,
    recording: Recording | None = None,
    tolerance: float | None = None,
    learned_at: float = LEARNED_AT,
    until_learned: bool = False,
    observe_ends: bool = True,
    precision: str = "float64",
    threads: int | None = None,
    progress: bool | Progress | None = None,
) -> Outcome:
    """Gradient descent W <- W - eta grad R(W) of every network of an ensemble, or another rule.

    `learning_rate` and `steps` are one number or one per network. What the `rule` keeps beside the
    weights begins at 0, or at `beside` where a run is continued. `tolerance` is a gradient norm
    at which a run counts as settled (default: the rule of the module). A run has learned when its
    excess risk is at most `learned_at` of that of w = 0; with `until_learned` it ends there, at the
    next multiple of 16 steps. Without `observe_ends`, ends are taken as they come: a run that used
    up its steps has the state `learning`, and one that stopped is not checked for eta S <= 2.
    `progress` is called with the number of network steps just taken or saved.

    >>> from flatmin.data.generators import gaussian_samples
    >>> from flatmin.network.architecture import Architecture
    >>> from flatmin.network.initialisation import initialise
    >>> data = gaussian_samples(seed=0).regression()
    >>> start = initialise(Architecture.mlp(5, 4), "gaussian", 0.4, 0, networks=10)
    >>> descend(data, start, learning_rate=0.05, steps=5000).count(State.SETTLED)
    10
    """
    check_problem(problem)
    count = len(check_kind("ensemble", ensemble, Ensemble))
    architecture = ensemble.architecture
    rates = _per_network("learning_rate", learning_rate, count, check_positive)
    budget = _per_network(
        "steps", steps, count, lambda name, value: check_count(name, value, MAX_STEPS)
    )
    check_choice("precision", precision, ("float64", "float32"))
    if recording is not None and precision != "float64":
        raise SettingError("recording needs precision 'float64', got 'float32'")
    if recording is not None:
        check_kind("recording", recording, Recording).check_for(architecture)
    goal = check_share("learned_at", learned_at) * problem.regression().excess_at_zero
    state = _with_beside(ensemble.flat(), rule, beside)
    all_steps, threads = float(budget.sum()), thread_count(threads)
    course = _Course(problem, architecture, rule, goal, precision, all_steps, threads)
    with advancing(progress, "descent", int(budget.sum())) as advance:
        outcome = course.run(
            state, rates, budget, recording, tolerance, goal if until_learned else None, advance
        )
    if until_learned:
        outcome.learned[outcome.settled] = True
        outcome.state[outcome.settled] = State.LEARNING.value
    elif tolerance is None and observe_ends:
        outcome.state[course.at_rounding(outcome)] = State.SETTLED.value
        passing = outcome.settled & course.unstable(outcome.ensemble, rates, outcome.settled)
        if passing.any():
            again = course.run(
                state[passing], rates[passing], budget[passing], recording, _NO_TOLERANCE
            )
            near = again.gradient_norm <= outcome.gradient_norm[passing]
            near &= ~course.unstable(again.ensemble, rates[passing], near)
            # Without any gradient it stays, though the least disturbance would take it away.
            again.state[again.settled] = State.STALLED.value
            again.state[near] = State.SETTLED.value
            outcome = _replaced(outcome, again, passing)
    if observe_ends:
        course.tell_endings(outcome, rates, budget.astype(np.int64))
    outcome.state[outcome.state == _OPEN] = State.LEARNING.value
    return outcome


@dataclass(frozen=True, eq=False)
class _Course:
    """What all runs of one call share."""

    problem: Problem
    architecture: Architecture
    rule: Rule
    goal: float
    precision: str
    steps: float
    """Of all networks in all."""
    threads: int

    def run(
        self,
        state: Float,
        rates: Float,
        budget: Float,
        recording: Recording | None,
        tolerance: float | None,
        stop: float | None = None,
        progress: Progress | None = None,
    ) -> Outcome:
        """Runs from these weights, to their end; the states of those with no steps left are open.

        With `stop`, a run ends at this excess risk.
        """
        kind, architecture = np.dtype(self.precision), self.architecture
        backend = backends.choose(self.problem, architecture, self.rule, tolerance, kind, stop)
        backend.expect(self.steps * (1.0 if recording is None else recording.cost))
        task, parameters = Task.of(self.problem, architecture), architecture.parameters
        engine = Rounds(backend, task, architecture, state, rates, budget, recording)
        engine.finish(self.threads, progress)
        excess, square, distance = engine.measured
        stopped = np.where(engine.left > 0, State.SETTLED.value, _OPEN)
        last = np.asarray(engine.state, dtype=float)
        return Outcome(
            ensemble=Ensemble.from_flat(architecture, last[:, :parameters]),
            state=np.where(np.isfinite(excess), stopped, State.DIVERGED.value).astype("<U11"),
            steps=(budget - engine.left).astype(np.int64),
            excess_risk=excess,
            distance=distance,
            gradient_norm=np.sqrt(square),
            goal=self.goal,
            learned=excess <= self.goal,
            period=np.zeros(len(state), dtype=np.int64),
            more_steps=np.full(len(state), np.nan),
            recorded=engine.trace,
            rule=self.rule,
            beside=last[:, parameters:],
        )

    def at_rounding(self, outcome: Outcome) -> Yes:
        """Runs of linear networks whose excess risk is within what rounding leaves of it."""
        allowed = rounding_of_risk(self.problem.regression(), self.architecture)
        return np.asarray((outcome.excess_risk <= allowed) & self.architecture.linear)

    def unstable(self, ensemble: Ensemble, rates: Float, chosen: Yes) -> Yes:
        """Which of the chosen networks, at minimisers, have eta S above the rule's reach."""
        found = np.zeros(len(ensemble), dtype=bool)
        if chosen.any():
            some = ensemble[chosen]
            if self.architecture.linear:
                largest = minimiser_spectrum(self.problem, some)[:, -1]
            else:
                largest = sharpness(self.problem, some).value
            found[chosen] = rates[chosen] * largest > self.rule.reach
        return found

    def tell_endings(self, outcome: Outcome, rates: Float, budget: Whole) -> None:
        """Fill in the states of runs that used up their steps, by observing the steps after."""
        open_runs = np.flatnonzero(outcome.state == _OPEN)
        watch = Recording(1, ("excess_risk", "gradient"))
        for length, runs in _by_length(open_runs, window(budget[open_runs])):
            seen = self._watched(outcome, rates, runs, length, watch).values
            excess, gradient = seen["excess_risk"], seen["gradient"]
            idle = passes_nothing(self.problem, outcome.ensemble[runs], excess[0], gradient[0])
            moved = self.rule.pace * rates[runs]
            _tell(outcome, runs, observe(excess, gradient, moved, self.goal, idle))
        if self.rule.pace <= 1.0:
            return
        stride = math.ceil(self.rule.pace)
        swinging = open_runs[outcome.state[open_runs] == State.OSCILLATING.value]
        watch = Recording(stride, ("excess_risk",))
        for length, runs in _by_length(swinging, window(budget[swinging] // stride)):
            seen = self._watched(outcome, rates, runs, length * stride, watch).values
            ending = calming(seen["excess_risk_high"], stride, self.goal)
            calm = ending.state != State.OSCILLATING.value
            _tell(outcome, runs[calm], ending.some(calm))

    def _watched(
        self, outcome: Outcome, rates: Float, runs: Whole, steps: int, watch: Recording
    ) -> Trace:
        """What is seen of some runs in so many steps after their end."""
        state = np.hstack([outcome.ensemble.flat(), outcome.beside])[runs]
        double, budget = replace(self, precision="float64"), np.full(len(runs), float(steps))
        seen = double.run(state, rates[runs], budget, watch, _NO_TOLERANCE).recorded
        assert seen is not None
        return seen


def _by_length(runs: Whole, lengths: Whole) -> list[tuple[int, Whole]]:
    return [(int(length), runs[lengths == length]) for length in np.unique(lengths)]


def _tell(outcome: Outcome, runs: Whole, ending: Ending) -> None:
    outcome.state[runs] = ending.state
    outcome.period[runs], outcome.more_steps[runs] = ending.period, ending.more_steps


def _replaced(first: Outcome, again: Outcome, which: Yes) -> Outcome:
    """The first outcome with some runs taken from the second."""
    flat = first.ensemble.flat()
    flat[which] = again.ensemble.flat()
    for name in ("state", "steps", "excess_risk", "distance", "gradient_norm", "learned", "beside"):
        getattr(first, name)[which] = getattr(again, name)
    if first.recorded is not None and again.recorded is not None:
        for name, values in again.recorded.values.items():
            first.recorded.values[name][: len(values), which] = values
    return replace(first, ensemble=Ensemble.from_flat(first.ensemble.architecture, flat))


def _with_beside(weights: Float, rule: Rule, beside: Float | None) -> Float:
    """Weights followed by what the rule keeps beside them."""
    shape = (len(weights), rule.copies * weights.shape[1])
    beside = np.zeros(shape) if beside is None else numbers("beside", beside)
    if beside.shape != shape:
        raise SettingError(f"beside must have shape {shape}, got {beside.shape}")
    return np.hstack([weights, beside]) if rule.copies else weights


def _per_network(name: str, values: ArrayLike, count: int, check: Any) -> Float:
    found = one_or_each(name, values, count)
    for value in np.unique(plain_array(values)):
        check(name, value.item())
    return found
