"""Gradient, Hessian and minimiser spectrum of linear networks with one output, in closed form.

Backward vectors b_L = p, b_{k-1} = W_k' b_k, so w = b_0. With g = 2 Sigma (w - w*), forward vectors
a_1 = g, a_{k+1} = W_k a_k. Then

    gradient:  grad_k = b_k a_k'
    H V:       c_L = 0,           c_{k-1} = W_k' c_k + V_k' b_k
               e_1 = 2 Sigma c_0, e_{k+1} = W_k e_k + V_k a_k
               (H V)_k = c_k a_k' + b_k e_k'

Range coordinates. Every H V has the form x_k a_k' + b_k y_k', so the eigenvectors of non-zero
eigenvalues live in a space of dimension at most sum_k (d_k + d_{k-1}), not sum_k d_k d_{k-1}.
With A = a_k/|a_k| and B = b_k/|b_k|, write V_k = x A' + B y' with y orthogonal to A: then
|V_k|^2 = |x|^2 + |y|^2, so (x, y) are orthonormal coordinates, and

    V_k' b_k = A (x.b_k) + |b_k| y          V_k a_k = |a_k| x
    (H V)_k:  x = |a_k| c_k + (e_k.A) b_k    y = |b_k| (e_k - (e_k.A) A).

A product then costs two sweeps of matrix-vector products, 4 P flops, and the solver's vectors are
d/2 times shorter than the parameters. A zero a_k or b_k (at minimisers, at saddles) needs no case:
its unit vector is taken as 0. H restricted to its range has the same largest eigenvalue as H,
because R is a convex quadratic in each layer alone, so the largest eigenvalue is never negative.

Spectrum at a minimiser. There g = 0, so H = 2 J' Sigma J, and its non-zero spectrum is that of the
d x d matrix 2 Sigma^{1/2} M Sigma^{1/2}, M = sum_k |b_k|^2 A_k A_k', A_k = W_1'...W_{k-1}'.

Shapes: weights of layer k `[network, d_k, d_{k-1}]`, vectors `[network, d_k]`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatmin.core.arrays import Float
from flatmin.curvature.operators import Hessian
from flatmin.data.samples import Problem
from flatmin.network.architecture import Architecture


def down(w: Float, b: Float) -> Float:
    """W' b for each network."""
    rows: Float = np.matmul(b[:, None, :], w)
    return rows[:, 0, :]


def up(w: Float, a: Float) -> Float:
    """W a for each network."""
    columns: Float = np.matmul(w, a[:, :, None])
    return columns[:, :, 0]


def _dot(u: Float, v: Float) -> Float:
    """u.v for each network, as a column."""
    dots: Float = np.einsum("ni,ni->n", u, v)
    return dots[:, None]


def _unit(v: Float) -> tuple[Float, Float]:
    """|v| as a column and v/|v|, which is 0 where v is."""
    norm = np.linalg.norm(v, axis=1, keepdims=True)
    return norm, np.divide(v, norm, out=np.zeros_like(v), where=norm > 0)


def backward(layers: Sequence[Float], p: Float) -> list[Float]:
    """b_0..b_L for each network; b_0 is the linear map w the network computes."""
    b = [np.broadcast_to(p, (layers[0].shape[0], p.size)).copy()]
    for w in reversed(layers):
        b.append(down(w, b[-1]))
    return b[::-1]


def forward(layers: Sequence[Float], g: Float) -> list[Float]:
    """a_1..a_L for each network, from a_1 = g."""
    a = [g]
    for w in layers[:-1]:
        a.append(up(w, a[-1]))
    return a


class LinearHessian(Hessian):
    """Gradient and Hessian of linear networks with one output, in range coordinates."""

    def __init__(self, problem: Problem, architecture: Architecture, flat: Float) -> None:
        self._architecture, regression = architecture, problem.regression()
        self._sigma, self._root = regression.sigma, regression.sigma_root
        self._layers = architecture.split(flat)
        self.networks = flat.shape[0]
        self.dimension = sum(rows + columns for rows, columns in architecture.shapes)
        self._b = backward(self._layers, architecture.p)
        self._a = forward(self._layers, 2.0 * (self._b[0] - regression.w_star) @ self._sigma)
        norms = [_unit(a) for a in self._a]
        self._a_norm, self._a_unit = [n for n, _ in norms], [u for _, u in norms]
        norms = [_unit(b) for b in self._b[1:]]
        self._b_norm, self._b_unit = [n for n, _ in norms], [u for _, u in norms]

    def gradient(self) -> Float:
        """grad_k = b_k a_k'."""
        return self._architecture.join(
            [b[:, :, None] * a[:, None, :] for b, a in zip(self._b[1:], self._a, strict=True)]
        )

    def product(self, vectors: Float) -> Float:
        """H V in range coordinates."""
        x, y = self._pieces(vectors)
        depth = len(self._layers)
        c: list[Float] = [np.zeros_like(self._b[depth])]
        for k in range(depth - 1, -1, -1):
            v_b = self._a_unit[k] * _dot(x[k], self._b[k + 1]) + self._b_norm[k] * y[k]
            c.append(down(self._layers[k], c[-1]) + v_b if k < depth - 1 else v_b)
        c.reverse()
        out = np.empty_like(vectors)
        out_x, out_y = self._pieces(out)
        e = 2.0 * c[0] @ self._sigma
        for k in range(depth):
            along = _dot(e, self._a_unit[k])
            out_x[k][...] = self._a_norm[k] * c[k + 1] + along * self._b[k + 1]
            out_y[k][...] = self._b_norm[k] * (e - along * self._a_unit[k])
            if k < depth - 1:
                e = up(self._layers[k], e) + self._a_norm[k] * x[k]
        return out

    def restrict(self, flat: Float) -> Float:
        """x = V A, y = V' B with its part along A removed."""
        out = np.empty((self.networks, self.dimension))
        x, y = self._pieces(out)
        for k, v in enumerate(self._architecture.split(flat)):
            x[k][...] = up(v, self._a_unit[k])
            v_b = down(v, self._b_unit[k])
            y[k][...] = v_b - _dot(v_b, self._a_unit[k]) * self._a_unit[k]
        return out

    def project(self, vectors: Float) -> Float:
        """Coordinates with what is no coordinate, y along A, removed."""
        out = vectors.copy()
        for k, y in enumerate(self._pieces(out)[1]):
            y -= _dot(y, self._a_unit[k]) * self._a_unit[k]
        return out

    def lift(self, vectors: Float) -> Float:
        """V_k = x A' + B y'."""
        x, y = self._pieces(vectors)
        return self._architecture.join(
            [
                x[k][:, :, None] * self._a_unit[k][:, None, :]
                + self._b_unit[k][:, :, None] * y[k][:, None, :]
                for k in range(len(self._layers))
            ]
        )

    def plain(self, flat: Float) -> Float:
        """Coordinates of `lanes.sweeps`, y_1, .., y_L, x_1, ..: V_k is near x a_k' + b_k y'."""
        of_y, of_x = [], []
        for k, v in enumerate(self._architecture.split(flat)):
            v_b = down(v, self._b_unit[k])
            of_y.append(np.divide(v_b, self._b_norm[k], where=self._b_norm[k] > 0, out=0.0 * v_b))
            v_a = up(v, self._a_unit[k])
            v_a -= _dot(v_a, self._b_unit[k]) * self._b_unit[k]
            of_x.append(np.divide(v_a, self._a_norm[k], where=self._a_norm[k] > 0, out=0.0 * v_a))
        return np.hstack(of_y + of_x[:-1])

    def weights_of(self, coordinates: Float) -> Float:
        """V_k = x a_k' + b_k y' of such coordinates, flat."""
        out, begin, x_begin = [], 0, sum(columns for _, columns in self._architecture.shapes)
        for k, (rows, columns) in enumerate(self._architecture.shapes):
            y, begin = coordinates[:, begin : begin + columns], begin + columns
            v = self._b[k + 1][:, :, None] * y[:, None, :]
            if k + 1 < len(self._layers):
                x, x_begin = coordinates[:, x_begin : x_begin + rows], x_begin + rows
                v += x[:, :, None] * self._a[k][:, None, :]
            out.append(v)
        return self._architecture.join(out)

    def random(self, numbers: Float) -> Float:
        """Plain coordinates of V_k = y' b_k/|b_k|, with numbers for y_1 .. y_L."""
        out, begin = [], 0
        for k, (_, columns) in enumerate(self._architecture.shapes):
            y, begin = numbers[begin : begin + columns], begin + columns
            norm = self._b_norm[k]
            out += [y * np.divide(1.0, norm, where=norm > 0, out=0.0 * norm)]
        rows = sum(rows for rows, _ in self._architecture.shapes[:-1])
        return np.hstack([*out, np.zeros((self.networks, rows))])

    def spectrum(self) -> tuple[Float, Float]:
        """Eigenvalues (ascending) and eigenvectors of 2 Sigma^{1/2} M Sigma^{1/2}."""
        a = np.broadcast_to(self._root, (self.networks, *self._root.shape))
        matrix = self._b_norm[0][:, :, None] ** 2 * np.matmul(a, a.transpose(0, 2, 1))
        for k in range(1, len(self._layers)):
            # Rows of `a` are Sigma^{1/2} A_{k+1}.
            a = np.matmul(a, self._layers[k - 1].transpose(0, 2, 1))
            matrix += self._b_norm[k][:, :, None] ** 2 * np.matmul(a, a.transpose(0, 2, 1))
        values, vectors = np.linalg.eigh(2.0 * matrix)
        return values, vectors

    def guess(self) -> Float:
        """J' Sigma^{1/2} u for the top eigenvector u of the d x d matrix: exact at minimisers."""
        top = self.spectrum()[1][:, :, -1]
        return self.jacobian_transposed(top @ self._root)

    def jacobian_transposed(self, r: Float) -> Float:
        """J' r in range coordinates: b_k e_k' with e_1 = r, e_{k+1} = W_k e_k."""
        out = np.empty((self.networks, self.dimension))
        x, y = self._pieces(out)
        for k, e in enumerate(forward(self._layers, r)):
            along = _dot(e, self._a_unit[k])
            x[k][...] = along * self._b[k + 1]
            y[k][...] = self._b_norm[k] * (e - along * self._a_unit[k])
        return out

    def _pieces(self, vectors: Float) -> tuple[list[Float], list[Float]]:
        """Views x_k `[network, d_k]` and y_k `[network, d_{k-1}]` of coordinate vectors."""
        x, y, start = [], [], 0
        for rows, columns in self._architecture.shapes:
            x.append(vectors[:, start : start + rows])
            y.append(vectors[:, start + rows : start + rows + columns])
            start += rows + columns
        return x, y
