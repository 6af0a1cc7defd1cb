"""Lanczos on a symmetric operator, one product at a time, whatever its vectors are made of.

A vector is what the operator's framework has for it; only the operator touches its entries:

    parts(v)             H_B v of each batch B; H is their mean with the weights `shares`
    dots(basis, v)       <q, v> for every q of a list, in double precision
    combine(basis, c)    sum_j c_j q_j

Every new vector is orthogonalised twice against all before it, so the numbers alpha and beta are
those of exact arithmetic for a matrix near H. How near is measured: in exact arithmetic H q_j has
no component along q_1..q_{j-2}; what is found there is the products' own noise (rounding, or a
matrix that changes from product to product).

The projections q_i' H_B q_j of each batch's own matrix come for nothing beside the products: they
say how far the batches disagree about a Ritz value (`batch_values`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError
from flatmin.theory.random_start import least_weight, room_above

Vector = Any
# A product's rounding in units of its precision: sums over samples and layers lose some digits.
# What they all lose alike, as near the end of a training where small losses are differences of
# large terms, does not show in their symmetry. LOST is no bound: chosen on 235 trainings with batch
# normalisation in single precision (5 intervals failed without it), 128 left 1 of 219 others wrong.
ROUNDING, LOST = 16.0, 512.0


class Operator(Protocol):
    """A symmetric matrix known by its products: a mean over batches."""

    size: int
    matrix: str
    shares: list[float]

    @property
    def precision(self) -> float:
        """Of a product, relative to the matrix: the unit roundoff of its numbers."""
        ...

    @property
    def error(self) -> float:
        """Of a product with a unit vector, as far as the product itself shows."""
        ...

    def parts(self, v: Vector) -> Iterator[Vector]:
        """H_B v of each batch."""
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

    def __init__(
        self,
        operator: Operator,
        seed: int = 0,
        warm: list[Vector] | None = None,
        news: float = 1.0,
    ) -> None:
        """From a Gaussian vector of about the length `news`, plus earlier vectors of length 1."""
        self._operator = operator
        self._scale = news / math.sqrt(operator.size)
        parts = [operator.gaussian(seed), *(warm or [])]
        start = operator.combine(parts, np.array([self._scale] + [1.0] * (len(parts) - 1)))
        self._start_norm = self._norm(start)
        self.basis = [operator.combine([start], np.array([1.0 / self._start_norm]))]
        self.alpha: list[float] = []
        self.beta: list[float] = []
        self._noise = 0.0
        # Of each product: <q_i, H_B q_j> for the i so far, a row a batch.
        self._seen: list[Float] = []

    @property
    def products(self) -> int:
        """Products so far."""
        return len(self.alpha)

    @property
    def memory(self) -> int:
        """Bytes of the vectors kept."""
        return len(self.basis) * int(self.basis[0].nbytes)

    @property
    def asymmetry(self) -> float:
        """How far the products are from those of one symmetric matrix, with a floor of rounding."""
        return max(self._noise, ROUNDING * self._operator.precision * self.size)

    @property
    def noise(self) -> float:
        """How far the products are off: as they show themselves, or else as they may be."""
        unseen = LOST * self._operator.precision * self.size
        return max(self.asymmetry, self._operator.error or unseen)

    @property
    def size(self) -> float:
        """The largest |H| seen: of the Ritz values and the off-diagonal."""
        return float(max(np.abs(self.alpha).max(), np.abs(self.beta).max()))

    @property
    def exhausted(self) -> bool:
        """Whether the basis is invariant up to noise: nothing more can be learned from it."""
        if not self.alpha:
            return False
        return self.products >= self._operator.size or self.beta[-1] <= 10.0 * self.asymmetry

    def extend(self) -> None:
        """One more product."""
        operator, basis = self._operator, self.basis
        image, along = self._product()
        if not np.all(np.isfinite(along)):
            raise DataError(
                f"a product with the {operator.matrix} is not finite: have the weights diverged?"
            )
        self.alpha.append(float(along[-1]))
        if self.products > 2:
            self._noise = max(self._noise, float(np.linalg.norm(along[:-2])))
        for _ in range(2):
            image = operator.combine([image, *basis], np.concatenate([[1.0], -along]))
            along = operator.dots(basis, image)
        self.beta.append(self._norm(image))
        if not self.exhausted:
            basis.append(operator.combine([image], np.array([1.0 / self.beta[-1]])))

    def _product(self) -> tuple[Vector, Float]:
        operator, basis = self._operator, self.basis
        image: Vector = None
        seen = []
        for share, part in zip(operator.shares, operator.parts(basis[-1]), strict=True):
            seen.append(operator.dots(basis, part))
            if image is None:
                image = operator.combine([part], np.array([share]))
            else:
                image = operator.combine([image, part], np.array([1.0, share]))
        self._seen.append(np.array(seen))
        return image, np.asarray(operator.shares) @ self._seen[-1]

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

    def batch_values(self, coordinates: Float) -> Float:
        """v'H_B v of every batch, v by its coordinates in the basis."""
        total = np.zeros(len(self._operator.shares))
        for j, seen in enumerate(self._seen):
            # Above the diagonal twice, for what is below it.
            weights = coordinates[: j + 1] * coordinates[j] * np.r_[np.full(j, 2.0), 1.0]
            total += seen @ weights
        return total

    def residuals(self, vectors: Float) -> Float:
        """|H v - theta v| of Ritz vectors given by their coordinates."""
        return np.asarray(self.beta[-1] * np.abs(vectors[-1]))

    def largest(self, confidence: float) -> tuple[float, float, float]:
        """Low end, Ritz value and high end of the largest eigenvalue.

        The low end is a Rayleigh quotient and holds but for noise; the high end with the
        confidence (see `random_start`).
        """
        values = self.ritz()[0]
        value = float(values[-1])
        return value - 2.0 * self.noise, value, value + self._room(values, confidence)

    def smallest(self, confidence: float) -> float:
        """A number that no eigenvalue is below, with the confidence: the high end of -H."""
        values = self.ritz()[0]
        return float(values[0]) - self._room(-values, confidence)

    def _room(self, values: Float, confidence: float) -> float:
        if self.exhausted:
            return 12.0 * self.noise
        weight = least_weight(1.0 - confidence, self._scale, self._start_norm)
        return float(room_above(values, np.array(self.beta), weight)) + 2.0 * self.noise
