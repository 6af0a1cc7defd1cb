"""Which compiled kernel advances which networks.

A backend holds what all blocks share (data, widths, stopping rule) in the form its kernel wants and
advances one block at a time.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flatmin.core.arrays import Float, Yes
from flatmin.core.checks import check_positive
from flatmin.core.errors import SettingError
from flatmin.curvature import sharpness
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.dynamics.momentum import Momentum
from flatmin.lanes.sharpness import BASIS, layout, start_vector
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

CHECK_EVERY = 16
# Beyond this excess risk a run has diverged: no product in a step overflows before it is seen.
_LIMITS = {"float64": 1e60, "float32": 1e25}
_RELATIVE_MOVE = 1e-11
# The square of a gradient norm that is no condition.
_ANY_GRADIENT = float("inf")
# Where no rule from the data is known, this gradient norm counts as converged.
_DEFAULT_GRADIENT = 1e-12


class Backend(Protocol):
    """One kernel with its shared data."""

    kind: np.dtype[Any]
    step_flops: float
    range_dimension: int

    def advance(self, packed: Any, block: int, begin: int, steps: int) -> None:
        """Take `steps` steps with one block, after `begin` steps so far."""
        ...

    def trace(
        self,
        packed: Any,
        block: int,
        begin: int,
        every: int,
        records: int,
        number: int,
        recording: Any,
    ) -> Float:
        """Take `records` times `every` steps; `[record, quantity, lane]` as `trace_block` has."""
        ...


def choose(
    problem: Regression | Samples,
    architecture: Architecture,
    tolerance: float | None,
    kind: np.dtype[Any],
    goal: float | None = None,
    momentum: Momentum | None = None,
) -> Backend:
    """The backend for a problem and an architecture that fit each other.

    With a `goal`, runs end as soon as their excess risk is below it, whatever the gradient. With
    `momentum`, velocities follow the weights of a block.
    """
    architecture.check_fits(problem.d, problem.targets)
    if tolerance is not None:
        tolerance = check_positive("tolerance", tolerance)
    if architecture.linear and architecture.output is not None:
        regression = problem.regression() if isinstance(problem, Samples) else problem
        return LinearBackend(regression, architecture, tolerance, kind, goal, momentum)
    if momentum is not None:
        what = "several outputs" if architecture.linear else architecture.activation_name
        raise SettingError(f"momentum is for linear networks with one output, got {what}")
    if not architecture.linear and not isinstance(problem, Samples):
        raise SettingError("a non-linear network needs the samples, not only their summary")
    return SamplesBackend(problem, architecture, tolerance, kind, goal)


def step_flops(problem: Regression | Samples, architecture: Architecture) -> float:
    """The flops of one step of one network: what `choose`'s backend counts."""
    if architecture.linear and architecture.output is not None:
        return 6.0 * architecture.parameters + 2.0 * architecture.inputs**2
    rows = problem.n if not architecture.linear else problem.d
    # Activations cost as much again and more.
    return (6.0 if architecture.linear else 18.0) * architecture.parameters * rows


class SamplesBackend:
    """Non-linear networks, and linear ones with several outputs (`lanes.samples_descent`).

    The latter need only Sigma and P*: d rows of sqrt(d) Sigma^{1/2} stand in for the samples.
    """

    def __init__(
        self,
        problem: Regression | Samples,
        architecture: Architecture,
        tolerance: float | None,
        kind: np.dtype[Any],
        goal: float | None,
    ) -> None:
        from flatmin.lanes.samples_descent import ACTIVATION_CODES

        self.kind, self._architecture, self._problem = kind, architecture, problem
        regression = problem.regression() if isinstance(problem, Samples) else problem
        self._w_star = np.atleast_2d(regression.w_star.T)
        if architecture.linear:
            X = np.sqrt(regression.d) * regression.sigma_root
            y, floor, p = X @ self._w_star.T, 0.0, np.empty(0)
        else:
            assert isinstance(problem, Samples)
            X, y, floor, p = problem.X, problem.y[:, None], regression.risk_min, architecture.p
        self.step_flops = step_flops(problem, architecture)
        self.range_dimension = architecture.parameters
        self._shared = (
            np.array([architecture.inputs, *architecture.widths], dtype=np.int64),
            p.astype(kind),
            _read_only(X, kind),
            _read_only(y.T, kind),
            ACTIVATION_CODES[architecture.activation_name],
            floor,
        )
        # With several outputs other saddles lie between w = 0 and a minimiser.
        share = 0.5 if architecture.output is not None else 1e-6
        settled = share * regression.excess_at_zero
        square = (_DEFAULT_GRADIENT if tolerance is None else tolerance) ** 2
        if goal is not None:
            settled, square = goal, _ANY_GRADIENT
        self._stop = (CHECK_EVERY, square, settled, _LIMITS[kind.name])

    def advance(self, packed: Any, block: int, begin: int, steps: int) -> None:
        """Steps by the compiled kernel."""
        from flatmin.lanes.samples_descent import descend_samples

        lanes = packed.weights.shape[2]
        descend_samples(
            (self.kind.type(0),) * lanes,
            packed.weights,
            *self._shared,
            packed.rate,
            packed.left,
            packed.excess,
            packed.gradient,
            packed.extremes,
            begin,
            steps,
            *self._stop,
            block,
            block + 1,
        )
        diverged = ~np.isfinite(packed.gradient[block])
        packed.excess[block][diverged] = np.inf
        flat = np.where(diverged[:, None], 0.0, packed.weights[block].T.astype(float))
        packed.distance[block] = np.where(diverged, np.inf, self._distance(flat))

    def _distance(self, flat: Float) -> Float:
        """|P - P*|_F^2; NaN for non-linear networks, which have no P."""
        if not self._architecture.linear:
            return np.full(len(flat), np.nan)
        layers = self._architecture.split(flat)
        product = layers[0]
        for w in layers[1:]:
            product = w @ product
        return np.asarray(np.sum((product - self._w_star) ** 2, axis=(1, 2)))

    def trace(
        self,
        packed: Any,
        block: int,
        begin: int,
        every: int,
        records: int,
        number: int,
        recording: Any,
    ) -> Float:
        """Records one at a time; sharpness by Lanczos from the last eigenvector.

        The extremes of the distance are those of the steps at which sharpness is measured: the
        kernel does not know it.
        """
        sharp = packed.vectors is not None
        out = _blank(records, sharp, packed.weights.shape[2])
        one_by_one, extremes = min(recording.sharpness_steps, every), packed.extremes[block]
        for record in range(records):
            before = packed.left[block].copy()
            if not np.any((packed.rate[block] > 0) & (before > 0)):
                break
            at = begin + record * every
            if one_by_one < every or every == 0:
                self.advance(packed, block, at, every - one_by_one)
            found = []
            for done in range(every - one_by_one, every) if every else (0,):
                if every:
                    self.advance(packed, block, at + done, 1)
                going = before - packed.left[block] == done + (every > 0)
                going &= np.isfinite(packed.excess[block])
                if every == 0:
                    going &= packed.rate[block] > 0
                distance = packed.distance[block]
                extremes[2] = np.minimum(extremes[2], distance)
                extremes[3] = np.maximum(extremes[3], distance)
                if sharp and going.any():
                    found.append(
                        self._sharpness(packed, block, going, recording.sharpness_tolerance)
                    )
            rows = [packed.excess[block], distance, packed.gradient[block]]
            for i, row in enumerate(rows[:3]):
                low, high = extremes[2 * i], extremes[2 * i + 1]
                rows += [np.minimum(low, row), np.maximum(high, row)]
            if found:
                value, residual, products = np.stack(found, axis=1)
                rows += [value[-1], residual[-1], products.sum(axis=0)]
                rows += [value.min(axis=0), value.max(axis=0)]
            for column, row in enumerate(rows):
                out[record, column, going] = row[going]
            extremes[0::2], extremes[1::2] = np.inf, -np.inf
        return out

    def _sharpness(self, packed: Any, block: int, whole: Yes, tolerance: float) -> list[Float]:
        flat = packed.weights[block].T[whole]
        start = packed.vectors[block].T[whole]
        found = sharpness(
            self._problem,
            Ensemble.from_flat(self._architecture, flat),
            tolerance=tolerance,
            certify=False,
            # A little of everything, so that an eigenvector that overtakes is noticed.
            start=start + 0.1 * self._probe(),
        )
        columns = np.full((3, len(whole)), np.nan)
        columns[:, whole] = found.value, found.residual, found.products
        packed.vectors[block][:, whole] = found.vector.T
        return list(columns)

    def _probe(self) -> Float:
        probe = start_vector(self.range_dimension)
        return probe / np.linalg.norm(probe)


def _blank(records: int, sharp: bool, lanes: int) -> Float:
    """Records `[record, quantity, lane]` as `trace_block` has them, not filled."""
    from flatmin.lanes.traced_descent import COLUMNS, SHARPNESS_COLUMNS

    quantities = len(COLUMNS) + (len(SHARPNESS_COLUMNS) if sharp else 0)
    return np.full((records, quantities, lanes), np.nan)


def _read_only(array: Float, kind: np.dtype[Any]) -> NDArray[Any]:
    """Row-major and read-only: the compiler has another kernel for arrays that may be written."""
    result: NDArray[Any] = np.ascontiguousarray(array, dtype=kind).view()
    result.flags.writeable = False
    return result


class LinearBackend:
    """Linear networks with one output (`lanes.linear_descent`)."""

    def __init__(
        self,
        regression: Regression,
        architecture: Architecture,
        tolerance: float | None,
        kind: np.dtype[Any],
        goal: float | None,
        momentum: Momentum | None = None,
    ) -> None:
        self.kind = kind
        cost = 1.0 if momentum is None else momentum.cost
        self.step_flops = cost * step_flops(regression, architecture)
        self._table = layout(architecture)
        self.range_dimension = int(self._table[-1, 0] + self._table[-1, 1] + self._table[-1, 5])
        probe = start_vector(self.range_dimension)
        self._probe = probe / np.linalg.norm(probe)
        depth, norm = architecture.depth, architecture.output_norm
        self._shared = (
            np.array([architecture.inputs, *architecture.widths], dtype=np.int64),
            architecture.p.astype(kind),
            np.ascontiguousarray(regression.sigma, dtype=kind),
            regression.w_star.astype(kind),
        )
        size = np.sqrt(depth) * (regression.w_star_norm / norm) ** (1.0 / depth)
        relative = (_RELATIVE_MOVE * 2.0 * regression.smallest_eigenvalue * size) ** 2
        settled = 0.5 * regression.excess_at_zero
        absolute = 0.0 if tolerance is None else tolerance**2
        if goal is not None:
            settled, absolute = goal, _ANY_GRADIENT
        self._stop = (
            CHECK_EVERY,
            absolute,
            relative if tolerance is None else 0.0,
            settled,
            _LIMITS[kind.name],
            None if momentum is None else momentum.coefficients,
        )

    def advance(self, packed: Any, block: int, begin: int, steps: int) -> None:
        """Steps by the compiled kernel."""
        from flatmin.lanes.linear_descent import descend

        lanes = packed.weights.shape[2]
        descend(
            (self.kind.type(0),) * lanes,
            packed.weights,
            *self._shared,
            packed.rate,
            packed.left,
            packed.excess,
            packed.gradient,
            packed.distance,
            packed.extremes,
            begin,
            steps,
            *self._stop,
            block,
            block + 1,
        )

    def trace(
        self,
        packed: Any,
        block: int,
        begin: int,
        every: int,
        records: int,
        number: int,
        recording: Any,
    ) -> Float:
        """Records by the compiled kernel."""
        from flatmin.lanes.traced_descent import trace_block

        lanes = packed.weights.shape[2]
        sharp = packed.vectors is not None
        out = _blank(records, sharp, lanes)
        vector = packed.vectors[block].reshape(-1) if sharp else np.empty(0)
        trace_block(
            (0.0,) * lanes,
            packed.weights[block].reshape(-1),
            *self._shared,
            packed.rate[block],
            packed.left[block],
            packed.excess[block],
            packed.gradient[block],
            packed.distance[block],
            packed.extremes[block].reshape(-1),
            number,
            begin,
            every,
            recording.sharpness_steps,
            *self._stop,
            self._table,
            vector,
            self._probe,
            recording.sharpness_tolerance,
            2000,
            min(BASIS, self.range_dimension),
            out,
        )
        return out
