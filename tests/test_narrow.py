"""Several outputs and narrow layers: the bound at the best points that they can reach."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

import oracles
from flatmin.data.generators import whitened_samples
from flatmin.data.samples import Samples
from flatmin.network.architecture import Architecture
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.minimisers import flattest_minimiser
from flatmin.theory.narrow import best_of_rank


def samples_of(seed, d, targets, spread):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((30, d)) * np.logspace(0.0, -spread, d)
    return Samples.from_arrays(X, X @ rng.standard_normal((d, targets)) + rng.normal(size=(30, 1)))


@pytest.mark.parametrize("rank", [1, 2])
def test_its_risk_is_the_least_of_that_rank(rank):
    samples = samples_of(0, 4, 3, 0.5)

    def risk(theta):
        left, right = theta[: 3 * rank].reshape(3, rank), theta[3 * rank :].reshape(rank, 4)
        return float(np.sum((samples.y - samples.X @ (left @ right).T) ** 2)) / 30

    rng = np.random.default_rng(1)
    least = min(minimize(risk, rng.standard_normal(7 * rank)).fun for _ in range(5))
    best = best_of_rank(samples.regression(), rank)
    assert best.risk_min == pytest.approx(least, rel=1e-8)
    product = best.w_star
    assert np.linalg.matrix_rank(product) == rank
    missed = float(np.sum((samples.y - samples.X @ product) ** 2)) / 30
    assert best.risk_min == pytest.approx(missed, rel=1e-12)


def best_points(best, widths, count, seed):
    """Random factorisations W_L...W_1 = P_r, with layers that do more than the product needs."""
    rng = np.random.default_rng(seed)
    rank, narrow = min(widths), 1 + int(np.argmin(widths))  # W_narrow has `rank` rows
    sizes = [best.d, *widths, best.targets]
    u, s, vt = np.linalg.svd(best.w_star.T, full_matrices=False)
    for _ in range(count):
        layers = [rng.standard_normal((rows, columns)) for columns, rows in pairwise(sizes)]
        mixing = rng.standard_normal((rank, rank))
        below = complete(rng, layers[:narrow], np.linalg.inv(mixing) @ vt[:rank])
        above = complete(rng, layers[narrow:], u[:, :rank] * s[:rank] @ mixing)
        yield below + above


def complete(rng, layers, wanted):
    """The layers with another last one, so that their product is the wanted one."""
    product = np.eye(layers[0].shape[1])
    for w in layers[:-1]:
        product = w @ product
    unseen = np.eye(len(product)) - product @ np.linalg.pinv(product)
    last = wanted @ np.linalg.pinv(product) + rng.standard_normal(layers[-1].shape) @ unseen
    np.testing.assert_allclose(last @ product, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())
    return [*layers[:-1], last]


@pytest.mark.parametrize("widths", [(2,), (5, 2), (2, 5), (6, 2, 5)])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_no_best_point_is_flatter(widths, spread):
    d, targets = 4, 3
    samples = samples_of(7, d, targets, spread)
    best = best_of_rank(samples.regression(), min(widths))
    depth = len(widths) + 1
    bound = minimal_sharpness(best, depth).exact
    architecture = Architecture(d, (*widths, targets), None)
    for layers in best_points(best, widths, 40, seed=3):
        product = np.linalg.multi_dot(layers[::-1])
        risk = float(np.sum((samples.y - samples.X @ product.T) ** 2)) / 30
        assert risk == pytest.approx(best.risk_min, rel=1e-9)
        assert oracles.sharpness(samples, architecture, layers) >= bound * (1 - 1e-9)


def test_white_data_attain_it():
    white = whitened_samples(30, 4, seed=0)
    product = np.random.default_rng(0).standard_normal((4, 3))
    samples = Samples.from_arrays(white.X, white.X @ product)
    best = best_of_rank(samples.regression(), 2)
    for depth in (2, 4):
        architecture = Architecture(4, (2,) * (depth - 1) + (3,), None)
        chain = flattest_minimiser(best, architecture)
        found = oracles.sharpness(samples, architecture, chain)
        assert found == pytest.approx(minimal_sharpness(best, depth).exact, rel=1e-10)


def test_wide_enough_is_no_change():
    data = samples_of(0, 4, 3, 0.5).regression()
    assert best_of_rank(data, 3) is data
