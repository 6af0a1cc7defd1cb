"""A dense Hessian by plain second-order propagation, in the longest floating-point type.

For each row of the data the value, gradient and Hessian of every unit over all parameters are
carried forward: z = W h and h = phi(z). Slow, and nothing in common with the package's products.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

LONG = np.longdouble
EPS = float(np.finfo(float).eps)


def sigmoid(x):
    e = np.exp(-abs(x))
    return np.where(x < 0, e, LONG(1)) / (1 + e)


def far(x):
    """x itself, or +-1000, where all tails have vanished, beyond."""
    return np.clip(x, LONG(-1000), LONG(1000))


def activation(name, x):
    """phi, phi' and phi''."""
    if name == "linear":
        return x, np.ones_like(x), np.zeros_like(x)
    if name in ("relu", "leaky-relu"):  # phi'' = 0, and phi'(0) that of one side
        left = 0.0 if name == "relu" else 0.01
        above = x > 0 if name == "relu" else x >= 0
        slope = np.where(above, LONG(1), LONG(left))
        return slope * x, slope, np.zeros_like(x)
    if name == "tanh":
        first = 4 * sigmoid(2 * x) * sigmoid(-2 * x)
        return np.tanh(x), first, -2 * np.tanh(x) * first
    if name == "softplus":
        return np.logaddexp(LONG(0), x), sigmoid(x), sigmoid(x) * sigmoid(-x)
    if name == "silu":
        s, t = sigmoid(x), sigmoid(-x)
        return x * s, s * (1 + x * t), s * t * (2 + x * (t - s))
    if name == "gelu-erf":
        near = x.astype(float)
        density = np.exp(-(far(x) ** 2) / 2) / np.sqrt(2 * LONG(np.pi))
        phi = ndtr(near) + (x - near) * density
        return x * phi, phi + far(x) * density, (2 - far(x) ** 2) * density
    assert name == "gelu-tanh"
    value, x = x, far(x)
    root = np.sqrt(2 / LONG(np.pi))
    u = 2 * root * (x + LONG(0.044715) * x**3)
    first, second = 2 * root * (1 + 3 * LONG(0.044715) * x**2), 12 * root * LONG(0.044715) * x
    s, t = sigmoid(u), sigmoid(-u)
    return value * s, s + x * s * t * first, s * t * (2 * first + x * (second + (t - s) * first**2))


def hessian(problem, architecture, layers):
    """The Hessian of the mean squared error over all parameters, row-major layer by layer.

    Of a linear network with the Sigma and w* of the regression: the rows are those of the identity,
    and Sigma weighs the errors there. Of others with the rows of the data.
    """
    if architecture.linear:
        regression = problem.regression()
        X, y, weight = np.eye(problem.d), regression.w_star, regression.sigma
    else:
        X, y, weight = problem.X, problem.y, np.eye(problem.n) / LONG(problem.n)
    X = X.astype(LONG)
    rows, count = len(X), sum(w.size for w in layers)
    h, dh, ddh = X, np.zeros((rows, X.shape[1], count), LONG), None
    at = 0
    for k, w in enumerate(layers):
        w = np.asarray(w).astype(LONG)
        if architecture.biases:
            h = np.append(h, np.ones((rows, 1), LONG), axis=1)
            dh = np.append(dh, np.zeros((rows, 1, count), LONG), axis=1)
            if ddh is not None:
                ddh = np.append(ddh, np.zeros((rows, 1, count, count), LONG), axis=1)
        out, inputs = w.shape
        z = h @ w.T
        dz = np.einsum("oi,rip->rop", w, dh)
        ddz = np.zeros((rows, out, count, count), LONG)
        if ddh is not None:
            ddz += np.einsum("oi,ripq->ropq", w, ddh)
        for o in range(out):
            mine = slice(at + o * inputs, at + (o + 1) * inputs)
            dz[:, o, mine] += h
            ddz[:, o, mine, :] += dh
            ddz[:, o, :, mine] += dh.transpose(0, 2, 1)
        at += w.size
        if k == len(layers) - 1:
            h, dh, ddh = z, dz, ddz
            break
        value, first, second = activation(architecture.activation_name, z)
        h, dh = value, first[:, :, None] * dz
        ddh = second[:, :, None, None] * dz[:, :, :, None] * dz[:, :, None, :]
        ddh += first[:, :, None, None] * ddz
    p = np.eye(h.shape[1]) if architecture.output is None else architecture.p[None]
    f = h @ p.T.astype(LONG)
    df, ddf = np.einsum("mo,rop->rmp", p, dh), np.einsum("mo,ropq->rmpq", p, ddh)
    r = weight.astype(LONG) @ (f - y.reshape(rows, -1))
    total = np.einsum("rs,rmp,smq->pq", weight, df, df) + np.einsum("rm,rmpq->pq", r, ddf)
    return 2 * total


def largest_eigenvalue(matrix):
    """The largest eigenvalue and a bound on its error."""
    size = float(np.abs(matrix).max())
    if size == 0.0:
        return 0.0, 0.0
    scaled = (matrix / LONG(size)).astype(float)
    scaled = (scaled + scaled.T) / 2
    top = float(np.linalg.eigvalsh(scaled)[-1])
    return top * size, 4 * len(matrix) * EPS * float(np.linalg.norm(scaled)) * size
