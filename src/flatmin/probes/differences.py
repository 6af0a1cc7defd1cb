"""Products by finite differences of gradients: (g(W + h v) - g(W - h v))/2h.

Every product is taken with two steps, one three times the other: how far the two differ is an error
of the smaller one, which is kept, whether it comes from higher derivatives or from rounding. A
direction in which the loss bends more than in those before shows, and gets smaller steps. An
eigenvalue feels the part of the error that lies along v and along H v: that is counted, not what is
spread over all other directions. What no step shows whole are kinks, which the Hessian does not
see: for PyTorch models they are held where they are (`torch_gates`).

One vector is kept, that of the smaller step. Of every other difference only a sketch is (a few
numbers whose norm is that of the vector, and which are linear in it), and what it is along v and
along the vector that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from flatmin.core.arrays import Float

Vector = Any
RATIO, SMALLEST = 3.0, 6  # of two steps; and how many times a step may be made smaller at once


@dataclass(frozen=True)
class Glance:
    """What is left of a vector: a sketch, and its products with v and with the vector kept."""

    sketch: Float
    along: float
    side: float

    def times(self, c: float) -> Glance:
        """Of c times the vector."""
        return Glance(c * self.sketch, c * self.along, c * self.side)


class Pairs(Protocol):
    """Gradients on both sides of the weights, along one v."""

    def between(self, h: float) -> Vector:
        """g(W + h v) - g(W - h v), flat and new."""

    def glance(self, h: float, kept: Vector | None) -> Glance:
        """At the same, which is not made whole."""

    def look(self, vector: Vector, kept: Vector | None) -> Glance:
        """At a vector that is there."""


class Differences:
    """Central differences of a gradient with numbers of this precision.

    `error` is the largest of a product so far, for a unit vector, as an eigenvalue feels it.
    """

    def __init__(self, precision: float) -> None:
        self._precision = precision
        self._step: float | None = None
        self._usual = 0.0  # the error at the step that was found for the first vector
        self.error = 0.0

    def product(self, pairs: Pairs, size: float, length: float) -> Vector:
        """H v at weights W of norm `size`, with v of this `length`, not 0."""

        def glance(step: float, kept: Vector | None = None) -> Glance:
            return pairs.glance(step / length, kept).times(0.5 * length / step)

        def taken(step: float) -> tuple[Vector, float, float]:
            """The product by the smaller of two steps, its error, and what is felt of that."""
            kept = pairs.between(step / RATIO / length)
            kept *= 0.5 * length * RATIO / step
            small, large = pairs.look(kept, kept), glance(step, kept)
            bent = math.sqrt(small.side)
            along = (large.along - small.along) / length
            side = (large.side - small.side) / bent if bent else 0.0
            return kept, _gap(large, small) / length, math.hypot(along, side) / length

        if self._step is None:
            self._step = _smaller(glance, max(size, 1.0) * self._precision ** (1.0 / 3.0))
            kept, self._usual, felt = taken(self._step)
        else:
            kept, error, felt = taken(self._step)
            if error > 2.0 * self._usual:
                del kept
                self._step = _smaller(glance, self._step)
                kept, _, felt = taken(self._step)
        self.error = max(self.error, felt)
        return kept


def _smaller(glance: Callable[[float], Glance], step: float) -> float:
    """The step, of this one and smaller ones, at which differences depend least on it."""
    after = glance(step / RATIO)
    best, error = step, _gap(glance(step), after)
    for _ in range(SMALLEST):
        step, before = step / RATIO, after
        after = glance(step / RATIO)
        other = _gap(before, after)
        if other < error:
            best, error = step, other
        elif other > RATIO * error:
            break
    return best


def _gap(one: Glance, other: Glance) -> float:
    return float(np.linalg.norm(one.sketch - other.sketch))
