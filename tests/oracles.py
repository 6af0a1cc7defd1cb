"""Independent references: automatic differentiation in 64 bits, and brute force."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture

jax.config.update("jax_enable_x64", True)

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: x,
    "gelu-tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu-erf": lambda x: jax.nn.gelu(x, approximate=False),
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "leaky-relu": jax.nn.leaky_relu,
}


def balanced_minimiser(regression: Any, architecture: Architecture) -> list[np.ndarray]:
    """Several outputs: W_k = F_k diag(s)^{1/L} F_{k-1}', from P* = F_L diag(s) F_0'."""
    u, s, v = np.linalg.svd(np.atleast_2d(regression.w_star.T), full_matrices=False)
    rank = np.linalg.matrix_rank(regression.w_star)
    u, s, v = u[:, :rank], s[:rank], v[:rank]
    frames = [v.T, *(np.eye(width)[:, :rank] for width in architecture.widths[:-1]), u]
    share = s ** (1.0 / architecture.depth)
    return [(frames[k + 1] * share) @ frames[k].T for k in range(architecture.depth)]


def risk(architecture: Architecture, X: Any, y: Any, layers: Sequence[Any]) -> Any:
    """The mean squared error of one network, from the raw samples."""
    phi = ACTIVATIONS[architecture.activation_name]
    h = X.T
    for w in layers[:-1]:
        h = phi(_applied(w, h))
    out = _applied(layers[-1], h)
    if architecture.output is None:
        return jnp.sum((out.T - y) ** 2) / X.shape[0]
    return jnp.mean((jnp.asarray(architecture.p) @ out - y) ** 2)


def _applied(layer: Any, h: Any) -> Any:
    """W h, or W h + b of a layer [W b]."""
    columns = h.shape[0]
    return layer[:, :columns] @ h + jnp.sum(layer[:, columns:], axis=1)[:, None]


def split(architecture: Architecture, flat: Any) -> list[Any]:
    """Matrices from flat parameters, in the order W_1..W_L or [W_1 b_1].., row-major."""
    layers, at = [], 0
    for rows, wide in architecture.shapes:
        columns = wide + architecture.biases
        layers.append(flat[at : at + rows * columns].reshape(rows, columns))
        at += rows * columns
    return layers


@cache
def compiled(architecture: Architecture) -> Any:
    """(X, y, flat) -> gradient and dense Hessian, compiled once per architecture and shape."""

    def of_flat(flat: Any, X: Any, y: Any) -> Any:
        return risk(architecture, X, y, split(architecture, flat))

    return jax.jit(
        lambda X, y, flat: (jax.grad(of_flat)(flat, X, y), jax.hessian(of_flat)(flat, X, y))
    )


def gradient_and_hessian(
    samples: Samples, architecture: Architecture, layers: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Flat gradient and dense Hessian by automatic differentiation."""
    flat = np.concatenate([np.asarray(w).ravel() for w in layers])
    gradient, hessian = compiled(architecture)(samples.X, samples.y, flat)
    return np.asarray(gradient), np.asarray(hessian)


def sharpness(samples: Samples, architecture: Architecture, layers: Sequence[np.ndarray]) -> float:
    """Largest eigenvalue of the dense automatic-differentiation Hessian."""
    return float(np.linalg.eigvalsh(gradient_and_hessian(samples, architecture, layers)[1])[-1])


@cache
def _minimiser_sharpness(samples: Samples, architecture: Architecture) -> Any:
    """theta -> log sharpness of the minimiser with free layers theta, by automatic differentiation.

    W_2..W_L are free; W_1 is the least-norm solution of W_1' b_1 = w* plus a free part that
    b_1 does not see, so every theta is a minimiser.
    """
    X, y = jnp.asarray(samples.X), jnp.asarray(samples.y)
    w_star = jnp.asarray(samples.regression().w_star)

    def minimiser(theta: Any) -> Any:
        free = split(architecture, theta)
        b = jnp.asarray(architecture.p)
        for w in reversed(free[1:]):
            b = w.T @ b
        first = free[0] + jnp.outer(b, w_star - free[0].T @ b) / (b @ b)
        return jnp.concatenate([w.ravel() for w in (first, *free[1:])])

    def log_sharpness(theta: Any) -> Any:
        hessian = jax.hessian(lambda x: risk(architecture, X, y, split(architecture, x)))(
            minimiser(theta)
        )
        return jnp.log(jnp.linalg.eigvalsh(hessian)[-1])

    return jax.jit(jax.value_and_grad(log_sharpness))


def brute_force_minimal_sharpness(
    samples: Samples, architecture: Architecture, starts: int = 8, seed: int = 0
) -> float:
    """The least sharpness over minimisers found by a general optimiser from random starts."""
    objective = _minimiser_sharpness(samples, architecture)
    rng = np.random.default_rng(seed)
    best = np.inf
    for _ in range(starts):
        x = rng.standard_normal(architecture.parameters)
        for _ in range(4):  # restarts help at kinks of the largest eigenvalue
            result = minimize(
                lambda t: tuple(np.asarray(v, dtype=float) for v in objective(t)),
                x,
                jac=True,
                method="BFGS",
                options={"gtol": 1e-10, "maxiter": 2000},
            )
            x = result.x
        best = min(best, float(np.exp(result.fun)))
    return best


def product_rounding(matrices: Sequence[Any]) -> float:
    """How far apart two computed products W_L ... W_1 can lie, in norm.

    A product A B with inner size n has |fl(A B) - A B|_F <= n eps |A|_F |B|_F (Higham, Accuracy and
    Stability, (3.13)), in whatever order it is summed; errors of the factors add up, and there are
    two products.
    """
    inner = sum(matrix.shape[1] for matrix in matrices)
    norms = [np.linalg.norm(matrix) for matrix in matrices]
    return float(2.0 * inner * np.finfo(float).eps * np.prod(norms))
