"""S_min against depth: it may fall before it grows, and it is convex in L.

In the notation of `minimal_sharpness`, with q = Sigma^{1/2} w* (with several outputs, |Qx| for
|q'x| and |p| = 1), for every depth L >= 1

    S_min(L) = sup_x 2 L (|p|^2 x'Sigma x)^{1/L} |q'x|^{2-2/L},      x a unit vector, q'x != 0,

a supremum of convex functions of L: S_min falls up to the flattest depth and grows from there on.
Depth L + 1 is flatter than depth L exactly while |w*| is below

    n_L = |w*| (S_min(L) / S_min(L+1))^{L(L+1)/2},

a number of Sigma, |p| and the direction of w*, which falls with L. On white data it is
|p| (L/(L+1))^{L(L+1)/2}. The proofs: docs/theory/flattest-depth.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flatmin.core.checks import MAX_DEPTH, check_depth
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, regression_of
from flatmin.theory.minimal_sharpness import check_output_norm, minimal_sharpness


def switching_norm(regression: Regression, depth: int, output_norm: float = 1.0) -> float:
    """n_L: below this |w*|, its direction kept, depth L + 1 is flatter than depth L.

    >>> from flatmin.data.generators import whitened_samples
    >>> white = whitened_samples(n=30, d=4, seed=0).regression()
    >>> [round(switching_norm(white, depth), 4) for depth in (1, 2, 3)]
    [0.5, 0.2963, 0.178]
    """
    depth = check_depth(depth)
    norm = check_output_norm(regression, output_norm)
    unit = replace(regression, w_star=regression.w_star / regression.w_star_norm)
    # With |w*| = |p| = 1; the power of |p| in S_min(L) makes n_L proportional to it.
    log_ratio = np.log(minimal_sharpness(unit, depth).exact)
    log_ratio -= np.log(minimal_sharpness(unit, depth + 1).exact)
    return norm * float(np.exp(0.5 * depth * (depth + 1) * log_ratio))


def flattest_depth(regression: Problem, output_norm: float = 1.0, largest: int = MAX_DEPTH) -> int:
    """The depth L, from 1 to `largest`, with the smallest S_min; of equal ones the smallest L.

    S_min is convex in L (see the module), so the answer is the first depth after which
    it does not fall: found by doubling, then by bisection.

    >>> from flatmin.data.generators import whitened_samples
    >>> white = whitened_samples(n=30, d=4, seed=0).regression()
    >>> small = replace(white, w_star=np.exp(-3.5) * white.w_star / white.w_star_norm)
    >>> flattest_depth(small)  # 2 ln(1/|w*|)
    7
    """
    regression, largest = regression_of(regression), check_depth(largest)
    log_p = np.log(check_output_norm(regression, output_norm))
    log_w = np.log(regression.w_star_norm)
    # S_min is t_0 times what it is for |w*| = |p| = 1; in logarithms no depth overflows.
    unit = replace(regression, w_star=regression.w_star / regression.w_star_norm)

    def log_sharpness(depth: int) -> float:
        log_t_0 = (2.0 - 2.0 / depth) * log_w + (2.0 / depth) * log_p
        return float(log_t_0 + np.log(minimal_sharpness(unit, depth).exact))

    def falls_after(depth: int) -> bool:
        return depth < largest and log_sharpness(depth + 1) < log_sharpness(depth)

    high = 1
    while falls_after(high):
        high = min(2 * high, largest)
    low = max(high // 2, 1)  # it falls after this depth, unless it is the answer
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if falls_after(middle) else (low, middle)
    return low
