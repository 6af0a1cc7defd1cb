"""The largest eigenvalue of a tridiagonal matrix in every lane."""
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from flatmin.lanes.algebra import larger, smaller
from flatmin.lanes.compiling import helper
from flatmin.lanes.vectors import absolute, all_lanes, fma, root, splat, where

_MOST_STEPS, _UNIT = 60, 1.0 / 128.0


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

    Determinants of the matrix from a row on, of theta - T, are found from the last row up,
    D_i = (theta - alpha_i) D_{i+1} - beta_i^2 D_{i+2} with D_{size+1} = 1. All of them are positive
    exactly when theta is above the largest eigenvalue, which is the root of D_1/D_2, increasing and
    concave beyond its last pole. The vector beta_1 .. beta_{i-1} D_{i+1} is s of theta, not of
    norm 1. The sum t_1 of its squares, t_i = D_{i+1}^2 + beta_i^2 t_{i+1}, is the slope of D_1/D_2
    times D_2^2, so Newton's step D_1 D_2/t_1 is a Rayleigh quotient. It is kept inside a bracket
    that begins with Gershgorin's bound; a lane that has arrived moves no more.

    Rows are divided by a part of what eigenvalues may differ by, for which determinants of 48 rows
    do not leave the range of numbers.
    """
    if size == 2:
        return _of_two(alpha, beta, s)
    low = high = lowest = alpha[0]
    for i in range(size):
        reach = 0.0
        if i > 0:
            reach = reach + beta[i - 1]
        if i < size - 1:
            reach = reach + beta[i]
        low, high = larger(alpha[i], low), larger(alpha[i] + reach, high)
        lowest = smaller(alpha[i] - reach, lowest)
    unit = where(high > lowest, _UNIT * (high - lowest), 1.0)
    per = 1.0 / unit
    theta = where((near > low) & (near < high), near, high)
    moving, total = low <= high, theta
    for _ in range(_MOST_STEPS):
        below = least = splat(theta, 1.0)
        here, total = per * (theta - alpha[size - 1]), below
        s[size - 1] = below
        for i in range(size - 2, -1, -1):
            beside, least = per * beta[i], smaller(here, least)
            square = beside * beside
            s[i] = here  # D_{i+2}, as rows count from 0 here
            total = fma(square, total, here * here)
            here, below = fma(per * (theta - alpha[i]), here, -(square * below)), here
        # Above the poles the sign of D_1 says on which side of the root theta is.
        above = least > 0.0
        right = above & (here > 0.0)
        high, low = where(right, theta, high), where(right, low, theta)
        # Arrived: Newton's step, or the bracket, is down to rounding.
        step, close = unit * (here * below) / total, 2e-15 * absolute(theta)
        moving = moving & (where(above, absolute(step), high - low) > close) & (high - low > close)
        trial = where(above, theta - step, low)
        trial = where((trial > low) & (trial < high), trial, 0.5 * (low + high))
        theta = where(moving, trial, theta)
        if all_lanes(~moving):
            break
    share = 1.0 / root(total)
    s[0] = share * s[0]
    for i in range(1, size):
        share = share * (per * beta[i - 1])
        s[i] = share * s[i]
    return theta
