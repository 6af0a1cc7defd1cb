"""How many steps gradient descent needs once it is near a minimiser, because of its flattest side.

Near a minimiser a step of rate eta multiplies the displacement along an eigenvector of the Hessian
with eigenvalue mu by 1 - eta mu, and its part of R - R_min by (1 - eta mu)^2. At the flattest
minimiser (`theory.minimisers`) the non-zero eigenvalues are those of

    2 (t Sigma + c q q'),      q = Sigma^{1/2} w*,   c = (L-1) (|p|^2/t)^{1/(L-1)},   t = |b_1|^2,

on the range of Sigma. This is a rank-one update, so the smallest, mu = 2 t x, lies between
2 t lambda_1 and 2 t lambda_2, where lambda_1 <= lambda_2 are the smallest non-zero eigenvalues of
Sigma; x is the root of the increasing function

    1 + (c/t) sum_i q_i^2 / (lambda_i - x)       between the poles lambda_1 and lambda_2

(lambda_1 itself if q_1 = 0 or the eigenvalue is repeated).
"""

from __future__ import annotations

import math

import numpy as np

from flatmin.core.checks import check_depth, check_positive
from flatmin.data.regression import Regression
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.roots import root
from flatmin.theory.units import nth_root


def smallest_curvature(regression: Regression, depth: int, output_norm: float = 1.0) -> float:
    """mu: the smallest non-zero eigenvalue of the Hessian at the flattest minimiser.

    >>> from flatmin.data.generators import whitened_samples
    >>> white = whitened_samples(n=30, d=4, seed=0).regression()
    >>> found = minimal_sharpness(white, depth=3)
    >>> round(smallest_curvature(white, depth=3) / (2 * found.t), 12)
    1.0
    """

    depth, norm = check_depth(depth), check_positive("|p|", output_norm)
    t = minimal_sharpness(regression, depth, norm).t
    null = regression.d - regression.rank
    spectrum = regression.eigenvalues[null:]
    lowest = float(spectrum[0])
    gap = float(spectrum[1]) - lowest if len(spectrum) > 1 else math.inf
    strength = 0.0
    if depth > 1:
        strength = (depth - 1) * float(nth_root(norm**2 / t, depth - 1)) / t
    q = np.sqrt(spectrum) * (regression.eigenvectors[:, null:].T @ regression.w_star)
    weights = strength * q**2
    if weights[0] == 0.0 or gap == 0.0:
        return 2.0 * t * lowest
    if gap == math.inf:
        return 2.0 * t * (lowest + float(weights[0]))
    # x = lambda_1 + gap delta with delta in (0, 1): the terms are weights / (gap (u_i - delta)).
    steps = (spectrum - lowest) / gap
    shares = weights / gap

    def secular(delta: float) -> float:
        return float(1.0 - shares[0] / delta + np.sum(shares[1:] / (steps[1:] - delta)))

    low, high = min(shares[0], 0.5), 1.0 - 2.0**-53
    while secular(low) > 0.0:  # the other terms are positive, so the root is below shares[0]
        low /= 16.0
    delta = 1.0 if secular(high) <= 0.0 else root(secular, low, high)
    return 2.0 * t * (lowest + gap * delta)


def descent_steps(regression: Regression, depth: int, output_norm: float = 1.0) -> float:
    """Steps at the rate 1/S_min, half the critical one, in which gradient descent near the flattest
    minimiser divides the slowest part of R - R_min by 1000: log(1000)/(-2 log(1 - mu/S_min))."""
    sharpest = minimal_sharpness(regression, depth, output_norm).exact
    share = smallest_curvature(regression, depth, output_norm) / sharpest
    return math.log(1e3) / (-2.0 * math.log1p(-share)) if share < 1.0 else 0.0
