"""S_min against depth: it may fall before it grows, and it is convex in L.

In the notation of `minimal_sharpness`, with q = Sigma^{1/2} w*, for every depth L >= 1

    S_min(L) = sup_x 2 L (|p|^2 x'Sigma x)^{1/L} |q'x|^{2-2/L} = sup_x 2 |q'x|^2 L exp(c_x / L),

    c_x = ln( |p|^2 x'Sigma x / |q'x|^2 ),      x a unit vector with q'x != 0.

At least: for any t the form of t Sigma + (L-1) (|p|^2/t)^{1/(L-1)} q q' at x is, by the weighted
inequality of arithmetic and geometric means, at least L (|p|^2 x'Sigma x)^{1/L} |q'x|^{2-2/L}.
Attained: at the best t some top eigenvector x has derivative 0 in log t, which is where that
inequality is an equality. (For L = 1 the supremum is |p|^2 Lam, as it should be.)

Several outputs: |Qx| takes the place of |q'x|, with Q = P* Sigma^{1/2} and |p| = 1.

The second derivative of L exp(c/L) is exp(c/L) c^2 / L^3 >= 0, so S_min is a supremum of convex
functions of L: convex, whatever the data. It falls up to the flattest depth and grows from there
on, in the end in proportion to L. On white data S_min = 2 L |w*|^{2-2/L} |p|^{2/L}, smallest at
L = 2 ln(|p|/|w*|) if that is above 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flatmin.core.checks import MAX_DEPTH, check_depth
from flatmin.data.regression import Regression
from flatmin.theory.minimal_sharpness import check_output_norm, minimal_sharpness


def flattest_depth(
    regression: Regression, output_norm: float = 1.0, largest: int = MAX_DEPTH
) -> int:
    """The depth L, from 1 to `largest`, with the smallest S_min; of equal ones the smallest L.

    S_min is convex in L (see the module), so the answer is the first depth after which
    it does not fall: found by doubling, then by bisection.

    >>> from flatmin.data.generators import whitened_samples
    >>> white = whitened_samples(n=30, d=4, seed=0).regression()
    >>> small = replace(white, w_star=np.exp(-3.5) * white.w_star / white.w_star_norm)
    >>> flattest_depth(small)  # 2 ln(1/|w*|)
    7
    """
    largest = check_depth(largest)
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
