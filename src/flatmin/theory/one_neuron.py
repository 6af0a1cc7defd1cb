"""One neuron a layer: what gradient descent does to the sharpness that gradient flow would reach.

A scalar network has weights w_1..w_L and the risk a (w_1...w_L - m)^2, m != 0. Gradient flow keeps
every w_i^2 - w_j^2, so that from w it ends at the minimiser with the squares s_i = w_i^2 + k, where
k is the one number with s_i > 0 and prod s_i = m^2; its sharpness is F(w) = 2 a m^2 sum_i 1/s_i.
It does not grow in a step of gradient descent with (docs/theory/flow-sharpness-falls.md)

    eta |g| <= |w_i w_j|   for all i != j,   g = 2 a (w_1...w_L - m) w_1...w_L.

From vanishing weights, gradient flow with one neuron a layer (or wider) ends at sharpness
2 t_0 lambda_max(Sigma + (L-1) z z') with z = Sigma^{1/2} v (`minimal_sharpness`). With z_1 the
entry of z along the top eigenvector of Sigma (docs/theory/one-neuron-bounds.md)

    2 t_0 (Lam + (L-1) z_1^2)  <=  that  <=  2 t_0 (Lam + (L-1) |z|^2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.data.regression import Regression
from flatmin.theory.minimal_sharpness import balanced_scale

# Steps of Newton's method: the first few halve the distance at least, the last double the digits.
_NEWTON = 40


def flow_sharpness(weights: ArrayLike, target: float, curvature: float = 1.0) -> Float:
    """F(w) of scalar networks `[..., L]` with risk a (w_1...w_L - m)^2: `target` is m, and a is
    `curvature`.

    With e^x the least of the s_i, sum_i log(s_i) = 2 log |m| is increasing and convex in x with a
    slope of at least 1: Newton's method from the right goes down to the root.

    >>> round(float(flow_sharpness([1.0, 1.0, 1.0], target=8.0)), 12)  # ends at 2, 2, 2
    96.0
    """
    squares = np.square(np.asarray(weights, dtype=float))
    spread = squares - squares.min(axis=-1, keepdims=True)
    goal = 2.0 * np.log(abs(target))
    x = np.full((*squares.shape[:-1], 1), goal / squares.shape[-1])
    for _ in range(_NEWTON):
        s = spread + np.exp(x)
        excess = np.sum(np.log(s), axis=-1, keepdims=True) - goal
        x = x - excess / np.sum(np.exp(x) / s, axis=-1, keepdims=True)
    return np.asarray(2.0 * curvature * target**2 * np.sum(1.0 / (spread + np.exp(x)), axis=-1))


def pull_limit(weights: ArrayLike) -> Float:
    """The largest eta |g| for which F is proved not to grow: the least |w_i w_j| of two weights."""
    sizes = np.sort(np.abs(np.asarray(weights, dtype=float)), axis=-1)
    return np.asarray(sizes[..., 0] * sizes[..., 1])


def small_limit_bounds(
    regression: Regression, depth: int, output_norm: float = 1.0
) -> tuple[float, float]:
    """The two bounds of the vanishing-scale limit (see the module)."""
    t = balanced_scale(regression, depth, output_norm)
    z: Float = regression.q / regression.w_star_norm
    top = float(regression.eigenvectors[:, -1] @ z)
    largest = regression.largest_eigenvalue
    lower, upper = (2.0 * t * (largest + (depth - 1) * part) for part in (top**2, float(z @ z)))
    return lower, upper
