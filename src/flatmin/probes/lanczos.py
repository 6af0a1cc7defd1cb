"""Lanczos on a symmetric operator, one product at a time, whatever its vectors are made of.

A vector is what the operator's framework has for it; only the operator touches its entries:

    dots(basis, v)       <q, v> for every q of a list, in double precision
    combine(basis, c)    sum_j c_j q_j

Every new vector is orthogonalised twice against all before it, so the numbers alpha and beta are
those of exact arithmetic for a matrix near H. How near is measured: in exact arithmetic H q_j has
no component along q_1..q_{j-2}; what is found there is the products' own noise (rounding, or a
matrix that changes from product to product).
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from flatmin.core.arrays import Float
from flatmin.theory.random_start import least_weight, upper_end

Vector = Any


class Operator(Protocol):
    """A symmetric matrix known by its products."""

    size: int
    precision: float  # of a product, relative to the matrix: the unit roundoff of its numbers

    def product(self, v: Vector) -> Vector:
        """H v."""
        ...

    def gaussian(self, seed: int) -> Vector:
        """A vector of independent standard Gaussian entries."""
        ...

    def dots(self, basis: list[Vector], v: Vector) -> Float:
        """<q, v> for every q of the basis."""
        ...

    def combine(self, basis: list[Vector], coefficients: Float) -> Vector:
        """sum_j c_j q_j."""
        ...


class Lanczos:
    """A Krylov basis that grows by one product at a time."""

    def __init__(self, operator: Operator, seed: int = 0, warm: list[Vector] | None = None) -> None:
        """From a Gaussian vector of length about 1, plus earlier eigenvectors of length 1 each."""
        self._operator = operator
        # |s g| is about 1: half of a warm start is news.
        self._scale = 1.0 / math.sqrt(operator.size)
        parts = [operator.gaussian(seed), *(warm or [])]
        start = operator.combine(parts, np.array([self._scale] + [1.0] * (len(parts) - 1)))
        self._start_norm = self._norm(start)
        self.basis = [operator.combine([start], np.array([1.0 / self._start_norm]))]
        self.alpha: list[float] = []
        self.beta: list[float] = []
        self._noise = 0.0

    @property
    def products(self) -> int:
        """Products so far."""
        return len(self.alpha)

    @property
    def noise(self) -> float:
        """How far the products are from those of one symmetric matrix, with a floor of rounding."""
        return max(self._noise, self._operator.precision * self.size)

    @property
    def size(self) -> float:
        """The largest |H| seen: of the Ritz values and the off-diagonal."""
        return max(np.abs(self.alpha).max(), np.abs(self.beta).max())

    @property
    def exhausted(self) -> bool:
        """Whether the basis is invariant up to noise: nothing more can be learned from it."""
        if not self.alpha:
            return False
        return self.products >= self._operator.size or self.beta[-1] <= 10.0 * self.noise

    def extend(self) -> None:
        """One more product."""
        operator, basis = self._operator, self.basis
        image = operator.product(basis[-1])
        along = operator.dots(basis, image)
        if not np.all(np.isfinite(along)):
            raise ArithmeticError("a product is not finite")
        self.alpha.append(float(along[-1]))
        if self.products > 2:
            self._noise = max(self._noise, float(np.linalg.norm(along[:-2])))
        for _ in range(2):
            image = operator.combine([image, *basis], np.concatenate([[1.0], -along]))
            along = operator.dots(basis, image)
        self.beta.append(self._norm(image))
        if not self.exhausted:
            basis.append(operator.combine([image], np.array([1.0 / self.beta[-1]])))

    def _norm(self, v: Vector) -> float:
        return math.sqrt(float(self._operator.dots([v], v)[0]))

    def ritz(self) -> tuple[Float, Float]:
        """Ritz values, ascending, and their coordinates in the basis as columns."""
        side = np.diag(self.beta[:-1], 1)
        values, vectors = np.linalg.eigh(np.diag(self.alpha) + side + side.T)
        return values, vectors

    def vector(self, coordinates: Float) -> Vector:
        """The unit vector with these coordinates."""
        return self._operator.combine(self.basis[: len(coordinates)], coordinates)

    def residuals(self, vectors: Float) -> Float:
        """|H v - theta v| of Ritz vectors given by their coordinates."""
        return np.asarray(self.beta[-1] * np.abs(vectors[-1]))

    def largest(self, confidence: float) -> tuple[float, float, float]:
        """Low end, Ritz value and high end of the largest eigenvalue.

        The low end is a Rayleigh quotient and holds but for noise; the high end with the
        confidence (see `random_start`).
        """
        value = float(self.ritz()[0][-1])
        weight = least_weight(confidence, self._scale, self._start_norm)
        side = self.beta if not self.exhausted else [*self.beta[:-1], 0.0]
        high = upper_end(self.alpha, side, weight)
        allowance = 2.0 * self.noise
        return value - allowance, value, high + allowance + (10.0 * self.noise) * self.exhausted
