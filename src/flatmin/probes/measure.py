"""The largest eigenvalue as an interval: products until it is narrow, or the budget ends."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import numpy as np

from flatmin.core.checks import check_count, check_positive
from flatmin.core.errors import DataError, SettingError
from flatmin.probes.lanczos import Lanczos, Operator, Vector
from flatmin.probes.record import Probe

# Products that differ by more than this share of the matrix are not those of one matrix.
LARGEST_NOISE = 1e-3
MOST_PRODUCTS = 500


class Model(Operator, Protocol):
    """An operator that is a mean over batches."""

    how: str
    shares: list[float]

    def products(self, v: Vector) -> Any:
        """H_B v of each batch."""
        ...


def largest(
    model: Model,
    *,
    matrix: str,
    tolerance: float,
    confidence: float,
    budget: int | None,
    start: Vector | None,
    seed: int,
) -> Probe:
    """The interval of the largest signed eigenvalue."""
    check_positive("tolerance", tolerance)
    if not 0.0 < confidence < 1.0:
        raise SettingError(f"confidence must lie between 0 and 1, got {confidence!r}")
    limit = MOST_PRODUCTS if budget is None else check_count("budget", budget)
    begun = time.perf_counter()
    krylov = Lanczos(model, seed, None if start is None else [start])
    low, value, high = -math.inf, math.nan, math.inf
    while krylov.products < limit and not krylov.exhausted:
        try:
            krylov.extend()
        except ArithmeticError:
            raise DataError("a product with the Hessian is not finite") from None
        if krylov.noise > LARGEST_NOISE * krylov.size:
            raise DataError(
                "the products are not those of one symmetric matrix (they differ by "
                f"{krylov.noise / krylov.size:.1g} of its size): do the batches change from pass "
                "to pass, or does the loss draw random numbers of its own?"
            )
        low, value, high = krylov.largest(confidence)
        if high - low <= tolerance * abs(value):
            break
    vector = krylov.vector(krylov.ritz()[1][:, -1])
    return Probe(
        low=float(low),
        value=value,
        high=float(high),
        confidence=confidence,
        tolerance=tolerance,
        data_error=_data_error(model, vector),
        products=krylov.products,
        seconds=time.perf_counter() - begun,
        kept=len(krylov.basis),
        how=model.how,
        matrix=matrix,
        vector=vector,
    )


def _data_error(model: Model, vector: Vector) -> float | None:
    """The standard error of v'Hv over batches: the first-order change with other samples."""
    if len(model.shares) < 2:
        return None
    parts = [float(model.dots([vector], one)[0]) for one in model.products(vector)]
    shares, values = np.array(model.shares), np.array(parts)
    mean = float(shares @ values)
    count = len(values)
    return float(np.sqrt(np.sum(shares**2 * (values - mean) ** 2) * count / (count - 1)))
