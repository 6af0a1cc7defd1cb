"""Initial weights against the textbook distributions, by SciPy's tests of fit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flatmin.data.generators import gaussian_samples
from flatmin.network.architecture import Architecture
from flatmin.network.initialisation import architecture_for, initialise

# Enough entries that a wrong factor of 1.03 in the scale is noticed at this level.
LEVEL = 1e-6
NETWORK = Architecture(40, (25, 60, 60, 1))
COUNT = 60


def uniform(bound):
    return stats.uniform(-bound, 2 * bound).cdf


def normal(deviation):
    return stats.norm(0, deviation).cdf


STANDARD = {
    "pytorch": lambda fan_in, fan_out: uniform(1 / np.sqrt(fan_in)),
    "xavier-uniform": lambda fan_in, fan_out: uniform(np.sqrt(6 / (fan_in + fan_out))),
    "xavier-normal": lambda fan_in, fan_out: normal(np.sqrt(2 / (fan_in + fan_out))),
    "kaiming-uniform": lambda fan_in, fan_out: uniform(np.sqrt(6 / fan_in)),
    "kaiming-normal": lambda fan_in, fan_out: normal(np.sqrt(2 / fan_in)),
    "lecun": lambda fan_in, fan_out: normal(np.sqrt(1 / fan_in)),
}


@pytest.mark.parametrize("name", STANDARD)
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_distributions_layer_by_layer(name, scale):
    ensemble = initialise(NETWORK, name, scale, 0, [(name, i) for i in range(COUNT)])
    for layer, (fan_out, fan_in) in zip(ensemble.layers(), NETWORK.shapes, strict=True):
        entries = layer.ravel() / scale
        assert stats.kstest(entries, STANDARD[name](fan_in, fan_out)).pvalue > LEVEL
        if entries.size > 10_000:
            wrong = stats.kstest(1.05 * entries, STANDARD[name](fan_in, fan_out)).pvalue
            assert wrong < LEVEL, "the test would not notice a wrong scale"


def test_orthogonal_layers_are_orthogonal_and_uniform():
    ensemble = initialise(NETWORK, "orthogonal", 2.0, 0, [(i,) for i in range(COUNT)])
    for layer in ensemble.layers():
        rows, columns = layer.shape[1:]
        gram = (
            layer @ layer.transpose(0, 2, 1)
            if rows <= columns
            else (layer.transpose(0, 2, 1) @ layer)
        )
        np.testing.assert_allclose(
            gram, np.broadcast_to(4 * np.eye(min(rows, columns)), gram.shape), atol=1e-13
        )
    # An entry of a uniform orthogonal matrix of order m, squared, is Beta(1/2, (m-1)/2).
    entry = np.concatenate([np.diagonal(w) for w in ensemble.layers()[2] / 2.0])
    assert stats.kstest(entry**2, stats.beta(0.5, 59 / 2).cdf).pvalue > LEVEL
    assert abs(np.mean(entry > 0) - 0.5) < 5 * 0.5 / np.sqrt(len(entry))


def test_the_architecture_follows_the_initialisation_and_the_targets():
    one, two = gaussian_samples(seed=0), gaussian_samples(seed=0, targets=2)
    assert architecture_for("pytorch", one, 3).widths == (5, 5, 1)
    assert architecture_for("pytorch", one, 3, width=8, output_norm=2.0).output == (2.0,)
    square = architecture_for("residual", one, 3, output_norm=2.0)
    assert square.widths == (5, 5, 5)
    assert square.output_norm == pytest.approx(2.0)
    assert architecture_for("lecun", two, 3).widths == (5, 5, 2)
