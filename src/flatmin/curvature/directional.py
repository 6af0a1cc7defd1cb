"""The risk of linear networks with one output along a direction U, by sweeps of polynomials.

Put W_k + s U_k for W_k in the backward and the forward sweep of `linear`, and keep powers of s:

    b_k(s) = b_k + s c_k + s^2 f_k + ...     f_{k-1} = W_k' f_k + U_k' c_k,   f_L = 0
    a_k(s) = a_k + s e_k + s^2 h_k + ...     h_{k+1} = W_k h_k + U_k e_k,     h_1 = 2 Sigma f_0

The gradient at W + s U is b_k(s) a_k(s)'. Its second derivative in s at 0 is the third derivative
of R with U put in twice. If U is the eigenvector of a simple eigenvalue S, that is the gradient
of S (the derivative of an eigenvalue is U' dH U):

    grad_k S = 2 (f_k a_k' + c_k e_k' + b_k h_k').

It costs three sweeps, about three gradients, however many parameters there are.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float
from flatmin.curvature.linear import backward, down, forward, up
from flatmin.data.regression import Regression
from flatmin.network.architecture import Architecture


def sharpness_gradient(
    regression: Regression, architecture: Architecture, flat: Float, vectors: Float
) -> Float:
    """grad S of each network, as `[network, P]`, from its top eigenvector of length 1."""
    layers, turns = architecture.split(flat), architecture.split(vectors)
    b = backward(layers, architecture.p)
    a = forward(layers, 2.0 * (b[0] - regression.w_star) @ regression.sigma)
    c, f = [np.zeros_like(b[-1])], [np.zeros_like(b[-1])]
    for w, u, above in zip(layers[::-1], turns[::-1], b[:0:-1], strict=True):
        f.append(down(w, f[-1]) + down(u, c[-1]))
        c.append(down(w, c[-1]) + down(u, above))
    c, f = c[::-1], f[::-1]
    e, h = 2.0 * c[0] @ regression.sigma, 2.0 * f[0] @ regression.sigma
    parts = []
    for k, (w, u) in enumerate(zip(layers, turns, strict=True)):
        parts.append(2.0 * (_outer(f[k + 1], a[k]) + _outer(c[k + 1], e) + _outer(b[k + 1], h)))
        h, e = up(w, h) + up(u, e), up(w, e) + up(u, a[k])
    return architecture.join(parts)


def slope_along(
    regression: Regression, architecture: Architecture, flat: Float, vectors: Float, terms: int
) -> Float:
    """The first coefficients of d/ds R(W + s U), a polynomial in s, as `[network, terms]`."""
    b = np.broadcast_to(architecture.p, (len(flat), 1, architecture.p.size))
    layers, turns = architecture.split(flat), architecture.split(vectors)
    for w, u in zip(layers[::-1], turns[::-1], strict=True):
        degree = min(b.shape[1], terms)
        c = np.zeros((len(flat), degree + 1, w.shape[2]))
        c[:, : b.shape[1]] = b @ w
        c[:, 1:] += b[:, :degree] @ u
        b = c
    b[:, 0] -= regression.w_star
    products = (b @ regression.sigma) @ b.transpose(0, 2, 1)
    slope = np.zeros((len(flat), terms))
    for i in range(b.shape[1]):  # s^i times s^j adds (i + j) s^{i+j-1} to the slope
        for j in range(max(0, 1 - i), min(b.shape[1], terms + 1 - i)):
            slope[:, i + j - 1] += (i + j) * products[:, i, j]
    return slope


def _outer(x: Float, y: Float) -> Float:
    return x[:, :, None] * y[:, None, :]
