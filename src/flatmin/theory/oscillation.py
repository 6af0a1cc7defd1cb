"""Above the ceiling: how gradient descent oscillates where it cannot settle.

**One mode** (proof: docs/theory/period-two-orbit.md). Let Sigma w* = a w* with Lam <= L a (white
data, for example). On balanced chains along w* with w = u^L w* a step is the map of one number

    u <- u - (2c/L) (u^{2L-1} - u^{L-1}),        c = eta S_min / 2,

and its orbit of period two, u and z u with z > 1, has

    u^L (1 + z^{2L-1}) = 1 + z^{L-1},            z = 1 + (2c/L) u^{L-2} (1 - u^L),

as Ghosh et al. (2025, arXiv 2502.20531) find for one mode (their loss has a factor 1/2). So z is a
parameter: u and c are functions of it, c = 1 at z = 1. For L = 2, z + 1/z = 1 + c.

**Oscillating balances the layers** (proof: docs/theory/oscillation-balances.md). In any chain
W_1 = e_1 y', W_k = r_k e_k e_{k-1}', on any data, with g = 2 (w - w*)' Sigma w, a step makes

    r_j'^2 - r_k'^2 = (r_j^2 - r_k^2) (1 - (eta g / (r_j r_k))^2),       j, k >= 2.

Near balance the factor is m (2 - m) with m = r'/r, and on an orbit of period two with ratio z it
is (2 - z)(2 - 1/z) = 5 - 2 (z + 1/z) over a period. The same factors belong to turning the common
unit vector of two layers together, which changes nothing, and apart. Where w* is an eigenvector of
Sigma and y is along it, all pairs of layers 1..L are meant.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.core.checks import check_depth, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.shown import Shown
from flatmin.data.regression import Regression
from flatmin.theory.roots import root

# An eigenvector to this relative residual counts as one.
_ROUNDING = 1e-9


def mode_step(u: ArrayLike, depth: int, c: ArrayLike) -> Float:
    """u - (2c/L)(u^{2L-1} - u^{L-1}): a step of one mode."""
    u, c = np.asarray(u, dtype=float), np.asarray(c, dtype=float)
    return np.asarray(u - 2.0 * c / depth * (u ** (2 * depth - 1) - u ** (depth - 1)))


def mode_slope(u: float, depth: int, c: float) -> float:
    """The derivative of `mode_step` in u."""
    powers = (2 * depth - 1) * u ** (2 * depth - 2) - (depth - 1) * u ** (depth - 2)
    return 1.0 - 2.0 * c / depth * powers


class ModeOrbit(Shown, eq=True):
    """The orbit of period two of one mode at a rate c: u = `low` and `high` = z `low`."""

    depth: int
    c: float
    low: float
    ratio: float

    @property
    def high(self) -> float:
        """The upper point."""
        return self.low * self.ratio

    @property
    def multiplier(self) -> float:
        """The factor of a small change of u over a period: stable between -1 and 1."""
        return mode_slope(self.low, self.depth, self.c) * mode_slope(self.high, self.depth, self.c)

    @property
    def imbalance_factor(self) -> float:
        """The factor of a small imbalance of two layers over a period, 5 - 2 (z + 1/z)."""
        return 5.0 - 2.0 * (self.ratio + 1.0 / self.ratio)


def mode_orbit(depth: int, c: float) -> ModeOrbit:
    """The orbit at a rate c > 1.

    >>> orbit = mode_orbit(2, 1.2)
    >>> round(orbit.ratio + 1 / orbit.ratio, 12)
    2.2
    """
    depth = _deep(depth)
    if not check_positive("c", c) > 1.0:
        raise SettingError(f"an orbit of period two needs a rate c above 1, got {c:g}")
    high = 1.0
    while _rate_at(high, depth)[0] < c:
        high *= 2.0
    return _orbit(root(lambda s: _rate_at(s, depth)[0] - c, 0.0, high), depth)


def mode_doubling(depth: int) -> float:
    """c_4, the rate at which the orbit of period two gives way to one of period four.

    Where its multiplier is -1; sqrt(5) - 1 at depth 2.

    >>> mode_doubling(2) - (5**0.5 - 1) < 1e-12
    True
    """
    depth = _deep(depth)

    def excess(s: float) -> float:
        return _orbit(s, depth).multiplier + 1.0

    # The ratio's logarithm is of the order of 1/L.
    high = 0.01 / depth
    while excess(high) > 0.0:
        high *= 1.5
    return _orbit(root(excess, high / 1.5, high), depth).c


def mode_reaches_zero(depth: int) -> float:
    """c_0, the rate from which on an orbit can be thrown onto u = 0, the saddle w = 0.

    The map has its largest value M on (0, 1) where its slope is 0, and 0 is reached first from M:
    1 = (2c/L)(M^{2L-2} - M^{L-2}). For L = 2 it is sqrt(27/4) - 1. Near 0 a step moves u by about
    (2c/L) u^{L-1}: from depth 3 on it takes some u^{2-L} steps to leave.

    >>> mode_reaches_zero(2) - (6.75**0.5 - 1) < 1e-12
    True
    """
    depth = _deep(depth)

    def excess(c: float) -> float:
        low = ((depth - 1) / (2 * depth - 1)) ** (1 / depth)
        flat = root(lambda u: mode_slope(u, depth, c), low, 1.0)
        return float(mode_step(mode_step(flat, depth, c), depth, c))

    high = 1.5
    while excess(high) > 0.0:
        high *= 1.1
    return root(excess, 1.2, high)


def imbalance_factor(pull: ArrayLike, first: ArrayLike, second: ArrayLike) -> Float:
    """1 - (eta g/(r_j r_k))^2: what a step multiplies r_j^2 - r_k^2 by; `pull` is eta g."""
    ratio = np.asarray(pull) / (np.asarray(first) * np.asarray(second))
    return np.asarray(1.0 - ratio**2)


def imbalance_exponent(factors: ArrayLike) -> Float:
    """The mean of log |m (2 - m)| over steps, axis 0: growth of a small imbalance of the layers.

    `factors` are the m = r'/r of layers in balance, in the order of the steps.
    """
    m = np.asarray(factors, dtype=float)
    with np.errstate(divide="ignore"):
        return np.asarray(np.mean(np.log(np.abs(m * (2.0 - m))), axis=0))


def one_mode(regression: Regression, depth: int) -> bool:
    """Whether Sigma w* = a w* with Lam <= L a, so that the reduction to one mode is exact."""
    residual = regression.sigma @ regression.w_star - regression.a * regression.w_star
    largest = regression.largest_eigenvalue
    eigenvector = np.linalg.norm(residual) <= _ROUNDING * largest * regression.w_star_norm
    return bool(eigenvector and largest <= depth * regression.a * (1.0 + _ROUNDING))


def _rate_at(s: float, depth: int) -> tuple[float, float]:
    """c and log u of the orbit with z = e^s, by logarithms: z^{2L-1} may overflow."""
    if s == 0.0:
        return 1.0, 0.0
    upper = np.logaddexp(0.0, (2 * depth - 1) * s)
    log_u = (np.logaddexp(0.0, (depth - 1) * s) - upper) / depth
    # 1 - u^L = z^{L-1} (z^L - 1) / (1 + z^{2L-1})
    log_gap = (2 * depth - 1) * s + np.log(-np.expm1(-depth * s)) - upper
    log_rise = s + np.log(-np.expm1(-s))
    log_c = np.log(0.5 * depth) + log_rise - (depth - 2) * log_u - log_gap
    return float(np.exp(min(log_c, 700.0))), float(log_u)


def _orbit(s: float, depth: int) -> ModeOrbit:
    c, log_u = _rate_at(s, depth)
    return ModeOrbit(depth=depth, c=c, low=float(np.exp(log_u)), ratio=float(np.exp(s)))


def _deep(depth: int) -> int:
    depth = check_depth(depth)
    if depth < 2:
        raise SettingError(
            f"one layer does not oscillate, it diverges: depth must be 2 or more, got {depth}"
        )
    return depth
