"""The advised rate on tables that nobody here made, against plain gradient descent in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import datasets
from sklearn.preprocessing import scale as standardised

import plain
from flatmin.core.errors import SettingError
from flatmin.core.statistics import share_interval
from flatmin.data.generators import gaussian_samples, spectrum_samples
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.dynamics.advice import advise
from flatmin.dynamics.working_rates import rate_curve
from flatmin.network.architecture import Architecture
from flatmin.theory.minimal_sharpness import critical_learning_rate


def real(name: str, prepare: bool) -> tuple[np.ndarray, np.ndarray]:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    y = y.astype(float)
    return (standardised(X), standardised(y)) if prepare else (X, y)


def made(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Skewed features on different scales, a target of any size, neither centred."""
    rng = np.random.default_rng(seed)
    X = rng.lognormal(0, 1, (60, 4)) * 10.0 ** rng.uniform(-1, 1, 4)
    return X, 10.0 ** rng.uniform(-3, 3) * (X @ rng.standard_normal(4) + rng.standard_normal(60))


TABLES = {
    "diabetes": lambda: real("diabetes", False),
    "diabetes, standardised": lambda: real("diabetes", True),
    "wine, standardised": lambda: real("wine", True),
    "iris": lambda: real("iris", False),
    "made 0": lambda: made(0),
    "made 1": lambda: made(1),
}


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("name", TABLES)
def test_the_advice_holds_in_plain_numpy(name, depth):
    X, y = TABLES[name]()
    data = Regression.from_arrays(X, y)
    found = advise(data, Architecture.mlp(data.d, depth))
    assert found.learning_rate is not None, found.reason
    assert found.learning_rate < critical_learning_rate(data, depth)
    # d rows with the same Sigma and w* stand in for all of them: the loss differs by a constant.
    rows = np.sqrt(data.d) * data.sigma_root
    target = rows @ data.w_star
    layers = plain.pytorch_layers(np.random.default_rng(7), 50, data.d, depth, data.d)
    _, risk = plain.descend(rows, target, layers, found.learning_rate, found.steps)
    assert np.mean(~plain.learned(rows, target, risk)) <= 0.02
    # Not needlessly small: three times the rate does not do.
    layers = plain.pytorch_layers(np.random.default_rng(8), 50, data.d, depth, data.d)
    _, risk = plain.descend(rows, target, layers, 3 * found.learning_rate, found.steps)
    assert np.mean(~plain.learned(rows, target, risk)) > 0.02


def test_tested_networks_were_not_searched_with_and_can_be_drawn_again():
    from flatmin.dynamics.advice import SEARCHED
    from flatmin.dynamics.descent import descend
    from flatmin.network.initialisation import initialise

    data = gaussian_samples(seed=0).regression()
    network = Architecture.mlp(5, 4)
    found = advise(data, network, "xavier-normal", seed=3)
    first, last = found.seeds
    assert first >= SEARCHED
    assert last - first == found.runs
    start = initialise(
        network, "xavier-normal", 1.0, 3, [("advice", i) for i in range(first, last)]
    )
    outcome = descend(data, start, found.learning_rate, found.steps)
    assert outcome.learned.mean() == found.learned_share >= 0.99
    assert found.learned_share_low == share_interval(int(outcome.learned.sum()), found.runs)[0]


def test_the_same_data_get_the_same_advice():
    data = gaussian_samples(seed=1).regression()
    network = Architecture.mlp(5, 3)
    assert advise(data, network) == advise(data, network)


def test_several_targets_and_other_activations():
    several = gaussian_samples(40, 3, seed=0, targets=2)
    found = advise(several.regression(), Architecture.multivariate(3, 3, 2))
    assert found.learned_share >= 0.99
    rows = gaussian_samples(30, 3, seed=0)
    found = advise(rows, Architecture.mlp(3, 2, 16, "tanh"), learned_at=0.2, work=1e10)
    assert found.learning_rate is None or found.learned_share >= 0.99


def test_no_advice_says_why():
    slow = spectrum_samples(50, d=3, condition_number=1e9, alignment="weak", seed=0).regression()
    for work, words in ((1e7, "still had"), (1e9, "takes more work than allowed")):
        found = advise(slow, Architecture.mlp(3, 3), work=work)
        assert (found.learning_rate, found.runs, found.seeds) == (None, 0, None)
        assert words in found.reason
    large = gaussian_samples(20, 10, seed=0).regression()
    found = advise(large, Architecture.mlp(10, 200_000))
    assert found.learning_rate is None
    assert "too many" in found.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"work": 0.0}, "work must be a positive number"),
        ({"learned_at": 2.0}, "learned_at must lie between 0 and 1"),
        ({"init": "he"}, "init must be one of"),
        ({"init": "residual"}, "residual initialisation needs"),
        ({"scale": -1.0}, "scale must be"),
    ],
)
def test_bad_calls(change, message):
    data = gaussian_samples(seed=0).regression()
    with pytest.raises(SettingError, match=message):
        advise(data, Architecture.mlp(5, 3), **change)


def test_the_curve_is_bracketed_and_adds_up():
    data = gaussian_samples(seed=0).regression()
    seen: list[int] = []
    curve = rate_curve(data, Architecture.mlp(5, 4), runs=40, steps=2000, progress=seen.append)
    assert len(curve.points) == sum(seen)
    first, last = curve.points[0], curve.points[-1]
    assert (first.slow, first.learned) == (1.0, 0.0)
    assert (last.unstable, last.learned) == (1.0, 0.0)
    for one in curve.points:
        assert one.learned + one.unstable + one.slow == pytest.approx(1.0)
        assert one.learned_low <= one.learned <= one.learned_high
        assert (one.median_steps is None) == (one.learned == 0.0)
    ceiling = critical_learning_rate(data, 4)
    assert curve.ceiling == pytest.approx(ceiling)
    best = curve.largest(0.95)
    assert 0.5 * ceiling < best <= ceiling
    assert f"{best:.4g}" in curve.sentence()
    assert all(one.learned < 0.2 for one in curve.points if one.learning_rate > 1.01 * ceiling)


def test_a_curve_where_nothing_learns_tells_slow_from_unstable():
    X, y = real("breast_cancer", False)
    data = Samples.from_arrays(X, y)
    curve = rate_curve(data.regression(), Architecture.mlp(data.d, 3), runs=16, steps=300)
    assert curve.largest() is None
    assert "No rate lets 95 % of runs learn within 300 steps" in curve.sentence()
    assert {one.slow for one in curve.points} >= {1.0, 0.0}
    assert {one.unstable for one in curve.points} >= {1.0, 0.0}


def test_share_intervals_cover_as_often_as_they_say():
    from scipy import stats

    for runs in (1, 7, 40):
        ends = [share_interval(k, runs) for k in range(runs + 1)]
        for share in np.linspace(0.01, 0.99, 37):
            chance = stats.binom.pmf(np.arange(runs + 1), runs, share)
            covered = sum(
                p for p, (low, high) in zip(chance, ends, strict=True) if low <= share <= high
            )
            assert covered >= 0.95 - 1e-12
