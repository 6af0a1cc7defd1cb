"""Gradient, Hessian and minimiser spectrum of linear networks with several outputs.

P = W_L...W_1, R = |Y - X P'|_F^2 / n, G = 2 (P - P*) Sigma, A_k = W_{k-1}...W_1 and
B_k = W_L...W_{k+1}:

    gradient:  grad_k = B_k' G A_k'
    H V:       with dots for derivatives along V,
               dA_{k+1} = V_k A_k + W_k dA_k,  dB_{k-1} = dB_k W_k + B_k V_k,
               dG = 2 dA_{L+1} Sigma,  (H V)_k = dB_k' G A_k' + B_k' dG A_k' + B_k' G dA_k'.

At a minimiser G = 0 and the non-zero spectrum is that of the (m d) x (m d) matrix
2 sum_k (Sigma^{1/2} A_k' A_k Sigma^{1/2}) (x) (B_k B_k').
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.curvature.operators import FlatHessian
from flatmin.data.regression import Regression
from flatmin.network.architecture import Architecture


def _t(m: Float) -> Float:
    return m.transpose(0, 2, 1)


class MultivariateHessian(FlatHessian):
    """Gradient and Hessian of linear networks with several outputs."""

    def __init__(self, regression: Regression, architecture: Architecture, flat: Float) -> None:
        self._architecture = architecture
        self._sigma, self._root = regression.sigma, regression.sigma_root
        self._layers = architecture.split(flat)
        self.networks, self.dimension = flat.shape
        n = self.networks
        # a[k] = A_{k+1} for k = 0..L, so a[L] = P; b[k] = B_{k+1} for k = -1..L-1.
        self._a = [np.broadcast_to(np.eye(architecture.inputs), (n, *self._root.shape))]
        for w in self._layers:
            self._a.append(w @ self._a[-1])
        eye = np.eye(architecture.widths[-1])
        self._b = [np.broadcast_to(eye, (n, *eye.shape))]
        for w in reversed(self._layers[1:]):
            self._b.append(self._b[-1] @ w)
        self._b.reverse()
        self.g = 2.0 * (self._a[-1] - np.atleast_2d(regression.w_star.T)) @ self._sigma

    def gradient(self) -> Float:
        """grad_k = B_k' G A_k'."""
        return self._architecture.join(
            [_t(b) @ self.g @ _t(a) for a, b in zip(self._a[:-1], self._b, strict=True)]
        )

    def product(self, vectors: Float) -> Float:
        """H V by the recursions above."""
        v = self._architecture.split(vectors)
        depth = len(self._layers)
        da = [np.zeros_like(self._a[0])]
        for k in range(depth):
            da.append(v[k] @ self._a[k] + self._layers[k] @ da[k])
        db = [np.zeros_like(self._b[-1])]
        for k in range(depth - 1, 0, -1):
            db.append(db[-1] @ self._layers[k] + self._b[k] @ v[k])
        db.reverse()
        dg = 2.0 * da[-1] @ self._sigma
        return self._architecture.join(
            [
                _t(db[k]) @ self.g @ _t(self._a[k])
                + _t(self._b[k]) @ (dg @ _t(self._a[k]) + self.g @ _t(da[k]))
                for k in range(depth)
            ]
        )

    def spectrum(self) -> tuple[Float, Float]:
        """Eigenvalues (ascending) and eigenvectors of the (m d) x (m d) matrix."""
        d, m = self._root.shape[0], self._b[0].shape[1]
        matrix = np.zeros((self.networks, d * m, d * m))
        for a, b in zip(self._a[:-1], self._b, strict=True):
            left = a @ self._root
            terms = np.einsum("nij,nkl->nikjl", _t(left) @ left, b @ _t(b))
            matrix += 2.0 * terms.reshape(self.networks, d * m, d * m)
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors

    def guess(self) -> Float:
        """J' applied to the top eigenvector of the reduction: exact at minimisers."""
        top = self.spectrum()[1][:, :, -1]
        d, m = self._root.shape[0], self._b[0].shape[1]
        r = _t(self._root @ top.reshape(self.networks, d, m))
        return self._architecture.join(
            [_t(b) @ r @ _t(a) for a, b in zip(self._a[:-1], self._b, strict=True)]
        )
