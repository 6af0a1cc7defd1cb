"""Gradient and Hessian of networks on rows, by hand: forward over reverse, batched.

x -> C W_L h_{L-1}, with h_0 = x, z_k = W_k h_{k-1}, h_k = phi(z_k) for k < L, over n rows of X;
C is p' or the identity. Risk |Y - F|^2 / n, so the residual signal is r = 2 (F - Y)/n and

    reverse:   delta_L = C' r,  delta_k = phi'(z_k) * (W_{k+1}' delta_{k+1})
               grad_k = delta_k h_{k-1}'
    forward:   dz_k = V_k h_{k-1} + W_k dh_{k-1},  dh_k = phi'(z_k) * dz_k,  dr = (2/n) C dz_L
    both:      d delta_k = phi''(z_k) * dz_k * (W_{k+1}' delta_{k+1})
                         + phi'(z_k) * (V_{k+1}' delta_{k+1} + W_{k+1}' d delta_{k+1})
               (H V)_k = d delta_k h_{k-1}' + delta_k dh_{k-1}'.

With biases the layers are [W_k b_k], and h_{k-1} has a last row of ones, dh_{k-1} one of zeros;
what goes back goes through W_k alone. At a kink of phi (ReLU) phi'' is 0: `network.activations`.

Shapes: weights `[network, d_k, d_{k-1}]`, signals `[network, d_k, n]`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flatmin.core.arrays import Float
from flatmin.curvature.operators import Hessian
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture


class Rows(NamedTuple):
    """Inputs `[row, d]` and targets `[row]` or `[row, output]`, as `Samples` have them."""

    X: Float
    y: Float


# Numbers that a sharpness with its interval takes: signals of all units on all rows (five are kept
# and six made by a product, and all of them in the longest type as well, at most twice as long),
# and vectors of parameters (a basis of 20). Measured with ReLU and 1e5 to 1e6 units.
_SIGNALS, _VECTORS = 28, 24


def working_bytes(architecture: Architecture, rows: int) -> float:
    """Memory that measuring one network's sharpness takes."""
    units = architecture.inputs + sum(architecture.widths)
    return 8.0 * (_SIGNALS * units * rows + _VECTORS * architecture.parameters)


def turned(m: Float) -> Float:
    """The matrix of each network, turned."""
    return m.transpose(0, 2, 1)


class NonlinearHessian(Hessian):
    """Gradient and Hessian of networks with any activation, biases and outputs."""

    largest_product = 300.0

    def __init__(self, rows: Samples | Rows, architecture: Architecture, flat: Float) -> None:
        self._architecture, self._w = architecture, architecture.matrices(flat)
        self._made_of = rows, architecture, flat
        self.networks, self.dimension = flat.shape
        phi, layers, c = architecture.activation, architecture.split(flat), architecture.output_map
        X, Y = rows.X, rows.y.reshape(len(rows.X), -1)
        x = np.broadcast_to(X.T, (self.networks, *X.T.shape))
        self._h, self._slope, self._bend = [self._extended(x, 1.0)], [], []
        for layer in layers[:-1]:
            z = layer @ self._h[-1]
            self._h.append(self._extended(phi.value(z), 1.0))
            self._slope.append(phi.first(z))
            self._bend.append(phi.second(z))
        residuals = c @ (layers[-1] @ self._h[-1]) - Y.T
        self.risk: Float = np.sum(residuals**2, axis=(1, 2)) / len(X)
        # 2/n C'C takes dz_L to d delta_L; delta[k] belongs to layer k+1, and
        # back[k] = W_{k+2}' delta[k+1], before phi'.
        self._square = 2.0 / len(X) * c.T @ c
        self._delta = [2.0 / len(X) * c.T @ residuals]
        self._back: list[Float] = []
        for k in range(len(layers) - 1, 0, -1):
            self._back.append(turned(self._w[k]) @ self._delta[-1])
            self._delta.append(self._slope[k - 1] * self._back[-1])
        self._delta.reverse()
        self._back.reverse()

    def _extended(self, h: Float, last: float) -> Float:
        """Signals with the unit that biases multiply."""
        if not self._architecture.biases:
            return h
        return np.concatenate([h, np.full((len(h), 1, h.shape[2]), last)], axis=1)

    def gradient(self) -> Float:
        """grad_k = delta_k h_{k-1}'."""
        return self._architecture.join(
            [delta @ turned(h) for delta, h in zip(self._delta, self._h, strict=True)]
        )

    def longer(self) -> NonlinearHessian:
        """The same in the longest floating-point type."""
        rows, architecture, flat = self._made_of
        return NonlinearHessian(rows, architecture, flat.astype(np.longdouble))

    def product(self, vectors: Float) -> Float:
        """H V by the recursions above."""
        layers, v = self._architecture.split(vectors), self._architecture.matrices(vectors)
        depth = len(layers)
        dh: list[Float] = [np.zeros((self.networks, v[0].shape[2], self._h[0].shape[2]))]
        dz: list[Float] = []
        for k in range(depth):
            step = layers[k] @ self._h[k]
            dz.append(step + self._w[k] @ dh[k] if k else step)
            if k < depth - 1:
                dh.append(self._slope[k] * dz[k])
        d_delta = self._square @ dz[-1]
        out: list[Float] = []
        for k in range(depth - 1, -1, -1):
            if k < depth - 1:
                inner = turned(v[k + 1]) @ self._delta[k + 1] + turned(self._w[k + 1]) @ d_delta
                d_delta = self._bend[k] * dz[k] * self._back[k] + self._slope[k] * inner
            forward = self._extended(dh[k], 0.0)
            out.append(d_delta @ turned(self._h[k]) + self._delta[k] @ turned(forward))
        return np.concatenate([x.reshape(len(x), -1) for x in out[::-1]], axis=1)
