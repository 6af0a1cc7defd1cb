"""What a probe found, with both ends of its interval and the argument for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """The largest signed eigenvalue of a model's Hessian as an interval.

    - low, value: a Rayleigh quotient, and the same less what products are known to be off by;
    - high: holds with the `confidence` over random starts; infinite before the first product;
    - data_error: a standard error over batches, how far other samples would move the value; None
      with one batch;
    - products, seconds, kept: Hessian-vector products, time, and vectors kept in memory;
    - how: "forward over reverse", "reverse over reverse" or "finite differences";
    - narrow: whether the interval is as narrow as was asked for;
    - vector: the eigenvector, flat, to be passed back as `start`.
    """

    low: float
    value: float
    high: float
    confidence: float
    tolerance: float
    data_error: float | None
    products: int
    seconds: float
    kept: int
    how: str
    matrix: str
    vector: Any = field(repr=False)

    @property
    def narrow(self) -> bool:
        """Whether both ends agree to within the tolerance."""
        return self.high - self.low <= self.tolerance * abs(self.value)

    def __str__(self) -> str:
        state = "" if self.narrow else "; NOT as narrow as asked for: the budget ended first"
        data = "" if self.data_error is None else f"; other data: +- {self.data_error:.2g}"
        return (
            f"largest eigenvalue of the {self.matrix} between {self.low:.6g} (Rayleigh quotient) "
            f"and {self.high:.6g} (random start, {100 * self.confidence:g} % confidence){data}; "
            f"{self.products} products, {self.how}{state}"
        )
