"""What probes found: every number with its interval, residual or standard error."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from flatmin.core.arrays import Float
from flatmin.core.shown import Shown


class LinearTruth(Shown, eq=True):
    """What the theory says of a plain deep linear network with mean squared error, on its data.

    - sharpness: the largest eigenvalue of the Hessian at these weights, from its closed form;
    - minimal_sharpness, critical_rate: S_min and 2/S_min; None where no map is better than zero,
      or hidden layers are narrower than the best map's rank.

    All in the convention of the loss: the mean over samples AND outputs.
    """

    sharpness: float
    minimal_sharpness: float | None

    @property
    def critical_rate(self) -> float | None:
        """Above it gradient descent settles at no minimiser."""
        return None if self.minimal_sharpness is None else 2.0 / self.minimal_sharpness


class Probe(Shown):
    """The largest signed eigenvalue of a model's matrix as an interval.

    - low, value: a Rayleigh quotient, and the same less what products are known to be off by;
    - high: holds with the `confidence` over random starts (`theory/random_start.py`);
    - settled: whether the value has, by its residual and the gap below it: it is then an eigenvalue
      to the tolerance, the largest one or not;
    - data_error, other_samples: a standard error over batches, and an interval of 95 %: how far
      other samples would move the value; None with one batch;
    - products, seconds, memory: Hessian-vector products, time, and bytes of the vectors kept;
    - how: "forward over reverse", "reverse over reverse" or "finite differences";
    - data: what the batches were, and that a loader was gone through once;
    - linear: what theory says, if the model is a plain deep linear network;
    - vector: the eigenvector, flat, to be passed back as `start`.
    """

    low: float
    value: float
    high: float
    settled: bool
    confidence: float
    tolerance: float
    data_error: float | None
    other_samples: tuple[float, float] | None
    products: int
    seconds: float
    memory: int
    how: str
    data: str
    matrix: str
    linear: LinearTruth | None = None
    vector: Any = field(repr=False)

    @property
    def narrow(self) -> bool:
        """Whether both ends agree to within the tolerance."""
        return self.high - self.low <= self.tolerance * abs(self.value)

    @property
    def argument(self) -> str:
        """What the ends rest on."""
        return f"Rayleigh quotient; random start, {100 * self.confidence:g} % confidence"

    def __str__(self) -> str:
        state = "" if self.narrow else "; WIDER than asked for"
        other = "; other samples: unknown from one batch"
        if self.other_samples is not None:
            low, high = self.other_samples
            other = f"; other samples: {low:.4g} to {high:.4g} (95 %)"
        return (
            f"largest eigenvalue of the {self.matrix} between {self.low:.6g} (Rayleigh quotient) "
            f"and {self.high:.6g} (random start, {100 * self.confidence:g} % confidence){other}; "
            f"{self.products} products, {self.how}; {self.data}{state}"
        )


class Spectrum(Shown):
    """The top and the bottom few eigenvalues.

    An eigenvalue of the matrix lies within `residual` of each value. An eigenvalue that is repeated
    is found once. With the `confidence` no eigenvalue is above `high` nor below `low`.
    `top` descends and `bottom` ascends; their vectors are in the same order.
    """

    top: Float
    top_residuals: Float
    bottom: Float
    bottom_residuals: Float
    low: float
    high: float
    confidence: float
    products: int
    converged: bool
    how: str
    top_vectors: list[Any] = field(repr=False)
    bottom_vectors: list[Any] = field(repr=False)


class Trace(Shown, eq=True):
    """The trace of the matrix, with its standard error over random vectors."""

    value: float
    standard_error: float
    products: int


class Along(Shown, eq=True):
    """The loss along a unit direction v: its slope <g, v> and curvature v'Hv.

    `data_error` is the curvature's standard error over batches.
    """

    slope: float
    curvature: float
    data_error: float | None
