"""Gradient flow of an ensemble: dW_k/dt = -grad_k, every network with its own steps and end.

The calling side of `lanes.flow`. Lemma 1 says that W_{k+1}' W_{k+1} - W_k W_k' does not change
under gradient flow: its drift is in every result, next to the integrator's own error estimate.

An estimate is never below the rounding that it ignores. A step stores W + (its change), which
rounds by at most eps |W| / 2, and the change, from which stages of size |W| were formed, by as much
again at most when it is not small against W; so n steps lose up to n eps |W|, which is added to the
sum of local errors. The drift is a difference of squares, measured no better than eps times them,
and the distance that of (eps (|w| + |w*|))^2: below these they are reported as these.
"""

from __future__ import annotations

from threading import Event, Lock

import numpy as np

from flatmin.core.arrays import Float, Whole
from flatmin.core.checks import check_count, check_kind, check_positive, number_of, shown
from flatmin.core.errors import SettingError
from flatmin.core.memory import check_memory
from flatmin.core.progress import advancing
from flatmin.core.threads import over_blocks, over_each, thread_count
from flatmin.curvature import sharpness
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, regression_of
from flatmin.dynamics.descent import Progress
from flatmin.dynamics.endings import LEARNED_AT, check_share, flow_endings
from flatmin.dynamics.measures import (
    LAYER_MEASURES,
    Task,
    below_saddles,
    drift,
    error_of_map,
    passes_nothing,
    rounding_of_risk,
    units_of,
)
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording, Trace
from flatmin.lanes import flow_one_output, flow_several_outputs
from flatmin.lanes import step_control as kernel
from flatmin.lanes.flow import empty_seats, queue_of
from flatmin.lanes.layout import linear
from flatmin.lanes.step_control import FLOW_STEPS, RTOL, Settings
from flatmin.lanes.tableau import SIZE
from flatmin.network.architecture import Family
from flatmin.network.ensemble import Ensemble, lane_count

# The absolute tolerance is this share of the relative one, in the unit of weights: small weights
# near the saddle at 0 need it, and after training they are of the order of the unit.
ATOL_SHARE = 1e-3
# A flow has arrived where what is left moves no direction of the weights by more than about this
# share of them: a gradient of so many units, times lam/Lam.
ARRIVED = 1e-10
# Flops a slice may take: some hundredths of a second.
_SLICE_FLOPS = 2e8

INTEGRATORS = {
    Family.ONE_OUTPUT: flow_one_output.flow,
    Family.SEVERAL_OUTPUTS: flow_several_outputs.flow,
}


def flow(
    regression: Problem,
    ensemble: Ensemble,
    *,
    rtol: float = RTOL,
    atol: float | None = None,
    tolerance: float | None = None,
    end: float = float("inf"),
    max_steps: int = FLOW_STEPS,
    learned_at: float = LEARNED_AT,
    recording: Recording | None = None,
    threads: int | None = None,
    progress: bool | Progress | None = None,
) -> Outcome:
    """Gradient flow until |grad| <= tolerance at a minimiser, `end`, or `max_steps`.

    `tolerance` is by default 1e-10 lam |w*|^2 / c with the unit of weights c = (|w*|/|p|)^{1/L}
    (`theory.units`), and `atol` a thousandth of `rtol` times c. A flow has also arrived where its
    excess risk is what rounding leaves of it.

    `recording.every` counts steps of the integrator (accepted or not). The outcome's `extras` hold
    `time`, `drift` (of Lemma 1's invariants), `error` (the sum of local error estimates and of what
    steps round away) and `rejected`.
    """
    regression = regression_of(regression)
    architecture = check_kind("ensemble", ensemble, Ensemble).architecture
    if architecture.family not in INTEGRATORS:
        raise SettingError(
            "gradient flow is for linear networks with one output or several, "
            f"got {architecture.beyond}"
        )
    architecture.check_fits(regression)
    rtol = check_positive("rtol", rtol)
    units = units_of(regression, architecture)
    if tolerance is None:
        tolerance = ARRIVED * units.gradient / regression.condition_number
    tolerance = check_positive("tolerance", tolerance)
    atol = rtol * ATOL_SHARE * units.weight if atol is None else check_positive("atol", atol)
    time = number_of(end)
    if time is None or not time > 0.0:
        raise SettingError(f"end must be a positive time, got {shown(end)}")
    if recording is not None:
        check_kind("recording", recording, Recording).check_for(architecture)
        if recording.most is not None and len(ensemble) > 1:
            raise SettingError("a recording with `most` entries is for one network")
    settled = below_saddles(regression, architecture)
    goal = check_share("learned_at", learned_at) * regression.excess_at_zero
    most = float(check_count("max_steps", max_steps))
    rounding = rounding_of_risk(regression, architecture)
    settings = Settings(rtol, atol, tolerance, settled, rounding, most)
    run = _Flow(regression, ensemble, settings, time, recording, thread_count(threads))
    with advancing(progress, "flow", int(max_steps) * len(ensemble)) as advance:
        run.finish(advance)
    return run.outcome(goal)


class _Flow:
    """An ensemble on its way: weights, the integrator's controls and the entries of the trace."""

    def __init__(
        self,
        regression: Regression,
        ensemble: Ensemble,
        settings: Settings,
        end: float,
        recording: Recording | None,
        threads: int,
    ) -> None:
        architecture = ensemble.architecture
        self._regression, self._architecture = regression, architecture
        self._task, self._settings = Task.of(regression, architecture), settings
        self._initial = ensemble.flat()
        self._weights = self._initial.copy()
        self._controls = kernel.new_controls(len(ensemble))
        self._controls[:, kernel.END] = end
        one, target = architecture.family is Family.ONE_OUTPUT, regression.w_star.T
        self._network = linear(
            (architecture.inputs, *architecture.widths),
            architecture.p if one else (),
            regression.sigma,
            target if one else np.atleast_2d(target),
        )
        # What a lane holds, in networks: the derivatives of one output are small.
        held = 3 if one else SIZE + 3
        numbers, each = held * architecture.parameters, -(-len(ensemble) // threads)
        self._lanes, self._threads = lane_count(numbers, each), threads
        # The threads that have something to do.
        busy = min(threads, -(-len(ensemble) // self._lanes))
        check_memory("gradient flow", 8.0 * busy * self._lanes * numbers)
        self._recording = recording
        self._every = 0 if recording is None else recording.every
        self._rows: list[dict[str, Float]] = []
        self._kept = np.full(len(ensemble), np.nan)  # time of the last row of each network
        if recording is not None and "sharpness" in recording.quantities:
            self._vectors = np.zeros_like(self._initial)

    def finish(self, progress: Progress | None) -> None:
        """Every network to its end, with a row of the trace every so many attempted steps."""
        until = 0.0 if self._every else np.inf
        while len(going := np.flatnonzero(self._field(kernel.STATE) == kernel.RUNNING)):
            self._advance(going, until, progress)
            if self._every:
                self._keep(going)
                until += self._every

    def _field(self, column: int) -> Float:
        return np.asarray(self._controls[:, column].copy())

    @property
    def _time(self) -> Float:
        return self._field(kernel.TIME) + self._field(kernel.TIME_LOW)

    def _advance(self, going: Whole, until: float, progress: Progress | None) -> None:
        """These networks, until they end or have attempted so many steps."""
        advance, lock = INTEGRATORS[self._architecture.family], Lock()
        queue, lanes = queue_of(going, until), (0.0,) * self._lanes
        flops = 6.0 * SIZE * self._regression.targets * self._initial[0].size * self._lanes
        steps = max(1, int(_SLICE_FLOPS / flops))

        def work(thread: int, cancelled: Event) -> None:
            seats, begun = empty_seats(self._lanes), False
            while not cancelled.is_set() and (not begun or np.any(seats >= 0)):
                begun = True
                attempted = advance(
                    lanes, self._weights, self._network, self._controls, self._settings,
                    queue, seats, steps,
                )  # fmt: skip
                if progress is not None:
                    with lock:
                        progress(int(attempted))

        over_each(work, min(self._threads, -(-len(going) // self._lanes)), self._threads)

    def _keep(self, going: Whole) -> None:
        """One row of the trace, of the networks that have moved since the last."""
        recording, number = self._recording, len(self._rows)
        assert recording is not None
        row: dict[str, Float] = {}
        going = going[self._time[going] != self._kept[going]]
        self._kept[going] = self._time[going]
        known = {
            "time": self._time[going],
            "excess_risk": self._field(kernel.EXCESS)[going],
            "gradient": np.sqrt(self._field(kernel.GRADIENT)[going]),
        }

        def keep(name: str, members: Whole, values: Float) -> None:
            blank = row.setdefault(name, np.full((len(self._initial), *values.shape[1:]), np.nan))
            blank[members] = values

        for name, values in known.items():
            if name == "time" or name in recording.quantities:
                keep(name, going, values)

        def measure(first: int, last: int) -> None:
            members = going[first:last]
            flat = self._weights[members]
            layers, initial = map(self._architecture.split, (flat, self._initial[members]))
            if "distance" in recording.quantities:
                keep("distance", members, self._distance(flat))
            if "sharpness" in recording.quantities:
                found = self._sharpness(flat, members, number, recording.sharpness_tolerance)
                for name, values in found.items():
                    keep(name, members, values)
            for name in recording.layers:
                keep(name, members, LAYER_MEASURES[name](layers, initial, self._task))

        if len(going):
            over_blocks(measure, len(going), self._threads)
        self._rows.append(row)
        if recording.most is not None and len(self._rows) > recording.most and number % 2 == 0:
            self._rows = self._rows[::2]
            self._every *= 2

    def _distance(self, flat: Float) -> Float:
        """|P - P*|_F^2 of networks given by their weights."""
        error = error_of_map(self._architecture.split(flat), self._task)
        return np.asarray(np.sum(error**2, axis=(1, 2)))

    def _sharpness(
        self, flat: Float, members: Whole, number: int, tolerance: float
    ) -> dict[str, Float]:
        """Sharpness of some networks for entry `number`, from their last eigenvectors."""
        start: Float | None = self._vectors[members]
        # A start without a random part could follow an eigenvector that is no longer the top.
        if number == 0 or number % 8 == 1 or not np.all(np.any(start, axis=1)):
            start = None
        ensemble = Ensemble.from_flat(self._architecture, flat)
        found = sharpness(
            self._regression, ensemble, tolerance=tolerance, start=start, certify=False
        )
        self._vectors[members] = found.vector
        return {"sharpness": found.value, "sharpness_residual": found.residual}

    def outcome(self, goal: float) -> Outcome:
        """The record of the end."""
        n, flat, field = len(self._initial), self._weights, self._field
        split = self._architecture.split
        distance, moved = np.empty((2, n))

        def measure(first: int, last: int) -> None:
            some = slice(first, last)
            with np.errstate(over="ignore", invalid="ignore"):
                distance[some] = self._distance(flat[some])
                drifts = drift(split(flat[some]), split(self._initial[some]))
                moved[some] = drifts.max(axis=1, initial=0.0)

        over_blocks(measure, n, self._threads)
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.linalg.norm(np.maximum(np.abs(flat), np.abs(self._initial)), axis=1)
            accepted, eps = field(kernel.ACCEPTED), float(np.finfo(np.float64).eps)
            error = field(kernel.ERROR) + eps * accepted * size
            if self._architecture.depth > 1:
                moved = np.where(accepted > 0, np.maximum(moved, eps * size**2), moved)
            far = np.sqrt(distance) + 2.0 * np.linalg.norm(self._regression.w_star)
            distance = np.maximum(distance, (eps * far) ** 2)
        final = Ensemble.from_flat(self._architecture, flat)
        excess, gradient = field(kernel.EXCESS), np.sqrt(field(kernel.GRADIENT))
        time = self._time
        idle = passes_nothing(self._regression, final, excess, gradient)
        arrived = field(kernel.STATE) == kernel.CONVERGED
        return Outcome(
            ensemble=final,
            state=flow_endings(arrived, excess, gradient, time, idle),
            steps=accepted.astype(np.int64),
            excess_risk=excess,
            distance=distance,
            gradient_norm=gradient,
            goal=goal,
            learned=excess <= goal,
            period=np.zeros(n, dtype=np.int64),
            more_steps=np.full(n, np.nan),
            recorded=self._trace(),
            extras={
                "time": time,
                "drift": moved,
                "error": error,
                "rejected": field(kernel.REJECTED),
            },
        )

    def _trace(self) -> Trace | None:
        if self._recording is None:
            return None
        values: dict[str, Float] = {}
        for number, row in enumerate(self._rows):
            for name, numbers in row.items():
                if name not in values:
                    values[name] = np.full((len(self._rows), *numbers.shape), np.nan)
                values[name][number] = numbers
        steps = np.arange(len(self._rows), dtype=np.int64) * self._every
        return Trace(step=steps, values=values)
