"""Gradient flow of an ensemble: dW_k/dt = -grad_k, every network with its own steps and end.

Two integrators with one step control: `lanes.flow` for networks with one output, `flow_batched`
for several. This is their calling side. Lemma 1 says that W_{k+1}' W_{k+1} - W_k W_k' does not
change under gradient flow: its drift is in every result, next to the integrator's own error
estimate.

An estimate is never below the rounding that it ignores. A step stores W + (its change), which
rounds by at most eps |W| / 2, and the change, from which stages of size |W| were formed, by as much
again at most when it is not small against W; so n steps lose up to n eps |W|, which is added to the
sum of local errors. The drift is a difference of squares, measured no better than eps times them,
and the distance that of (eps (|w| + |w*|))^2: below these they are reported as these.
"""

from __future__ import annotations

from threading import Event, Lock
from typing import Any, Protocol

import numpy as np

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.checks import check_count, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.progress import advancing
from flatmin.core.threads import over_each, thread_count
from flatmin.curvature import sharpness
from flatmin.curvature.linear import backward
from flatmin.data.regression import Regression
from flatmin.dynamics.descent import Progress
from flatmin.dynamics.endings import LEARNED_AT, check_share, flow_endings
from flatmin.dynamics.flow_batched import BatchedFlow
from flatmin.dynamics.measures import (
    LAYER_MEASURES,
    below_saddles,
    drift,
    passes_nothing,
    rounding_of_risk,
    task,
    units_of,
)
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording, Trace
from flatmin.lanes import step_control as kernel
from flatmin.lanes.flow import flow as advance_lanes
from flatmin.lanes.layout import linear
from flatmin.lanes.step_control import FLOW_STEPS, RTOL, Settings
from flatmin.network.architecture import Family
from flatmin.network.ensemble import Ensemble

# The absolute tolerance is this share of the relative one, in the unit of weights: small weights
# near the saddle at 0 need it, and after training they are of the order of the unit.
ATOL_SHARE = 1e-3
# A flow has arrived where what is left moves no direction of the weights by more than about this
# share of them: a gradient of so many units, times lam/Lam.
ARRIVED = 1e-10
_SLICE = 64
_LANES = 4


def flow(
    regression: Regression,
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
    architecture = ensemble.architecture
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
    if not end > 0.0:
        raise SettingError(f"end must be a positive time, got {end!r}")
    if recording is not None:
        recording.check_for(architecture)
        if recording.most is not None and len(ensemble) > 1:
            raise SettingError("a recording with `most` records is for one network")
    settled = below_saddles(regression, architecture)
    goal = check_share("learned_at", learned_at) * regression.excess_at_zero
    most = float(check_count("max_steps", max_steps))
    rounding = rounding_of_risk(regression, architecture)
    settings = Settings(rtol, atol, tolerance, settled, rounding, most)
    integrator = INTEGRATORS[architecture.family](regression, ensemble, settings, float(end))
    run = _Flow(regression, ensemble, integrator, recording)
    with advancing(progress, "flow", int(max_steps) * len(ensemble)) as advance:
        run.finish(threads or thread_count(), advance)
    return run.outcome(goal)


class _Integrator(Protocol):
    """Networks in blocks on their way; `record` is `[block, FIELDS, network]` as in `lanes.flow`.

    A block may be advanced while others are, and how a run is cut into slices changes no bits.
    `whole` says that blocks are measured with the networks in them that ended.
    """

    record: Float
    slice_steps: int
    whole: bool

    def advance(self, block: int, steps: int) -> None:
        """At most `steps` attempted steps of every network of a block that has not ended."""
        ...

    def weights(self, block: int) -> Float:
        """The weights of a block as `[network, P]`."""
        ...

    def distance(self, flat: Float) -> Float:
        """|P - P*|_F^2 of networks given by their weights."""
        ...


class _Lanes:
    """Networks with one output, advanced by the compiled kernel."""

    slice_steps = _SLICE
    whole = True  # an idle lane costs nothing

    def __init__(
        self, regression: Regression, ensemble: Ensemble, settings: Settings, end: float
    ) -> None:
        self._regression, self._architecture = regression, ensemble.architecture
        # Networks end at very different steps: narrow blocks leave fewer lanes idle.
        self._weights = Ensemble.from_flat(self._architecture, ensemble.flat(), _LANES).lanes
        self.record: Float = kernel.new_record(len(ensemble), _LANES)
        self.record[:, kernel.END] = end
        self._settings = settings
        widths = (self._architecture.inputs, *self._architecture.widths)
        self._network = linear(widths, self._architecture.p, regression.sigma, regression.w_star)

    def advance(self, block: int, steps: int) -> None:
        """At most `steps` attempted steps of every lane of a block that has not ended."""
        lanes = (0.0,) * _LANES
        where = (steps, block, block + 1)
        advance_lanes(lanes, self._weights, self._network, self.record, self._settings, *where)

    def weights(self, block: int) -> Float:
        """The weights of a block as `[network, P]`."""
        return np.ascontiguousarray(self._weights[block].T)

    def distance(self, flat: Float) -> Float:
        """|w - w*|^2 of each network."""
        w = backward(self._architecture.split(flat), self._architecture.p)[0]
        return np.asarray(np.sum((w - self._regression.w_star) ** 2, axis=1))


INTEGRATORS: dict[Family, Any] = {
    Family.ONE_OUTPUT: _Lanes,
    Family.SEVERAL_OUTPUTS: BatchedFlow,
}


class _Flow:
    """An ensemble on its way: the integrator and the rows of the trace."""

    def __init__(
        self,
        regression: Regression,
        ensemble: Ensemble,
        integrator: _Integrator,
        recording: Recording | None,
    ) -> None:
        self._regression, self._architecture = regression, ensemble.architecture
        self._task = task(regression, self._architecture)
        self._initial = ensemble.flat()
        self._integrator, self._recording = integrator, recording
        self._every = 0 if recording is None else recording.every
        self._rows: dict[int, list[dict[str, Float]]] = {}
        self._last_time: dict[int, Float] = {}
        if recording is not None and "sharpness" in recording.quantities:
            self._vectors = np.zeros_like(self._initial)

    def finish(self, threads: int, progress: Progress | None) -> None:
        """Every block to its end, each by one thread at a time."""
        integrator, lock = self._integrator, Lock()

        def work(block: int, cancelled: Event) -> None:
            if self._every:
                integrator.advance(block, 0)
                self._keep(block)
            missing = self._every or integrator.slice_steps
            while self._running(block).any() and not cancelled.is_set():
                before, steps = self._attempts(block), min(missing, integrator.slice_steps)
                integrator.advance(block, steps)
                missing -= steps
                if self._every and (missing == 0 or not self._running(block).any()):
                    self._keep(block)
                missing = missing or self._every or integrator.slice_steps
                if progress is not None:
                    with lock:
                        progress(int(self._attempts(block) - before))

        over_each(work, len(integrator.record), threads)

    def _running(self, block: int) -> Yes:
        return np.asarray(self._integrator.record[block, kernel.STATE] == kernel.RUNNING)

    def _attempts(self, block: int) -> float:
        record = self._integrator.record[block]
        return float(np.max(record[kernel.ACCEPTED] + record[kernel.REJECTED]))

    def _members(self, block: int) -> slice:
        size = self._integrator.record.shape[2]
        return slice(block * size, min((block + 1) * size, len(self._initial)))

    def _keep(self, block: int) -> None:
        """One record of a block; networks that ended before it are NaN."""
        recording = self._recording
        assert recording is not None
        members = self._members(block)
        count = members.stop - members.start
        rows = self._rows.setdefault(block, [])
        record = self._integrator.record[block][:, :count]
        time = record[kernel.TIME] + record[kernel.TIME_LOW]
        moved = time != self._last_time[block] if rows else np.ones(count, dtype=bool)
        going = np.flatnonzero(moved | self._running(block)[:count] | self._integrator.whole)
        chosen = np.arange(members.start, members.stop)[going]
        flat = self._integrator.weights(block)[going]
        row = {"time": time[going]}
        if "excess_risk" in recording.quantities:
            row["excess_risk"] = record[kernel.EXCESS, going]
        if "gradient" in recording.quantities:
            row["gradient"] = np.sqrt(record[kernel.GRADIENT, going])
        if "distance" in recording.quantities:
            row["distance"] = self._integrator.distance(flat)
        if "sharpness" in recording.quantities:
            row |= self._sharpness(flat, chosen, len(rows), recording.sharpness_tolerance)
        layers, initial = self._architecture.split(flat), self._initial[chosen]
        for name in recording.layers:
            row[name] = LAYER_MEASURES[name](layers, self._architecture.split(initial), self._task)
        rows.append({})
        for name, values in row.items():
            rows[-1][name] = np.full((count, *values.shape[1:]), np.nan)
            rows[-1][name][moved] = values[moved[going]]
        self._last_time[block] = time
        if recording.most is not None and len(rows) > recording.most and len(rows) % 2:
            rows[:] = rows[::2]
            self._every *= 2

    def _sharpness(
        self, flat: Float, members: Whole, number: int, tolerance: float
    ) -> dict[str, Float]:
        """Sharpness of some networks for record `number`, from their last eigenvectors."""
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
        n, integrator = len(self._initial), self._integrator

        def field(row: int) -> Float:
            return integrator.record[:, row].reshape(-1)[:n].copy()

        blocks = range(len(integrator.record))
        flat = np.concatenate([integrator.weights(block) for block in blocks])[:n]
        split = self._architecture.split
        with np.errstate(over="ignore", invalid="ignore"):
            distance = integrator.distance(flat)
            moved = drift(split(flat), split(self._initial)).max(axis=1, initial=0.0)
            size = np.linalg.norm(np.maximum(np.abs(flat), np.abs(self._initial)), axis=1)
            accepted, eps = field(kernel.ACCEPTED), float(np.finfo(np.float64).eps)
            error = field(kernel.ERROR) + eps * accepted * size
            if self._architecture.depth > 1:
                moved = np.where(accepted > 0, np.maximum(moved, eps * size**2), moved)
            far = np.sqrt(distance) + 2.0 * np.linalg.norm(self._regression.w_star)
            distance = np.maximum(distance, (eps * far) ** 2)
        final = Ensemble.from_flat(self._architecture, flat, _LANES)
        excess, gradient = field(kernel.EXCESS), np.sqrt(field(kernel.GRADIENT))
        time = field(kernel.TIME) + field(kernel.TIME_LOW)
        idle = passes_nothing(self._regression, final, excess, gradient)
        arrived = field(kernel.STATE) == kernel.CONVERGED
        return Outcome(
            ensemble=final,
            state=flow_endings(arrived, excess, gradient, time, idle),
            steps=accepted.astype(np.int64),
            excess_risk=excess,
            distance=distance,
            gradient=gradient,
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
        length = max(len(rows) for rows in self._rows.values())
        values: dict[str, Any] = {}
        for block, rows in self._rows.items():
            for record, row in enumerate(rows):
                for name, numbers in row.items():
                    if name not in values:
                        shape = (length, len(self._initial), *numbers.shape[1:])
                        values[name] = np.full(shape, np.nan)
                    values[name][record, self._members(block)] = numbers
        return Trace(np.arange(length, dtype=np.int64) * self._every, values)
