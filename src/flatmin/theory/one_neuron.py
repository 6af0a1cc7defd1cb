"""One neuron a layer: what gradient descent does to the sharpness that gradient flow would reach.

**The sharpness of the flow's solution falls.** A scalar network has weights w_1..w_L and the risk
a (w_1...w_L - m)^2, m != 0. Gradient flow keeps every w_i^2 - w_j^2, so that from w it ends at the
minimiser with the squares s_i = w_i^2 + k, where k is the one number with s_i > 0 and
prod s_i = m^2; its sharpness is

    F(w) = 2 a m^2 sum_i 1/s_i.

Kreisler, Nacson, Soudry and Carmon (2023, arXiv 2305.13064) found that F falls along gradient
descent on scalar networks; their conditions are not repeated here. Proved here: a step with

    eta |g| <= |w_i w_j|   for all i != j,   g = 2 a (w_1...w_L - m) w_1...w_L,

does not make F larger. Proof. By `oscillation`, the step multiplies s_i - s_j = w_i^2 - w_j^2 by
1 - (eta g/(w_i w_j))^2, from 0 to 1: the s keep their order, and their differences shrink. Sort
s_1 >= ... >= s_L. Then s_i' - s_i does not fall with i, and since the products of s and of s' are
both m^2, it is first <= 0 and then >= 0. So the sum of the k largest log s_i' is at most that of
log s_i for every k, with equality for k = L: log s majorises log s'. The sum of exp(-log s_i) is
convex and symmetric in log s, hence not larger at s'.

**Bounds of the limit from small weights.** From vanishing weights, gradient flow with one neuron a
layer (or wider) ends at sharpness 2 t_0 lambda_max(Sigma + (L-1) z z') with z = Sigma^{1/2} v
(`minimal_sharpness`). With z_1 the entry of z along the top eigenvector of Sigma,

    2 t_0 (Lam + (L-1) z_1^2)  <=  that  <=  2 t_0 (Lam + (L-1) |z|^2),

the form at that eigenvector, and the triangle inequality. In the symbols of Yoo, Song and Yun
(2025, arXiv 2506.06940), with singular values s_i of X and d_i = u_i'y, these are the bounds that
they give for balanced networks of one neuron a layer: t_0 = Q^{(D-1)/D} and
z_1^2 t_0 = d_1^2 Q^{-1/D}/n with Q = sum d_i^2/s_i^2 = |w*|^2.
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
