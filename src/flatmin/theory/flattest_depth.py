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
on, in the end in proportion to L.

How it moves with |w*|. Multiplying w* by r multiplies S_min(L) by r^{2-2/L}, so depth L + 1 is
flatter than depth L exactly while |w*| is below

    n_L = |w*| (S_min(L) / S_min(L+1))^{L(L+1)/2},

a number of Sigma, |p| and the direction of w*. It falls with L, because S_min is convex in L for
every |w*|; so the smaller w*, the deeper the flattest network. On white data
S_min = 2 L |w*|^{2-2/L} |p|^{2/L} and n_L = |p| (L/(L+1))^{L(L+1)/2}: |p| times 1/2, 8/27, 0.178,
0.107, ...; as a function of a real L it is smallest at L = 2 ln(|p|/|w*|) if that is above 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flatmin.core.checks import MAX_DEPTH, check_depth
from flatmin.data.regression import Regression
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
