"""Gradient flow of ensembles: SciPy, the theory's limits, the trace, bad calls."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from flatmin.core.errors import SettingError
from flatmin.curvature import sharpness
from flatmin.curvature.linear import LinearHessian
from flatmin.data.generators import gaussian_samples
from flatmin.data.sets import paper_samples
from flatmin.dynamics.descent import descend
from flatmin.dynamics.endings import State
from flatmin.dynamics.flow import flow
from flatmin.dynamics.recording import Recording, recordable
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.theory.minimal_sharpness import minimal_sharpness, vanishing_scale_limit

ARCHITECTURES = [
    Architecture.mlp(5, 6),
    Architecture(4, (3, 6, 1), (1.0,)),
    Architecture.residual(4, 5, [0.5, 0.5, -0.5, 0.5]),
    Architecture.mlp(3, 1),
]


def start(architecture: Architecture, size: int, scale: float) -> Ensemble:
    init = "residual" if architecture.square else "gaussian"
    return initialise(architecture, init, scale, 0, [(i,) for i in range(size)])


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_scipy_goes_the_same_way(architecture):
    data = gaussian_samples(20, architecture.inputs, seed=0).regression()
    ensemble = start(architecture, 5, 0.5)
    outcome = flow(data, ensemble, rtol=1e-10, end=1.7, tolerance=1e-300)
    assert set(outcome.state) == {State.LEARNING.value}
    assert np.all(outcome.extras["time"] == 1.7)
    for i, flat in enumerate(ensemble.flat()):
        reference = solve_ivp(
            lambda t, w: -LinearHessian(data, architecture, w[None]).gradient()[0],
            (0.0, 1.7),
            flat,
            method="DOP853",
            rtol=1e-12,
            atol=1e-14,
        ).y[:, -1]
        np.testing.assert_allclose(outcome.ensemble.flat()[i], reference, atol=1e-8)


def test_small_initialisation_arrives_and_tends_to_the_exact_limit():
    """Depth 10 from scale 0.05: a long wait near the saddle, then the balanced minimiser."""
    data = paper_samples().regression()
    limit = vanishing_scale_limit(data, 10)
    gaps = []
    for scale in (0.2, 0.1, 0.05):
        outcome = flow(data, start(Architecture.mlp(5, 10), 8, scale), rtol=1e-10)
        assert outcome.settled.all()
        assert outcome.extras["drift"].max() < 1e-8
        assert np.all(outcome.gradient_norm <= 1e-10)
        found = sharpness(data, outcome.ensemble).value
        assert np.all(found >= minimal_sharpness(data, 10).exact)
        gaps.append(np.abs(found / limit - 1).max())
    assert gaps[0] > 4 * gaps[1] > 16 * gaps[2]
    assert gaps[2] < 1e-3


def test_descent_tends_to_the_flow():
    """With the learning rate, the distance between the two ends goes to zero linearly."""
    data = gaussian_samples(seed=1).regression()
    ensemble = start(Architecture.mlp(5, 5), 6, 0.4)
    there = flow(data, ensemble).ensemble.flat()
    gaps = []
    for rate in (0.02, 0.01, 0.005):
        here = descend(data, ensemble, rate, 50_000).ensemble.flat()
        gaps.append(np.linalg.norm(here - there, axis=1))
    ratios = np.array([gaps[0] / gaps[1], gaps[1] / gaps[2]])
    assert np.all((ratios > 1.8) & (ratios < 2.3))


def test_the_trace_of_a_flow():
    architecture = Architecture.mlp(5, 4)
    data = gaussian_samples(seed=1).regression()
    ensemble = start(architecture, 7, 0.4)
    bare = flow(data, ensemble)
    traced = flow(data, ensemble, recording=Recording(5, recordable()))
    assert np.array_equal(bare.ensemble.flat(), traced.ensemble.flat())
    values = traced.recorded.values
    for i in range(7):
        frame = traced.recorded.frame(i)
        assert frame["time"].is_monotonic_increasing
        assert (frame["excess_risk"].diff().dropna() <= 1e-12).all()
        assert frame["distance"].iloc[-1] < 1e-12
    np.testing.assert_allclose(values["sharpness"][0], sharpness(data, ensemble).value, rtol=1e-6)
    last = [traced.recorded.frame(i)["sharpness"].iloc[-1] for i in range(7)]
    np.testing.assert_allclose(last, sharpness(data, traced.ensemble).value, rtol=1e-5)
    assert np.nanmax(values["drift"]) < 1e-7


def test_bits_do_not_depend_on_threads_or_company():
    data = gaussian_samples(seed=1).regression()
    ensemble = start(Architecture.mlp(5, 4), 11, 0.5)
    whole = flow(data, ensemble).ensemble.flat()
    for threads in (1, 2, 3):
        assert np.array_equal(flow(data, ensemble, threads=threads).ensemble.flat(), whole)
    few = Ensemble.from_flat(ensemble.architecture, ensemble.flat()[[9, 2]])
    assert np.array_equal(flow(data, few).ensemble.flat(), whole[[9, 2]])


def test_an_early_end_is_said():
    data = gaussian_samples(seed=1).regression()
    outcome = flow(data, start(Architecture.mlp(5, 4), 3, 0.5), max_steps=10)
    assert set(outcome.state) == {State.LEARNING.value}
    assert not outcome.learned.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rtol": 0.0}, "rtol must be a positive number"),
        ({"atol": -1.0}, "atol must be"),
        ({"tolerance": 0.0}, "tolerance must be"),
        ({"end": 0.0}, "end must be a positive time"),
        ({"end": float("nan")}, "end must be a positive time"),
        ({"max_steps": 0}, "max_steps must be"),
    ],
)
def test_bad_calls(change, message):
    data = gaussian_samples(seed=1).regression()
    with pytest.raises(SettingError, match=message):
        flow(data, start(Architecture.mlp(5, 2), 1, 0.5), **change)


def test_only_linear_networks_with_one_output_flow():
    data = gaussian_samples(seed=1).regression()
    with pytest.raises(SettingError, match="linear networks with one output"):
        flow(data, start(Architecture.mlp(5, 2, activation="tanh"), 1, 0.5))
    with pytest.raises(SettingError, match="takes 4 inputs"):
        flow(data, start(Architecture.mlp(4, 2), 1, 0.5))
