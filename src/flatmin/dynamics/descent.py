"""Gradient descent of an ensemble: every run to its end, in parallel, with or without a trace.

Rounds. All runs still going are packed into blocks of lanes, sorted by the steps they have left; a
round advances them by a number of steps that grows from round to round; then runs that ended are
taken out and the rest is packed again. So a run that diverged early costs nothing afterwards.
Within a round each block is one job for a thread, cut into slices short enough that progress can
be shown and Ctrl-C answered. Neither rounds, blocks, threads nor slices change a run's bits.

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
steps, and counts as settled only if it ends as close to a minimiser with eta S <= 2.

What became of the others is told in `endings`.

With `momentum` a run has a velocity beside its weights: it is packed along with them, kept at the
end, and taken on where the run is continued. Wherever 2 stands above, it is the method's `reach`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.checks import check_choice, check_count, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.memory import check_memory
from flatmin.core.progress import Advance, advancing
from flatmin.core.threads import over_each, thread_count
from flatmin.curvature import minimiser_spectrum, sharpness
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
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
from flatmin.dynamics.measures import LAYER_MEASURES, Task, columns, passes_nothing, task
from flatmin.dynamics.momentum import Momentum
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording, Trace
from flatmin.lanes.sharpness import start_vector
from flatmin.lanes.traced_descent import COLUMNS, SHARPNESS_COLUMNS
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble, laid_out, lane_count

Progress = Advance

MAX_STEPS = 10**12
_ROUNDS = (256, 1024, 4096, 16384)
# Flops a slice may take: about a tenth of a second.
_SLICE_FLOPS = 1e9
# A gradient norm that switches the rule for convergence off.
_NO_TOLERANCE = 1e-200


def descend(
    problem: Regression | Samples,
    ensemble: Ensemble,
    learning_rate: ArrayLike,
    steps: ArrayLike,
    *,
    momentum: Momentum | None = None,
    velocity: Float | None = None,
    recording: Recording | None = None,
    tolerance: float | None = None,
    learned_at: float = LEARNED_AT,
    until_learned: bool = False,
    observe_ends: bool = True,
    precision: str = "float64",
    threads: int | None = None,
    progress: bool | Progress | None = None,
) -> Outcome:
    """Gradient descent W <- W - eta grad R(W) of every network of an ensemble.

    `learning_rate` and `steps` are one number or one per network. With `momentum` each has a
    velocity, `[network, P]`, that begins at `velocity` or at rest. `tolerance` is a gradient norm
    at which a run counts as settled (default: the rule of the module). A run has learned when its
    excess risk is at most `learned_at` of that of w = 0; with `until_learned` it ends there, at the
    next multiple of 16 steps. Without `observe_ends`, ends are taken as they come: a run that used
    up its steps has the state `learning`, and one that stopped is not checked for eta S <= 2.
    `progress` is told the number of network steps just taken or saved; True shows a bar.

    >>> from flatmin.data.generators import gaussian_samples
    >>> from flatmin.network.architecture import Architecture
    >>> from flatmin.network.initialisation import initialise
    >>> data = gaussian_samples(seed=0).regression()
    >>> start = initialise(Architecture.mlp(5, 4), "gaussian", 0.4, 0, networks=10)
    >>> descend(data, start, learning_rate=0.05, steps=5000).count(State.SETTLED)
    10
    """
    count = len(ensemble)
    rates = _per_network("learning_rate", learning_rate, count, check_positive)
    budget = _per_network(
        "steps", steps, count, lambda name, value: check_count(name, value, MAX_STEPS)
    )
    kind = np.dtype(check_choice("precision", precision, ("float64", "float32")))
    scene = task(problem, ensemble.architecture)
    goal = check_share("learned_at", learned_at) * scene.regression.excess_at_zero
    stop = goal if until_learned else None
    backend = backends.choose(problem, ensemble.architecture, tolerance, kind, stop, momentum)
    if recording is not None and precision != "float64":
        raise SettingError("recording needs precision 'float64', got 'float32'")
    if recording is not None:
        recording.check_for(ensemble.architecture)
    state = ensemble.flat()
    if momentum is not None:
        state = np.hstack([state, _initial_velocity(velocity, state)])
    run = _Run(backend, scene, ensemble.architecture, state, rates, budget, recording, momentum)
    with advancing(progress, "descent", int(budget.sum())) as advance:
        run.finish(threads or thread_count(), advance)
    outcome = run.outcome(goal)
    reach = 2.0 if momentum is None else momentum.reach
    if until_learned:
        outcome.learned[outcome.settled] = True
        outcome.state[outcome.settled] = State.LEARNING.value
    elif tolerance is None and observe_ends:
        outcome.state[_at_rounding(outcome, scene)] = State.SETTLED.value
        allowed = rates / reach
        passing = outcome.settled & _unstable(problem, outcome.ensemble, allowed, outcome.settled)
        if passing.any():
            patient = backends.choose(
                problem, ensemble.architecture, _NO_TOLERANCE, kind, momentum=momentum
            )
            again = _Run(
                patient, scene, ensemble.architecture, state[passing], rates[passing],
                budget[passing], recording, momentum,
            )  # fmt: skip
            again.finish(threads or thread_count(), None)
            outcome = _replaced(problem, outcome, again.outcome(goal), passing, allowed)
    if observe_ends:
        _tell_endings(problem, scene, outcome, rates, budget, threads or thread_count())
    outcome.state[outcome.state == _OPEN] = State.LEARNING.value
    return outcome


def _initial_velocity(velocity: Float | None, weights: Float) -> Float:
    if velocity is None:
        return np.zeros_like(weights)
    if velocity.shape != weights.shape:
        raise SettingError(f"velocity must have shape {weights.shape}, got {velocity.shape}")
    return velocity


def _at_rounding(outcome: Outcome, scene: Task) -> Yes:
    """Runs whose excess risk is within what rounding leaves of it.

    w is a product of L matrices: its entries are known to about eps sum_k d_k |w*|, and the excess
    risk of such an error is at most Lam times its square.
    """
    architecture, data = outcome.ensemble.architecture, scene.regression
    if not architecture.linear:
        return np.zeros(len(outcome.ensemble), dtype=bool)
    error = np.finfo(float).eps * sum(architecture.widths) * data.w_star_norm
    return np.asarray(outcome.excess_risk <= data.largest_eigenvalue * error**2)


def _tell_endings(
    problem: Regression | Samples,
    scene: Task,
    outcome: Outcome,
    rates: Float,
    budget: Float,
    threads: int,
) -> None:
    """Fill in the states of runs that used up their steps, by observing the steps after them."""
    open_runs = np.flatnonzero(outcome.state == _OPEN)
    lengths = window(budget[open_runs].astype(np.int64))
    for length in np.unique(lengths):
        runs = open_runs[lengths == length]
        ending = _observed(problem, scene, outcome, rates, runs, int(length), threads)
        _tell(outcome, runs, ending)
    if outcome.momentum is None:
        return
    stride = math.ceil(outcome.momentum.pace)
    swinging = open_runs[outcome.state[open_runs] == State.OSCILLATING.value]
    lengths = window(budget[swinging].astype(np.int64) // stride)
    for length in np.unique(lengths):
        runs = swinging[lengths == length]
        steps, watch = int(length) * stride, Recording(stride, ("excess_risk",))
        seen = _watched(problem, scene, outcome, rates, runs, steps, watch, threads)
        ending = calming(seen.values["excess_risk_high"], stride, outcome.goal)
        calm = ending.state != State.OSCILLATING.value
        _tell(outcome, runs[calm], ending.some(calm))


def _tell(outcome: Outcome, runs: Whole, ending: Ending) -> None:
    outcome.state[runs] = ending.state
    outcome.period[runs], outcome.more_steps[runs] = ending.period, ending.more_steps


def _watched(
    problem: Regression | Samples,
    scene: Task,
    outcome: Outcome,
    rates: Float,
    runs: Whole,
    steps: int,
    watch: Recording,
    threads: int,
) -> Trace:
    """What is seen of some runs in so many steps after their end."""
    architecture, state = outcome.ensemble.architecture, outcome.ensemble.flat()[runs]
    momentum = outcome.momentum
    if outcome.velocity is not None:
        state = np.hstack([state, outcome.velocity[runs]])
    patient = backends.choose(
        problem, architecture, _NO_TOLERANCE, np.dtype("float64"), momentum=momentum
    )
    budget = np.full(len(runs), float(steps))
    after = _Run(patient, scene, architecture, state, rates[runs], budget, watch, momentum)
    after.finish(threads, None)
    seen = after.outcome(outcome.goal).recorded
    assert seen is not None
    return seen


def _observed(
    problem: Regression | Samples,
    scene: Task,
    outcome: Outcome,
    rates: Float,
    runs: Whole,
    length: int,
    threads: int,
) -> Ending:
    """The endings of some runs from so many steps after their end."""
    watch = Recording(1, ("excess_risk", "gradient"))
    seen = _watched(problem, scene, outcome, rates, runs, length, watch, threads)
    excess, gradient = seen.values["excess_risk"], seen.values["gradient"]
    some = outcome.ensemble[runs]
    idle = passes_nothing(scene, some, excess[0], gradient[0])
    pace = 1.0 if outcome.momentum is None else outcome.momentum.pace
    return observe(excess, gradient, pace * rates[runs], outcome.goal, idle)


def _unstable(
    problem: Regression | Samples, ensemble: Ensemble, allowed: Float, chosen: Yes
) -> Yes:
    """Which of the chosen networks, at minimisers, have S > edge; `allowed` is 1/edge."""
    found = np.zeros(len(ensemble), dtype=bool)
    if chosen.any():
        some = ensemble[chosen]
        if ensemble.architecture.linear:
            largest = minimiser_spectrum(problem, some)[:, -1]
        else:
            largest = sharpness(problem, some).value
        found[chosen] = allowed[chosen] * largest > 1.0
    return found


def _replaced(
    problem: Regression | Samples,
    first: Outcome,
    again: Outcome,
    passing: Yes,
    allowed: Float,
) -> Outcome:
    """The first outcome with the passing runs taken from the second."""
    near = again.gradient <= first.gradient[passing]
    settled = near & ~_unstable(problem, again.ensemble, allowed[passing], near)
    flat, trace = first.ensemble.flat(), first.recorded
    flat[passing] = again.ensemble.flat()
    state, steps, excess, distance, gradient = (
        np.array(getattr(first, name))
        for name in ("state", "steps", "excess_risk", "distance", "gradient")
    )
    learned = np.array(first.learned)
    learned[passing] = again.learned
    state[passing] = np.where(settled, State.SETTLED.value, again.state)
    steps[passing], excess[passing] = again.steps, again.excess_risk
    distance[passing], gradient[passing] = again.distance, again.gradient
    velocity = first.velocity
    if velocity is not None:
        velocity[passing] = again.velocity
    if trace is not None:
        assert again.recorded is not None
        for name, values in again.recorded.values.items():
            trace.values[name][: len(values), passing] = values
    ensemble = Ensemble.from_flat(first.ensemble.architecture, flat)
    return replace(
        first, ensemble=ensemble, state=state, steps=steps, excess_risk=excess, distance=distance,
        gradient=gradient, learned=learned, recorded=trace, velocity=velocity,
    )  # fmt: skip


def _per_network(name: str, values: ArrayLike, count: int, check: Any) -> Float:
    array = np.asarray(values)
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (count,)):
        raise SettingError(f"{name} must be one number or one per network ({count})")
    for value in np.unique(np.atleast_1d(array)):
        check(name, value.item())
    return np.broadcast_to(array.astype(float), (count,)).copy()


@dataclass
class _Packed:
    """One round's networks in lanes: weights, per-lane numbers, start vectors.

    `weights` `[block, P or 2 P, lane]`: with momentum the velocities follow the weights.
    `extremes` `[block, 6, lane]` are those of a stride that was begun, as `descend_block` has them.
    """

    members: Whole
    weights: NDArray[Any]
    rate: NDArray[Any]
    left: NDArray[Any]
    excess: NDArray[Any]
    gradient: NDArray[Any]
    distance: NDArray[Any]
    extremes: NDArray[Any]
    vectors: Float | None


class _Run:
    """The state of all runs between rounds, one row per network."""

    def __init__(
        self,
        backend: backends.Backend,
        task: Task,
        architecture: Architecture,
        state: Float,
        rates: Float,
        budget: Float,
        recording: Recording | None,
        momentum: Momentum | None,
    ) -> None:
        self._backend, self._task = backend, task
        self._architecture, self._momentum = architecture, momentum
        # Weights, and with momentum velocities after them.
        self._flat = state.astype(backend.kind)
        count, parameters = self._flat.shape
        self._rate, self._budget, self._left = rates, budget, budget.copy()
        self._excess, self._gradient, self._distance = np.full((3, count), np.nan)
        self._stopped = np.zeros(count, dtype=bool)
        self._taken = 0
        self._recording = recording
        self._vectors: Float | None = None
        if recording is not None:
            self._prepare_trace(recording, count, parameters)

    def _prepare_trace(self, recording: Recording, count: int, parameters: int) -> None:
        records = 1 + int(self._budget.max()) // recording.every
        depth = self._architecture.depth
        if "sharpness" in recording.quantities:
            dimension = self._backend.range_dimension
            self._vectors = np.tile(start_vector(dimension), (count, 1))
        shapes: dict[str, tuple[int, ...]] = {name: (records, count) for name in recording.columns}
        shapes |= {name: (records, count, columns(name, depth)) for name in recording.layers}
        numbers = sum(float(np.prod(shape)) for shape in shapes.values())
        check_memory(
            f"a trace of {records} records of {count} networks",
            8 * numbers + 32 * count * parameters,
        )
        self._values = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        self._steps = np.arange(records, dtype=np.int64) * recording.every
        self._initial = self._architecture.split(self._weights().astype(float))

    def _weights(self) -> NDArray[Any]:
        """Without the velocities."""
        return self._flat[:, : self._architecture.parameters]

    def finish(self, threads: int, progress: Progress | None) -> None:
        """Rounds until every run has ended."""
        total = int(self._budget.sum())
        reported = 0
        if self._recording is not None:
            self._record_start(threads)
        rounds = iter(_ROUNDS)
        length = next(rounds)
        while not self._stopped.all():
            self._round(length, threads, progress)
            length = next(rounds, length)
        if progress is not None:
            # Steps that early ends have saved count as done.
            reported = int((self._budget - self._left).sum())
            progress(total - reported)

    def _round(self, length: int, threads: int, progress: Progress | None) -> None:
        """Advance every run still going by `length` steps, rounded up to whole records."""
        if self._recording is not None:
            every = self._recording.every
            length = -(-length // every) * every
        packed = self._pack(threads)
        blocks, _, lanes = packed.weights.shape
        lock = Lock()

        def work(block: int, cancelled: Event) -> None:
            done, most = 0, self._slice_steps(lanes)
            while done < length and not cancelled.is_set():
                before = packed.left[block].sum()
                done += self._advance(packed, block, self._taken + done, min(most, length - done))
                if progress is not None:
                    with lock:
                        progress(int(before - packed.left[block].sum()))
                if not np.any((packed.rate[block] > 0) & (packed.left[block] > 0)):
                    break

        over_each(work, blocks, threads)
        self._unpack(packed)
        self._taken += length

    def _slice_steps(self, lanes: int) -> int:
        """Steps that a slice may take."""
        cost = self._backend.step_flops * lanes
        if self._vectors is not None and self._recording is not None:
            often = min(self._recording.sharpness_steps, self._recording.every)
            cost *= 1 + 10 * often / self._recording.every  # a sharpness costs about ten steps
        return max(1, int(_SLICE_FLOPS / cost))

    def _advance(self, packed: _Packed, block: int, begin: int, most: int) -> int:
        """At most so many steps of one block, with the records among them; how many it took."""
        recording = self._recording
        if recording is None:
            self._backend.advance(packed, block, begin, most)
            return most
        every = recording.every
        missing = every - begin % every
        # The steps at which sharpness is measured are not cut.
        before = missing - min(recording.sharpness_steps, every)
        if most < missing and before > 0:
            steps = min(most, before)
            self._backend.advance(packed, block, begin, steps)
            return steps
        # The rest of a record that was begun, one record with its layers, or many in one go.
        single = missing < every or bool(recording.layers)
        steps, records = (missing, 1) if single else (every, max(1, most // every))
        number = begin // every + 1
        rows = self._backend.trace(packed, block, begin, steps, records, number, recording)
        self._keep(packed, block, number, rows)
        return steps * records

    def _keep(self, packed: _Packed, block: int, first: int, rows: Float) -> None:
        """Put a block's records `[record, quantity, lane]` where they belong."""
        lanes = rows.shape[2]
        members = packed.members[block * lanes : (block + 1) * lanes]
        where = slice(first, min(first + rows.shape[0], len(self._steps)))
        rows = rows[: where.stop - where.start, :, : len(members)]
        for column, name in enumerate((*COLUMNS, *SHARPNESS_COLUMNS)[: rows.shape[1]]):
            if name in self._values:
                values = rows[:, column]
                squared = name.startswith("gradient")
                self._values[name][where, members] = np.sqrt(values) if squared else values
        assert self._recording is not None
        if self._recording.layers and rows.shape[0]:
            weights = packed.weights[block, : self._architecture.parameters]
            flat = weights.T[: len(members)].astype(float)
            alive = ~np.isnan(rows[0, 0])
            if alive.any():
                self._keep_layers(first, members[alive], flat[alive])

    def _keep_layers(self, record: int, members: Whole, flat: Float) -> None:
        assert self._recording is not None
        layers = self._architecture.split(flat)
        initial = [w[members] for w in self._initial]
        for name in self._recording.layers:
            self._values[name][record, members] = LAYER_MEASURES[name](layers, initial, self._task)

    def _record_start(self, threads: int) -> None:
        """Record 0: the initial weights."""
        assert self._recording is not None
        packed = self._pack(threads)
        for block in range(packed.weights.shape[0]):
            rows = self._backend.trace(packed, block, 0, 0, 1, 0, self._recording)
            self._keep(packed, block, 0, rows)
        self._unpack(packed)

    def _pack(self, threads: int) -> _Packed:
        """Runs still going, sorted by steps left so that the lanes of a block end together."""
        going = np.flatnonzero(~self._stopped)
        members = going[np.argsort(self._left[going], kind="stable")]
        # Enough blocks for every thread.
        lanes = lane_count(self._flat.shape[1], -(-len(members) // threads))
        weights = laid_out(self._flat[members], lanes)

        def column(values: Float) -> NDArray[Any]:
            padded = np.zeros(weights.shape[0] * lanes, dtype=self._backend.kind)
            padded[: len(members)] = values[members]
            return padded.reshape(-1, lanes)

        watched = 6 if self._recording is not None else 0
        extremes = np.full((weights.shape[0], watched, lanes), np.inf, self._backend.kind)
        extremes[:, 1::2] = -np.inf
        vectors = None
        if self._vectors is not None:
            vectors = np.zeros((weights.shape[0] * lanes, self._vectors.shape[1]))
            vectors[: len(members)] = self._vectors[members]
            vectors = np.ascontiguousarray(
                vectors.reshape(-1, lanes, vectors.shape[1]).transpose(0, 2, 1)
            )
        return _Packed(
            members,
            weights,
            column(self._rate),
            column(self._left),
            column(self._excess),
            column(self._gradient),
            column(self._distance),
            extremes,
            vectors,
        )

    def _unpack(self, packed: _Packed) -> None:
        members, count = packed.members, len(packed.members)
        rows = packed.weights.transpose(0, 2, 1).reshape(-1, packed.weights.shape[1])
        self._flat[members] = rows[:count]
        for name in ("left", "excess", "gradient", "distance"):
            getattr(self, f"_{name}")[members] = getattr(packed, name).ravel()[:count]
        if packed.vectors is not None and self._vectors is not None:
            rows = packed.vectors.transpose(0, 2, 1).reshape(-1, packed.vectors.shape[1])
            self._vectors[members] = rows[:count]
        ended = (packed.rate.ravel()[:count] == 0) | (packed.left.ravel()[:count] <= 0)
        self._stopped[members] = ended

    def outcome(self, goal: float) -> Outcome:
        """The record of the end; states of runs that used up their steps are open."""
        count = len(self._flat)
        state = np.where(
            ~np.isfinite(self._excess),
            State.DIVERGED.value,
            np.where(self._left > 0, State.SETTLED.value, _OPEN),
        )
        trace = None
        if self._recording is not None:
            trace = Trace(self._steps, self._values)
        parameters = self._architecture.parameters
        velocity = self._flat[:, parameters:].astype(float)
        return Outcome(
            ensemble=Ensemble.from_flat(self._architecture, self._weights().astype(float)),
            state=state.astype("<U11"),
            steps=(self._budget - self._left).astype(np.int64),
            excess_risk=self._excess,
            distance=self._distance,
            gradient=np.sqrt(self._gradient),
            goal=goal,
            learned=self._excess <= goal,
            period=np.zeros(count, dtype=np.int64),
            more_steps=np.full(count, np.nan),
            recorded=trace,
            momentum=self._momentum,
            velocity=None if self._momentum is None else velocity,
        )


_OPEN = ""
