"""Flatness for several targets: the bounds against minimisers found by brute force."""

from __future__ import annotations

import numpy as np
import pytest

import oracles
from flatmin.core.errors import SettingError
from flatmin.data.generators import gaussian_samples, whitened_samples
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.multivariate import balanced_minimiser, multivariate_bounds


def random_minimiser(samples: Samples, depth: int, rng: np.random.Generator):
    """Square inner layers, any; the last one solves P = P*."""
    d = samples.d
    product = samples.regression().w_star.T
    inner = [rng.standard_normal((d, d)) / np.sqrt(d) + np.eye(d) for _ in range(depth - 1)]
    through = np.eye(d)
    for w in inner:
        through = w @ through
    return [*inner, product @ np.linalg.inv(through)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("depth", "targets"), [(1, 2), (2, 2), (3, 3), (5, 2)])
def test_bounds_hold_and_the_balanced_minimiser_attains_the_upper(seed, depth, targets):
    samples = gaussian_samples(20, 3, seed=seed, targets=targets)
    bounds = multivariate_bounds(samples.regression(), depth)
    architecture = Architecture.multivariate(3, depth, targets)
    balanced = balanced_minimiser(samples.regression(), architecture)
    seen = oracles.sharpness(samples, architecture, balanced)
    assert seen == pytest.approx(bounds.upper, rel=1e-9)
    assert bounds.lower <= bounds.upper * (1 + 1e-12)
    rng = np.random.default_rng(seed)
    for _ in range(10):
        layers = random_minimiser(samples, depth, rng)
        gradient, hessian = oracles.gradient_and_hessian(samples, architecture, layers)
        top = np.linalg.eigvalsh(hessian)[-1]
        assert np.linalg.norm(gradient) < 1e-8 * top
        assert top >= bounds.lower * (1 - 1e-9)


def test_the_lower_bound_beats_the_pair_of_singular_vectors():
    """2 L (u' Sigma u)^{1/L} s^{2-2/L}, with the top singular pair of P* Sigma^{1/2}."""
    for seed in range(5):
        data = gaussian_samples(20, 4, seed=seed, targets=2).regression()
        _, s, v = np.linalg.svd(data.w_star.T @ data.sigma_root)
        for depth in (2, 4, 9):
            simple = 2 * depth * (v[0] @ data.sigma @ v[0]) ** (1 / depth) * s[0] ** (2 - 2 / depth)
            assert multivariate_bounds(data, depth).lower >= simple * (1 - 1e-12)


def test_white_data_is_exact():
    one = whitened_samples(30, 4, seed=0)
    rng = np.random.default_rng(0)
    data = Samples.from_arrays(one.X, one.X @ rng.standard_normal((4, 3))).regression()
    top = np.linalg.svd(data.w_star, compute_uv=False)[0]
    for depth in (1, 2, 6):
        bounds = multivariate_bounds(data, depth)
        expected = 2 * depth * top ** (2 - 2 / depth)
        assert bounds.lower == pytest.approx(expected, rel=1e-10)
        assert bounds.upper == pytest.approx(expected, rel=1e-10)


def test_proportional_targets_are_one_target():
    one = gaussian_samples(20, 4, seed=2)
    two = Samples.from_arrays(one.X, np.stack([0.6 * one.y, 0.8 * one.y], axis=1))
    lower = multivariate_bounds(two.regression(), 5).lower
    assert lower == pytest.approx(minimal_sharpness(one.regression(), 5).exact, rel=1e-9)


def test_narrow_layers_and_formulas_for_one_target_are_refused():
    data = gaussian_samples(20, 4, seed=2, targets=3).regression()
    with pytest.raises(SettingError, match="widths of at least 3"):
        balanced_minimiser(data, Architecture.multivariate(4, 3, 3, width=2))
    with pytest.raises(SettingError, match="one target"):
        minimal_sharpness(data, 3)
