"""The largest eigenvalue of a tridiagonal matrix in every lane."""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from flatmin.lanes.algebra import larger, scale_into, smaller
from flatmin.lanes.compiling import helper
from flatmin.lanes.vectors import absolute, all_lanes, fma, root, splat, where

_MOST_STEPS = 60


@helper
def _of_two(alpha, beta, s):
    """`top_of_tridiagonal` of two rows: theta is above the larger of both by beta^2/far, where
    far = delta + (delta^2 + beta^2)^{1/2} and delta is half of what they differ by."""
    first, beside = alpha[0] >= alpha[1], beta[0]
    delta = 0.5 * absolute(alpha[0] - alpha[1])
    square = beside * beside
    far = delta + root(fma(delta, delta, square))
    far = where(far > 0.0, far, 1.0)
    per = 1.0 / root(fma(far, far, square))
    s[0], s[1] = per * where(first, far, beside), per * where(first, beside, far)
    return larger(alpha[0], alpha[1]) + square / far


@helper
def top_of_tridiagonal(alpha, beta, size, near, s):
    """Largest eigenvalue of each lane's size x size tridiagonal matrix; its unit vector into `s`.

    It is looked for from `near` on, if that is between its bounds.

    Pivots from the last row up, delta_m = theta - alpha_m and
    delta_i = theta - alpha_i - beta_i^2/delta_{i+1}, are all positive exactly when theta is above
    the largest eigenvalue, which is the root of the increasing concave function delta_1 beyond its
    last pole. With s_1 = 1 and s_{i+1} = s_i beta_i/delta_{i+1}, delta_1' = sum_i s_i^2, so
    Newton's step is a Rayleigh quotient. It is kept inside a bracket that begins with Gershgorin's
    bound; a lane that has arrived moves no more.
    """
    if size == 2:
        return _of_two(alpha, beta, s)
    low = high = alpha[0]
    for i in range(size):
        reach = alpha[i]
        if i > 0:
            reach = reach + beta[i - 1]
        if i < size - 1:
            reach = reach + beta[i]
        low, high = larger(alpha[i], low), larger(reach, high)
    theta = where((near > low) & (near < high), near, high)
    moving = low <= high
    for _ in range(_MOST_STEPS):
        pivot = theta - alpha[size - 1]
        least = splat(pivot, 1.0)
        for i in range(size - 2, -1, -1):
            least = smaller(pivot, least)
            ratio = beta[i] / pivot
            s[i + 1] = ratio  # s_{i+1}/s_i for now
            pivot = theta - alpha[i] - beta[i] * ratio
        share = total = 1.0
        for i in range(1, size):
            share = share * s[i]
            total = fma(share, share, total)
        # Above the poles the sign of delta_1 says on which side of the root theta is.
        above = least > 0.0
        right = above & (pivot > 0.0)
        high, low = where(right, theta, high), where(right, low, theta)
        # Arrived: Newton's step, or the bracket, is down to rounding.
        step, close = pivot / total, 2e-15 * absolute(theta)
        moving = moving & (where(above, absolute(step), high - low) > close) & (high - low > close)
        trial = where(above, theta - step, low)
        trial = where((trial > low) & (trial < high), trial, 0.5 * (low + high))
        theta = where(moving, trial, theta)
        if all_lanes(~moving):
            break
    share = total = 1.0
    s[0] = 1.0
    for i in range(1, size):
        share = share * s[i]
        s[i] = share
        total = fma(share, share, total)
    scale_into(1.0 / root(total), s, s, size)
    return theta
