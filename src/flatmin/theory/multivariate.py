"""Flatness for several targets: R(W) = |Y - X P'|_F^2 / n with P = W_L...W_1 and no output vector.

At a minimiser the Hessian's non-zero spectrum is that of
2 sum_k (Sigma^{1/2} A_k' A_k Sigma^{1/2}) (x) (B_k B_k'), A_k = W_{k-1}...W_1, B_k = W_L...W_{k+1}.

Lower bound. For a unit vector v of outputs, the quadratic form at x (x) v is
2 sum_k |A_k Sigma^{1/2} x|^2 |B_k' v|^2: the Hessian's form for the one-output network with p = v
and target P*' v. Hence S_min >= S_min(one target P*' v, |p| = 1) for every v, and the right side
is known exactly. We take the best v among the left singular vectors of P* Sigma^{1/2}. (With the
top pair (u, s) alone and no optimisation over x this gives 2 L (u' Sigma u)^{1/L} s^{2-2/L}.)

Upper bound. The balanced factorisation of P* = U diag(s) V' is W_k ~ diag(s)^{1/L} between
orthonormal frames; its sharpness is 2 lambda_max(Sigma^{1/2} M Sigma^{1/2}) with
M = s_1^{2-2/L} I + sum_{k>=2} s_1^{2(L-k)/L} V diag(s)^{2(k-1)/L} V'. For white data both bounds
equal 2 L s_1^{2-2/L}.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_depth
from flatmin.core.errors import SettingError
from flatmin.data.regression import Regression
from flatmin.theory.minimal_sharpness import minimal_sharpness

if TYPE_CHECKING:
    from flatmin.network.architecture import Architecture


@dataclasses.dataclass(frozen=True)
class SharpnessBounds:
    """S_min for several targets lies between these."""

    lower: float
    upper: float


def multivariate_bounds(regression: Regression, depth: int) -> SharpnessBounds:
    """Both bounds on S_min for several targets."""
    depth = check_depth(depth)
    product = _optimal_product(regression)
    if depth == 1:
        value = 2.0 * regression.largest_eigenvalue
        return SharpnessBounds(value, value)
    left = np.linalg.svd(product @ regression.sigma_root, full_matrices=False)[0]
    lower = max(
        minimal_sharpness(_one_output(regression, product.T @ v), depth).exact
        for v in left.T
        if np.linalg.norm(product.T @ v) > 1e-12 * regression.w_star_norm
    )
    _, s, v_transposed = np.linalg.svd(product, full_matrices=False)
    # sum_{k=2}^L s_1^{2(L-k)/L} s_i^{2(k-1)/L}, scaled by s_1^{2-2/L}: a geometric sum in s_i/s_1.
    ratio = (s / s[0]) ** (2.0 / depth)
    sums = np.array([np.sum(r ** np.arange(1, depth)) for r in ratio])
    middle = np.eye(regression.d) + (v_transposed.T * sums) @ v_transposed
    root = regression.sigma_root
    upper = 2.0 * s[0] ** (2.0 - 2.0 / depth) * np.linalg.eigvalsh(root @ middle @ root)[-1]
    return SharpnessBounds(lower, float(upper))


def balanced_minimiser(regression: Regression, architecture: Architecture) -> list[Float]:
    """The balanced factorisation of P*: W_k = F_k diag(s)^{1/L} F_{k-1}', F_L = U, F_0 = V."""
    product = _optimal_product(regression)
    u, s, v_transposed = np.linalg.svd(product, full_matrices=False)
    keep = s > 1e-14 * s[0]
    rank = int(keep.sum())
    narrowest = min(architecture.widths)
    if narrowest < rank:
        raise SettingError(f"a minimiser needs widths of at least {rank}, got {narrowest}")
    u, s, v_transposed = u[:, keep], s[keep], v_transposed[keep]
    frames = [v_transposed.T, *(np.eye(w)[:, :rank] for w in architecture.widths[:-1]), u]
    share = s ** (1.0 / architecture.depth)
    return [(frames[k + 1] * share) @ frames[k].T for k in range(architecture.depth)]


def _optimal_product(regression: Regression) -> Float:
    """P*, of shape targets x d."""
    return np.atleast_2d(regression.w_star.T)


def _one_output(regression: Regression, w_star: Float) -> Regression:
    """The regression of one combination of the targets."""
    return dataclasses.replace(regression, w_star=w_star, target_names=("combination",))
