"""Products by finite differences of gradients: (g(W + h v) - g(W - h v))/2h.

Every product is taken with two steps, one three times the other: how far the two differ is an error
of the smaller one, which is kept, whether it comes from higher derivatives or from rounding. A
direction in which the loss bends more than in those before shows, and gets smaller steps. An
eigenvalue feels the part of the error that lies along v and along H v: that is counted, not what is
spread over all other directions. What no step shows whole are kinks, which the Hessian does not
see: for PyTorch models they are held where they are (`torch_gates`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Vector = Any
RATIO, SMALLEST = 3.0, 6  # of two steps; and how many times a step may be made smaller at once


class Differences:
    """Central differences of a gradient with numbers of this precision.

    `error` is the largest of a product so far, for a unit vector, as an eigenvalue feels it.
    """

    def __init__(self, precision: float) -> None:
        self._precision = precision
        self._step: float | None = None
        self._usual = 0.0  # the error at the step that was found for the first vector
        self.error = 0.0

    def product(self, gradient: Callable[[float], Vector], size: float, v: Vector) -> Vector:
        """H v at weights W of this norm; `gradient` gives that at W + h v. Vectors are flat."""
        length = _norm(v)
        if length == 0.0:
            return v

        def difference(step: float) -> Vector:
            h = step / length
            found = gradient(h)
            found -= gradient(-h)
            found *= 0.5 / h
            return found

        first = self._step is None
        step = max(size, 1.0) * self._precision ** (1.0 / 3.0) if first else self._step
        assert step is not None
        before, after = difference(step), difference(step / RATIO)
        before -= after
        best, kept, gap = step, after, before
        error = _norm(gap) / length
        if first or error > 2.0 * self._usual:
            for _ in range(SMALLEST):
                step, before = step / RATIO, after
                after = difference(step / RATIO)
                apart = before - after
                other = _norm(apart) / length
                if other < error:
                    best, kept, gap, error = step, after, apart, other
                elif other > RATIO * error:
                    break
        if first:
            self._usual = error
        felt = math.hypot(_along(gap, v), _along(gap, kept)) / length
        self._step, self.error = best, max(self.error, felt)
        return kept


def _along(gap: Vector, v: Vector) -> float:
    length = _norm(v)
    return float((gap * v).sum()) / length if length else 0.0


def _norm(v: Vector) -> float:
    return math.sqrt(float((v * v).sum()))
