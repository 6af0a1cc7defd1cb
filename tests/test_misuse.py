"""From Python a mistake is a FlatminError of one line, whatever was given in the place of an
argument: one at a time, of calls that are right otherwise."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import flatmin
from flatmin import Architecture, Ensemble, FlatminError, Preparation

ROWS = flatmin.gaussian_samples(n=30, d=3, seed=0)
DATA = ROWS.regression()
NETWORK = Architecture.mlp(3, depth=3)
WEIGHTS = flatmin.flattest_minimiser(DATA, NETWORK)
START = flatmin.initialise(NETWORK, "gaussian", 0.4, seed=0, networks=2)
FRAME = pd.DataFrame(np.column_stack([ROWS.X, ROWS.y]), columns=["a", "b", "c", "y"])
MASKED = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])

CALLS = {
    "predict": (flatmin.predict, {"regression": DATA, "depth": 3, "output_norm": 1.0}),
    "forecast": (
        flatmin.forecast,
        {"regression": DATA, "depth": 3, "depths": (), "measure": "nothing", "effort": 1.0},
    ),
    "certify": (flatmin.certify, {"regression": DATA, "depth": 3}),
    "flattest_depth": (flatmin.flattest_depth, {"regression": DATA, "largest": 20}),
    "minimal_sharpness": (flatmin.minimal_sharpness, {"regression": DATA, "depth": 3}),
    "flattest_minimiser": (
        flatmin.flattest_minimiser,
        {"regression": DATA, "architecture": NETWORK, "generator": None},
    ),
    "minimiser_of_sharpness": (
        flatmin.minimiser_of_sharpness,
        {"regression": DATA, "architecture": NETWORK, "sharpness": 50.0},
    ),
    "sharpness": (
        flatmin.sharpness,
        {"problem": DATA, "weights": WEIGHTS, "p": None, "method": "auto", "start": None},
    ),
    "hessian": (flatmin.hessian, {"problem": DATA, "weights": WEIGHTS, "p": None}),
    "minimiser_spectrum": (
        flatmin.minimiser_spectrum, {"problem": DATA, "weights": WEIGHTS, "p": None},
    ),
    "initialise": (
        flatmin.initialise,
        {"architecture": NETWORK, "init": "gaussian", "scale": 0.4, "seed": 0, "networks": 2},
    ),
    "descend": (
        flatmin.descend,
        {"problem": DATA, "ensemble": START, "learning_rate": 0.01, "steps": 5, "recording": None,
         "beside": None, "precision": "float64", "threads": 1, "progress": None},
    ),
    "flow": (
        flatmin.flow,
        {"regression": DATA, "ensemble": START, "end": 0.1, "max_steps": 5, "recording": None},
    ),
    "train_network": (
        flatmin.train_network,
        {"problem": DATA, "depth": 2, "activation": "linear", "biases": False, "init": "pytorch",
         "scale": 1.0, "learning_rate": 0.01, "steps": 5, "seed": 0, "record_every": None},
    ),
    "train": (
        flatmin.train,
        {"problem": DATA, "architecture": NETWORK, "method": flatmin.GradientDescent(0.01),
         "steps": 5, "scale": 1.0, "quantities": None},
    ),
    "advise": (
        flatmin.advise, {"problem": DATA, "architecture": NETWORK, "scale": 1.0, "work": 1e5},
    ),
    "rate_curve": (
        flatmin.rate_curve, {"problem": DATA, "architecture": NETWORK, "runs": 2, "steps": 5},
    ),
    "atlas": (
        flatmin.atlas,
        {"regression": DATA, "depth": 2, "c": [1.1], "starts": 1, "steps": 5, "runs": 0},
    ),
    "central flow": (
        lambda **how: flatmin.CentralFlow(0.01).run(how["problem"], START, steps=how["steps"]),
        {"problem": DATA, "steps": 3},
    ),
    "residual": (Architecture.residual, {"inputs": 3, "depth": 2, "p": [1.0, 0.0, 0.0]}),
    "Architecture": (
        Architecture,
        {"inputs": 3, "widths": (3, 1), "output": (1.0,), "activation_name": "tanh",
         "biases": False},
    ),
    "from_flat": (Ensemble.from_flat, {"architecture": NETWORK, "flat": START.flat()}),
    "from_matrices": (Ensemble.from_matrices, {"architecture": NETWORK, "networks": [WEIGHTS]}),
    "spectrum_samples": (
        flatmin.spectrum_samples, {"n": 10, "eigenvalues": [1.0, 2.0], "alignment": [1.0, 1.0]},
    ),
    "Preparation": (Preparation, {"drop": (), "one_hot": (), "missing": None, "intercept": False}),
    "Recording": (flatmin.Recording, {"every": 1, "quantities": ("distance",)}),
    "arrays": (
        flatmin.read_regression,
        {"source": ROWS.X, "target": ROWS.y, "features": None, "preparation": Preparation()},
    ),
    "a frame": (
        flatmin.read_samples,
        {"source": FRAME, "target": "y", "features": None, "preparation": Preparation()},
    ),
    "risk": (DATA.risk, {"w": [1.0, 2.0, 3.0]}),
}  # fmt: skip

ODD = [
    None, True, -1, 0, 1.5, 10**30, float("inf"), float("nan"), "x", "", b"x", 1j, [], [1, 2], (),
    {}, {"a": 1}, np.float32(2), np.array(3), np.array([3]), np.array([]), np.array([[1j]]),
    np.zeros((2, 2, 2)), np.array(["a"]), np.array([None]), MASKED, Decimal(2), object(), DATA,
    ROWS, NETWORK, START, WEIGHTS, [WEIGHTS], WEIGHTS[0], pd.Series([1.0, 2.0]), FRAME,
    scipy.sparse.csr_matrix(np.eye(3)), range(3), (one for one in [1]), len, Path("nowhere"),
    [["a"]], [[1, 2], [3]], [np.eye(3) * 1j] * 3, [np.full((3, 3), np.nan)] * 2 + [np.ones((1, 3))],
    [np.full((3, 3), 1e300)] * 2 + [np.ones((1, 3))],
]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CALLS)
def test_whatever_is_given_is_used_or_refused_in_one_line(name):
    function, settings = CALLS[name]
    function(**settings)
    refused = []
    for argument in settings:
        if argument == "progress":  # a function that raises does so
            continue
        for value in ODD:
            try:
                function(**{**settings, argument: value})
            except FlatminError as error:
                refused.append(str(error))
    assert len(refused) > len(settings)
    assert [line for line in refused if "\n" in line or len(line) > 300] == []


def test_rows_are_data_wherever_their_summary_is():
    assert flatmin.predict(ROWS, 3).exact == flatmin.predict(DATA, 3).exact
    assert flatmin.certify(ROWS, 3).lower == flatmin.certify(DATA, 3).lower
    assert flatmin.flattest_depth(ROWS) == flatmin.flattest_depth(DATA)
    assert flatmin.flow(ROWS, START).settled.all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: flatmin.predict("table.csv", 3),
        lambda: flatmin.predict(FRAME, 3),
        lambda: flatmin.sharpness(ROWS.X, WEIGHTS),
        lambda: flatmin.train_network((ROWS.X, ROWS.y)),
    ],
)
def test_data_that_were_not_read_are_told_how(call):
    with pytest.raises(
        FlatminError, match=r"what flatmin\.read_regression or read_samples returns"
    ):
        call()
