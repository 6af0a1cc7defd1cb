"""When sharpness rises along gradient flow: exact for balanced networks.

Setting: one output, d_L = 1 and p = 1, L >= 2. Layers are balanced, W_{k+1}' W_{k+1} = W_k W_k',
and stay so under gradient flow (Lemma 1). W_L is a row, so that all layers then have rank one and
one norm: W_k = sigma u_k u_{k-1}' with unit vectors, w = rho v, rho = sigma^L, v = u_0. With
g = 2 Sigma (w - w*) and h = 2 Sigma w*, so that g = 2 rho Sigma v - h,

    rho' = -L rho^{2-2/L} v'g,     v' = -rho^{1-2/L} (I - v v') g.

**1. The sharpness depends on w alone.** S = rho^{1-2/L} lambda_max(K) with the matrix of size d + 1

    K = [ 2 rho Sigma                       sqrt(L-1) (2 rho Sigma v + g)          ]
        [ sqrt(L-1) (2 rho Sigma v + g)'    2 (L-1) rho v'Sigma v + (L-2) v'g      ]

Proof. Write y = V_1' u_1 and alpha_k = u_k' V_k u_{k-1} for k >= 2. Then D w[V] = sigma^{L-1} (y +
v sum_k alpha_k) and D^2 w[V, V]/(2 sigma^{L-2}) = y sum_k alpha_k + v sum_{j<k} alpha_j alpha_k +
X, where X collects the parts of V_k across u_k or u_{k-1}: V_1' eta_1 + v sum_{j>=2} xi_j.eta_j,
with xi_j = V_j u_{j-1} and eta_j = V_{j+1}' u_{j+1} off u_j. The Hessian V -> 2 Dw'Sigma Dw + g.D^2
w falls apart. (a) X alone: pairs with eigenvalues +- rho^{1-2/L} |g| and +- rho^{1-2/L} v'g. (b) y
= 0 and sum_k alpha_k = 0: the eigenvalue -rho^{1-2/L} v'g. (c) y and alpha_k = alpha/sqrt(L-1): the
matrix K, as 2 sum_{j<k} alpha_j alpha_k = (L-2) alpha^2. And (c) contains the largest: leave out of
its form 2 rho |Sigma^{1/2}(y + sqrt(L-1) alpha v)|^2 >= 0 and take y along g; what is left is the 2
x 2 matrix [0, sqrt(L-1)|g|; sqrt(L-1)|g|, (L-2) v'g], whose larger eigenvalue is at least |g|, with
equality for v'g = -|g|.

**2. Its speed.** With (y, alpha) the top eigenvector of K and lambda its eigenvalue,

    dS/dt = rho^{2-4/L} { -L (v'g) [(2-2/L) lambda + N] - G.(I - v v') g },
    N = 2 sqrt(L-1) alpha h'y + (L-2) alpha^2 h'v,
    G = 8 sqrt(L-1) alpha rho Sigma y + alpha^2 ((8L-12) rho Sigma v - (L-2) h).

Proof. lambda = 2 rho y'Sigma y + 2 sqrt(L-1) alpha (4 rho y'Sigma v - h'y) + alpha^2 ((4L-6) rho
v'Sigma v - (L-2) h'v) at fixed (y, alpha), by which an eigenvalue may be differentiated. In rho it
is affine: rho d/drho gives lambda + N. In v its gradient is G. Put in rho' and v'.

**3. Aligned networks** (w* an eigenvector of Sigma with eigenvalue a, as always on white data, and
v along w*). With z = rho/|w*| and b the largest other eigenvalue of Sigma,

    S = 2 |w*|^{2-2/L} z^{1-2/L} max( a (1 - z), a ((2L-1) z - (L-1)), b z ).

So, while z grows from 0 to 1, S rises except for (L-2)/(2L-2) < z < min(1/2, a/(a+b)), where it
falls. (The second exceeds the first for z > 1/2, the third for z > a/(a+b).) Sharpening is monotone
if and only if b/a >= L/(L-2); on white data it never is, but the fall is 1.1 % at L = 10, 16 % at
L = 3, and all of the time up to z = 1/2 at L = 2.

**4. Small starts.** Let L >= 3 and cos(theta) = v'Sigma w*/|Sigma w*|. As rho -> 0, S rises if

    cos(theta) >= sqrt(L) - sqrt(L-1),     which is less than 1/(2 sqrt(L-1)).

Proof. With g = -h, c = cos(theta): lambda = |h| l with l^2 + (L-2) c l = L-1, alpha^2 = l^2/(l^2 +
L-1), y = -sqrt(L-1) alpha h/(|h| l), so (2-2/L) lambda + N = (1-2/L) lambda, and dS/dt is (L-2)
rho^{2-4/L} |h|^2 [c l - alpha^2 (1-c^2)]. The bracket is positive iff c (l^2 + L-1) > l (1 - c^2),
and l^2 + L-1 >= 2 sqrt(L-1) l: it is enough that 2 sqrt(L-1) c > 1 - c^2. The flow turns v towards
Sigma w* (c' >= 0 as rho -> 0), so that the condition is not lost while rho is small.
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
