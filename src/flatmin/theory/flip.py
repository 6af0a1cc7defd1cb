"""What is born at the ceiling: the orbit of period two near the flattest minimiser, on any data.

Let W_0 be the flattest minimiser, a chain W_1 = e_1 y', W_k = r e_k e_{k-1}' (Sigma, w* and p
arbitrary, one output, L >= 2), with sharpness S_min simple and unit eigenvector x. At c =
eta S_min/2 = 1 an orbit of period two is born among chains, W_+- = V +- eps x + O(eps^3), with

    eps^2 = (S_min / D) (c - 1) + O((c-1)^2),      D = T'H^+T/2 - Q/6,

T = D^3R[x, x, .] and Q = D^4R[x, x, x, x] at W_0 and H^+ the pseudoinverse; both points have the
excess risk S_min eps^2/2 to this order. If D > 0 it exists above the ceiling and is stable among
chains; if D < 0 it exists below, and is unstable. The proof: docs/theory/flip-at-the-ceiling.md.

The derivatives. The layers 2..L of W_0 are equal and so are their entries in x and T, so that with
s = sqrt(L-1) r a chain is (y, s), in the metric of the weights, w = P(s) y,
P = |p| (s/sqrt(L-1))^{L-1}, and along W_0 + eps x, x = (f, h),

    w = w* + eps w_1 + eps^2 w_2 + eps^3 w_3 + ...,   w_1 = P f + P' h y,
    w_2 = P' h f + P'' h^2 y/2,                       w_3 = P'' h^2 f/2 + P''' h^3 y/6,
    Q = 24 (w_2' Sigma w_2 + 2 w_1' Sigma w_3),       T = 4 (J_0' Sigma w_2 + J_1' Sigma w_1),

J_0 = [P I, P' y] the Jacobian of w and J_1 = [P' h I, P'' h y + P' f] its derivative along x. One
mode (`oscillation`) has u = 1 + eps/(sqrt(L) |w*|^{1/L}), so that
(u - 1)^2 = 3 (c-1) / (2 (L-1)(5L-4)).
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_depth, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.shown import Shown
from flatmin.data.regression import Regression
from flatmin.theory.minimal_sharpness import minimal_sharpness


class Flip(Shown):
    """The flip at the ceiling: S_min, the coefficient D, and the eigenvector x as (f, h).

    `first` is f, the part of x in y: of W_1 it is the row of e_1. `others` is h, the part of x in
    s; of each of the layers 2..L it is h/sqrt(L-1). `gap` is how far the next eigenvalue is below
    S_min, as a share of it: 0 if S_min is not simple.
    """

    sharpness: float
    coefficient: float
    first: Float
    others: float
    gap: float

    @property
    def supercritical(self) -> bool:
        """Whether the orbit is stable and above the ceiling."""
        return self.coefficient > 0.0

    def amplitude_squared(self, c: float) -> float:
        """eps^2 to first order in c - 1: half the distance of the two points, squared."""
        return self.sharpness * (c - 1.0) / self.coefficient

    def excess_risk(self, c: float) -> float:
        """The excess risk on the orbit, to first order in c - 1."""
        return 0.5 * self.sharpness * self.amplitude_squared(c)


def flip(regression: Regression, depth: int, output_norm: float = 1.0) -> Flip:
    """The flip at c = 1 for these data.

    >>> from flatmin.data.generators import whitened_samples
    >>> white = whitened_samples(n=30, d=4, seed=0).regression()
    >>> found = flip(white, depth=3)
    >>> scale = 3 * white.w_star_norm ** (2 / 3)  # of eps^2 in units of (u - 1)^2
    >>> round(found.amplitude_squared(1.01) / scale / (3 * 0.01 / (2 * 2 * 11)), 9)
    1.0
    """
    depth = check_depth(depth)
    if depth < 2 or regression.targets != 1:
        raise SettingError("the flip at the ceiling is for one target and a depth of 2 or more")
    check_positive("output norm", output_norm)
    least = minimal_sharpness(regression, depth, output_norm)
    sigma, y = regression.sigma, regression.w_star / np.sqrt(least.t)
    n = depth - 1
    s = np.sqrt(n) * (np.sqrt(least.t) / output_norm) ** (1.0 / n)
    power = np.sqrt(least.t)
    first = power * n / s
    second = first * (n - 1) / s
    third = second * (n - 2) / s
    jacobian = np.column_stack([power * np.eye(regression.d), first * y])
    hessian = 2.0 * jacobian.T @ sigma @ jacobian
    values, vectors = np.linalg.eigh(hessian)
    x = vectors[:, -1]
    f, h = x[:-1], float(x[-1])
    moves = jacobian @ x
    bends = first * h * f + 0.5 * second * h**2 * y
    twists = 0.5 * second * h**2 * f + third * h**3 * y / 6.0
    pulled = sigma @ moves
    turned = np.append(first * h * pulled, pulled @ (second * h * y + first * f))
    gradient = 4.0 * (jacobian.T @ (sigma @ bends) + turned)
    quartic = 24.0 * float(bends @ sigma @ bends + 2.0 * moves @ sigma @ twists)
    back = np.linalg.lstsq(hessian, gradient, rcond=1e-12)[0]
    coefficient = 0.5 * float(gradient @ back) - quartic / 6.0
    gap = float(1.0 - values[-2] / values[-1])
    return Flip(sharpness=least.exact, coefficient=coefficient, first=f, others=h, gap=gap)
