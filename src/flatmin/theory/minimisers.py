"""Minimisers written down explicitly: the flattest one, and one of any chosen sharpness.

A rank-one chain is W_1 = e_1 w*'/sqrt(t) and W_k = rho_k e_k e_{k-1}' for k >= 2, with unit
vectors e_k (e_L = p/|p|). Its backward vectors are b_k = |b_k| e_k with |b_1|^2 = t, and its
Hessian's non-zero spectrum is that of 2 (t Sigma + sum_{k>=2} |b_k|^2/|b_{k-1}|^2 q q'), where
q = Sigma^{1/2} w*.

With several outputs (no p, the product is P* = W_L...W_1 of rank r) the chain has rank r: with U an
orthonormal basis of the range of P*, O_k any r x d_k with orthonormal rows and
rho = t^{-1/(L-1)},

    W_1 = t^{-1/2} O_1' U'P*,      W_k = rho^{-1/2} O_k' O_{k-1},      W_L = rho^{-1/2} U O_{L-1},

and the non-zero spectrum is that of 2 (t Sigma + (L-1) rho Q'Q), r times, and of 2 rho Q'Q, once
for each output direction outside U. Hidden layers narrower than r reach no P of rank r: what is
called a minimiser here does not exist for them (`narrow` has what is known of their best points).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_kind, check_positive, kind_of
from flatmin.core.errors import SettingError
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem, regression_of
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.roots import root
from flatmin.theory.units import nth_root

if TYPE_CHECKING:
    from flatmin.network.architecture import Architecture


def flattest_minimiser(
    regression: Problem, architecture: Architecture, generator: np.random.Generator | None = None
) -> list[Float]:
    """Weights W_1..W_L of a minimiser whose sharpness is exactly S_min.

    |b_k| runs in geometric progression from sqrt(t) to |p|. The inner unit vectors e_k, or frames
    O_k with several outputs, are free: the first axes by default, random if a generator is given.
    """
    regression = _checked(regression, architecture, generator)
    norm = architecture.output_norm
    if architecture.output is None:
        return _several(regression, architecture, generator)
    t = minimal_sharpness(regression, architecture.depth, norm).t
    return _chain(regression, architecture, t, np.ones(max(architecture.depth - 1, 1)), generator)


def minimiser_of_sharpness(
    regression: Problem,
    architecture: Architecture,
    sharpness: float,
    generator: np.random.Generator | None = None,
) -> list[Float]:
    """Weights of a minimiser with the given sharpness, by the paper's rescaling argument.

    From the flattest minimiser, divide W_1 by C >= 1 and multiply W_2 by C: the network computes
    the same function, |b_1| grows by C, and the sharpness grows continuously to infinity.
    """
    regression = _checked(regression, architecture, generator)
    target = check_positive("sharpness", sharpness)
    depth, norm = architecture.depth, architecture.output_norm
    least = minimal_sharpness(regression, depth, norm)
    if target < least.exact * (1.0 - 1e-12):
        raise SettingError(
            f"sharpness must be at least S_min = {least.exact:.6g} at depth {depth}, got {target:g}"
        )
    if depth == 1:
        raise SettingError("at depth 1 every minimiser has the same sharpness")
    q = regression.q
    ratio = float(nth_root(norm**2 / least.t, depth - 1))

    def excess(log_c: float) -> float:
        c2 = np.exp(2.0 * log_c)
        update = ratio / c2 + (depth - 2) * ratio
        matrix = least.t * c2 * regression.sigma + update * np.outer(q, q)
        return float(np.log(2.0 * np.linalg.eigvalsh(matrix)[-1] / target))

    # S >= 2 t C^2 Lam, so the target is passed at the latest where this reaches it.
    high = 0.5 * np.log(target / (2.0 * least.t * regression.largest_eigenvalue)) + 1e-6
    log_c = 0.0 if excess(0.0) >= 0.0 else root(excess, 0.0, high)
    # rho_2 = |b_1|/|b_2| takes the factor C; chain() sets |b_1|^2 = t C^2.
    factors = np.ones(depth - 1)
    factors[0] = np.exp(log_c)
    return _chain(regression, architecture, least.t * np.exp(2.0 * log_c), factors, generator)


def _checked(data: Problem, architecture: Architecture, generator: object) -> Regression:
    """The data, if they and the rest are what they should be."""
    regression = regression_of(data)
    if not hasattr(architecture, "check_fits"):  # networks are a room above
        raise SettingError(
            f"architecture must be of type Architecture, got {kind_of(architecture)}"
        )
    if architecture.linear:
        architecture.check_fits(regression)
    if generator is not None:
        check_kind("generator", generator, np.random.Generator)
    return regression


def product_rank(regression: Regression) -> int:
    """The rank of P*, which no hidden layer of a minimiser is narrower than."""
    return len(_singular(regression)[1])


def _several(
    regression: Regression, architecture: Architecture, generator: np.random.Generator | None
) -> list[Float]:
    """The chain of rank r for several outputs."""
    architecture.check_fits(regression)
    u, s, v_transposed = _singular(regression)
    narrowest = min(architecture.widths)
    if narrowest < len(s):
        raise SettingError(
            f"a minimiser needs widths of at least {len(s)}, the rank of P*, got {narrowest}; for "
            "narrower networks only a lower bound of the sharpness is known"
        )
    depth, first = architecture.depth, s[:, None] * v_transposed  # U'P*
    if depth == 1:
        return [u @ first]
    t = minimal_sharpness(regression, depth).t
    frames = [_frame(width, len(s), generator) for width in architecture.widths[:-1]]
    share = nth_root(np.sqrt(t), depth - 1)
    inner = [share * frames[k] @ frames[k - 1].T for k in range(1, depth - 1)]
    return [frames[0] @ first / np.sqrt(t), *inner, share * u @ frames[-1].T]


def _singular(regression: Regression) -> tuple[Float, Float, Float]:
    """P* = u diag(s) v', without singular values that are rounding."""
    u, s, v_transposed = np.linalg.svd(np.atleast_2d(regression.w_star.T), full_matrices=False)
    keep = s > max(regression.w_star.shape) * np.finfo(float).eps * s[0]
    return u[:, keep], s[keep], v_transposed[keep]


def _frame(width: int, rank: int, generator: np.random.Generator | None) -> Float:
    """Orthonormal columns: the first axes, or random."""
    if generator is None:
        return np.eye(width)[:, :rank]
    return np.asarray(np.linalg.qr(generator.standard_normal((width, rank)))[0])


def _chain(
    regression: Regression,
    architecture: Architecture,
    t: float,
    factors: Float,
    generator: np.random.Generator | None,
) -> list[Float]:
    """The rank-one chain with |b_1|^2 = t; `factors` multiply the even shares of W_2..W_L."""
    if not architecture.linear or architecture.output is None:
        raise SettingError("explicit minimisers are for linear networks with one output")
    architecture.check_fits(regression)
    depth, norm = architecture.depth, architecture.output_norm
    if depth == 1:
        # p'W = w*': only W = p w*'/|p|^2 plus anything orthogonal to p; take the least norm.
        return [np.outer(architecture.p, regression.w_star) / norm**2]
    units = [_unit(width, generator) for width in architecture.widths[:-1]]
    units.append(architecture.p / norm)
    share = nth_root(np.sqrt(t) / np.prod(factors) / norm, depth - 1)
    chain = [np.outer(units[0], regression.w_star) / np.sqrt(t)]
    for k in range(1, depth):
        chain.append(share * factors[k - 1] * np.outer(units[k], units[k - 1]))
    return chain


def _unit(width: int, generator: np.random.Generator | None) -> Float:
    vector: Float = np.eye(1, width)[0] if generator is None else generator.standard_normal(width)
    return vector / np.linalg.norm(vector)
