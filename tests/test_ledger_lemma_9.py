"""Lemma 9: its constants, the thetas tried, and data that break it."""

from __future__ import annotations

import numpy as np
import pytest

from flatmin.ledger.lemma_9 import (
    ball_radius,
    constants,
    lemma_9_at,
    lemma_9_of,
    perturbed,
    product_extremes,
    random_theta,
    rank_one_theta,
)
from flatmin.ledger.record import Verdict

Layers = list[np.ndarray]


@pytest.fixture
def layers() -> Layers:
    random = np.random.default_rng(5)
    return [np.eye(4) + 0.2 * random.standard_normal((7, 4, 4)) for _ in range(6)]


def explicit(layers: Layers, network: int) -> tuple[float, float]:
    """max_k |W_k...W_1|_2 and min_k smin(W_k...W_1), by norms of products and of inverses."""
    product, norms, smallest = np.eye(layers[0].shape[1]), [], []
    for w in layers:
        product = w[network] @ product
        norms.append(np.linalg.norm(product, 2))
        smallest.append(1.0 / np.linalg.norm(np.linalg.inv(product), 2))
    return max(norms), min(smallest)


def test_constants_are_the_best_of_the_weights(layers: Layers) -> None:
    ceiling, floor = constants(layers)
    for network in range(7):
        norm, smallest = explicit(layers, network)
        assert ceiling[network] == pytest.approx(max(1.0, norm))
        assert floor[network] == pytest.approx(min(1.0, smallest))
        radius = floor[network] ** 2 / (4.0 * ceiling[network] ** 2)
        assert ball_radius(ceiling, floor)[network] == pytest.approx(radius)


def test_the_lemma_holds_and_names_its_tightest_place(layers: Layers) -> None:
    norm, floor = lemma_9_of(layers)
    assert (norm.part, floor.part) == ("norm", "smallest singular value")
    for record in (norm, floor):
        assert record.verdict is Verdict.HOLDS
        assert record.networks == 7
        assert record.slack > 0.0
    assert "pushing the norm up" in norm.at
    assert "pushing the smallest singular value down" in floor.at
    assert norm.measured < norm.bound
    assert floor.measured > floor.bound


def test_identity_layers_in_closed_form() -> None:
    norm, floor = lemma_9_of([np.eye(3)[None]] * 4)
    assert norm.measured == pytest.approx((1.0 + 1.0 / 16.0) ** 4)
    assert floor.measured == pytest.approx((1.0 - 1.0 / 16.0) ** 4)
    assert (norm.bound, floor.bound) == pytest.approx((2.0, 0.5))


def test_every_theta_is_on_the_sphere_of_the_ball(layers: Layers) -> None:
    radius = ball_radius(*constants(layers))
    at = np.full(7, len(layers) - 1)
    for theta in (random_theta(layers, radius, 0, 0), rank_one_theta(layers, at, radius, 0)):
        for t in theta:
            np.testing.assert_allclose(np.linalg.norm(t, 2, axis=(1, 2)), radius, rtol=1e-12)


@pytest.mark.parametrize("which", [0, -1])
def test_the_rank_one_theta_is_the_steepest(layers: Layers, which: int) -> None:
    small, last = 1e-6, np.full(7, len(layers) - 1)
    before = product_extremes(layers)[which][:, -1]

    def slope(theta: Layers) -> np.ndarray:
        return (product_extremes(perturbed(layers, theta))[which][:, -1] - before) / small

    best = slope(rank_one_theta(layers, last, np.full(7, small), which))
    for direction in range(20):
        theta = random_theta(layers, np.full(7, small), 0, direction)
        assert (np.abs(slope(theta)) < best).all()
    # sum_k |a_k| |h_{k-1}| / L from explicit products
    for network in range(7):
        product = np.linalg.multi_dot([w[network] for w in reversed(layers)])
        left, _, right = np.linalg.svd(product)
        total, h = 0.0, right[which]
        for k in range(len(layers)):
            above = np.eye(4)
            for w in layers[k + 1 :]:
                above = w[network] @ above
            total += np.linalg.norm(above.T @ left[:, which]) * np.linalg.norm(h)
            h = layers[k][network] @ h
        assert best[network] == pytest.approx(total / len(layers), rel=1e-4)


def test_theta_only_up_to_the_layer_it_is_for(layers: Layers) -> None:
    theta = rank_one_theta(layers, np.array([0, 1, 2, 3, 4, 5, 5]), np.ones(7), 0)
    used = np.array([[np.any(t[network]) for t in theta] for network in range(7)])
    assert used.sum(axis=1).tolist() == [1, 2, 3, 4, 5, 6, 6]


def test_sides_against_a_loop(layers: Layers) -> None:
    norm, floor = lemma_9_of(layers, seed=2)
    radius = ball_radius(*constants(layers))
    tried = [random_theta(layers, radius, 2, i) for i in range(4)]
    for network in range(7):
        pairs = [explicit(perturbed(layers, theta), network) for theta in tried]
        assert norm.sides.measured[network] >= max(most for most, _ in pairs) - 1e-12
        assert floor.sides.measured[network] <= min(low for _, low in pairs) + 1e-12


def test_theta_far_beyond_the_ball_breaks_it(layers: Layers) -> None:
    good = constants(layers)
    last, radius = np.full(7, len(layers) - 1), 1e3 * ball_radius(*good)
    tried = {"too large": rank_one_theta(layers, last, radius, 0)}
    tried["too large, down"] = rank_one_theta(layers, last, -radius, -1)
    norm, floor = lemma_9_at(layers, tried, *good)
    assert norm.verdict is Verdict.VIOLATED
    assert norm.slack < 0.0
    assert norm.violations == 7
    assert "too large" in norm.at
    assert floor.verdict is Verdict.VIOLATED


def test_false_constants_break_it(layers: Layers) -> None:
    strong = [3.0 * layers[0], *layers[1:]]
    weak = [layers[0] / 10.0, *layers[1:]]
    ones, claimed = np.ones(7), np.full(7, 0.9)
    zero = {"zero": [np.zeros_like(w) for w in layers]}
    norm, _ = lemma_9_at(strong, zero, ones, claimed)
    _, floor = lemma_9_at(weak, zero, ones, claimed)
    assert norm.verdict is Verdict.VIOLATED
    assert floor.verdict is Verdict.VIOLATED
    assert lemma_9_of(strong)[0].verdict is Verdict.HOLDS
    assert lemma_9_of(weak)[1].verdict is Verdict.HOLDS


def test_layers_it_is_not_about(layers: Layers) -> None:
    for record in lemma_9_of([np.ones((2, 3, 4)), np.ones((2, 4, 3))]):
        assert record.verdict is Verdict.NOT_APPLICABLE
    singular = [np.zeros((1, 4, 4)), *[w[:1] for w in layers[1:]]]
    for record in lemma_9_of(singular):
        assert record.verdict is Verdict.NOT_APPLICABLE


def test_a_network_is_judged_without_its_neighbours(layers: Layers) -> None:
    for alone, among in zip(lemma_9_of([w[:2] for w in layers]), lemma_9_of(layers), strict=True):
        measured = among.sides.measured[:2]
        np.testing.assert_allclose(measured, alone.sides.measured, rtol=1e-13)
