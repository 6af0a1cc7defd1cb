"""Recording that cannot hide what happens between two records."""

from __future__ import annotations

import numpy as np
import pytest

from flatmin.data.generators import gaussian_samples
from flatmin.data.sets import paper_samples
from flatmin.dynamics import rounds
from flatmin.dynamics.descent import descend
from flatmin.dynamics.measures import LAYER_MEASURES, Task
from flatmin.dynamics.recording import NETWORK_MEASURES, Recording
from flatmin.dynamics.training import train
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.theory.minimal_sharpness import minimal_sharpness

NEVER = 1e-300  # no run ends early
NETWORKS = {
    "one output": Architecture.mlp(5, 10),
    "several outputs": Architecture.multivariate(3, 3, 2),
    "gelu": Architecture.mlp(3, 4, width=4, activation="gelu-tanh"),
}


def setting(name: str, count: int = 5):
    architecture = NETWORKS[name]
    if name == "one output":
        problem = paper_samples("linear")
    else:
        targets = 2 if name == "several outputs" else 1
        problem = gaussian_samples(14, architecture.inputs, seed=0, targets=targets)
    scale = 0.35 if name == "one output" else 0.6
    ensemble = initialise(architecture, "gaussian", scale, 0, [(i,) for i in range(count)])
    return problem, ensemble


def trace(problem, ensemble, rate, steps, recording, **options):
    return descend(
        problem, ensemble, rate, steps, recording=recording, tolerance=NEVER, **options
    ).recorded.values


def strides(values: np.ndarray, every: int) -> np.ndarray:
    """Values of every step as `[stride, step, network]`, without the start."""
    return values[1:].reshape(-1, every, values.shape[1])


@pytest.mark.parametrize("measured", [1, 2, 20])
def test_a_stride_holds_the_extremes_of_every_step(measured):
    """At eta = 0.1 risk and sharpness alternate: one value in 20 hides it."""
    every = 20
    problem, ensemble = setting("one output")
    fine = trace(
        problem, ensemble, 0.1, 400, Recording(1, NETWORK_MEASURES, sharpness_tolerance=1e-8)
    )
    coarse = trace(
        problem,
        ensemble,
        0.1,
        400,
        Recording(every, NETWORK_MEASURES, sharpness_tolerance=1e-8, sharpness_steps=measured),
    )
    for name in ("excess_risk", "distance", "gradient"):
        steps = strides(fine[name], every)
        assert np.array_equal(coarse[name], fine[name][::every])
        assert np.array_equal(coarse[f"{name}_low"][1:], steps.min(axis=1))
        assert np.array_equal(coarse[f"{name}_high"][1:], steps.max(axis=1))
        for end in ("low", "high"):
            assert np.array_equal(coarse[f"{name}_{end}"][0], fine[name][0])
    # Each sharpness has a relative residual of at most 1e-8, and its error is at most that.
    steps = strides(fine["sharpness"], every)[:, -measured:]
    np.testing.assert_allclose(coarse["sharpness"], fine["sharpness"][::every], rtol=2e-8)
    np.testing.assert_allclose(coarse["sharpness_low"][1:], steps.min(axis=1), rtol=2e-8)
    np.testing.assert_allclose(coarse["sharpness_high"][1:], steps.max(axis=1), rtol=2e-8)


def test_a_pair_of_steps_shows_the_alternation_that_single_steps_hide():
    problem, ensemble = setting("one output", 1)
    found = trace(problem, ensemble, 0.1, 400, Recording(20, ("excess_risk", "sharpness")))
    late = slice(10, None)
    least, edge = minimal_sharpness(problem.regression(), 10).exact, 2.0 / 0.1
    # Every second step lies below what a minimiser can have, every other one above 2/eta.
    assert np.all(found["sharpness_low"][late] < least)
    assert np.all(found["sharpness_high"][late] > edge)
    alone = found["sharpness"][late]
    assert np.all(alone < least) or np.all(alone > edge)
    assert np.all(found["excess_risk_high"][late] > 1.5 * found["excess_risk_low"][late])


@pytest.mark.parametrize("name", ["several outputs", "gelu"])
def test_a_stride_of_networks_on_rows_holds_the_extremes(name):
    problem, ensemble = setting(name)
    quantities = ("excess_risk", "gradient", "distance", "sharpness")
    fine = trace(problem, ensemble, 0.15, 60, Recording(1, quantities, 1e-8))
    coarse = trace(problem, ensemble, 0.15, 60, Recording(12, quantities, 1e-8))
    for quantity in ("excess_risk", "gradient"):
        steps = strides(fine[quantity], 12)
        assert np.array_equal(coarse[f"{quantity}_low"][1:], steps.min(axis=1))
        assert np.array_equal(coarse[f"{quantity}_high"][1:], steps.max(axis=1))
    for quantity, room in (("distance", 0.0), ("sharpness", 2e-8)):
        pairs = strides(fine[quantity], 12)[:, -2:]
        np.testing.assert_allclose(coarse[f"{quantity}_low"][1:], pairs.min(axis=1), rtol=room)
        np.testing.assert_allclose(coarse[f"{quantity}_high"][1:], pairs.max(axis=1), rtol=room)


@pytest.mark.parametrize("name", ["one output", "gelu"])
def test_extremes_do_not_depend_on_slices_threads_or_neighbours(name, monkeypatch):
    problem, ensemble = setting(name, 9)
    quantities = ("excess_risk", "gradient")
    if name == "one output":  # elsewhere the number of networks shows in a sharpness
        quantities += ("sharpness",)
    recording = Recording(30, quantities, sharpness_steps=4)
    whole = trace(problem, ensemble, 0.1, 300, recording)
    for threads in (1, 3):
        again = trace(problem, ensemble, 0.1, 300, recording, threads=threads)
        assert all(np.array_equal(whole[key], again[key], equal_nan=True) for key in whole)
    alone = Ensemble.from_flat(ensemble.architecture, ensemble.flat()[4:5])
    single = trace(problem, alone, 0.1, 300, recording)
    assert all(np.array_equal(whole[key][:, 4:5], single[key], equal_nan=True) for key in whole)
    for steps in (1, 7, 29):
        monkeypatch.setattr(rounds.Rounds, "_slice_steps", lambda self, lanes, most=steps: most)
        cut = trace(problem, ensemble, 0.1, 300, recording)
        assert all(np.array_equal(whole[key], cut[key], equal_nan=True) for key in whole)


def test_train_measures_sharpness_at_every_step_and_saves_the_band(tmp_path):
    import pandas as pd

    run = train(paper_samples(), NETWORKS["one output"], learning_rate=0.1, steps=400)
    run.save(tmp_path)
    frame = pd.read_parquet(tmp_path / "trace.parquet")
    assert frame["step"].tolist() == list(range(0, 401, 2))
    fine = train(
        paper_samples(), NETWORKS["one output"], learning_rate=0.1, steps=400, record_every=1
    ).outcome.recorded.values
    pairs = strides(fine["sharpness"], 2)[:, :, 0]
    np.testing.assert_allclose(frame["sharpness_low"][1:], pairs.min(axis=1), rtol=2e-6)
    np.testing.assert_allclose(frame["sharpness_high"][1:], pairs.max(axis=1), rtol=2e-6)


@pytest.mark.parametrize("name", LAYER_MEASURES)
def test_a_measure_does_not_depend_on_the_networks_beside(name):
    data, architecture = gaussian_samples(seed=3).regression(), Architecture.mlp(5, 4)
    ensemble = initialise(architecture, "gaussian", 0.5, 0, networks=19)
    task, layers = Task.of(data, architecture), ensemble.layers()
    together = LAYER_MEASURES[name](layers, layers, task)
    for i in range(19):
        alone = [w[i : i + 1] for w in layers]
        assert np.array_equal(LAYER_MEASURES[name](alone, alone, task)[0], together[i])
