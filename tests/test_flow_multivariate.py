"""Gradient flow with several outputs: SciPy, Lemma 1, minimisers, the trace, bits, the command."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import solve_ivp

import oracles
from commands import call
from flatmin.core.errors import SettingError
from flatmin.curvature import sharpness
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples, read_samples
from flatmin.dynamics.endings import State
from flatmin.dynamics.flow import flow
from flatmin.dynamics.outcome import Outcome
from flatmin.dynamics.recording import Recording, recordable
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise

SQUARE = Architecture.multivariate(4, 5, 4)
ARCHITECTURES = [
    SQUARE,
    Architecture.multivariate(5, 4, 2),
    Architecture(4, (3, 6, 2), None),
    Architecture.multivariate(2, 2, 5),
    Architecture.multivariate(4, 1, 3),
    Architecture.multivariate(3, 3, 1),
]


def samples_for(architecture: Architecture) -> Samples:
    return gaussian_samples(20, architecture.inputs, seed=0, targets=architecture.widths[-1])


def start(architecture: Architecture, size: int, scale: float = 0.5) -> Ensemble:
    init = "residual" if architecture.square else "gaussian"
    return initialise(architecture, init, scale, 0, [(i,) for i in range(size)])


def gradient(samples: Samples, architecture: Architecture, flat: np.ndarray) -> np.ndarray:
    """Back-propagation through the samples themselves, without Sigma or P*."""
    layers, h = oracles.split(architecture, flat), [samples.X.T]
    for w in layers:
        h.append(w @ h[-1])
    delta, found = 2.0 * (h[-1] - targets(samples).T) / len(samples.X), []
    for w, below in zip(layers[::-1], h[-2::-1], strict=True):
        found.append((delta @ below.T).ravel())
        delta = w.T @ delta
    return np.concatenate(found[::-1])


def largest_eigenvalue(samples: Samples, architecture: Architecture, flat: np.ndarray) -> float:
    """Of the Hessian by central differences."""
    columns = [
        gradient(samples, architecture, flat + move) - gradient(samples, architecture, flat - move)
        for move in 1e-5 * np.eye(len(flat))
    ]
    return float(np.linalg.eigvalsh(np.array(columns) / 2e-5)[-1])


def targets(samples: Samples) -> np.ndarray:
    return samples.y.reshape(len(samples.X), -1)


@pytest.mark.parametrize(
    "architecture", ARCHITECTURES, ids=lambda one: f"{one.inputs}-{one.widths}"
)
def test_scipy_goes_the_same_way(architecture):
    samples = samples_for(architecture)
    ensemble = start(architecture, 3)
    outcome = flow(samples.regression(), ensemble, rtol=1e-10, end=1.7, tolerance=1e-300)
    assert set(outcome.state) == {State.LEARNING.value}
    assert np.all(outcome.extras["time"] == 1.7)
    p_star = np.linalg.lstsq(samples.X, targets(samples), rcond=None)[0].T
    least = np.mean((targets(samples) - samples.X @ p_star.T) ** 2) * len(p_star)
    for i, flat in enumerate(ensemble.flat()):
        reference = solve_ivp(
            lambda t, w: -gradient(samples, architecture, w),
            (0.0, 1.7),
            flat,
            method="DOP853",
            rtol=1e-12,
            atol=1e-14,
        ).y[:, -1]
        found = outcome.ensemble.flat()[i]
        np.testing.assert_allclose(found, reference, atol=1e-8)
        product, *rest = oracles.split(architecture, found)
        for w in rest:
            product = w @ product
        risk = np.mean((targets(samples) - samples.X @ product.T) ** 2) * len(p_star)
        norm = np.linalg.norm(gradient(samples, architecture, found))
        assert outcome.distance[i] == pytest.approx(np.sum((product - p_star) ** 2))
        assert outcome.excess_risk[i] == pytest.approx(risk - least, rel=1e-8)
        assert outcome.gradient_norm[i] == pytest.approx(norm, rel=1e-8)


def test_square_networks_arrive_and_the_invariants_stay():
    """From residual initialisation, d -> d: P*, with Lemma 1 to the accuracy of the steps."""
    samples = samples_for(SQUARE)
    outcome = flow(samples.regression(), start(SQUARE, 4, 0.3), rtol=1e-10)
    assert outcome.settled.all()
    assert np.all(outcome.gradient_norm <= 1e-10)
    p_star = np.linalg.lstsq(samples.X, samples.y, rcond=None)[0].T
    for i, (first, last) in enumerate(zip(start(SQUARE, 4, 0.3), outcome.ensemble, strict=True)):
        np.testing.assert_allclose(np.linalg.multi_dot(last[::-1]), p_star, atol=1e-8)
        changes = []
        for k in range(SQUARE.depth - 1):
            then = first[k + 1].T @ first[k + 1] - first[k] @ first[k].T
            changes.append(np.linalg.norm(last[k + 1].T @ last[k + 1] - last[k] @ last[k].T - then))
        assert max(changes) < 1e-8
        # Both sides round four products W W' with inner size d: each to d eps |W|_F^2.
        rounding = 8 * SQUARE.inputs * np.finfo(float).eps * max(np.sum(w**2) for w in last)
        assert outcome.extras["drift"][i] == pytest.approx(max(changes), abs=rounding)
        assert np.linalg.norm(np.subtract(last, first)) > 0.1


def test_small_weights_leave_the_saddles():
    """P = 0 and P of lower rank than P* have no gradient either, and are passed."""
    architecture = Architecture.multivariate(3, 3, 2)
    samples = samples_for(architecture)
    outcome = flow(samples.regression(), start(architecture, 4, 0.02))
    assert outcome.settled.all()
    assert np.all(outcome.distance < 1e-15)
    zero = Ensemble.from_flat(architecture, np.zeros((1, architecture.parameters)))
    stuck = flow(
        samples.regression(),
        zero,
        max_steps=30,
        recording=Recording(3, ("excess_risk", "sharpness")),
    )
    assert stuck.state[0] == State.STALLED.value
    assert np.all(stuck.recorded.values["sharpness"] == 0.0)


def test_saddle_of_lower_rank_is_no_end():
    """Sigma = I and P = diag(P*_11, 0): no gradient, and the excess risk of the second target."""
    x = np.sqrt(2.0) * np.eye(2)
    data = Samples.from_arrays(x, x @ np.diag([1.0, 0.1])).regression()
    architecture = Architecture.multivariate(2, 2, 2)
    saddle = Ensemble.from_matrices(architecture, [[np.diag([1.0, 0.0])] * 2])
    outcome = flow(data, saddle, max_steps=30)
    assert outcome.gradient_norm[0] < 1e-14
    assert outcome.state[0] == State.STALLED.value


def test_the_error_follows_the_tolerance():
    data = samples_for(SQUARE).regression()
    ensemble = start(SQUARE, 3)
    exact = flow(data, ensemble, rtol=1e-13, end=3.0).ensemble.flat()
    errors = []
    for rtol in (1e-5, 1e-7, 1e-9):
        outcome = flow(data, ensemble, rtol=rtol, end=3.0)
        errors.append(np.abs(outcome.ensemble.flat() - exact).max())
        assert errors[-1] < 100 * outcome.extras["error"].max()
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


def assert_same(found: Outcome, expected: Outcome, members: list[int]) -> None:
    for name in ("state", "steps", "excess_risk", "distance", "gradient_norm"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name)[members])
    for name, values in expected.extras.items():
        np.testing.assert_array_equal(found.extras[name], values[members])
    np.testing.assert_array_equal(found.ensemble.flat(), expected.ensemble.flat()[members])


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, Architecture.multivariate(40, 2, 20)])
def test_bits_do_not_depend_on_company_threads_or_blocks(architecture, monkeypatch):
    data = gaussian_samples(
        60, architecture.inputs, seed=0, targets=architecture.widths[-1]
    ).regression()
    ensemble = start(architecture, 7, 0.3)
    settings = {"max_steps": 40}
    whole = flow(data, ensemble, **settings)
    for members in ([0], [6, 2, 3]):
        few = Ensemble.from_flat(architecture, ensemble.flat()[members])
        assert_same(flow(data, few, **settings), whole, members)
    # Slices of one step, narrow and wide blocks.
    monkeypatch.setattr("flatmin.dynamics.flow._SLICE_FLOPS", 1.0)
    for threads, lanes in ((1, 4), (2, 4), (1, 8)):
        monkeypatch.setattr("flatmin.dynamics.flow.lane_count", lambda *_, n=lanes: n)
        assert_same(flow(data, ensemble, threads=threads, **settings), whole, [*range(7)])


def test_weights_that_are_no_numbers_end_alone():
    architecture = Architecture.multivariate(3, 3, 2)
    data = samples_for(architecture).regression()
    flat = start(architecture, 4).flat()
    whole = flow(data, Ensemble.from_flat(architecture, flat), end=2.0)
    bad = flat.copy()
    bad[1], bad[2] = np.nan, 1e200
    outcome = flow(data, Ensemble.from_flat(architecture, bad), end=2.0)
    assert list(outcome.state[1:3]) == [State.DIVERGED.value] * 2
    np.testing.assert_array_equal(outcome.ensemble.flat()[1:3], bad[1:3])
    good = [0, 3]
    np.testing.assert_array_equal(outcome.ensemble.flat()[good], whole.ensemble.flat()[good])


def test_the_trace_of_a_flow():
    architecture = Architecture(4, (3, 6, 2), None)
    samples = samples_for(architecture)
    data, ensemble = samples.regression(), start(architecture, 3)
    bare = flow(data, ensemble)
    assert bare.settled.all()
    traced = flow(data, ensemble, recording=Recording(20, recordable()))
    assert_same(traced, bare, [0, 1, 2])
    values = traced.recorded.values
    assert values["time"].shape == (len(traced.recorded.step), 3)
    assert np.all(np.diff(traced.recorded.step) == 20)
    for i in range(3):
        frame = traced.recorded.frame(i)
        assert frame["time"].is_monotonic_increasing
        assert frame["time"].iloc[-1] == traced.extras["time"][i]
        assert (frame["excess_risk"].diff().dropna() <= 1e-12).all()
        assert frame["distance"].iloc[-1] == traced.distance[i] < 1e-15
        for record, weights in ((0, ensemble), (-1, traced.ensemble)):
            top = largest_eigenvalue(samples, architecture, weights.flat()[i])
            assert frame["sharpness"].iloc[record] == pytest.approx(top, rel=1e-5)
    assert np.nanmax(values["drift"]) < 1e-7
    # The networks end at different records, and are NaN from then on.
    lengths = [len(traced.recorded.frame(i)) for i in range(3)]
    assert len(set(lengths)) > 1
    for i, length in enumerate(lengths):
        assert np.isnan(values["sharpness"][length:, i]).all()


def test_recorded_gradients_lie_between_floor_and_ceiling():
    data = samples_for(SQUARE).regression()
    traced = flow(data, start(SQUARE, 3), end=5.0, recording=Recording(5, recordable()))
    values = traced.recorded.values
    layers, floor, ceiling = (
        values[name] for name in ("layer_gradient", "gradient_floor", "gradient_ceiling")
    )
    there = ~np.isnan(layers)
    assert there.sum() > 50
    assert np.all(floor[there] > 0)
    assert np.all(floor[there] <= layers[there] * (1 + 1e-9))
    assert np.all(layers[there] <= ceiling[there] * (1 + 1e-9))
    # The gradient's norm comes from the integrator, its layers' norms from the measure.
    np.testing.assert_allclose(np.sqrt(np.sum(layers**2, axis=2)), values["gradient"], rtol=1e-9)
    # Along the flow dR/dt = -|grad|^2: the records of 'excess_risk' agree with those of 'gradient'.
    fine = flow(
        data, start(SQUARE, 1), end=5.0, recording=Recording(1, ("excess_risk", "gradient"))
    )
    frame = fine.recorded.frame()
    slope = np.gradient(frame["excess_risk"], frame["time"])
    np.testing.assert_allclose(slope[1:-1], -(frame["gradient"] ** 2)[1:-1], rtol=0.3, atol=1e-4)


def test_progress_counts_every_attempt():
    counted: list[int] = []
    data = samples_for(SQUARE).regression()
    outcome = flow(data, start(SQUARE, 1), progress=counted.append)
    assert sum(counted) == outcome.steps[0] + outcome.extras["rejected"][0]


def test_refusals():
    architecture = Architecture.multivariate(5, 2, 2)
    one = gaussian_samples(seed=1).regression()
    two = gaussian_samples(seed=1, targets=2).regression()
    with pytest.raises(SettingError, match="the data have 1 targets, the network 2"):
        flow(one, start(architecture, 1))
    with pytest.raises(SettingError, match="the data have 2 targets, the network 1"):
        flow(two, start(Architecture.mlp(5, 2), 1))
    with pytest.raises(SettingError, match="takes 4 inputs"):
        flow(two, start(Architecture.multivariate(4, 2, 2), 1))
    with pytest.raises(SettingError, match="one output or several, got tanh"):
        flow(one, start(Architecture.mlp(5, 2, activation="tanh"), 1))
    with pytest.raises(SettingError, match="rtol must be a positive number"):
        flow(two, start(architecture, 1), rtol=-1.0)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((30, 5)), columns=["a", "b", "c", "y", "z"])
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    return path


def test_the_command_takes_two_targets(monkeypatch, capsys, tmp_path, table):
    out_dir = tmp_path / "run"
    code, out, _ = call(
        monkeypatch,
        capsys,
        *("train", table, "--target", "y", "--target", "z", "--depth", "3", "--flow"),
        *("--scale", "0.5", "--record-every", "10", "--out", out_dir),
    )
    assert code == 0
    assert "Gradient flow arrived" in out
    names = {path.name for path in out_dir.iterdir()}
    assert names >= {"summary.json", "trace.parquet", "initial.npz", "final.npz", "training.png"}
    summary = json.loads((out_dir / "summary.json").read_text())
    assert summary["state"] == "settled"
    assert summary["widths"] == [3, 3, 2]
    assert summary["invariant_drift"] < 1e-6
    trace = pd.read_parquet(out_dir / "trace.parquet")
    assert {"time", "excess_risk", "sharpness", "layer_gradient_3", "gradient_floor_1"} <= set(
        trace
    )
    frame = pd.read_csv(table)
    exact = np.linalg.lstsq(frame[["a", "b", "c"]], frame[["y", "z"]], rcond=None)[0].T
    with np.load(out_dir / "final.npz") as final:
        assert "p" not in final
        layers = [final[f"W{k}"] for k in (1, 2, 3)]
    np.testing.assert_allclose(np.linalg.multi_dot(layers[::-1]), exact, atol=1e-8)
    data = read_samples(frame, ["y", "z"])
    again = sharpness(data, layers)
    assert again.value == pytest.approx(summary["sharpness"]["value"], rel=1e-8)


def test_the_command_refuses_several_outputs_of_a_nonlinear_network(monkeypatch, capsys, table):
    code, out, err = call(
        monkeypatch,
        capsys,
        *("train", table, "--target", "y", "--target", "z", "--flow", "--activation", "tanh"),
    )
    assert (code, out) == (2, "")
    assert "several outputs must be linear" in err
