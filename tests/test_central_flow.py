"""The central flow against automatic differentiation, SciPy's integrator and plain descent."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flatmin
import oracles
from flatmin.curvature.directional import sharpness_gradient, slope_along
from flatmin.data.generators import gaussian_samples, spectrum_samples
from flatmin.data.samples import Samples
from flatmin.data.sets import paper_samples
from flatmin.dynamics.central_flow import CentralFlow, central_flow
from flatmin.dynamics.line_orbit import TERMS, line_orbit
from flatmin.dynamics.recording import Recording
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.study.execute import run_shard
from flatmin.study.plan import plan
from flatmin.study.spec import parse_spec

NETWORKS = {
    "mlp": Architecture.mlp(3, 4),
    "narrow": Architecture.mlp(3, 3, width=2),
    "residual": Architecture.residual(3, 3, np.array([0.6, -0.8, 0.5])),
    "one layer": Architecture.mlp(3, 1),
}
DATA = gaussian_samples(n=20, d=3, seed=4)


def risk_of(samples: Samples, architecture: Architecture) -> Any:
    """The risk of flat weights, from the rows, for JAX."""
    X, y = jnp.asarray(samples.X), jnp.asarray(samples.y)
    return lambda flat: oracles.risk(architecture, X, y, oracles.split(architecture, flat))


def start_of(architecture: Architecture, count: int = 3, size: float = 0.6) -> np.ndarray:
    return size * np.random.default_rng(5).standard_normal((count, architecture.parameters))


def descent(samples: Samples, architecture: Architecture, flat: Any, rate: float, steps: int):
    """Plain gradient descent of one network, layer by layer in NumPy, every iterate."""
    X, y, p = samples.X, samples.y, architecture.p
    layers, path = [w.copy() for w in oracles.split(architecture, np.asarray(flat))], []
    for _ in range(steps):
        path.append(np.concatenate([w.ravel() for w in layers]))
        inputs = [X.T]
        for w in layers:
            inputs.append(w @ inputs[-1])
        back = 2.0 / len(y) * np.outer(p, p @ inputs[-1] - y)
        gradients = []
        for w, h in zip(layers[::-1], inputs[-2::-1], strict=True):
            gradients.append(back @ h.T)
            back = w.T @ back
        layers = [w - rate * g for w, g in zip(layers, gradients[::-1], strict=True)]
    return np.array(path)


def midpoints(path: np.ndarray) -> np.ndarray:
    return (path[:-2] + 2.0 * path[1:-1] + path[2:]) / 4.0


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_of_sharpness_is_that_of_the_largest_eigenvalue(name: str) -> None:
    """By the third derivative of the risk with the dense Hessian's top eigenvector put in twice,
    and by differences of its largest eigenvalue."""
    architecture = NETWORKS[name]
    risk, flat = risk_of(DATA, architecture), start_of(architecture)
    found = flatmin.sharpness(DATA, Ensemble.from_flat(architecture, flat), tolerance=1e-12)
    ours = sharpness_gradient(DATA.regression(), architecture, flat, found.vector)

    def curved(w: Any, u: Any) -> Any:
        return jax.jvp(lambda x: jax.jvp(risk, (x,), (u,))[1], (w,), (u,))[1]

    third, hessian = jax.jit(jax.grad(curved)), oracles.compiled(architecture)
    turn, h = start_of(architecture)[::-1], 1e-5
    for w, direction, gradient in zip(flat, turn, ours, strict=True):
        u = np.linalg.eigh(hessian(DATA.X, DATA.y, w)[1])[1][:, -1]
        size = max(1.0, float(np.abs(gradient).max()))
        # An eigenvector is off by the residual over the gap to the next eigenvalue.
        np.testing.assert_allclose(gradient, third(w, u), atol=1e-7 * size)
        above, below = (
            np.linalg.eigvalsh(hessian(DATA.X, DATA.y, w + s * h * direction)[1])[-1]
            for s in (1.0, -1.0)
        )
        # A difference is good to h^2 and to rounding over h.
        expected = (above - below) / (2.0 * h)
        assert gradient @ direction == pytest.approx(expected, abs=1e-5 * size)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_slope_along_a_direction_is_a_polynomial(name: str) -> None:
    architecture = NETWORKS[name]
    flat, turn = start_of(architecture), start_of(architecture, size=0.3)[::-1].copy()
    terms = 2 * architecture.depth
    whole = slope_along(DATA.regression(), architecture, flat, turn, terms)
    gradient = jax.vmap(jax.grad(risk_of(DATA, architecture)))
    for s in (-1.0, 0.0, 0.3, 1.2):
        expected = np.einsum("ni,ni->n", gradient(flat + s * turn), turn)
        np.testing.assert_allclose(whole @ s ** np.arange(terms), expected, rtol=1e-10, atol=1e-10)
    few = slope_along(DATA.regression(), architecture, flat, turn, 3)
    np.testing.assert_allclose(few[:, : min(3, terms)], whole[:, :3][:, : min(3, terms)])


def test_the_orbit_on_a_line_is_where_descent_goes() -> None:
    rate, random = 0.1, np.random.default_rng(2)
    slope = np.zeros((6, TERMS))
    slope[:, 1] = 20.0 + np.linspace(0.2, 2.0, 6)
    slope[:, 2] = 60.0 * random.uniform(0.8, 1.2, 6)
    slope[:, 3] = 50.0
    slope[:, 0] = random.uniform(-0.1, 0.1, 6)
    m, q, found = line_orbit(slope, np.full(6, 2.0 / rate), np.zeros(6))
    assert found.all()
    s = np.full(6, 0.01)
    for _ in range(20_001):
        before, s = s, s - rate * np.sum(slope * s[:, None] ** np.arange(TERMS), axis=1)
    np.testing.assert_allclose(m, (s + before) / 2.0, atol=1e-9)
    np.testing.assert_allclose(np.sqrt(q), np.abs(s - before) / 2.0, atol=1e-9)


def test_there_is_no_orbit_below_the_edge() -> None:
    slope = np.zeros((1, TERMS))
    slope[:, 1], slope[:, 2] = 19.0, 60.0
    m, q, found = line_orbit(slope, np.array([20.0]), np.array([0.01]))
    assert not found[0]
    assert m[0] == q[0] == 0.0


@pytest.mark.parametrize("order", [1, 2])
def test_far_below_the_edge_it_is_gradient_flow(order: int) -> None:
    architecture, rate, steps = NETWORKS["mlp"], 0.002, 150
    flat = start_of(architecture, 1, 0.4)
    gradient = jax.jit(jax.grad(risk_of(DATA, architecture)))
    exact = solve_ivp(
        lambda t, w: -np.asarray(gradient(w)), (0.0, rate * steps), flat[0], rtol=1e-9, atol=1e-11
    )
    outcome = central_flow(
        DATA.regression(), Ensemble.from_flat(architecture, flat), rate, steps, order=order
    )
    moved = np.linalg.norm(exact.y[:, -1] - flat[0])
    # Heun's error is of the order of (S eta/2)^2 / 6, and S is about 10 here.
    assert np.linalg.norm(outcome.ensemble.flat()[0] - exact.y[:, -1]) < 1e-4 * moved
    assert outcome.extras["amplitude"][0] == 0.0


def test_order_1_slides_along_the_edge() -> None:
    """Against SciPy, the eigenvalue and its gradient by automatic differentiation."""
    samples, architecture = paper_samples(), Architecture.mlp(5, 3)
    flat = flatmin.initialise(architecture, "gaussian", 0.35, 3, networks=1).flat()
    risk = risk_of(samples, architecture)
    gradient, hessian = jax.grad(risk), jax.hessian(risk)
    top = jax.jit(jax.value_and_grad(lambda w: jnp.linalg.eigvalsh(hessian(w))[-1]))
    slope = jax.jit(gradient)

    def sharpening(t: float, w: np.ndarray) -> float:
        return float(top(w)[0]) - edge

    edge = 5.0  # between the start's sharpness and S_min
    sharpening.terminal, sharpening.direction = True, 1.0  # type: ignore[attr-defined]
    before = solve_ivp(
        lambda t, w: -np.asarray(slope(w)), (0.0, 50.0), flat[0],
        rtol=1e-7, atol=1e-9, events=sharpening,
    )  # fmt: skip
    assert before.status == 1

    def sliding(t: float, w: np.ndarray) -> np.ndarray:
        g, s = np.asarray(slope(w)), np.asarray(top(w)[1])
        assert s @ g < 0.0  # else it would leave the edge
        return -(g - (s @ g) / (s @ s) * s)

    begin, rate, steps = before.y[:, -1], 2.0 / edge, 3
    after = solve_ivp(sliding, (0.0, rate * steps), begin, rtol=1e-6, atol=1e-8)
    outcome = central_flow(
        samples.regression(),
        Ensemble.from_flat(architecture, begin[None]),
        rate,
        steps,
        order=1,
        recording=Recording(1, ("sharpness",)),
    )
    moved = np.linalg.norm(after.y[:, -1] - begin)
    assert outcome.extras["amplitude"][0] > 0.0
    assert np.linalg.norm(outcome.ensemble.flat()[0] - after.y[:, -1]) < 0.05 * moved
    np.testing.assert_allclose(outcome.recorded.values["sharpness"], edge, rtol=0.02)


def test_above_the_ceiling_order_2_rests_in_the_middle_of_the_orbit() -> None:
    """No minimiser is stable at 1.05 of the critical rate: descent ends in an orbit of period 2."""
    samples, architecture = paper_samples(), Architecture.mlp(5, 3)
    data = samples.regression()
    rate = 1.05 * 2.0 / flatmin.predict(data, 3).exact
    flattest = architecture.join([w[None] for w in flatmin.flattest_minimiser(data, architecture)])
    begin = flattest[0] + 0.01 * np.random.default_rng(0).standard_normal(architecture.parameters)
    ends = descent(samples, architecture, begin, rate, 3000)[-2:]
    outcome = central_flow(data, Ensemble.from_flat(architecture, begin[None]), rate, 200)
    middle, x = ends.mean(axis=0), np.linalg.norm(ends[1] - ends[0]) / 2.0
    assert x > 0.05
    assert outcome.extras["amplitude"][0] == pytest.approx(x, rel=0.02)
    risk = risk_of(samples, architecture)
    first, second = (float(risk(w)) - data.risk_min for w in ends)
    assert outcome.extras["mean_excess_risk"][0] == pytest.approx((first + second) / 2, rel=0.05)
    reached = flatmin.sharpness(data, outcome.ensemble).value[0]
    assert reached == pytest.approx(oracles.sharpness(
        samples, architecture, oracles.split(architecture, middle)), rel=0.01)  # fmt: skip


def test_it_follows_the_midpoints_of_descent_and_the_correction_helps() -> None:
    samples, architecture, rate = paper_samples(), Architecture.mlp(5, 10), 0.07
    data, steps, began = samples.regression(), 100, 30
    starts = flatmin.initialise(architecture, "gaussian", 0.5, 0, networks=120).flat()
    chosen = [36, 43, 17]  # they reach the edge and swing quietly within thirty steps
    paths = [midpoints(descent(samples, architecture, starts[i], rate, 140)) for i in chosen]
    begin = Ensemble.from_flat(architecture, np.array([path[began] for path in paths]))
    ends = np.array([path[began + steps] for path in paths])
    travelled = np.linalg.norm(ends - begin.flat(), axis=1)
    error = {
        order: np.linalg.norm(
            central_flow(data, begin, rate, steps, order=order).ensemble.flat() - ends, axis=1
        )
        / travelled
        for order in (1, 2)
    }
    assert np.all(error[1] < 0.15)
    assert np.all(error[2] < 0.03)
    assert np.all(error[2] < error[1])
    flow = flatmin.flow(data, begin, end=rate * steps).ensemble.flat()
    assert np.all(np.linalg.norm(flow - ends, axis=1) > 0.5 * travelled)


def test_a_run_does_not_depend_on_its_neighbours() -> None:
    samples, architecture = paper_samples(), Architecture.mlp(5, 4)
    start = flatmin.initialise(architecture, "gaussian", 0.5, 0, networks=6)
    rates = np.linspace(0.05, 0.3, 6)
    steps = np.array([20, 30, 10, 30, 30, 30])
    together = central_flow(samples.regression(), start, rates, steps)
    for i in (0, 2, 5):
        alone = central_flow(samples.regression(), start[[i]], rates[i], steps[i])
        np.testing.assert_allclose(
            together.ensemble.flat()[i], alone.ensemble.flat()[0], rtol=1e-5, atol=1e-7
        )
    assert list(together.steps <= steps) == [True] * 6


def test_on_ill_conditioned_data_it_stays_bounded() -> None:
    samples = spectrum_samples(n=50, d=4, condition_number=100, alignment="weak", seed=0)
    architecture = Architecture.mlp(4, 3)
    start = flatmin.initialise(architecture, "gaussian", 0.3, 1, networks=8)
    rate = 0.9 * 2.0 / flatmin.predict(samples.regression(), 3).exact
    outcome = central_flow(samples.regression(), start, rate, 100)
    assert np.isfinite(outcome.excess_risk).all()
    assert np.all(flatmin.sharpness(samples, outcome.ensemble).value < 1.3 * 2.0 / rate)


def test_train_and_studies_take_it_as_a_method() -> None:
    run = flatmin.train(
        paper_samples(), Architecture.mlp(5, 4), init="gaussian", scale=0.5,
        method=CentralFlow(0.2), steps=60,
    )  # fmt: skip
    assert run.learned
    assert run.as_dict()["method"] == "central-flow"
    assert {"amplitude", "mean_excess_risk", "sharpness"} <= set(run.outcome.recorded.values)
    assert run.plot().axes
    study = parse_spec(
        """
problem = { generator = "gaussian", n = 30, d = 5 }
architecture = { depth = 3 }
initialisation = { scale = 0.5 }
method = { name = "central-flow", learning_rate = 0.1, steps = 50 }
record = { every = 10, quantities = ["excess_risk", "sharpness"] }
"""
    )
    (shard,) = plan(study)
    result = run_shard(study, shard)
    assert result.rows.num_rows == 1
    assert result.traces.num_rows == 6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CentralFlow(0.1, order=3), "order must be 1 or 2, got 3"),
        (
            lambda: CentralFlow(0.1).run(
                DATA, flatmin.initialise(Architecture.mlp(3, 2, activation="tanh"), "gaussian", 1,
                0, networks=1), steps=1,
            ),
            "central flow is for linear networks with one output",
        ),
    ],
)  # fmt: skip
def test_wrong_settings_are_one_line(make: Any, words: str) -> None:
    with pytest.raises(flatmin.SettingError, match=words):
        make()
