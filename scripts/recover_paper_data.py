"""Recover the data of the paper's experiments and store them with the package.

The authors drew everything from JAX's threefry generator in its older, non-partitionable form, in
float32, starting from PRNGKey(0). `recover` walks the same chain of keys; the arrays it returns are
those of `flatmin/paper/data.npz`. Run it with JAX installed:

    python scripts/recover_paper_data.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

DEPTHS = (5, 10, 20, 40)
TARGET = Path(__file__).parent.parent / "src" / "flatmin" / "paper" / "data.npz"


def recover() -> dict[str, np.ndarray]:
    """Every array, by name, as float64 values of the float32 draws."""
    import jax

    before = jax.config.jax_threefry_partitionable, jax.config.jax_enable_x64
    jax.config.update("jax_threefry_partitionable", False)
    jax.config.update("jax_enable_x64", False)
    try:
        return _walk()
    finally:
        jax.config.update("jax_threefry_partitionable", before[0])
        jax.config.update("jax_enable_x64", before[1])


def _walk() -> dict[str, np.ndarray]:
    import jax
    import jax.numpy as jnp

    found: dict[str, np.ndarray] = {}
    key = jax.random.PRNGKey(0)

    def draw() -> Any:
        nonlocal key
        key, fresh = jax.random.split(key)
        return fresh

    def unit(fresh: Any) -> np.ndarray:
        p = jax.random.normal(fresh, (5,))
        return np.asarray(p / jnp.linalg.norm(p))

    found |= _data("linear", draw(), 50, 5, 1.0)
    for _ in range(4):
        draw()
    found["residual_p"] = unit(draw())
    for _ in range(2):
        draw()
    for depth in DEPTHS:
        draw()
        found[f"depth_{depth}_p"] = unit(draw())
        draw()
    found |= _data("underdetermined", draw(), 15, 20, 1.0)
    key = jax.random.PRNGKey(0)
    found |= _data("nonlinear", draw(), 50, 5, 0.0)
    return {name: np.asarray(array, dtype=np.float64) for name, array in found.items()}


def _data(name: str, key: Any, n: int, d: int, noise: float) -> dict[str, np.ndarray]:
    """X, y, X_test, y_test of one experiment: y = (X w_true + noise e)/|w_0|, in float32."""
    import jax

    draws = []
    for shape in ((n, d), (n, d), (d,), (n,), (n,)):
        key, fresh = jax.random.split(key)
        draws.append(jax.random.normal(fresh, shape))
    X, X_test, w_true, e, e_test = draws
    y, y_test = X @ w_true + noise * e, X_test @ w_true + noise * e_test
    # The norm in float64, rounded once: it does not depend on a solver's rounding in float32.
    w_0 = np.linalg.lstsq(np.float64(X), np.float64(y), rcond=None)[0]
    norm = np.float32(np.linalg.norm(w_0))
    arrays = {"X": X, "y": y / norm, "X_test": X_test, "y_test": y_test / norm}
    return {f"{name}_{part}": array for part, array in arrays.items()}


if __name__ == "__main__":
    np.savez_compressed(TARGET, **recover())
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
