"""The measured working rate against direct runs on either side of it."""

from __future__ import annotations

import numpy as np
import pytest

from flatmin.dynamics.descent import descend
from flatmin.errors import SettingError
from flatmin.initialisation import initialise
from flatmin.measured_rate import LEARNED, network_steps, working_rate
from flatmin.network import Architecture
from flatmin.paper.data import paper_output_vector, paper_samples
from flatmin.theory.minimal_sharpness import critical_learning_rate


def test_it_works_below_and_fails_above():
    data = paper_samples().regression()
    network = Architecture.residual(5, 10, paper_output_vector())
    seen = []
    found = working_rate(data, network, "residual", 0.25, runs=100, progress=seen.append)
    ceiling = critical_learning_rate(data, 10, network.output_norm)
    assert 0.9 * ceiling < found.low <= found.value <= found.high <= ceiling
    assert found.share >= 0.95
    assert 0 < sum(seen) <= network_steps(100, 5000) * 2
    # Fresh networks: below the interval nearly all converge, above the ceiling none.
    fresh = initialise(network, "residual", 0.25, 99, [(i,) for i in range(100)])
    goal = LEARNED * (data.risk_at_zero - data.risk_min)

    def share(rate: float) -> float:
        return float(np.mean(descend(data, fresh, rate, 5000).excess_risk <= goal))

    assert share(0.97 * found.low) >= 0.95
    assert share(1.02 * ceiling) == 0.0
    assert share(0.5 * (found.high + ceiling)) < 0.95


def test_no_rate_within_the_budget():
    data = paper_samples().regression()
    found = working_rate(data, Architecture.mlp(5, 10), "gaussian", 0.05, runs=20, steps=50)
    assert found.value == 0.0
    assert found.share == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": 1.0}, "share must lie between 0 and 1"),
        ({"share": -0.5}, "share must be"),
        ({"runs": 0}, "runs must be"),
        ({"steps": 0}, "steps must be"),
        ({"init": "none"}, "init must be one of"),
        ({"init": "residual"}, "residual initialisation needs"),
        ({"scale": -1.0}, "scale must be"),
    ],
)
def test_bad_calls(change, message):
    data = paper_samples().regression()
    with pytest.raises(SettingError, match=message):
        working_rate(data, Architecture.mlp(5, 3), **change)
