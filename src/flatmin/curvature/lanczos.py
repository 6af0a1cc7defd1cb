"""Lanczos for the largest eigenvalue of a batch of Hessians, with full reorthogonalisation.

Krylov vectors q_1..q_j with H Q = Q T + beta_j q_{j+1} e_j': the top eigenpair (theta, s) of the
small tridiagonal T gives the Ritz vector v = Q s with |H v - theta v| = |beta_j s_j|. At the end v
is formed, H v is computed once more, and the value and residual reported are those of v itself, so
they do not rest on the recurrence. Restarts from v when the basis is full.

Every network has its own convergence; one that has converged is frozen while others go on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.curvature.operators import Hessian

_CHECK_EVERY = 4


def lanczos(
    hessian: Hessian, start: Float, tolerance: float, max_products: int, basis: int = 60
) -> tuple[Float, Float, Whole, Float]:
    """Value, residual, products and unit vector `[network, dimension]` of each network."""
    networks, dimension = start.shape
    basis = min(basis, dimension)
    vector = start / np.linalg.norm(start, axis=1, keepdims=True)
    products = np.zeros(networks, dtype=np.int64)
    value, residual = np.zeros(networks), np.full(networks, np.inf)
    active = np.ones(networks, dtype=bool)
    while active.any() and products.max() < max_products:
        room = min(basis, max_products - int(products.max()))
        ritz, used = _sweep(hessian, vector, active, tolerance, max(room - 1, 1))
        vector = np.where(active[:, None], ritz, vector)
        image = hessian.product(vector)
        products += np.where(active, used + 1, 0)
        value = np.where(active, np.einsum("ni,ni->n", vector, image), value)
        error = np.linalg.norm(image - value[:, None] * vector, axis=1)
        residual = np.where(active, error, residual)
        active &= ~(residual <= tolerance * np.abs(value)) & np.isfinite(residual)
    return value, residual, products, vector


class Deflated(Hessian):
    """A Hessian in which an eigenpair that is known has the eigenvalue 0."""

    def __init__(self, hessian: Hessian, value: Float, vector: Float) -> None:
        self._hessian, self._value, self._vector = hessian, value, vector
        self.networks, self.dimension = vector.shape

    def product(self, vectors: Float) -> Float:
        """H v - value (vector.v) vector."""
        along = self._value * np.einsum("ni,ni->n", self._vector, vectors)
        return np.asarray(self._hessian.product(vectors) - along[:, None] * self._vector)


def krylov(hessian: Hessian, start: Float, steps: int) -> Iterator[tuple[Float, Float, Float]]:
    """Q, T and the last beta of each network, after each product; from unit start vectors."""
    networks, dimension = start.shape
    q = np.zeros((steps, networks, dimension))
    t = np.zeros((networks, steps, steps))
    q[0] = start
    for j in range(steps):
        w = hessian.product(q[j])
        t[:, j, j] = np.einsum("ni,ni->n", q[j], w)
        # Twice is enough: the second pass removes what rounding left of the first.
        for _ in range(2):
            w = w - np.einsum("jni,jn->ni", q[: j + 1], np.einsum("jni,ni->jn", q[: j + 1], w))
        beta = np.linalg.norm(w, axis=1)
        yield q[: j + 1], t[:, : j + 1, : j + 1], beta
        if j < steps - 1:
            t[:, j, j + 1] = t[:, j + 1, j] = beta
            np.divide(w, beta[:, None], out=q[j + 1], where=beta[:, None] > 0)


def _sweep(
    hessian: Hessian, start: Float, active: Yes, tolerance: float, steps: int
) -> tuple[Float, Whole]:
    """One Krylov basis from unit start vectors: unit Ritz vectors and products used."""
    pending, ritz = active.copy(), start.copy()
    size = np.ones(len(start), dtype=np.int64)
    for j, (q, t, beta) in enumerate(krylov(hessian, start, steps)):
        last = j == steps - 1
        due = last or j % _CHECK_EVERY == _CHECK_EVERY - 1
        if due or np.any(pending & ~(beta > 0)):
            values, vectors = np.linalg.eigh(np.nan_to_num(t))
            estimate = beta * np.abs(vectors[:, j, -1])
            done = estimate <= 0.5 * tolerance * np.abs(values[:, -1])
            stop = pending & (last | done & (due | ~(beta > 0)))
            if stop.any():
                combined = np.einsum("jni,nj->ni", q, vectors[:, :, -1])
                norm = np.linalg.norm(combined, axis=1, keepdims=True)
                combined = np.divide(combined, norm, out=start.copy(), where=norm > 0)
                ritz[stop] = combined[stop]
                size[stop] = j + 1
                pending &= ~stop
            if not pending.any():
                break
    return ritz, size
