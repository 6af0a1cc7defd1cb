"""The compiled sharpness of networks on samples, against dense Hessians by JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

import oracles
from flatmin.curvature import sharpness
from flatmin.curvature.compiled import on_rows
from flatmin.data.samples import Samples
from flatmin.lanes.activations import activate_twice, code_of
from flatmin.lanes.vectors import vectors
from flatmin.network.activations import ACTIVATIONS
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble

TOLERANCE = 1e-10


def example(architecture: Architecture, n: int, networks: int) -> tuple[Samples, Ensemble]:
    rng = np.random.default_rng(0)
    outputs = () if architecture.output is not None else (architecture.widths[-1],)
    samples = Samples.from_arrays(
        rng.standard_normal((n, architecture.inputs)), rng.standard_normal((n, *outputs))
    )
    flat = 0.6 * rng.standard_normal((networks, architecture.parameters))
    return samples, Ensemble.from_flat(architecture, flat)


@pytest.mark.parametrize(
    "architecture",
    [
        *(Architecture(3, (4, 5, 2), (0.7, -1.3), name, biases=True) for name in ACTIVATIONS),
        Architecture(2, (3, 3, 1), (1.0,), "gelu-tanh"),
        Architecture(4, (1,), (1.0,), "tanh"),
        Architecture(3, (4, 3, 2), None),
    ],
    ids=str,
)
def test_the_largest_eigenvalue(architecture: Architecture) -> None:
    samples, ensemble = example(architecture, 13, 5)
    found = sharpness(samples, ensemble, tolerance=TOLERANCE, certify=False)
    assert np.all(found.residual <= TOLERANCE * found.value)
    for i, flat in enumerate(ensemble.flat()):
        layers = oracles.split(architecture, flat)
        _, dense = oracles.gradient_and_hessian(samples, architecture, layers)
        scale = np.abs(dense).max()
        assert abs(found.value[i] - np.linalg.eigvalsh(dense)[-1]) <= 1e-12 * scale
        error = dense @ found.vector[i] - found.value[i] * found.vector[i]
        assert np.linalg.norm(error) <= TOLERANCE * found.value[i] + 1e-12 * scale


def test_bits_do_not_depend_on_lanes_or_neighbours() -> None:
    samples, ensemble = example(Architecture.mlp(3, 4, activation="gelu-erf", biases=True), 7, 13)
    flat = ensemble.flat()
    whole = on_rows(samples, ensemble, TOLERANCE, 500)
    for lanes in (4, 8):
        for some in (flat, flat[5:], flat[12:]):
            again = on_rows(
                samples, Ensemble.from_flat(ensemble.architecture, some, lanes), TOLERANCE, 500
            )
            for name in ("value", "residual", "products", "vector"):
                expected = getattr(whole, name)[-len(some) :]
                np.testing.assert_array_equal(getattr(again, name), expected, err_msg=name)


@njit
def _bend(code: Any, lanes: Any, h: Any, s: Any, c: Any) -> None:
    x = vectors(lanes, h)
    activate_twice(code, x, vectors(lanes, s), vectors(lanes, c), len(h) // 4)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "linear"])
def test_second_derivatives(name: str) -> None:
    # Against NumPy's own. The rounding of 1 - g is multiplied by x of SiLU, by x (2 u')^2 of GELU:
    # by up to 1200 before g is 1, where phi'' itself is 1e-13.
    room = 2e-13 if name == "gelu-tanh" else 5e-15
    x = np.concatenate([np.linspace(-12.0, 12.0, 4000), [-1e4, -1e3, -41.0, 41.0, 1e3, 1e4]])
    x = np.append(x, np.zeros(-len(x) % 4))
    h, s, c = x.copy(), np.zeros_like(x), np.zeros_like(x)
    _bend(code_of(name), (0.0,) * 4, h, s, c)
    phi = ACTIVATIONS[name]
    for found, expected in ((s, phi.first(x)), (c, phi.second(x))):
        assert np.all(np.abs(found - expected) <= room * np.abs(expected).max())
