"""The random networks of Lemma 3: its bounds, the draws, and which of them break the bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.seeds import generator
from flatmin.ledger.lemma_9 import rank_one_directions

Number = float | Float

STATEMENT = "lemma-3"
# Ratio of squared singular values below which they are not taken from A'A.
_SQUARED_CONDITION = 1e-6


def norm_ceiling(s: Number, u: Number) -> Float:
    """4 exp(s^2/2 + u), Lemma 3."""
    return np.asarray(4.0 * np.exp(s**2 / 2.0 + u))


def singular_value_floor(s: Number, u: Number, d: Number) -> Float:
    """exp(-2 s^2/d - u) / 4, Lemma 3."""
    return np.asarray(np.exp(-2.0 * s**2 / d - u) / 4.0)


def failure_bound(s: Number, u: Number, d: Number) -> Float:
    """8 exp(-d u^2 / (32 s^2)), Lemma 3."""
    return np.asarray(8.0 * np.exp(-d * u**2 / (32.0 * s**2)))


def theta_ball(s: Number, u: Number) -> Float:
    """exp(-2 s^2 - 4 u) / 64, Lemma 3: what every |theta_k|_2 may be."""
    return np.asarray(np.exp(-2.0 * s**2 - 4.0 * u) / 64.0)


def draw_noise(seed: int, d: int, L: int, draws: Iterable[int]) -> Float:
    """N_1..N_L of the draws as `[draw, layer, d, d]`, each from its own address (d, L, draw)."""
    return np.stack(
        [generator(seed, STATEMENT, d, L, draw).standard_normal((L, d, d)) for draw in draws]
    )


def failing(normal: Float, s: float, us: Float) -> tuple[Yes, Yes]:
    """Which networks may fail for some theta of the ball of u, and which do: `[draw, u]` each."""
    L, d = normal.shape[1:3]
    factor = s / np.sqrt(L * d)
    norms, smallest = log_extremes(normal, factor)
    most, least = norms.max(axis=1)[:, None], smallest.min(axis=1)[:, None]
    may_fail = breaks(most, least, s, d, us, tighter=2.0)
    fails = breaks(most, least, s, d, us)
    # Only a network that may fail and does not at theta = 0 needs a harder theta.
    unsure = may_fail & ~fails
    rows, columns = np.flatnonzero(unsure.any(axis=1)), np.flatnonzero(unsure.any(axis=0))
    if len(rows):
        layers = [np.eye(d) + factor * normal[rows, k] for k in range(L)]
        radius = theta_ball(s, us[columns])
        up = pushed(layers, np.argmax(norms[rows], axis=1), radius, 0)
        down = pushed(layers, np.argmin(smallest[rows], axis=1), -radius, -1)
        fails[np.ix_(rows, columns)] |= breaks(up, down, s, d, us[columns])
    return may_fail, fails


def breaks(norm: Float, smallest: Float, s: float, d: int, us: Float, tighter: float = 1.0) -> Yes:
    """Whether ln |W~_k...W~_1|_2 or ln smin(W~_k...W~_1) is outside of the lemma's bounds.

    `tighter` is 2 for the bounds of its proof.
    """
    above = norm > np.log(norm_ceiling(s, us) / tighter)
    below = smallest < np.log(singular_value_floor(s, us, d) * tighter)
    return np.asarray(above | below)


def log_extremes(normal: Float, factor: float) -> tuple[Float, Float]:
    """ln |W_k...W_1|_2 and ln smin(W_k...W_1) as `[draw, layer]`, W_k = I + factor N_k."""
    draws, L, d, _ = normal.shape
    norms, smallest = np.empty((draws, L)), np.empty((draws, L))
    product: Float = np.broadcast_to(np.eye(d), (draws, d, d))
    for k in range(L):
        product = product + factor * (normal[:, k] @ product)
        norms[:, k], smallest[:, k] = extreme_singular_values(product)
    with np.errstate(divide="ignore"):
        return np.log(norms), np.log(smallest)


def extreme_singular_values(matrices: Float) -> tuple[Float, Float]:
    """The largest and the smallest singular value of each matrix.

    From the eigenvalues of A'A, which takes two thirds of the time of A's singular values and, for
    a condition number below 1e3, leaves an error of 1e-9 or less; other matrices are done again.
    """
    squares = np.linalg.eigvalsh(matrices.transpose(0, 2, 1) @ matrices)[:, [-1, 0]]
    poor = squares[:, 1] < _SQUARED_CONDITION * squares[:, 0]
    values = np.sqrt(np.maximum(squares, 0.0))
    if poor.any():
        values[poor] = np.linalg.svd(matrices[poor], compute_uv=False)[:, [0, -1]]
    return values[:, 0], values[:, 1]


def pushed(layers: Sequence[Float], at: Whole, radius: Float, which: int) -> Float:
    """ln |W~_K...W~_1 x| for theta_k = radius c_k e_k' as `[network, radius]`, K - 1 = `at`.

    c_k and e_k are as in `rank_one_directions` and x = e_1 is a unit vector, so this is at most
    ln |W~_K...W~_1|_2 and at least ln smin(W~_K...W~_1).
    """
    left, right = rank_one_directions(layers, at, which)
    h = np.repeat(right[0][:, :, None], len(radius), axis=2)
    reached = np.empty((len(h), len(radius)))
    for k, w in enumerate(layers):
        along = np.einsum("ni,niu->nu", right[k], h) * radius / len(layers)
        h = w @ h + left[k][:, :, None] * along[:, None, :]
        reached[at == k] = np.linalg.norm(h[at == k], axis=1)
    with np.errstate(divide="ignore"):
        return np.log(reached)
