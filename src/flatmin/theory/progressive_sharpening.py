"""When sharpness rises along gradient flow: exact for balanced networks.

Setting: one output, d_L = 1 and p = 1, L >= 2. Layers are balanced, W_{k+1}' W_{k+1} = W_k W_k',
and stay so under gradient flow (Lemma 1). W_L is a row, so that all layers then have rank one and
one norm: W_k = sigma u_k u_{k-1}' with unit vectors, w = rho v, rho = sigma^L, v = u_0. With
g = 2 Sigma (w - w*) and h = 2 Sigma w*, so that g = 2 rho Sigma v - h, the sharpness depends on w
alone: S = rho^{1-2/L} lambda_max(K) with the matrix of size d + 1

    K = [ 2 rho Sigma                       sqrt(L-1) (2 rho Sigma v + g)          ]
        [ sqrt(L-1) (2 rho Sigma v + g)'    2 (L-1) rho v'Sigma v + (L-2) v'g      ]

With (y, alpha) the top eigenvector of K and lambda its eigenvalue, its speed is

    dS/dt = rho^{2-4/L} { -L (v'g) [(2-2/L) lambda + N] - G.(I - v v') g },
    N = 2 sqrt(L-1) alpha h'y + (L-2) alpha^2 h'v,
    G = 8 sqrt(L-1) alpha rho Sigma y + alpha^2 ((8L-12) rho Sigma v - (L-2) h).

docs/theory/progressive-sharpening.md has the proofs, and what follows for aligned networks and for
small starts.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.data.regression import Regression
from flatmin.theory.units import nth_root


def balanced_sharpness(regression: Regression, depth: int, w: Float) -> tuple[Float, Float]:
    """S and dS/dt along gradient flow of balanced networks that compute w (`[network, d]`).

    NaN where w = 0. At depth 1 S is 2 Lam and does not move.

    >>> from flatmin.data.generators import whitened_samples
    >>> data = whitened_samples(n=20, d=3, seed=0).regression()
    >>> for share in (0.2, 0.48, 0.7):
    ...     s, rate = balanced_sharpness(data, 10, share * data.w_star[None])
    ...     print("rises" if rate[0] > 0 else "falls")
    rises
    falls
    rises
    """
    w = np.asarray(w, dtype=float)
    sigma, size, root = regression.sigma, w.shape[1], np.sqrt(depth - 1.0)
    if depth == 1:
        return np.full(len(w), 2.0 * regression.largest_eigenvalue), np.zeros(len(w))
    rho = np.linalg.norm(w, axis=1)
    there = rho > 0.0
    rho = np.where(there, rho, 1.0)[:, None]
    v = np.where(there[:, None], w, 1.0) / rho
    h = 2.0 * sigma @ regression.w_star
    sigma_v = _each(sigma, v)
    g = 2.0 * rho * sigma_v - h
    k = np.empty((len(w), size + 1, size + 1))
    k[:, :size, :size] = 2.0 * rho[:, :, None] * sigma
    k[:, :size, size] = k[:, size, :size] = root * (2.0 * rho * sigma_v + g)
    along, bend = _dot(v, g), _dot(v, sigma_v)
    k[:, size, size] = (2.0 * (depth - 1) * rho * bend + (depth - 2) * along)[:, 0]
    values, vectors = np.linalg.eigh(k)
    top, y, alpha = values[:, -1:], vectors[:, :size, -1], vectors[:, size:, -1]
    taken = 2.0 * root * alpha * _dot(y, h) + (depth - 2) * alpha**2 * _dot(v, h)
    turn = 8.0 * root * alpha * rho * _each(sigma, y)
    turn = turn + alpha**2 * ((8 * depth - 12) * rho * sigma_v - (depth - 2) * h)
    across = g - along * v
    rate = -depth * along * ((2.0 - 2.0 / depth) * top + taken) - _dot(turn, across)
    stretch = rho / nth_root(rho, depth) ** 2
    sharp, speed = (stretch * top)[:, 0], (stretch**2 * rate)[:, 0]
    return np.where(there, sharp, np.nan), np.where(there, speed, np.nan)


def _dot(x: Float, y: Float) -> Float:
    return np.asarray(np.sum(x * y, axis=1, keepdims=True))


def _each(matrix: Float, rows: Float) -> Float:
    """The matrix times every row by itself: a product of them all has bits that depend on all."""
    return np.asarray((matrix @ rows[:, :, None])[:, :, 0])
