"""Products by finite differences of gradients: (g(W + h v) - g(W - h v))/2h.

The step h |v| is the one of several at which two neighbours agree best; it is found once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

Vector = Any


class Differences:
    """Central differences of a gradient with numbers of this precision."""

    def __init__(self, precision: float) -> None:
        self._precision = precision
        self._step: float | None = None

    def product(self, gradient: Callable[[Vector], Vector], at: Vector, v: Vector) -> Vector:
        """H v at these weights; all vectors are flat."""
        length = _norm(v)
        if length == 0.0:
            return v

        def difference(step: float) -> Vector:
            h = step / length
            return (gradient(at + h * v) - gradient(at - h * v)) * (0.5 / h)

        if self._step is None:
            largest = max(_norm(at), 1.0) * self._precision ** (1.0 / 3.0)
            steps = [largest * 3.0**-k for k in range(6)]
            gaps = [_norm(one - other) for one, other in pairwise(map(difference, steps))]
            self._step = steps[1 + gaps.index(min(gaps))]
        return difference(self._step)


def _norm(v: Vector) -> float:
    return math.sqrt(float((v * v).sum()))
