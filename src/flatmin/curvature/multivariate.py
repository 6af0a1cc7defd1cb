"""Minimiser spectrum of linear networks with several outputs; Hessian products are `nonlinear`'s.

P = W_L...W_1, A_k = W_{k-1}...W_1 and B_k = W_L...W_{k+1}. At a minimiser the non-zero spectrum of
the Hessian is that of the (m d) x (m d) matrix
2 sum_k (Sigma^{1/2} A_k' A_k Sigma^{1/2}) (x) (B_k B_k').
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatmin.core.arrays import Float
from flatmin.curvature.nonlinear import NonlinearHessian, Rows, turned
from flatmin.data.regression import Regression
from flatmin.data.samples import Problem
from flatmin.network.architecture import Architecture


def stand_in(regression: Regression) -> Rows:
    """d rows of sqrt(d) Sigma^{1/2} with targets that P* meets: their risk is R - R_min."""
    X = np.sqrt(regression.d) * regression.sigma_root
    return Rows(X, X @ np.atleast_2d(regression.w_star.T).T)


def products(layers: Sequence[Float]) -> list[tuple[Float, Float]]:
    """A_k = W_{k-1}...W_1 and B_k = W_L...W_{k+1}, k = 1..L; an empty product is the identity."""
    n, outputs, _ = layers[-1].shape
    below = [np.broadcast_to(np.eye(layers[0].shape[2]), (n, *[layers[0].shape[2]] * 2))]
    for w in layers[:-1]:
        below.append(w @ below[-1])
    above = [np.broadcast_to(np.eye(outputs), (n, outputs, outputs))]
    for w in reversed(layers[1:]):
        above.append(above[-1] @ w)
    return list(zip(below, reversed(above), strict=True))


class MultivariateHessian(NonlinearHessian):
    """Gradient and Hessian of linear networks with several outputs."""

    largest_product = 100.0

    def __init__(self, problem: Problem, architecture: Architecture, flat: Float) -> None:
        super().__init__(stand_in(problem.regression()), architecture, flat)
        self._root = problem.regression().sigma_root

    def spectrum(self) -> tuple[Float, Float]:
        """Eigenvalues (ascending) and eigenvectors of the (m d) x (m d) matrix."""
        matrix: Float = np.zeros(())
        for a, b in products(self._w):
            left = a @ self._root
            term = 2.0 * np.einsum("nij,nkl->nikjl", turned(left) @ left, b @ turned(b))
            matrix = matrix + term.reshape(self.networks, *2 * (term.shape[1] * term.shape[2],))
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors

    def guess(self) -> Float:
        """J' applied to the top eigenvector of the reduction: exact at minimisers."""
        top = self.spectrum()[1][:, :, -1]
        r = turned(self._root @ top.reshape(self.networks, len(self._root), -1))
        return self._architecture.join([turned(b) @ r @ turned(a) for a, b in products(self._w)])
