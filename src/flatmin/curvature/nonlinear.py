"""Gradient and Hessian of non-linear networks, by hand: forward over reverse, batched.

x -> p' W_L h_{L-1}, with h_0 = x, z_k = W_k h_{k-1}, h_k = phi(z_k) for k < L, over n rows of X.
Risk |y - f|^2 / n, so the residual signal is r = 2 (f - y)/n and

    reverse:   delta_L = p r',  delta_k = phi'(z_k) * (W_{k+1}' delta_{k+1})
               grad_k = delta_k h_{k-1}'
    forward:   dz_k = V_k h_{k-1} + W_k dh_{k-1},  dh_k = phi'(z_k) * dz_k,  dr = (2/n) p' dz_L
    both:      d delta_k = phi''(z_k) * dz_k * (W_{k+1}' delta_{k+1})
                         + phi'(z_k) * (V_{k+1}' delta_{k+1} + W_{k+1}' d delta_{k+1})
               (H V)_k = d delta_k h_{k-1}' + delta_k dh_{k-1}'.

Shapes: weights `[network, d_k, d_{k-1}]`, signals `[network, d_k, n]`.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.curvature.operators import FlatHessian
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture


def _t(m: Float) -> Float:
    return m.transpose(0, 2, 1)


class NonlinearHessian(FlatHessian):
    """Gradient and Hessian of networks with any activation on given samples."""

    def __init__(self, samples: Samples, architecture: Architecture, flat: Float) -> None:
        self._architecture = architecture
        self._made_of = samples, architecture, flat
        self._layers = architecture.split(flat)
        self.networks, self.dimension = flat.shape
        phi, n = architecture.activation, samples.X.shape[0]
        x = np.broadcast_to(samples.X.T, (self.networks, *samples.X.T.shape))
        self._h, self._slope, self._bend = [x], [], []
        for w in self._layers[:-1]:
            z = w @ self._h[-1]
            self._h.append(phi.value(z))
            self._slope.append(phi.first(z))
            self._bend.append(phi.second(z))
        p = architecture.p
        outputs = np.einsum("i,nij->nj", p, self._layers[-1] @ self._h[-1])
        residuals = outputs - samples.y
        self.risk: Float = np.mean(residuals**2, axis=1)
        self._p, self._weight = p, 2.0 / n
        # delta[k] belongs to layer k+1; back[k] = W_{k+2}' delta[k+1], before phi'.
        self._delta = [p[:, None] * (self._weight * residuals)[:, None, :]]
        self._back: list[Float] = []
        for k in range(len(self._layers) - 1, 0, -1):
            self._back.append(_t(self._layers[k]) @ self._delta[-1])
            self._delta.append(self._slope[k - 1] * self._back[-1])
        self._delta.reverse()
        self._back.reverse()

    def gradient(self) -> Float:
        """grad_k = delta_k h_{k-1}'."""
        return self._architecture.join(
            [delta @ _t(h) for delta, h in zip(self._delta, self._h, strict=True)]
        )

    def longer(self) -> NonlinearHessian:
        """The same in the longest floating-point type."""
        samples, architecture, flat = self._made_of
        return NonlinearHessian(samples, architecture, flat.astype(np.longdouble))

    def product(self, vectors: Float) -> Float:
        """H V by the recursions above."""
        v = self._architecture.split(vectors)
        depth = len(self._layers)
        dh: list[Float] = [np.zeros_like(self._h[0])]
        dz: list[Float] = []
        for k in range(depth):
            step = v[k] @ self._h[k]
            dz.append(step + self._layers[k] @ dh[k] if k else step)
            if k < depth - 1:
                dh.append(self._slope[k] * dz[k])
        dr = self._weight * np.einsum("i,nij->nj", self._p, dz[-1])
        d_delta = self._p[:, None] * dr[:, None, :]
        out = [d_delta @ _t(self._h[-1]) + self._delta[-1] @ _t(dh[-1])]
        for k in range(depth - 2, -1, -1):
            inner = _t(v[k + 1]) @ self._delta[k + 1] + _t(self._layers[k + 1]) @ d_delta
            d_delta = self._bend[k] * dz[k] * self._back[k] + self._slope[k] * inner
            out.append(d_delta @ _t(self._h[k]) + self._delta[k] @ _t(dh[k]))
        return np.concatenate([x.reshape(len(x), -1) for x in out[::-1]], axis=1)
