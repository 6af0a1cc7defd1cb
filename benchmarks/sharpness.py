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
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

ACCURACY = 1e-10


def sharpness_ensemble() -> Result:
    """200 networks of d = 5, L = 10."""
    return _case("sharpness-ensemble", d=5, depth=10, networks=200, subset=20, scale=0.45, bar=20.0)


def sharpness_large() -> Result:
    """One network of d = 256, L = 50."""
    return _case(
        "sharpness-large", d=256, depth=50, networks=1, subset=1, scale=1.0 / 16.0, bar=3.0
    )


def _case(
    id: str, d: int, depth: int, networks: int, subset: int, scale: float, bar: float
) -> Result:
    samples = gaussian_samples(2 * d if d > 50 else 50, d, seed=0)
    architecture = Architecture.mlp(d, depth)
    rng = np.random.default_rng(0)
    flat = scale * rng.standard_normal((networks, architecture.parameters))
    ensemble = Ensemble.from_flat(architecture, flat)
    regression = samples.regression()
    rival = _eigsh(samples, architecture)
    theirs = np.array([rival(row) for row in flat[:subset]])
    ours = sharpness(regression, ensemble, tolerance=ACCURACY)
    gap = float(np.max(np.abs(ours.value[:subset] / theirs - 1.0)))
    if gap > 10 * ACCURACY:
        raise AssertionError(f"{id}: the two sides disagree by {gap:.1e}")
    return compare(
        id,
        f"sharpness to 1e-10, d={d} L={depth}, {networks} network{'s' * (networks > 1)}",
        "seconds per network",
        (lambda: sharpness(regression, ensemble, tolerance=ACCURACY), networks),
        {"E": (lambda: [rival(row) for row in flat[:subset]], subset)},
        {"E": bar},
        notes=f"largest relative difference {gap:.0e}; E = JAX jvp of grad in SciPy eigsh",
    )


def _eigsh(samples: Samples, architecture: Architecture) -> Any:
    import jax
    import jax.numpy as jnp
    from scipy.sparse.linalg import LinearOperator, eigsh

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    X, y = jnp.asarray(samples.X), jnp.asarray(samples.y)
    size, offsets, shapes = architecture.parameters, architecture.offsets, architecture.shapes

    def risk(flat: Any) -> Any:
        # Vectors first: the network's map is a chain of matrix-vector products.
        w = jnp.ones(1)
        for k in range(len(shapes) - 1, -1, -1):
            w = w @ flat[offsets[k] : offsets[k + 1]].reshape(shapes[k])
        return jnp.mean((X @ w - y) ** 2)

    product = jax.jit(lambda flat, v: jax.jvp(jax.grad(risk), (flat,), (v,))[1])

    def largest(flat: Any) -> float:
        at = jnp.asarray(flat)
        operator = LinearOperator(
            (size, size), matvec=lambda v: np.asarray(product(at, v)), dtype=np.float64
        )
        return float(eigsh(operator, k=1, which="LA", tol=ACCURACY, return_eigenvectors=False)[0])

    return largest
