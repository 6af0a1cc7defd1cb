"""The largest eigenvalue from a random start, with an upper end that holds with a probability.

The bound, and why it holds: `theory/random_start.py`; here it is that of many networks at once.

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
from flatmin.theory.random_start import least_weight, room_above

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
    norm = float(np.linalg.norm(start))
    weight = least_weight(CHANCE, 1.0, norm)
    first = np.tile(start / norm, (networks, 1))
    beta = np.zeros((networks, steps))
    pending, vector = np.ones(networks, dtype=bool), first.copy()
    used = np.ones(networks, dtype=np.int64)
    room, size = np.full(networks, np.inf), np.zeros(networks)
    for j, (q, t, beta[:, j]) in enumerate(krylov(hessian, first, steps)):
        last = j == steps - 1
        if last or j % _CHECK_EVERY == _CHECK_EVERY - 1 or np.any(pending & ~(beta[:, j] > 0)):
            values, vectors = np.linalg.eigh(np.nan_to_num(t))
            fine = tolerance * np.abs(values[:, -1])
            near = beta[:, j] * np.abs(vectors[:, j, -1]) <= 0.5 * fine
            may_stop = pending & (last | near | ~(beta[:, j] > 0))
            if not may_stop.any():
                continue  # the room takes longer than the product
            largest = np.abs(values).max(axis=1)
            above = _room(values, beta[:, : j + 1], weight, largest)
            stop = may_stop & (last | (above <= 0.2 * fine) | ~(beta[:, j] > 0))
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


def _room(values: Float, beta: Float, weight: float, size: Float) -> Float:
    """That of the theory, with a floor of rounding; no more than the floor of a full basis."""
    floor = 4 * len(values[0]) * np.finfo(float).eps * size
    exhausted = beta.min(axis=1) <= floor
    return np.where(exhausted, 0.0, room_above(values, beta, weight)) + floor
