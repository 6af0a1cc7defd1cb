"""Every end state from a run built to end in it, and what the states say against plain runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import plain
from flatmin.core.errors import SettingError
from flatmin.curvature import sharpness
from flatmin.data.generators import gaussian_samples, spectrum_samples, whitened_samples
from flatmin.data.sets import paper_samples
from flatmin.dynamics.descent import descend
from flatmin.dynamics.edge import EDGE_SHARE, midway, swinging
from flatmin.dynamics.endings import State, observe, periods, window
from flatmin.dynamics.flow import flow
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.theory.minimal_sharpness import critical_learning_rate
from flatmin.theory.minimisers import flattest_minimiser

DATA = paper_samples("linear").regression()
DEEP = Architecture.mlp(5, 10)
CRITICAL = critical_learning_rate(DATA, 10)


def start(scale: float, count: int = 8, network: Architecture = DEEP) -> Ensemble:
    return initialise(network, "gaussian", scale, 0, [(i,) for i in range(count)])


def near_flattest(noise: float = 1e-3) -> Ensemble:
    return initialise(DEEP, "flattest", noise, 0, [(i,) for i in range(4)], DATA)


def states(outcome) -> set[str]:
    return set(outcome.state.tolist())


def test_settled():
    outcome = descend(DATA, start(0.35), 0.3 * CRITICAL, 5000)
    assert states(outcome) == {"settled"}
    assert outcome.learned.all()
    assert np.isnan(outcome.more_steps).all()


def test_settled_where_rounding_forbids_a_smaller_gradient():
    data = spectrum_samples(60, d=4, condition_number=1e7, alignment="strong", seed=0).regression()
    network = Architecture.mlp(4, 2)
    begin = initialise(network, "flattest", 0.0, 0, [(i,) for i in range(4)], data)
    outcome = descend(data, begin, 0.5 * critical_learning_rate(data, 2), 300)
    assert states(outcome) == {"settled"}


def test_still_learning_and_the_steps_it_needs():
    """White data at depth 1: the excess risk falls by (1 - 2 eta)^2 a step, for ever."""
    data = whitened_samples(n=30, d=3, noise=0.5, seed=0).regression()
    begin = start(0.01, network=Architecture.mlp(3, 1))
    rate, taken = 0.005, 200
    outcome = descend(data, begin, rate, taken)
    assert states(outcome) == {"learning"}
    assert not outcome.learned.any()
    needed = np.log(outcome.excess_risk / outcome.goal) / (-2 * np.log(1 - 2 * rate))
    np.testing.assert_allclose(outcome.more_steps, needed, rtol=1e-6)
    just_enough = taken + np.ceil(outcome.more_steps) + 1
    assert descend(data, begin, rate, just_enough).learned.all()
    assert not descend(data, begin, rate, just_enough - 3).learned.any()


def test_slow_data_are_learning_not_stalled():
    data = spectrum_samples(60, d=4, condition_number=1e6, seed=0).regression()
    network = Architecture.mlp(4, 3)
    begin = initialise(network, "balanced", 0.7, 0, [(i,) for i in range(8)])
    outcome = descend(data, begin, 0.2 * critical_learning_rate(data, 3), 4000)
    assert states(outcome) == {"learning"}


def test_period_two_just_above_the_ceiling():
    """Above 2/S_min nothing settles, and just above it the flattest minimiser splits into two."""
    outcome = descend(DATA, near_flattest(), 1.05 * CRITICAL, 4000)
    assert states(outcome) == {"oscillating"}
    assert set(outcome.period) == {2}


def test_period_four_of_the_balanced_map():
    """White data, c = 1.25: u <- u - (2c/L)(u^{2L-1} - u^{L-1}) has period 4 from c = 1.2361 on."""
    data = whitened_samples(n=30, d=3, noise=0.5, seed=0).regression()
    depth, c = 2, 1.25
    network = Architecture.mlp(3, depth)
    begin = initialise(network, "flattest", 1e-3, 0, [(0,)], data)
    outcome = descend(data, begin, c * critical_learning_rate(data, depth), 20_000)
    u = np.full(20_001, 1.01)
    for t in range(20_000):
        u[t + 1] = u[t] - 2 * c / depth * (u[t] ** (2 * depth - 1) - u[t] ** (depth - 1))
    assert abs(u[-1] - u[-5]) < 1e-9 < abs(u[-1] - u[-3])
    assert (outcome.state[0], outcome.period[0]) == ("oscillating", 4)


def test_a_sign_that_flips_is_an_oscillation_even_at_constant_risk():
    """Depth 1 at exactly 2/S: the error along the top eigenvector changes its sign for ever."""
    data = gaussian_samples(seed=0).regression()
    values, vectors = np.linalg.eigh(data.sigma)
    network = Architecture.mlp(5, 1)
    begin = Ensemble.from_matrices(network, [[(data.w_star + vectors[:, -1])[None]]])
    outcome = descend(data, begin, 1.0 / values[-1], 200)
    assert (outcome.state[0], outcome.period[0]) == ("oscillating", 2)
    assert outcome.excess_risk[0] == pytest.approx(values[-1], rel=1e-9)


def test_chaos_has_no_period():
    outcome = descend(DATA, start(0.35), 2.0 * CRITICAL, 4000)
    moving = outcome.state == State.OSCILLATING.value
    assert moving.sum() >= 4
    assert np.mean(outcome.period[moving] == 0) > 0.5


def test_stalled_at_the_saddle():
    outcome = descend(DATA, start(0.02), 0.5 * CRITICAL, 1000)
    assert states(outcome) == {"stalled"}
    assert not outcome.learned.any()


def test_stalled_where_the_width_is_too_small():
    """Two outputs through one hidden unit: the best map of rank one is a saddle of the risk."""
    samples = gaussian_samples(30, 3, seed=0, targets=2)
    network = Architecture.multivariate(3, 2, 2, width=1)
    begin = initialise(network, "gaussian", 0.5, 0, [(i,) for i in range(4)])
    outcome = descend(samples.regression(), begin, 0.05, 20_000)
    assert states(outcome) == {"stalled"}


def test_diverged_and_about_to():
    outcome = descend(DATA, start(0.6), 5.0 * CRITICAL, 500)
    assert states(outcome) == {"diverged"}
    assert np.isinf(outcome.excess_risk).all()
    soon = descend(DATA, start(0.6), 5.0 * CRITICAL, int(outcome.steps.min()) - 1)
    assert states(soon) == {"diverged"}
    assert np.isfinite(soon.excess_risk).all()


def test_gradient_flow():
    assert states(flow(DATA, start(0.35))) == {"settled"}
    assert states(flow(DATA, start(0.35), end=1.0)) == {"learning"}
    assert states(flow(DATA, start(0.01), end=10.0)) == {"stalled"}


def test_learned_is_a_share_of_what_there_is_to_learn():
    samples = gaussian_samples(40, 4, seed=2)
    X, y = samples.X, 1e3 * samples.y
    data = replace_target(samples, 1e3)
    network = Architecture.mlp(4, 3)
    begin = initialise(network, "lecun", 1.0, 0, [(i,) for i in range(20)])
    rate = 0.1 * critical_learning_rate(data, 3)
    for share in (0.1, 1e-3):
        outcome = descend(data, begin, rate, 600, learned_at=share)
        _, risk = plain.descend(X, y, begin.layers(), rate, 600)
        np.testing.assert_array_equal(outcome.learned, plain.learned(X, y, risk, share))
    with pytest.raises(SettingError, match="learned_at must lie between 0 and 1"):
        descend(data, begin, rate, 10, learned_at=1.0)


def replace_target(samples, factor):
    return replace(samples, y=factor * samples.y).regression()


def test_until_learned_stops_at_the_goal_and_not_before():
    begin, rate = start(0.35, 20), 0.3 * CRITICAL
    outcome = descend(DATA, begin, rate, 5000, until_learned=True)
    assert outcome.learned.all()
    assert (outcome.steps % 16 == 0).all()
    just_before = descend(DATA, begin, rate, np.maximum(outcome.steps - 32, 1))
    assert not just_before.learned.any()
    assert descend(DATA, begin, rate, outcome.steps).learned.all()


def test_states_do_not_depend_on_neighbours_or_threads():
    begin = Ensemble.from_flat(DEEP, np.concatenate([start(0.35).flat(), start(0.02).flat()]))
    rates = np.tile([0.1, 0.9, 1.1, 2.0], 4) * CRITICAL
    together = descend(DATA, begin, rates, 300, threads=2)
    for i in range(len(begin)):
        alone = descend(DATA, Ensemble.from_flat(DEEP, begin.flat()[[i]]), rates[i], 300, threads=1)
        for name in ("state", "period", "more_steps", "learned"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[i])


def test_midway_weights_show_the_edge_that_the_last_ones_miss():
    rate = 0.9 * CRITICAL
    outcome = descend(DATA, start(0.35, 40), rate, 400)
    moving = swinging(outcome)
    assert moving.all()
    share = rate / 2 * sharpness(DATA, midway(DATA, outcome, rate, moving)).value
    last = rate / 2 * sharpness(DATA, outcome.ensemble).value
    assert np.all(np.abs(share - 1.0) < 0.1)
    assert np.all(share >= EDGE_SHARE)
    assert np.mean(last < EDGE_SHARE) > 0.3


def test_a_window_is_a_quarter_of_the_steps_within_limits():
    np.testing.assert_array_equal(window(np.array([1, 128, 400, 10**6])), [32, 32, 100, 256])


@pytest.mark.parametrize("period", [2, 3, 5, 16])
def test_periods_of_made_up_sequences(period):
    t = np.arange(100)
    wave = 1.0 + 0.5 * np.random.default_rng(0).random(period)[t % period]
    drifting = wave * (1 + 1e-4 * t)
    noise = 1.0 + np.random.default_rng(1).random(100)
    np.testing.assert_array_equal(
        periods(np.stack([wave, drifting, noise], axis=1)), [period, period, 0]
    )


def test_observing_falls_and_standing_still():
    t = np.arange(101)[:, None]
    excess = np.concatenate([0.9**t, np.ones_like(t, dtype=float)], axis=1)
    gradient = np.concatenate([0.9**t, np.zeros_like(t, dtype=float)], axis=1)
    ending = observe(excess, gradient, np.full(2, 0.1), 1e-6, np.array([True, True]))
    assert ending.state.tolist() == ["learning", "stalled"]
    # ln(1e6) / ln(1/0.9) steps
    assert ending.more_steps[0] == pytest.approx(np.log(1e6) / np.log(1 / 0.9), rel=0.05)


def test_a_minimiser_by_construction_is_settled_at_once():
    flat = flattest_minimiser(DATA, DEEP, np.random.default_rng(0))
    outcome = descend(DATA, Ensemble.from_matrices(DEEP, [flat]), 0.5 * CRITICAL, 64)
    assert states(outcome) == {"settled"}
