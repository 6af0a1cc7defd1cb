"""How flat a minimiser of a deep linear network can be: bounds, the exact value, the flattest one.

Setting: risk R(W) = |y - X w|^2 / n with w = W_1'...W_L' p and no factor 1/2; S(W) is the largest
eigenvalue of its Hessian; S_min is the infimum of S over minimisers. Write Lam for the largest
eigenvalue of Sigma, v = w*/|w*|, a = v' Sigma v, and

    t_0 = |w*|^{2-2/L} |p|^{2/L},

the value of |b_1|^2 = |W_2'...W_L' p|^2 at the balanced rank-one minimiser. Every statement below
is t_0 times a quantity that depends on Sigma, v and L only.

Bounds (Marion and Chizat 2024, Theorems 1 and 2):

    2 t_0 L a  <=  S_min  <=  2 t_0 sqrt((2L-1) Lam^2 + (L-1)^2 a^2).

Exact, for L >= 2, with one free number, s = log(|b_1|^2/t_0), and convex in it (the proof:
docs/theory/exact-minimal-sharpness.md; for L = 1, S = 2 |p|^2 Lam everywhere):

    S_min = 2 t_0 min_s lambda_max( e^s Sigma + (L-1) e^{-s/(L-1)} z z' ),   z = Sigma^{1/2} v.

Eliminating s. The matrix is a rank-one update of a multiple of Sigma, so its largest eigenvalue is
e^s m where m >= Lam solves the secular equation 1 = (L-1) e^{-sL/(L-1)} g(m), with
g(m) = sum_i z_i^2 / (m - lambda_i) in the eigenbasis of Sigma. Solving it for s instead of for m,

    S_min = 2 t_0 min_{m > Lam} m ((L-1) g(m))^{(L-1)/L},

a minimisation with O(d) work per evaluation and no inner root search. With m = Lam (1 + delta) all
terms are positive, so nothing cancels; the stationary point solves
(1 + delta) (L-1)/L * mean(1/(gap + delta)) = 1, a weighted mean with weights z_i^2/(gap_i + delta)
and gap_i = 1 - lambda_i/Lam, and lies in (0, L-1].

Several outputs: R(W) = |Y - X P'|_F^2 / n with P = W_L...W_1, least at P* = w*', and no p. With
Q = P* Sigma^{1/2} and hidden layers no narrower than the rank of Q (docs/theory/several-outputs.md)

    S_min = 2 min_t lambda_max( t Sigma + (L-1) t^{-1/(L-1)} Q'Q ).

Eliminating t as above, g(m) becomes the largest eigenvalue of Q (m - Sigma)^{-1} Q', a matrix of
the size of the outputs; with y its eigenvector the slope is that of the one output y'P*. Where that
eigenvalue is repeated the slope may jump over 0: the root is then the place of the jump. With s the
largest singular value of Q and u its right singular vector,

    2 L (u'Sigma u)^{1/L} s^{2-2/L}  <=  S_min  <=  2 L Lam^{1/L} s^{2-2/L}.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.core.checks import check_depth, check_positive
from flatmin.core.errors import SettingError
from flatmin.core.shown import Shown
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, regression_of
from flatmin.theory.roots import root
from flatmin.theory.units import nth_root

CONVENTION = "largest eigenvalue of the Hessian of the mean squared error (no factor 1/2)"

# Below this delta the secular term of the top eigenspace moves the value by less than rounding.
_SMALLEST_DELTA = 1e-30


class MinimalSharpness(Shown, eq=True):
    """S_min with its bounds; `t` is |b_1|^2 at the flattest minimiser (see the module).

    The bounds are the paper's for one output, and those of the module for several.
    """

    lower: float
    exact: float
    upper: float
    t: float


def check_output_norm(regression: Regression, output_norm: float) -> float:
    """|p|, positive; 1 for several targets, where there is no p."""
    norm = check_positive("|p|", output_norm)
    if regression.targets > 1 and norm != 1.0:
        raise SettingError(
            f"|p| must be 1 with {regression.targets} targets, where no p follows the last layer, "
            f"got {norm:g}"
        )
    return norm


def balanced_scale(regression: Regression, depth: int, output_norm: float = 1.0) -> float:
    """t_0 = |w*|^{2-2/L} |p|^{2/L}: the square of |w*| over the norm of a balanced layer."""
    norm, size = check_output_norm(regression, output_norm), regression.w_star_norm
    quotient = size / float(nth_root(size / norm, check_depth(depth)))
    found = quotient * quotient
    if not 1e-304 < found < 1e304:
        raise SettingError(
            f"the sharpness for |w*| = {regression.w_star_norm:.3g} and |p| = {output_norm:.3g} "
            "is beyond floating point: rescale the target"
        )
    return found


def lower_bound(regression: Regression, depth: int, output_norm: float = 1.0) -> float:
    """Theorem 2: S_min >= 2 t_0 L a."""
    return 2.0 * balanced_scale(regression, depth, output_norm) * depth * regression.a


def network_lower_bound(
    regression: Regression, depth: int, norms: ArrayLike, output_norm: float = 1.0
) -> Float:
    """Theorem 2, for one minimiser: S(W) >= 2 a |w*|^{2-1/L} |p|^{1/L} sum_k 1/|W_k|_F.

    `norms` are |W_k|_F as `[..., layer]`, of all layers or of some: every term is positive. The
    paper states it for S_min; its proof shows it for the minimiser at hand.
    """
    size = regression.w_star_norm
    scale = size * (size / float(nth_root(size / output_norm, depth)))
    with np.errstate(divide="ignore"):
        terms = 1.0 / np.asarray(norms, dtype=float)
    return np.asarray(2.0 * regression.a * scale * np.sum(terms, axis=-1))


def corollary_2_bound(regression: Regression, depth: int) -> float:
    """Corollary 2: from small initialisation (p = 1) gradient flow ends with
    S <= 8 L Lam |w*|^{2-2/L}."""
    return 8.0 * depth * regression.largest_eigenvalue * balanced_scale(regression, depth)


def minimal_sharpness(
    regression: Problem, depth: int, output_norm: float = 1.0
) -> MinimalSharpness:
    """S_min exactly, with the paper's bounds.

    >>> from flatmin.data.generators import whitened_samples
    >>> white = whitened_samples(n=30, d=4, seed=0).regression()
    >>> round(minimal_sharpness(white, depth=6).exact / white.w_star_norm ** (2 - 2 / 6), 12)
    12.0
    """
    regression, depth = regression_of(regression), check_depth(depth)
    t_0 = balanced_scale(regression, depth, output_norm)
    largest = regression.largest_eigenvalue
    if depth == 1:
        exact, t = 2.0 * output_norm**2 * largest, t_0
    else:
        weights, gaps = _weights(regression)
        delta = _best_delta(weights, gaps, depth)
        # e^s = ((L-1) g)^{(L-1)/L} at the best m, and S_min = 2 t_0 e^s m.
        g = float(np.sum(weights(delta) / (gaps + delta)))
        t = t_0 * float(np.exp((1.0 - 1.0 / depth) * (np.log(depth - 1.0) + np.log(g))))
        exact = 2.0 * t * largest * (1.0 + delta)
    if regression.targets > 1:
        lower, upper = _bounds_of_several(regression, depth)
    else:
        lower = lower_bound(regression, depth, output_norm)
        # Theorem 2: S_min <= 2 t_0 sqrt((2L-1) Lam^2 + (L-1)^2 a^2).
        root = np.hypot(np.sqrt(2.0 * depth - 1.0) * largest, (depth - 1.0) * regression.a)
        upper = float(2.0 * t_0 * root)
    return MinimalSharpness(lower=lower, exact=exact, upper=upper, t=t)


def vanishing_scale_limit(regression: Regression, depth: int, output_norm: float = 1.0) -> float:
    """The sharpness that gradient flow reaches as the initial scale tends to 0.

    The minimiser found is then balanced and rank one, which is s = 0 in the objective of S_min:
    2 t_0 lambda_max( Sigma + (L-1) z z' ).
    """
    depth = check_depth(depth)
    if regression.targets != 1:
        raise SettingError(f"this formula is for one target, got {regression.targets}")
    scale = 2.0 * balanced_scale(regression, depth, output_norm) * regression.largest_eigenvalue
    of_delta, gaps = _weights(regression)
    weights = of_delta(0.0)  # the same for every delta
    beta = depth - 1.0

    def secular(log_delta: float) -> float:
        return float(np.log(beta * np.sum(weights / (gaps + np.exp(log_delta)))))

    # The root exists above the top eigenvalue unless the update misses the top eigenspace.
    low = np.log(_SMALLEST_DELTA)
    if beta == 0.0 or secular(low) <= 0.0:
        return scale
    high = np.log(beta * weights.sum()) + 1e-9  # lambda_max grows by at most the update's trace
    return scale * (1.0 + float(np.exp(root(secular, float(low), float(high)))))


def critical_learning_rate(regression: Regression, depth: int, output_norm: float = 1.0) -> float:
    """2/S_min: above it no minimiser is linearly stable for gradient descent."""
    return 2.0 / minimal_sharpness(regression, depth, output_norm).exact


def paper_learning_rate(regression: Regression, depth: int, output_norm: float = 1.0) -> float:
    """The paper's approximation of 2/S_min: 1/(t_0 L a), that is 2 over the lower bound."""
    return 2.0 / lower_bound(regression, depth, output_norm)


def _in_eigenbasis(regression: Regression) -> tuple[Float, Float]:
    """P* / |P*| in the eigenbasis of Sigma, with no more rows than columns, and lambda_i / Lam."""
    rows = np.atleast_2d(
        (regression.eigenvectors.T @ (regression.w_star / regression.w_star_norm)).T
    )
    if len(rows) > regression.d:
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    return rows, regression.eigenvalues / regression.largest_eigenvalue


def _weights(regression: Regression) -> tuple[Callable[[float], Float], Float]:
    """delta -> z_i^2 / Lam of the output direction with the largest g, and the gaps."""
    rows, ratio = _in_eigenbasis(regression)
    gaps = np.maximum(1.0 - ratio, 0.0)

    def weights(delta: float) -> Float:
        direction = rows[0]
        if len(rows) > 1:
            direction = np.linalg.eigh((rows * (ratio / (gaps + delta))) @ rows.T)[1][:, -1] @ rows
        return np.asarray(ratio * direction**2)

    return weights, gaps


def _best_delta(weights: Callable[[float], Float], gaps: Float, depth: int) -> float:
    """The minimiser of m g(m)^{(L-1)/L} over m = Lam (1 + delta)."""

    def slope(log_delta: float) -> float:
        delta = float(np.exp(log_delta))
        terms = weights(delta) / (gaps + delta)
        mean = np.sum(terms / (gaps + delta)) / np.sum(terms)
        return float(1.0 - (1.0 + delta) * (1.0 - 1.0 / depth) * mean)

    low, high = np.log(_SMALLEST_DELTA), np.log(depth - 1.0) + 1e-9
    if slope(low) >= 0.0:  # w* misses the top eigenspace: the best point is the kink at m = Lam
        return _SMALLEST_DELTA
    return float(np.exp(root(slope, float(low), float(high))))


def _bounds_of_several(regression: Regression, depth: int) -> tuple[float, float]:
    """2 L (u'Sigma u)^{1/L} s^{2-2/L} and 2 L Lam^{1/L} s^{2-2/L}, in the eigenbasis of Sigma."""
    rows, ratio = _in_eigenbasis(regression)
    _, values, right = np.linalg.svd(rows * np.sqrt(ratio), full_matrices=False)
    upper = 2.0 * depth * regression.largest_eigenvalue * balanced_scale(regression, depth)
    upper *= float(values[0]) ** (2.0 - 2.0 / depth)
    share = float(np.sum(ratio * right[0] ** 2))
    return upper * share ** (1.0 / depth), upper
