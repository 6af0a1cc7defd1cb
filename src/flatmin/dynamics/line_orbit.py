"""The orbit of period two of gradient descent on a line, near the edge of stability.

On the line W + s U the risk has the slope r'(s) = c_0 + c_1 s + c_2 s^2 + ... Gradient descent with
rate eta alternates between s = m + x and s = m - x if

    r'(m + x) = (2/eta) x,     r'(m - x) = -(2/eta) x.

In the half sum and the half difference over x only q = x^2 appears: with t_j(m) the coefficients
of r' about m,

    t_0 + t_2 q + t_4 q^2 + ... = 0           (the mean force vanishes)
    t_1 + t_3 q + t_5 q^2 + ... = 2/eta       (the swing neither grows nor decays)

two smooth equations for (m, q), solved by Newton's method. At q = 0, m is the bottom of the valley
and the second says S = 2/eta there: the orbit is born where the bottom is as sharp as the edge, and
is stable if q grows with S (the flip is then supercritical),

    q ~ (S - 2/eta) / k,    k = 2 c_2^2/S - c_3 > 0.
"""

from __future__ import annotations

from math import comb

import numpy as np

from flatmin.core.arrays import Float, Whole, Yes

# Coefficients of the slope that are kept: with layers of size 1 and a swing of 0.1 over ten of
# them the first one left out adds about 1e-8 of the first.
TERMS = 8
# Newton's method converges in three or four steps from the swing a moment ago.
_STEPS = 8
_TOLERANCE = 1e-8
# Beyond such a swing the expansion about the middle says nothing.
_LARGEST = 0.25

_CHOOSE: Float = np.array([[comb(i, j) for j in range(TERMS)] for i in range(TERMS)], dtype=float)
_POWER: Whole = np.maximum(np.subtract.outer(np.arange(TERMS), np.arange(TERMS)), 0)


def line_orbit(slope: Float, edge: Float, guess: Float) -> tuple[Float, Float, Yes]:
    """m, q and whether there is a swing, for each row of coefficients `[network, TERMS]`.

    `edge` is 2/eta; `guess` a value of q, 0 if none is known. Without a swing m and q are 0.
    """
    m, q, found = _newton(slope, edge, np.where(guess > 0.0, guess, _near_birth(slope, edge)))
    again = ~found & (guess > 0.0)
    if again.any():
        m[again], q[again], found[again] = _newton(
            slope[again], edge[again], _near_birth(slope[again], edge[again])
        )
    return np.where(found, m, 0.0), np.where(found, q, 0.0), found


def _near_birth(slope: Float, edge: Float) -> Float:
    """q to first order in S - 2/eta at the valley's bottom; 0 where it would not be positive."""
    sharp, bend, third = slope[:, 1], slope[:, 2], slope[:, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        above = sharp - 2.0 * bend * slope[:, 0] / sharp - edge
        q = above / (2.0 * bend**2 / sharp - third)
    return np.where(np.isfinite(q) & (q > 0.0), q, 0.0)


def _newton(slope: Float, edge: Float, q: Float) -> tuple[Float, Float, Yes]:
    """Newton's method for (m, q) from the valley's bottom; q stays at or above 0."""
    there = q > 0.0
    with np.errstate(all="ignore"):
        m = -slope[:, 0] / slope[:, 1]
        for _ in range(_STEPS):
            about = np.sum(
                (slope[:, :, None] * _CHOOSE) * (m[:, None] ** np.arange(TERMS))[:, _POWER], axis=1
            )
            turned = np.zeros_like(about)  # d t_j / dm = (j + 1) t_{j+1}
            turned[:, :-1] = about[:, 1:] * np.arange(1, TERMS)
            force, force_q = _series(about[:, ::2], q)
            swing, swing_q = _series(about[:, 1::2], q)
            force_m, swing_m = _series(turned[:, ::2], q)[0], _series(turned[:, 1::2], q)[0]
            swing = swing - edge
            determinant = force_m * swing_q - force_q * swing_m
            m = m - (force * swing_q - swing * force_q) / determinant
            q = np.maximum(q - (force_m * swing - swing_m * force) / determinant, 0.2 * q)
        size = np.sqrt(q)
        found = there & (np.abs(swing) <= _TOLERANCE * edge) & (size <= _LARGEST)
        found &= (np.abs(force) <= _TOLERANCE * edge * size) & (np.abs(m) <= _LARGEST)
    return m, q, found


def _series(coefficients: Float, q: Float) -> tuple[Float, Float]:
    """sum_j c_j q^j and its derivative."""
    value, derivative = np.zeros_like(q), np.zeros_like(q)
    for c in coefficients.T[::-1]:
        derivative = derivative * q + value
        value = value * q + c
    return value, derivative
