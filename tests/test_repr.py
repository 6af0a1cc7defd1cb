"""Records show themselves in one line that names what matters and holds no arrays."""

from __future__ import annotations

import numpy as np
import pytest

import flatmin
from flatmin.curvature import Sharpness
from flatmin.dynamics.endings import State
from flatmin.dynamics.outcome import Outcome

ROWS = flatmin.Samples.from_arrays([[1.0, 0.0], [0.0, 2.0]], [1.0, 4.0])
START = flatmin.initialise(flatmin.Architecture.mlp(2, 2), "gaussian", 0.5, 0, networks=3)
DEEP = flatmin.initialise(flatmin.Architecture.mlp(2, 50), "gaussian", 0.5, 0, networks=1)


def ended(*states: State) -> Outcome:
    count = len(states)
    nothing = np.zeros(count)
    whole = np.zeros(count, dtype=np.int64)
    return Outcome(
        ensemble=START[:count], state=np.array([one.value for one in states]), steps=whole,
        excess_risk=nothing, distance=nothing, gradient_norm=nothing, goal=1.0, period=whole,
        learned=np.array([one is State.SETTLED for one in states]), more_steps=nothing,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (ROWS, "Samples(n=2, d=2, targets=1)"),
        (ROWS.regression(), "Regression(n=2, d=2, rank=2, targets=1, risk_min=0)"),
        (START, "Ensemble(networks=3, inputs=2, widths=(2, 1))"),
        (DEEP, "Ensemble(networks=1, inputs=2, widths=(2, 2, ..., 1))"),
        # At depth 1 the Hessian is 2 Sigma = diag(1, 4), and the critical rate 2/4.
        (
            flatmin.predict(ROWS.regression(), 1),
            "Prediction(depth=1, S_min=4, critical_rate=0.5)",
        ),
        (
            Sharpness(
                value=4.0,
                residual=1.5e-12,
                products=3,
                method="lanczos",
                converged=True,
                vector=np.ones(4),
            ),
            "Sharpness(value=4, residual=1.5e-12, converged=True, method='lanczos')",
        ),
        (
            Sharpness(
                value=np.array([4.0, 5.5]),
                residual=np.zeros(2),
                products=3,
                method="dense",
                converged=np.array([True, False]),
            ),
            "Sharpness(networks=2, least=4, largest=5.5, converged=1, method='dense')",
        ),
        (
            ended(State.SETTLED, State.DIVERGED, State.SETTLED),
            "Outcome(networks=3, learned=2, settled=2, diverged=1)",
        ),
    ],
)
def test_one_line(record, line):
    assert repr(record) == line


def test_a_trace_names_what_was_recorded():
    recording = flatmin.Recording(10, ("excess_risk", "sharpness", "spectral_norm"))
    outcome = flatmin.descend(ROWS, START, 1e-3, 100, recording=recording)
    line = "Trace(entries=11, networks=3, quantities=[excess_risk, sharpness, spectral_norm])"
    assert repr(outcome.recorded) == line
