"""An upper bound of the largest eigenvalue from Lanczos' numbers and a random start.

Lanczos from a unit vector q gives Ritz values theta_1 <= ... <= theta_k and off-diagonal entries
beta_1..beta_k (the last of them leads out of the basis). The next vector is p_k(H) q, with

    p_k(x) = prod_i (x - theta_i) / prod_i beta_i,

and has length 1. Its coordinate along the top eigenvector u is p_k(lambda_1) <q, u>, so whatever
the matrix,

    p_k(lambda_1)^2  <=  1 / w,    w = <q, u>^2.                                        (1)

Above the largest Ritz value p_k grows from 0, steeply once that value has converged, so if w is
known to be at least t, then lambda_1 is at most the x at which p_k(x)^2 reaches 1/t. The numbers of
one run give both ends: theta_k <= lambda_1 <= x.

The weight. Let q = (v + s g)/|v + s g| with g standard Gaussian, v any vector that does not depend
on g (an earlier eigenvector, or 0) and s > 0. For any unit vector u, <v + s g, u> is a Gaussian of
standard deviation s, and an interval around 0 catches most of it when its mean is 0. Hence

    P( <q, u>^2 < t )  <=  chance    for    t = (s z / |v + s g|)^2,    P(|N(0,1)| < z) = chance.

This is the only random event: once it holds, (1) holds after every number of products, so one may
look as often as one likes and stop when the interval is narrow enough. It holds for the smallest
eigenvalue too, by the same bound for -H.

Kuczynski and Wozniakowski (1992) bound the error before the run, for the worst of all matrices; the
bound here is for the matrix at hand and needs no lambda_n: 11 to 14 products instead of 59 to one
per cent for a bulk with some larger eigenvalues, 5 000 of them, at 99.9 % confidence.

Little is left to gain from the same products: all p_j instead of the last alone (Christoffel's
function, the best that there is) save one of a hundred. Estimates of the trace or of the sum of
squares of the eigenvalues add nothing: they are moments of the same weights, and k products know 2k
of them. A block of two random vectors sees u with more certainty, and takes a third more products
all the same.
"""

from __future__ import annotations

import math

import numpy as np

from flatmin.core.arrays import Float

_HALVINGS = 40  # of an interval of logarithms: to less than a millionth of the room


def least_weight(chance: float, scale: float, norm: float) -> float:
    """log t: but for this chance a fixed direction has at least the weight t in the start.

    The start is v + scale g of the given norm, with g standard Gaussian.

    >>> round(math.exp(least_weight(0.001, 1.0, math.sqrt(1e6))) * 1e12, 2)
    1.57
    """
    from scipy.special import erfinv

    z = math.sqrt(2.0) * float(erfinv(chance))
    return 2.0 * (math.log(z) + math.log(scale) - math.log(norm))


def room_above(ritz: Float, beta: Float, log_weight: float) -> Float:
    """The largest lambda_1 - theta_k that (1) allows when the weight is at least exp(log_weight).

    `ritz` and `beta` are `[..., k]`. A beta of 0 says that the basis holds all of the start: there
    is no room then.

    >>> float(room_above(np.array([1.0]), np.array([0.0]), -10.0))
    0.0
    """
    size = np.maximum(np.abs(ritz).max(axis=-1), beta.max(axis=-1))[..., None]
    scale = np.maximum(size, np.finfo(float).tiny)
    gaps = (ritz.max(axis=-1, keepdims=True) - ritz) / scale
    with np.errstate(divide="ignore"):
        bound = np.sum(np.log(beta / scale), axis=-1) - 0.5 * log_weight
        # Each factor is at least the room, so its logarithm is at most bound/k.
        high = np.minimum(bound / ritz.shape[-1], 300.0)
        low = np.minimum(high, -80.0)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            over = np.sum(np.log(gaps + np.exp(middle)[..., None]), axis=-1) > bound
            low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.asarray(np.exp(high) * scale[..., 0])
