"""Gradient flow of an ensemble: dW_k/dt = -grad_k, every network with its own steps and end.

The integrator is `flow_kernel`; this is its calling side. Lemma 1 says that
W_{k+1}' W_{k+1} - W_k W_k' does not change under gradient flow: its drift is in every result, next
to the integrator's own error estimate.
"""

from __future__ import annotations

from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatmin.checks import check_count, check_positive
from flatmin.curvature import sharpness
from flatmin.curvature.linear import backward
from flatmin.dynamics.descent import Progress
from flatmin.dynamics.measures import LAYER_MEASURES, drift, task
from flatmin.dynamics.outcome import Outcome, Recording, State, Trace
from flatmin.errors import SettingError
from flatmin.network import Ensemble
from flatmin.parallel import over_each, thread_count
from flatmin.problem import Regression

Float = NDArray[np.float64]

RTOL = 1e-8
# The absolute tolerance is this share of the relative one: small weights near the saddle at 0
# need it, and the size of a weight after training is of order one.
ATOL_SHARE = 1e-3
TOLERANCE = 1e-10
MAX_STEPS = 100_000
_SLICE = 64
_LANES = 4


def flow(
    regression: Regression,
    ensemble: Ensemble,
    *,
    rtol: float = RTOL,
    atol: float | None = None,
    tolerance: float = TOLERANCE,
    end: float = float("inf"),
    max_steps: int = MAX_STEPS,
    recording: Recording | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Gradient flow until |grad| <= tolerance at a minimiser, time `end`, or a stall.

    `recording.every` counts steps of the integrator (accepted or not). The outcome's `extras` hold
    `time`, `drift` (of Lemma 1's invariants), `error` (the sum of local error estimates) and
    `rejected`.
    """
    architecture = ensemble.architecture
    if not architecture.linear or architecture.output is None:
        raise SettingError("gradient flow is for linear networks with one output")
    if architecture.inputs != regression.d:
        raise SettingError(
            f"the network takes {architecture.inputs} inputs but the data have {regression.d}"
        )
    rtol, tolerance = check_positive("rtol", rtol), check_positive("tolerance", tolerance)
    atol = rtol * ATOL_SHARE if atol is None else check_positive("atol", atol)
    if not end > 0.0:
        raise SettingError(f"end must be a positive time, got {end!r}")
    if recording is not None:
        recording.check_for(architecture)
    run = _Flow(regression, ensemble, recording)
    settings = (rtol, atol, tolerance, run.settled, float(check_count("max_steps", max_steps)))
    run.finish(settings, float(end), threads or thread_count(), progress)
    return run.outcome()


class _Flow:
    """An ensemble on its way: weights in lanes, the kernel's record, and the rows of the trace."""

    def __init__(
        self, regression: Regression, ensemble: Ensemble, recording: Recording | None
    ) -> None:
        self._regression, self._recording = regression, recording
        self._architecture = ensemble.architecture
        self._task = task(regression, self._architecture)
        # Networks end at very different steps: narrow blocks leave fewer lanes idle.
        self._initial = Ensemble.from_flat(self._architecture, ensemble.flat(), _LANES)
        self._weights = self._initial.lanes.copy()
        self._rows: dict[int, list[dict[str, Float]]] = {}
        self._vectors: dict[int, Float | None] = {}
        self._last_time: dict[int, Float] = {}
        self.settled = 0.5 * (regression.risk_at_zero - regression.risk_min)
        self._shared = (
            np.array([self._architecture.inputs, *self._architecture.widths], dtype=np.int64),
            self._architecture.p,
            regression.sigma,
            regression.w_star,
        )

    def finish(
        self, settings: tuple[float, ...], end: float, threads: int, progress: Progress | None
    ) -> None:
        """Every block to its end, each by one thread at a time."""
        from flatmin.dynamics import flow_kernel as kernel

        blocks, _, lanes = self._weights.shape
        self._record = kernel.new_record(len(self._initial), lanes)
        self._record[:, kernel.END] = end
        every = self._recording.every if self._recording is not None else _SLICE
        lock = Lock()

        def work(block: int, cancelled: Event) -> None:
            if self._recording is not None:
                self._call(settings, 0, block)
                self._keep(block)
            while not cancelled.is_set() and np.any(self._record[block, kernel.STATE] == 0):
                before = self._attempts(block)
                self._call(settings, every, block)
                if self._recording is not None:
                    self._keep(block)
                if progress is not None:
                    with lock:
                        progress(int(self._attempts(block) - before))

        over_each(work, blocks, threads)

    def _call(self, settings: tuple[float, ...], steps: int, block: int) -> None:
        from flatmin.dynamics import flow_kernel as kernel

        lanes = (0.0,) * self._weights.shape[2]
        kernel.flow(
            lanes, self._weights, *self._shared, self._record, *settings, steps, block, block + 1
        )

    def _attempts(self, block: int) -> float:
        from flatmin.dynamics import flow_kernel as kernel

        record = self._record[block]
        return float(np.max(record[kernel.ACCEPTED] + record[kernel.REJECTED]))

    def _members(self, block: int) -> slice:
        lanes = self._weights.shape[2]
        return slice(block * lanes, min((block + 1) * lanes, len(self._initial)))

    def _keep(self, block: int) -> None:
        """One record of a block; lanes that ended before it are NaN."""
        from flatmin.dynamics import flow_kernel as kernel

        recording = self._recording
        assert recording is not None
        members = self._members(block)
        count = members.stop - members.start
        flat = self._weights[block].T[:count].copy()
        record = self._record[block][:, :count]
        rows = self._rows.setdefault(block, [])
        time = record[kernel.TIME] + record[kernel.TIME_LOW]
        row: dict[str, Float] = {"time": time.copy()}
        if "risk" in recording.quantities:
            row["risk"] = record[kernel.EXCESS].copy()
        if "gradient" in recording.quantities:
            row["gradient"] = np.sqrt(record[kernel.GRADIENT])
        if "distance" in recording.quantities:
            row["distance"] = self._distance(flat)
        if "sharpness" in recording.quantities:
            found = sharpness(
                self._regression,
                Ensemble.from_flat(self._architecture, flat),
                tolerance=recording.sharpness_tolerance,
                start=self._vectors.get(block),
            )
            # A start without a random part could follow an eigenvector that is no longer the top.
            self._vectors[block] = found.vector if len(rows) % 8 else None
            row["sharpness"], row["sharpness_residual"] = found.value, found.residual
        layers, initial = self._architecture.split(flat), self._initial.flat()[members]
        for name in recording.layers:
            row[name] = LAYER_MEASURES[name](layers, self._architecture.split(initial), self._task)
        if rows:
            ended = time == self._last_time[block]
            for values in row.values():
                values[ended] = np.nan
            time = np.where(ended, self._last_time[block], time)
        self._last_time[block] = time
        rows.append(row)

    def _distance(self, flat: Float) -> Float:
        w = backward(self._architecture.split(flat), self._architecture.p)[0]
        return np.asarray(np.sum((w - self._regression.w_star) ** 2, axis=1))

    def outcome(self) -> Outcome:
        """The record of the end."""
        from flatmin.dynamics import flow_kernel as kernel

        n = len(self._initial)

        def field(row: int) -> Float:
            return self._record[:, row].reshape(-1)[:n].copy()

        words = {
            kernel.CONVERGED: State.CONVERGED,
            kernel.REACHED: State.TIME_REACHED,
            kernel.STALLED: State.STALLED,
        }
        final = Ensemble(self._architecture, self._weights, n)
        layers = final.layers()
        moved = drift(layers, self._initial.layers())
        return Outcome(
            final,
            np.array([words[int(code)].value for code in field(kernel.STATE)]),
            field(kernel.ACCEPTED).astype(np.int64),
            field(kernel.EXCESS),
            self._distance(final.flat()),
            np.sqrt(field(kernel.GRADIENT)),
            self._trace(),
            {
                "time": field(kernel.TIME) + field(kernel.TIME_LOW),
                "drift": moved.max(axis=1, initial=0.0),
                "error": field(kernel.ERROR),
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
        return Trace(np.arange(length, dtype=np.int64) * self._recording.every, values)
