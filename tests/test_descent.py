"""Gradient descent of ensembles against a plain NumPy loop, and what must not change its bits."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatmin.core.errors import SettingError
from flatmin.curvature import sharpness
from flatmin.data.generators import gaussian_samples, spectrum_samples
from flatmin.data.samples import Samples
from flatmin.dynamics import backends
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import State
from flatmin.dynamics.measures import drift, invariants
from flatmin.dynamics.recording import Recording, recordable
from flatmin.network.activations import ACTIVATIONS
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.theory.minimal_sharpness import minimal_sharpness


def plain_descent(
    samples: Samples, architecture: Architecture, layers: list[np.ndarray], rate: float, steps: int
) -> list[np.ndarray]:
    """One network, one step at a time, from the raw samples by the chain rule."""
    X, y = samples.X, samples.y.reshape(samples.n, -1)
    phi = architecture.activation
    layers = [w.copy() for w in layers]
    for _ in range(steps):
        h, z = [X.T], []
        for w in layers[:-1]:
            z.append(w @ h[-1])
            h.append(phi.value(z[-1]))
        out = layers[-1] @ h[-1]
        if architecture.output is None:
            delta = 2.0 / samples.n * (out - y.T)
        else:
            residual = 2.0 / samples.n * (architecture.p @ out - samples.y)
            delta = np.outer(architecture.p, residual)
        gradients = []
        for k in range(len(layers) - 1, -1, -1):
            gradients.append(delta @ h[k].T)
            if k:
                delta = phi.first(z[k - 1]) * (layers[k].T @ delta)
        for w, g in zip(layers, reversed(gradients), strict=True):
            w -= rate * g
    return layers


ARCHITECTURES = [
    Architecture.mlp(3, 1),
    Architecture.mlp(5, 10),
    Architecture(4, (3, 6, 2, 1), (1.0,)),
    Architecture(3, (4, 2), (0.5, -1.0)),
    Architecture.residual(4, 5, [0.5, 0.5, -0.5, 0.5]),
    Architecture.mlp(20, 3, width=28),
    Architecture.residual(24, 2, np.eye(24)[3]),
    Architecture(40, (24, 23), tuple(np.linspace(-1.0, 1.0, 23))),
    Architecture.multivariate(3, 3, 2),
    Architecture.multivariate(4, 2, 3, width=5),
    *(Architecture.mlp(3, 4, width=4, activation=name) for name in ACTIVATIONS),
]


def setting(architecture: Architecture, size: int = 11, scale: float = 0.5, seed: int = 0):
    targets = architecture.widths[-1] if architecture.output is None else 1
    samples = gaussian_samples(14, architecture.inputs, seed=seed, targets=targets)
    init = "residual" if architecture.square else "gaussian"
    ensemble = initialise(architecture, init, scale, seed, [(i,) for i in range(size)])
    return samples, ensemble


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_each_step_is_the_plain_loop(architecture):
    wide = max(architecture.inputs, *architecture.widths) > 6
    samples, ensemble = setting(architecture, scale=0.1 if wide else 0.4)
    rates = np.linspace(0.005, 0.05, len(ensemble))
    for steps in (1, 2, 37):
        outcome = descend(samples, ensemble, rates, steps, tolerance=1e-300)
        assert set(outcome.steps) == {steps}
        for start, rate, end in zip(ensemble, rates, outcome.ensemble, strict=True):
            for ours, theirs in zip(
                end, plain_descent(samples, architecture, start, rate, steps), strict=True
            ):
                np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 20),
    st.integers(0, 100),
)
@settings(max_examples=25)
def test_any_shape(widths, inputs, size, seed):
    rng = np.random.default_rng(seed)
    p = tuple(rng.standard_normal(widths[-1]).tolist())
    architecture = Architecture(inputs, tuple(widths), p)
    samples, ensemble = setting(architecture, size, 0.4, seed)
    steps = rng.integers(1, 40, size)
    outcome = descend(samples, ensemble, 0.01, steps, tolerance=1e-300)
    assert np.array_equal(outcome.steps, steps)
    i = int(rng.integers(size))
    expected = plain_descent(samples, architecture, ensemble[i], 0.01, int(steps[i]))
    for ours, theirs in zip(outcome.ensemble[i], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_results_at_the_end_are_those_of_the_weights():
    samples, ensemble = setting(Architecture.mlp(5, 6))
    data = samples.regression()
    outcome = descend(data, ensemble, 0.03, 150)
    for i, layers in enumerate(outcome.ensemble):
        w = np.linalg.multi_dot([m.T for m in layers]).ravel()
        assert data.risk_min + outcome.excess_risk[i] == pytest.approx(data.risk(w))
        assert outcome.distance[i] == pytest.approx(np.sum((w - data.w_star) ** 2), rel=1e-6)


@pytest.mark.parametrize(
    "architecture", [Architecture.mlp(5, 6), Architecture.mlp(20, 3), ARCHITECTURES[-1]], ids=str
)
def test_bits_do_not_depend_on_threads_order_or_company(architecture):
    samples, ensemble = setting(architecture, 27, 0.2 if architecture.inputs == 20 else 0.6)
    rates = np.random.default_rng(0).uniform(0.01, 0.2, 27)
    steps = np.random.default_rng(1).integers(100, 2000, 27)
    whole = descend(samples, ensemble, rates, steps)
    flat = ensemble.flat()
    for threads in (1, 2, 3):
        again = descend(samples, ensemble, rates, steps, threads=threads)
        assert np.array_equal(again.ensemble.flat(), whole.ensemble.flat())
        assert np.array_equal(again.steps, whole.steps)
    order = np.random.default_rng(2).permutation(27)
    moved = descend(
        samples, Ensemble.from_flat(architecture, flat[order]), rates[order], steps[order]
    )
    assert np.array_equal(moved.ensemble.flat(), whole.ensemble.flat()[order])
    assert np.array_equal(moved.state, whole.state[order])
    alone = descend(samples, Ensemble.from_flat(architecture, flat[5:6]), rates[5], steps[5])
    assert np.array_equal(alone.ensemble.flat()[0], whole.ensemble.flat()[5])


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture.mlp(20, 4),
        Architecture.residual(24, 3, np.eye(24)[2]),
        Architecture(28, (28, 7), (0.3,) * 7),
        Architecture.residual(64, 2, np.eye(64)[0]),
    ],
    ids=str,
)
def test_wide_networks_have_the_same_bits_alone_and_in_twos(architecture, monkeypatch):
    """Also where lanes end at different steps, and where one diverges."""
    samples, ensemble = setting(architecture, 5, 0.2)
    rates, steps = np.full(5, 0.002), np.array([300, 240, 300, 77, 160])
    rates[1] = 40.0
    monkeypatch.setattr(backends, "_HELD_FLOPS", np.inf)
    plain = descend(samples, ensemble, rates, steps)
    assert np.flatnonzero(plain.state == State.DIVERGED).tolist() == [1]
    monkeypatch.setattr(backends, "_HELD_FLOPS", 0.0)
    moved = descend(samples, ensemble, rates, steps, threads=1)
    first = Ensemble.from_flat(architecture, ensemble.flat()[:1])
    alone = descend(samples, first, rates[:1], steps[:1])
    for outcome in (moved, alone):
        size = len(outcome.ensemble)
        np.testing.assert_array_equal(outcome.ensemble.flat(), plain.ensemble.flat()[:size])
        for name in ("steps", "state", "excess_risk", "distance", "gradient_norm"):
            np.testing.assert_array_equal(getattr(outcome, name), getattr(plain, name)[:size], name)


@pytest.mark.parametrize("architecture", [Architecture.mlp(5, 6), Architecture.mlp(20, 2)], ids=str)
def test_recording_does_not_change_the_trajectory(architecture):
    samples, ensemble = setting(architecture, 13, 0.2 if architecture.inputs == 20 else 0.6)
    bare = descend(samples, ensemble, 0.05, 700)
    for every in (1, 7, 16, 100):
        traced = descend(samples, ensemble, 0.05, 700, recording=Recording(every, recordable()))
        assert np.array_equal(traced.ensemble.flat(), bare.ensemble.flat())
        assert np.array_equal(traced.state, bare.state)
        assert np.array_equal(traced.steps, bare.steps)


def test_the_trace_is_what_the_weights_say():
    architecture = Architecture.mlp(5, 4)
    samples, ensemble = setting(architecture, 10, 0.5)
    data = samples.regression()
    trace = descend(data, ensemble, 0.04, 60, recording=Recording(20, recordable())).recorded
    assert trace.step.tolist() == [0, 20, 40, 60]
    for record, step in enumerate(trace.step):
        at = ensemble if step == 0 else descend(data, ensemble, 0.04, int(step)).ensemble
        exact = sharpness(data, at)
        np.testing.assert_allclose(trace.values["sharpness"][record], exact.value, rtol=1e-6)
        assert np.all(trace.values["sharpness_residual"][record] <= 1e-6 * exact.value)
        layers = at.layers()
        for k, w in enumerate(layers):
            s = np.linalg.svd(w)[1]
            np.testing.assert_allclose(trace.values["spectral_norm"][record, :, k], s[:, 0])
            defect = np.linalg.norm(w, axis=(1, 2)) ** 2 - s[:, 0] ** 2
            ours = trace.values["rank_one_defect"][record, :, k]
            np.testing.assert_allclose(ours, defect, atol=1e-12)
            moved = 4 * np.linalg.norm(w - ensemble.layers()[k], axis=(1, 2))
            np.testing.assert_allclose(trace.values["theta"][record, :, k], moved, atol=1e-12)
        for i in range(10):
            u = np.linalg.svd(layers[0][i])[0][:, 0]
            v = np.linalg.svd(layers[1][i])[2][0]
            assert trace.values["alignment"][record, i, 0] == pytest.approx((u @ v) ** 2)
        w = np.stack([np.linalg.multi_dot([m.T for m in net]).ravel() for net in at])
        distance = np.sum((w - data.w_star) ** 2, axis=1)
        np.testing.assert_allclose(trace.values["distance"][record], distance)
    frame = descend(data, ensemble, 0.04, 60, recording=Recording(20, recordable())).recorded.frame(
        3
    )
    assert list(frame["step"]) == [0, 20, 40, 60]


def test_an_overtaking_eigenvector_is_noticed():
    """Along training the recorded sharpness is the largest eigenvalue, at every record."""
    samples, ensemble = setting(Architecture.mlp(5, 8), 24, 0.55, seed=3)
    recording = Recording(10, ("sharpness",))
    trace = descend(samples, ensemble, 0.05, 400, recording=recording, tolerance=1e-300).recorded
    wrong = 0
    for record in range(0, 41, 4):
        step = int(trace.step[record])
        at = descend(samples, ensemble, 0.05, step, tolerance=1e-300).ensemble if step else ensemble
        exact = sharpness(samples, at, method="dense").value
        seen = trace.values["sharpness"][record]
        fine = ~np.isnan(seen)
        wrong += np.sum(np.abs(seen[fine] / exact[fine] - 1) > 1e-5)
    assert wrong == 0


def test_divergence_is_counted_to_the_step_and_stays_in_its_lane():
    architecture = Architecture.mlp(5, 6)
    samples, ensemble = setting(architecture, 16, 0.5)
    calm = descend(samples, ensemble, 0.01, 500)
    rates = np.full(16, 0.01)
    rates[[3, 8]] = 60.0
    mixed = descend(samples, ensemble, rates, 500)
    assert set(np.flatnonzero(mixed.state == State.DIVERGED)) == {3, 8}
    others = [i for i in range(16) if i not in (3, 8)]
    assert np.array_equal(calm.ensemble.flat()[others], mixed.ensemble.flat()[others])
    assert np.isfinite(mixed.ensemble.flat()[others]).all()
    # The step at which the plain loop's excess risk first passes the limit.
    data, layers, step = samples.regression(), ensemble[3], 0
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            w = np.linalg.multi_dot([m.T for m in layers]).ravel() - data.w_star
            if not w @ data.sigma @ w < 1e60:
                break
            layers, step = plain_descent(samples, architecture, layers, 60.0, 1), step + 1
    assert mixed.steps[3] == step
    assert np.isinf(mixed.excess_risk[3])


@pytest.mark.parametrize(
    ("rate", "scale"), [(0.02, 0.3), (0.1, 0.3), (0.02, 0.45), (0.1, 0.45), (0.005, 0.55)]
)
def test_stopping_early_equals_running_on(rate, scale):
    samples = gaussian_samples(seed=0)
    ensemble = initialise(Architecture.mlp(5, 10), "gaussian", scale, 0, [(i,) for i in range(24)])
    stopped = descend(samples, ensemble, rate, 20_000)
    done = stopped.settled
    assert done.any()
    assert stopped.steps[done].max() < 20_000
    full = descend(samples, ensemble, rate, 20_000, tolerance=1e-300)
    a, b = stopped.ensemble.flat()[done], full.ensemble.flat()[done]
    relative = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
    assert relative.max() < 1e-10


def test_a_saddle_is_not_a_minimiser():
    """From a tiny scale the gradient is far below any tolerance, yet nothing has settled."""
    samples = gaussian_samples(seed=0)
    ensemble = initialise(Architecture.mlp(5, 10), "gaussian", 0.02, 0, [(0,), (1,)])
    outcome = descend(samples, ensemble, 0.1, 1000, tolerance=1e-3)
    assert set(outcome.state) == {State.STALLED.value}


def test_lemma_1_drifts_exactly_by_its_second_order_term():
    """Under GD: D_k changes by eta^2 (grad_{k+1}' grad_{k+1} - grad_k grad_k') a step."""
    from flatmin.curvature.linear import LinearHessian

    architecture = Architecture(4, (3, 5, 1))
    samples, ensemble = setting(architecture, 6, 0.7)
    data, rate = samples.regression(), 0.03
    flat = LinearHessian(data, architecture, ensemble.flat()).gradient()
    gradients = architecture.split(flat)
    after = descend(data, ensemble, rate, 1).ensemble.layers()
    before = invariants(ensemble.layers())
    # An entry is the difference of two sums of at most five squares, before the step and after it.
    rounding = 4 * 5 * np.finfo(float).eps * max(np.max(w**2) for w in ensemble.layers())
    for k, change in enumerate(
        now - then for now, then in zip(invariants(after), before, strict=True)
    ):
        upper, lower = gradients[k + 1], gradients[k]
        expected = rate**2 * (upper.transpose(0, 2, 1) @ upper - lower @ lower.transpose(0, 2, 1))
        np.testing.assert_allclose(change, expected, rtol=1e-9, atol=rounding)
    assert drift(after, ensemble.layers()).shape == (6, 2)


def test_final_sharpness_lies_between_the_flattest_and_the_edge():
    samples = spectrum_samples(40, d=5, condition_number=4.0, noise=0.5, seed=1)
    data = samples.regression()
    ensemble = initialise(Architecture.mlp(5, 6), "gaussian", 0.55, 0, [(i,) for i in range(40)])
    rate = 0.06
    outcome = descend(data, ensemble, rate, 30_000)
    ends = sharpness(data, outcome.ensemble).value[outcome.settled]
    assert len(ends) > 10
    assert np.all(ends >= minimal_sharpness(data, 6).exact * (1 - 1e-9))
    assert np.all(ends <= 2 / rate * (1 + 1e-6))


def test_float32_follows_float64():
    samples, ensemble = setting(Architecture.mlp(5, 4), 9, 0.4)
    single = descend(samples, ensemble, 0.05, 200, precision="float32", tolerance=1e-30)
    double = descend(samples, ensemble, 0.05, 200, tolerance=1e-30)
    np.testing.assert_allclose(single.ensemble.flat(), double.ensemble.flat(), atol=2e-4)
    assert not np.array_equal(single.ensemble.flat(), double.ensemble.flat())


def test_progress_counts_every_step_once():
    samples, ensemble = setting(Architecture.mlp(5, 4), 20, 0.5)
    steps = np.arange(100, 2100, 100)
    seen = []
    descend(samples, ensemble, 0.1, steps, progress=seen.append)
    assert sum(seen) == steps.sum()


def test_an_interrupt_stops_within_a_moment():
    samples, ensemble = setting(Architecture.mlp(5, 10), 64, 0.3)

    class Stop(Exception):
        pass

    def stop(_: int) -> None:
        raise Stop

    before = threading.active_count()
    with pytest.raises(Stop):
        descend(samples, ensemble, 1e-9, 10**9, progress=stop)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"learning_rate": float("nan")}, "learning_rate must be"),
        ({"learning_rate": [0.1, 0.2]}, "one number or one per network"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"steps": 2.5}, "steps must be"),
        ({"steps": 10**15}, "steps must be at most"),
        ({"tolerance": -1.0}, "tolerance must be"),
        ({"precision": "float16"}, "precision must be one of"),
        ({"recording": Recording(1, ("sharpness",)), "steps": 10**11}, "GiB of memory"),
    ],
)
def test_bad_calls(change, message):
    samples, ensemble = setting(Architecture.mlp(5, 3))
    call = {"learning_rate": 0.1, "steps": 10} | change
    with pytest.raises(SettingError, match=message):
        descend(samples, ensemble, **call)


def test_bad_recordings():
    with pytest.raises(SettingError, match="record every must be"):
        Recording(0)
    with pytest.raises(SettingError, match="did you mean 'sharpness'"):
        Recording(5, ("sharpnes",))


def test_data_and_network_must_fit():
    ensemble = setting(Architecture.mlp(4, 3))[1]
    with pytest.raises(SettingError, match="takes 4 inputs but the data have 5"):
        descend(gaussian_samples(seed=0), ensemble, 0.1, 10)
    with pytest.raises(SettingError, match="the data have 2 targets"):
        descend(gaussian_samples(20, 4, targets=2), ensemble, 0.1, 10)
