"""A short run of the adversarial weights, and whether its judge sees what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adversary import weights
from flatmin.curvature import sharpness


def test_intervals_hold_and_nothing_is_grossly_wrong():
    score = weights.run(200, seed=1)
    assert score.failures == []
    assert score.count["cases"] == 200
    # Not certain is an answer, but a rare one: 80 of 11,000 with seed 0.
    assert score.count["converged"] >= 190


def test_the_judge_sees_what_is_wrong():
    network, problem, made = weights.group(1, 0)
    kind, layers = made[0]
    record = sharpness(problem, layers, network.p if network.output else None)
    truth, error = weights.largest_eigenvalue(weights.hessian(problem, network, layers))
    assert record.converged
    for broken in (
        replace(record, low=1.01 * record.high, high=1.02 * record.high),
        replace(record, low=0.0, high=0.99 * record.low),
        replace(record, value=0.5 * record.value),
        replace(record, value=np.nan),
    ):
        score = weights.Score()
        score.judge(0, kind, network, broken, truth, error)
        assert len(score.failures) == 1
