"""The covariance of a swing in which several eigenvalues are at the edge of stability.

Let u_1..u_k be the eigenvectors near the edge, with eigenvalues l_i, and X the covariance of the
swing in their span. Its mean force is grad R + (1/2) sum_ij X_ij T_ij with T_ij = D^3R[u_i, u_j],
and moves the k x k block of the Hessian by -<T_ij, .>. No eigenvalue of the block may rise faster
than gamma (2/eta - l): with

    B_ij = gamma (l_i - 2/eta) [i = j] - <T_ij, grad R>
    (A X)_ij = (1/2) sum_ab <T_ij, T_ab> X_ab

X is the covariance with A X - B >= 0, X >= 0 and tr(X (A X - B)) = 0 (Cohen and others 2025): the
conditions for the least (1/2) tr(X A X) - tr(B X) over X >= 0, a convex problem of size
k (k + 1)/2. For k = 1 it is X = max(0, B/A).

Solved for all networks at once by following the central path: the least of that minus mu log det X,
by Newton's method with steps damped by 1/(1 + their length), which stay inside X > 0 (Nesterov and
Nemirovskii 1994), as mu falls. On the path tr(X (A X - B)) = k mu.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float

# In units of tr(X A X): where the path begins, by how much mu falls and where it ends.
_FIRST, _FALL, _LAST = 10.0, 0.1, 1e-10
_NEWTON = 40


def pairs(k: int) -> list[tuple[int, int]]:
    """The entries of a symmetric matrix that are free."""
    return [(i, j) for i in range(k) for j in range(i, k)]


def swing_covariance(gram: Float, back: Float, along: Float) -> Float:
    """X `[network, k, k]`, from <T_ij, T_ab> `[network, pair, pair]`, the first part of B
    `[network, k, k]`, and <T_ij, grad R> `[network, pair]`.

    >>> gram, back, along = np.full((2, 1, 1), 8.0), np.zeros((2, 1, 1)), np.array([[-2.0], [2.0]])
    >>> swing_covariance(gram, back, along).ravel().tolist()
    [0.5, 0.0]
    """
    k, tiny = back.shape[-1], np.finfo(float).tiny
    if k == 1:
        return np.maximum(0.0, 2.0 * (back - along[:, :, None]) / np.maximum(gram, tiny))
    known = np.isfinite(gram.sum(axis=(1, 2)) + back.sum(axis=(1, 2)) + along.sum(axis=1))
    if not known.all():  # networks far out
        x = np.full_like(back, np.nan)
        if known.any():
            x[known] = swing_covariance(gram[known], back[known], along[known])
        return x
    basis = _basis(k)
    weight = np.array([1.0 if i == j else np.sqrt(2.0) for i, j in pairs(k)])
    quadratic = 0.5 * gram * weight[:, None] * weight
    linear = np.einsum("mij,nij->nm", basis, back) - weight * along
    # In units in which A and B have about the size 1, and so has X.
    size = np.maximum(np.trace(quadratic, axis1=1, axis2=2) / len(weight), tiny)
    length = np.maximum(np.linalg.norm(linear, axis=1), tiny)
    a, b = quadratic / size[:, None, None], linear / length[:, None]
    flat, unit = basis.reshape(len(basis), -1), np.einsum("mii->m", basis)
    x, mu = np.tile(np.eye(k), (len(b), 1, 1)), _FIRST
    while mu > _LAST:
        mu *= _FALL
        for _ in range(_NEWTON):
            # In X = C (I + S) C' the barrier's second derivative at S = 0 is 1.
            c = np.linalg.cholesky(x)
            turned = c[:, None] @ basis @ c.transpose(0, 2, 1)[:, None]
            spread = turned.reshape(*b.shape, -1) @ flat.T  # [network, of S, of X]
            force = np.einsum("nab,nb->na", a, x.reshape(len(b), -1) @ flat.T) - b
            slope = np.einsum("npm,nm->np", spread, force) / mu - unit
            curved = spread @ a @ spread.transpose(0, 2, 1) / mu + np.eye(len(weight))
            step = np.linalg.solve(curved, slope[:, :, None])[:, :, 0]
            far = np.sqrt(np.maximum(np.einsum("np,np->n", step, slope), 0.0))
            step = step / np.where(far > 0.25, 1.0 + far, 1.0)[:, None]
            x = c @ (np.eye(k) - (step @ flat).reshape(-1, k, k)) @ c.transpose(0, 2, 1)
            if far.max() <= 0.25:
                break
    return np.asarray(x * (length / size)[:, None, None])


def _basis(k: int) -> Float:
    """Symmetric matrices of length 1, one for every pair."""
    basis = np.zeros((len(pairs(k)), k, k))
    for m, (i, j) in enumerate(pairs(k)):
        basis[m, i, j] = basis[m, j, i] = 1.0 if i == j else np.sqrt(0.5)
    return basis
