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

    def product(
        self,
        between: Callable[[float], Vector],
        size: float,
        length: float,
        along: Callable[[Vector], float],
        inner: Callable[[Vector, Vector], Any],
    ) -> Vector:
        """H v at weights W of norm `size`, with v of this `length`, not 0.

        `between` gives g(W + h v) - g(W - h v), flat and new, and `along` <vector, v>: no more
        vectors are kept than differences at three steps.
        """

        def difference(step: float) -> Vector:
            found = between(step / length)
            found *= 0.5 * length / step
            return found

        def norm(one: Vector) -> float:
            return math.sqrt(float(inner(one, one)))

        def felt(gap: Vector, kept: Vector) -> float:
            bent = norm(kept)
            side = float(inner(gap, kept)) / bent if bent else 0.0
            return math.hypot(along(gap) / length, side) / length

        first = self._step is None
        step = max(size, 1.0) * self._precision ** (1.0 / 3.0) if first else self._step
        assert step is not None
        gap, after = difference(step), difference(step / RATIO)
        gap -= after
        best, kept, error, seen = step, after, norm(gap) / length, felt(gap, after)
        del gap
        if first or error > 2.0 * self._usual:
            for _ in range(SMALLEST):
                step, before = step / RATIO, after
                after = difference(step / RATIO)
                if before is kept:
                    gap = before - after
                else:
                    before -= after
                    gap = before
                other = norm(gap) / length
                if other < error:
                    best, kept, error, seen = step, after, other, felt(gap, after)
                elif other > RATIO * error:
                    break
                del gap, before
        if first:
            self._usual = error
        self._step, self.error = best, max(self.error, seen)
        return kept
