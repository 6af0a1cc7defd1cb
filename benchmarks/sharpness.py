"""Sharpness of given weights against automatic differentiation inside a sparse eigensolver.

Rival E is what a careful user of JAX writes: the Hessian-vector product as a jvp of the gradient,
compiled once, handed to SciPy's eigsh. Both sides are asked for the same relative accuracy, 1e-10,
in 64 bits, and must agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness import Result, compare
from flatmin.curvature import sharpness
from flatmin.curvature.record import Sharpness
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

ACCURACY = 1e-10


def sharpness_ensemble() -> Result:
    """200 networks of d = 5, L = 10."""
    return _case(
        "sharpness-ensemble", gaussian_samples(50, 5, seed=0), Architecture.mlp(5, 10), 200, 0.45,
        bar=20.0,
    )  # fmt: skip


def sharpness_large() -> Result:
    """One network of d = 256, L = 50."""
    return _case(
        "sharpness-large", gaussian_samples(512, 256, seed=0), Architecture.mlp(256, 50), 1,
        1.0 / 16.0, bar=3.0,
    )  # fmt: skip


def sharpness_outputs() -> Result:
    """200 linear networks of three outputs: the value with its residual, which is what E gives."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 5))
    samples = Samples.from_arrays(X, X @ rng.standard_normal((5, 3)) + rng.standard_normal((50, 3)))
    network = Architecture.multivariate(5, 10, 3)
    return _case("sharpness-outputs", samples, network, 200, 0.45, bar=50.0, certify=False)


def sharpness_gelu() -> Result:
    """200 networks with GELU: the value with its residual, which is what E gives."""
    network = Architecture.mlp(5, 10, activation="gelu-tanh")
    samples = gaussian_samples(50, 5, seed=0)
    return _case("sharpness-gelu", samples, network, 200, 0.6, bar=50.0, certify=False)


def _case(
    id: str,
    samples: Samples,
    architecture: Architecture,
    networks: int,
    scale: float,
    *,
    bar: float,
    certify: bool = True,
) -> Result:
    rng, subset = np.random.default_rng(0), min(networks, 20)
    flat = scale * rng.standard_normal((networks, architecture.parameters))
    ensemble = Ensemble.from_flat(architecture, flat)
    problem = samples.regression() if architecture.linear else samples

    def work() -> Sharpness:
        return sharpness(problem, ensemble, tolerance=ACCURACY, certify=certify)

    rival = _eigsh(samples, architecture)
    theirs = np.array([rival(row) for row in flat[:subset]])
    ours = work()
    gap = float(np.max(np.abs(ours.value[:subset] / theirs - 1.0)))
    if gap > 10 * ACCURACY or np.any(ours.residual > ACCURACY * ours.value):
        raise AssertionError(f"{id}: the two sides disagree by {gap:.1e}")
    what = architecture.beyond or (
        f"{samples.targets} outputs" if samples.targets > 1 else "linear"
    )
    return compare(
        id,
        f"sharpness to 1e-10, {what}, d={samples.d} L={architecture.depth}, "
        f"{networks} network{'s' * (networks > 1)}",
        "seconds per network",
        (work, networks),
        {"E": (lambda: [rival(row) for row in flat[:subset]], subset)},
        {"E": bar},
        notes=f"largest relative difference {gap:.0e}; E = JAX jvp of grad in SciPy eigsh"
        + ("" if certify else "; neither side has an interval"),
    )


def _eigsh(samples: Samples, architecture: Architecture) -> Any:
    import jax
    import jax.numpy as jnp
    from scipy.sparse.linalg import LinearOperator, eigsh

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    X, Y = jnp.asarray(samples.X), jnp.asarray(samples.y.reshape(samples.n, -1))
    size, offsets, shapes = architecture.parameters, architecture.offsets, architecture.shapes

    def risk(flat: Any) -> Any:
        layers = [
            flat[offsets[k] : offsets[k + 1]].reshape(shape) for k, shape in enumerate(shapes)
        ]  # fmt: skip
        if architecture.linear:
            # The outputs first: the network's map is a chain of products with few rows.
            w = jnp.eye(Y.shape[1])
            for layer in reversed(layers):
                w = w @ layer
            return jnp.sum((X @ w.T - Y) ** 2) / len(X)
        h = X.T
        for layer in layers[:-1]:
            h = jax.nn.gelu(layer @ h, approximate=True)
        return jnp.sum(((layers[-1] @ h).T - Y) ** 2) / len(X)

    product = jax.jit(lambda flat, v: jax.jvp(jax.grad(risk), (flat,), (v,))[1])

    def largest(flat: Any) -> float:
        at = jnp.asarray(flat)
        operator = LinearOperator(
            (size, size), matvec=lambda v: np.asarray(product(at, v)), dtype=np.float64
        )
        return float(eigsh(operator, k=1, which="LA", tol=ACCURACY, return_eigenvectors=False)[0])

    return largest
