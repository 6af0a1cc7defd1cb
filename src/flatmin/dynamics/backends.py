"""Which compiled kernel advances which networks.

A backend holds what all blocks share (data, widths, stopping rule) in the form its kernel wants and
advances one block at a time.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flatmin.checks import check_positive
from flatmin.curvature.lanes import BASIS, layout, start_vector
from flatmin.errors import SettingError
from flatmin.network import Architecture
from flatmin.problem import Regression, Samples

Float = NDArray[np.float64]

CHECK_EVERY = 16
# Beyond this excess risk a run has diverged: no product in a step overflows before it is seen.
_LIMITS = {"float64": 1e60, "float32": 1e25}
_RELATIVE_MOVE = 1e-11


class Backend(Protocol):
    """One kernel with its shared data."""

    kind: np.dtype[Any]
    step_flops: float
    range_dimension: int

    def advance(self, packed: Any, block: int, begin: int, steps: int) -> None:
        """Take `steps` steps with one block, after `begin` steps so far."""
        ...

    def trace(
        self, packed: Any, block: int, begin: int, every: int, records: int, recording: Any
    ) -> Float:
        """Take `records` times `every` steps; `[record, quantity, lane]` as `trace_block` has."""
        ...


def choose(
    problem: Regression | Samples,
    architecture: Architecture,
    tolerance: float | None,
    kind: np.dtype[Any],
) -> Backend:
    """The backend for a problem and an architecture that fit each other."""
    if architecture.inputs != problem.d:
        raise SettingError(
            f"the network takes {architecture.inputs} inputs but the data have {problem.d}"
        )
    outputs = architecture.widths[-1] if architecture.output is None else 1
    if outputs != problem.targets:
        raise SettingError(f"the data have {problem.targets} targets, the network {outputs}")
    if tolerance is not None:
        tolerance = check_positive("tolerance", tolerance)
    if architecture.linear and architecture.output is not None:
        regression = problem.regression() if isinstance(problem, Samples) else problem
        return LinearBackend(regression, architecture, tolerance, kind)
    raise SettingError("not yet")


class LinearBackend:
    """Linear networks with one output (`linear_kernel`)."""

    def __init__(
        self,
        regression: Regression,
        architecture: Architecture,
        tolerance: float | None,
        kind: np.dtype[Any],
    ) -> None:
        self.kind = kind
        self.step_flops = 6.0 * architecture.parameters
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
        settled = 0.5 * (regression.risk_at_zero - regression.risk_min)
        absolute = 0.0 if tolerance is None else tolerance**2
        self._stop = (
            CHECK_EVERY,
            absolute,
            relative if tolerance is None else 0.0,
            settled,
            _LIMITS[kind.name],
        )

    def advance(self, packed: Any, block: int, begin: int, steps: int) -> None:
        """Steps by the compiled kernel."""
        from flatmin.dynamics.linear_kernel import descend

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
            begin,
            steps,
            *self._stop,
            block,
            block + 1,
        )

    def trace(
        self, packed: Any, block: int, begin: int, every: int, records: int, recording: Any
    ) -> Float:
        """Records by the compiled kernel."""
        from flatmin.dynamics.trace_kernel import trace_block

        lanes = packed.weights.shape[2]
        sharp = packed.vectors is not None
        out = np.full((records, 6 if sharp else 3, lanes), np.nan)
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
            begin,
            every,
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
