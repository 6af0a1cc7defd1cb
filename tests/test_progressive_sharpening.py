"""The sharpness of balanced networks along gradient flow, against automatic differentiation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flatmin
import oracles
from flatmin.data.generators import gaussian_samples, spectrum_samples, whitened_samples
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture
from flatmin.theory.progressive_sharpening import balanced_sharpness

DATA = {
    "gaussian": gaussian_samples(n=20, d=3, seed=1),
    "ill-conditioned": spectrum_samples(n=20, d=3, condition_number=50, alignment="spread", seed=2),
    "one feature": gaussian_samples(n=20, d=1, seed=3),
}


def falling_range(regression: Regression, depth: int) -> tuple[float, float]:
    """Section 3: between which |w|/|w*| the sharpness of an aligned balanced network falls."""
    direction = regression.w_star / regression.w_star_norm
    across = np.eye(regression.d) - np.outer(direction, direction)
    other = float(np.linalg.eigvalsh(across @ regression.sigma @ across)[-1])
    low = (depth - 2.0) / (2.0 * depth - 2.0)
    return low, max(low, min(0.5, regression.a / (regression.a + other)))


def small_start_cosine(depth: int) -> float:
    """Section 4: the cosine between w and Sigma w* from which on small balanced starts sharpen."""
    return float(np.sqrt(depth) - np.sqrt(depth - 1.0))


def balanced(architecture: Architecture, w: np.ndarray, seed: int) -> list[np.ndarray]:
    """W_k = sigma u_k u_{k-1}' with random unit vectors, u_0 along w and u_L = 1."""
    random = np.random.default_rng(seed)
    units = [w / np.linalg.norm(w)]
    for width in architecture.widths[:-1]:
        u = random.standard_normal(width)
        units.append(u / np.linalg.norm(u))
    units.append(np.ones(1))
    size = np.linalg.norm(w) ** (1.0 / architecture.depth)
    return [size * np.outer(up, down) for down, up in pairwise(units)]


def sharpness_and_speed(samples: Samples, architecture: Architecture, flat: Any) -> Any:
    """S of the dense Hessian, and how it changes over a short time of gradient flow."""
    gradient, hessian = oracles.compiled(architecture)(samples.X, samples.y, flat)
    t = 1e-5 / float(np.linalg.norm(gradient))
    bend = hessian @ gradient  # second order in time: W'' = H grad
    at = [flat - s * t * gradient + 0.5 * (s * t) ** 2 * bend for s in (-1.0, 0.0, 1.0)]
    before, now, after = (
        float(np.linalg.eigvalsh(oracles.compiled(architecture)(samples.X, samples.y, x)[1])[-1])
        for x in at
    )
    return now, (after - before) / (2.0 * t)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(("depth", "width"), [(2, 3), (3, 1), (5, 2)])
@pytest.mark.parametrize("size", [0.05, 0.4, 1.5])
def test_sharpness_and_its_speed(name: str, depth: int, width: int, size: float) -> None:
    samples = DATA[name]
    data = samples.regression()
    w = size * np.random.default_rng(depth).standard_normal(data.d)
    architecture = Architecture.mlp(data.d, depth, width=width)
    matrices = balanced(architecture, w, 5)
    flat = np.concatenate([m.ravel() for m in matrices])
    value, speed = balanced_sharpness(data, depth, w[None])
    now, changed = sharpness_and_speed(samples, architecture, flat)
    assert value[0] == pytest.approx(now, rel=1e-9)
    # The difference quotient is good to the square of its step, and to rounding over it.
    assert speed[0] == pytest.approx(changed, rel=2e-4, abs=1e-4 * now)


def test_it_is_where_gradient_flow_ends_from_vanishing_scales() -> None:
    from flatmin.theory.minimal_sharpness import vanishing_scale_limit

    data = DATA["gaussian"].regression()
    value, speed = balanced_sharpness(data, 5, data.w_star[None])
    assert value[0] == pytest.approx(vanishing_scale_limit(data, 5), rel=1e-12)
    assert abs(speed[0]) < 1e-10


def test_nothing_is_claimed_of_zero_and_depth_1_stands_still() -> None:
    data = DATA["gaussian"].regression()
    assert np.isnan(balanced_sharpness(data, 4, np.zeros((1, 3)))).all()
    value, speed = balanced_sharpness(data, 1, np.ones((1, 3)))
    assert value[0] == pytest.approx(2.0 * np.linalg.eigvalsh(data.sigma)[-1])
    assert speed[0] == 0.0


@settings(max_examples=60, deadline=None)
@given(depth=st.integers(2, 30), z=st.floats(0.01, 0.99))
def test_on_white_data_it_falls_in_the_range_said(depth: int, z: float) -> None:
    data = whitened_samples(n=20, d=3, seed=0).regression()
    low, high = falling_range(data, depth)
    assert (low, high) == pytest.approx(((depth - 2) / (2 * depth - 2), 0.5))
    if min(abs(z - low), abs(z - high)) < 1e-6:
        return
    value, speed = balanced_sharpness(data, depth, z * data.w_star[None])
    assert (speed[0] < 0.0) == (low < z < high)
    n = data.w_star_norm
    best = max(1.0 - z, (2 * depth - 1) * z - (depth - 1), z)
    expected = 2.0 * data.a * n ** (2 - 2 / depth) * z ** (1 - 2 / depth) * best
    assert value[0] == pytest.approx(expected, rel=1e-9)


def test_a_strong_direction_across_makes_it_monotone() -> None:
    """b/a >= L/(L-2): here w* lies along the weakest of two directions."""
    sigma, w_star = np.diag([1.0, 4.0]), np.array([1.0, 0.0])
    X = np.linalg.cholesky(sigma) @ np.array([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])
    data = Samples.from_arrays(X.T, X.T @ w_star).regression()
    np.testing.assert_allclose(data.sigma, sigma, atol=1e-12)
    low, high = falling_range(data, 4)
    assert low == high
    shares = np.linspace(0.01, 0.99, 99)[:, None]
    assert np.all(balanced_sharpness(data, 4, shares * w_star)[1] > 0.0)
    assert np.any(balanced_sharpness(data, 2, shares * w_star)[1] < 0.0)  # L/(L-2) is infinite


@settings(max_examples=60, deadline=None)
@given(depth=st.integers(3, 30), seed=st.integers(0, 1000), excess=st.floats(0.0, 1.0))
def test_small_starts_sharpen_from_the_cosine_on(depth: int, seed: int, excess: float) -> None:
    data = DATA["ill-conditioned"].regression()
    goal = data.sigma @ data.w_star
    goal = goal / np.linalg.norm(goal)
    across = np.random.default_rng(seed).standard_normal(data.d)
    across -= (across @ goal) * goal
    across /= np.linalg.norm(across)
    least = small_start_cosine(depth)
    c = min(least + 1e-3 + excess * (1.0 - least), 1.0)
    w = 1e-9 * (c * goal + np.sqrt(1.0 - c * c) * across)
    assert balanced_sharpness(data, depth, w[None])[1][0] > 0.0


def test_below_the_cosine_small_starts_may_flatten() -> None:
    data = DATA["ill-conditioned"].regression()
    goal = data.sigma @ data.w_star
    across = np.linalg.svd(goal[None])[2][-1]
    assert balanced_sharpness(data, 3, 1e-9 * across[None])[1][0] < 0.0


def test_gradient_flow_from_a_balanced_start_has_this_sharpness() -> None:
    from flatmin.curvature.linear import backward

    data, architecture = DATA["gaussian"].regression(), Architecture.mlp(3, 4)
    start = flatmin.initialise(architecture, "balanced", 0.4, 0, networks=3)
    for end in (0.5, 2.0, 10.0):
        ensemble = flatmin.flow(data, start, end=end, rtol=1e-10).ensemble
        w = backward(ensemble.layers(), architecture.p)[0]
        value = balanced_sharpness(data, 4, w)[0]
        np.testing.assert_allclose(flatmin.sharpness(data, ensemble).value, value, rtol=1e-6)
