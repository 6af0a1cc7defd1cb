"""The largest eigenvalue from a random start, with an upper end that holds with a probability.

Lanczos from a unit vector q_1 gives q_{m+1} = p_m(H) q_1, p_m(x) = det(x - T_m)/prod_j beta_j,
and |q_{m+1}| = 1. With u the top eigenvector, p_m(lambda_1) (u.q_1) is a coordinate of q_{m+1}, so

    p_m(lambda_1) <= 1 / |u.q_1|.

Beyond the largest Ritz value theta, p_m grows from 0, steeply once theta has converged, so this
bounds lambda_1 - theta: by about residual |s_1| / |u.q_1|, with s_1 the Ritz vector's share of q_1.
For q_1 uniform on the sphere of R^n, whatever u is, P(|u.q_1| <= t) <= t sqrt(2n/pi): for n >= 3
a coordinate's density is largest at 0, where it is G(n/2) / (sqrt(pi) G((n-1)/2)) <= sqrt(n/2pi)
with the gamma function G; for n = 2 the left side is (2/pi) arcsin t <= t, for n = 1 it is 0. With
t = chance sqrt(pi/(2n)) the end is wrong with at most that chance, over the choice of the start.

The start comes from a seed, the same for every network of a dimension. Two passes of
reorthogonalisation keep T_m that of a Hessian within rounding of the true one; the bound on that
rounding is added by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatmin.core.arrays import Float, Whole
from flatmin.core.seeds import generator
from flatmin.curvature.lanczos import krylov
from flatmin.curvature.operators import Hessian

CHANCE = 1e-9
"""How likely, at most, a random start sees too little of the top eigenvector."""

_CHECK_EVERY = 4
_BASIS = 320
_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Found:
    """Ritz vectors `[network, dimension]` with the room above their values, and what it took."""

    value: Float
    residual: Float
    products: Whole
    vector: Float
    room: Float
    size: Float
    """The largest |Ritz value|."""


def random_start(hessian: Hessian, tolerance: float, max_products: int) -> Found:
    """One Krylov basis, until value and room are within the tolerance or the basis is full."""
    networks, dimension = hessian.networks, hessian.dimension
    steps = max(_BYTES // (8 * dimension * networks), 20)
    steps = min(_BASIS, steps, dimension, max(max_products - 1, 1))
    start = generator(0, "lanczos start").standard_normal(dimension)
    first = np.tile(start / np.linalg.norm(start), (networks, 1))
    beta = np.zeros((networks, steps))
    pending, vector = np.ones(networks, dtype=bool), first.copy()
    used = np.ones(networks, dtype=np.int64)
    room, size = np.full(networks, np.inf), np.zeros(networks)
    for j, (q, t, beta[:, j]) in enumerate(krylov(hessian, first, steps)):
        last = j == steps - 1
        if last or j % _CHECK_EVERY == _CHECK_EVERY - 1 or np.any(pending & ~(beta[:, j] > 0)):
            values, vectors = np.linalg.eigh(np.nan_to_num(t))
            largest = np.abs(values).max(axis=1)
            above = _room(values, beta[:, : j + 1], dimension, largest)
            fine = tolerance * np.abs(values[:, -1])
            done = (beta[:, j] * np.abs(vectors[:, j, -1]) <= 0.5 * fine) & (above <= 0.2 * fine)
            stop = pending & (last | done | ~(beta[:, j] > 0))
            if stop.any():
                ritz = np.einsum("jni,nj->ni", q, vectors[:, :, -1])
                vector[stop], room[stop], size[stop] = ritz[stop], above[stop], largest[stop]
                used[stop] = j + 1
                pending &= ~stop
            if not pending.any():
                break
    vector /= np.linalg.norm(vector, axis=1, keepdims=True)
    image = hessian.product(vector)
    value: Float = np.einsum("ni,ni->n", vector, image)
    residual: Float = np.linalg.norm(image - value[:, None] * vector, axis=1)
    # From the Ritz value, whose distance to the quotient is rounding.
    return Found(value, residual, used + 1, vector, room, size)


def _room(values: Float, beta: Float, dimension: int, size: Float) -> Float:
    """The largest x with p_m(theta + x) <= 1/t: bisection of its logarithm."""
    below = 4 * len(values[0]) * np.finfo(float).eps * size
    exhausted = beta.min(axis=1) <= below
    bound = -np.log(CHANCE * np.sqrt(np.pi / (2 * dimension)))
    scale = np.maximum(size, np.finfo(float).tiny)[:, None]
    with np.errstate(divide="ignore"):
        bound = bound + np.sum(np.log(beta / scale), axis=1)
    gaps = (values[:, -1:] - values) / scale
    # Each factor is at least x, so p_m(theta + x) exceeds the bound at x = e^(bound/m).
    high = np.minimum(bound / len(values[0]), 300.0)
    low = np.minimum(high, -80.0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        with np.errstate(divide="ignore"):
            over = np.sum(np.log(gaps + np.exp(middle)[:, None]), axis=1) > bound
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.where(exhausted, below, np.exp(high) * scale[:, 0] + below)
