"""Training methods: trajectories and edges against plain NumPy, bits, and every way in."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import oracles
from commands import call
from flatmin.core.errors import SettingError
from flatmin.curvature import sharpness
from flatmin.data.generators import gaussian_samples
from flatmin.data.sets import paper_samples
from flatmin.dynamics import backends, descent, rounds
from flatmin.dynamics.edge import midway
from flatmin.dynamics.endings import State
from flatmin.dynamics.methods import (
    METHODS,
    GradientDescent,
    GradientFlow,
    HeavyBall,
    Nesterov,
    method_of,
)
from flatmin.dynamics.recording import Recording
from flatmin.dynamics.training import train
from flatmin.ledger.collect import evidence_of
from flatmin.ledger.directories import directory_evidence
from flatmin.ledger.record import Verdict
from flatmin.ledger.stability import edge
from flatmin.network.architecture import Architecture
from flatmin.network.ensemble import Ensemble
from flatmin.network.initialisation import initialise
from flatmin.study.execute import run_shard
from flatmin.study.inputs import architecture_of
from flatmin.study.plan import plan
from flatmin.study.spec import parse_spec
from flatmin.theory.minimal_sharpness import minimal_sharpness

BETAS = (0.0, 0.3, 0.9, 0.99)
MOVING = (HeavyBall, Nesterov)
NEVER = 1e-190


def networks(count, depth=4, d=5, scale=0.5):
    architecture = Architecture.mlp(d, depth)
    return initialise(architecture, "gaussian", scale, 0, [(i,) for i in range(count)])


def gradient(data, p, layers):
    """Of the risk (w - w*)' Sigma (w - w*) with w' = p' W_L ... W_1, by products of matrices."""
    depth = len(layers)
    before = [np.eye(layers[0].shape[1])]
    for w in layers:
        before.append(w @ before[-1])
    after = [p]
    for w in reversed(layers):
        after.append(after[-1] @ w)
    a = 2.0 * data.sigma @ (after[-1] - data.w_star)
    return [np.outer(after[depth - 1 - k], before[k] @ a) for k in range(depth)]


def heavy_ball(data, p, layers, eta, beta, steps):
    """V <- beta V - eta g(W), W <- W + V."""
    v = [np.zeros_like(w) for w in layers]
    for _ in range(steps):
        v = [beta * u - eta * g for u, g in zip(v, gradient(data, p, layers), strict=True)]
        layers = [w + u for w, u in zip(layers, v, strict=True)]
    return layers


def look_ahead(data, p, layers, eta, beta, steps):
    """y = U + beta V, V <- beta V - eta g(y), U <- U + V; the last y."""
    v = [np.zeros_like(w) for w in layers]
    for _ in range(steps):
        y = [w + beta * u for w, u in zip(layers, v, strict=True)]
        v = [beta * u - eta * g for u, g in zip(v, gradient(data, p, y), strict=True)]
        layers = [w + u for w, u in zip(layers, v, strict=True)]
    return [w + beta * u for w, u in zip(layers, v, strict=True)]


@pytest.mark.parametrize(("kind", "plain"), [(HeavyBall, heavy_ball), (Nesterov, look_ahead)])
@pytest.mark.parametrize(("depth", "d"), [(1, 5), (4, 5), (3, 20), (2, 32)])
def test_trajectories_are_those_of_a_plain_loop(kind, plain, depth, d):
    data = gaussian_samples(50, d, seed=1).regression()
    start = networks(11, depth, d, 0.5 if d == 5 else 0.2)
    steps = 60 + np.arange(11)
    method = kind(learning_rate=0.02, momentum=0.8)
    found = method.run(data, start, steps=steps, tolerance=NEVER).ensemble
    for i, (layers, ended) in enumerate(zip(start, found, strict=True)):
        expected = plain(data, start.architecture.p, layers, 0.02, 0.8, steps[i])
        for w, one in zip(expected, ended, strict=True):
            # Rounding of 70 steps whose error the problem hardly amplifies.
            np.testing.assert_allclose(one, w, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("kind", MOVING)
def test_without_momentum_both_are_gradient_descent(kind):
    data, start = gaussian_samples(seed=1).regression(), networks(5)
    plain = GradientDescent(learning_rate=0.02).run(data, start, steps=100, tolerance=NEVER)
    still = kind(learning_rate=0.02, momentum=0.0).run(data, start, steps=100, tolerance=NEVER)
    np.testing.assert_allclose(still.ensemble.flat(), plain.ensemble.flat(), atol=1e-13)


def iteration(kind, eta, beta, curvature):
    """The matrix that takes (W, V) of a quadratic to the next, from the definition of a step."""
    rows = []
    for w, v in ((1.0, 0.0), (0.0, 1.0)):
        g = curvature * w
        after = beta * v - eta * g
        rows.append((w + after if kind is HeavyBall else w + beta * after - eta * g, after))
    return np.array(rows).T


@pytest.mark.parametrize("kind", MOVING)
@pytest.mark.parametrize("beta", BETAS)
def test_the_edge_is_where_a_root_leaves_the_unit_disc(kind, beta):
    edge = float(kind(learning_rate=0.1, momentum=beta).edge)

    def radius(curvature):
        return np.abs(np.linalg.eigvals(iteration(kind, 0.1, beta, curvature))).max()

    # Stable all the way up to the edge, not beyond; at the edge the root is -1.
    assert all(radius(share * edge) < 1.0 for share in np.linspace(0.01, 0.999, 200))
    assert radius(1.001 * edge) > 1.0
    roots = np.linalg.eigvals(iteration(kind, 0.1, beta, edge))
    assert np.abs(roots + 1.0).min() < 1e-12


@pytest.mark.parametrize("kind", MOVING)
@pytest.mark.parametrize("beta", [0.3, 0.9])
def test_at_depth_one_runs_settle_below_the_edge_and_diverge_above(kind, beta):
    data, start = gaussian_samples(seed=2).regression(), networks(3, depth=1)
    # The risk at depth 1 is a quadratic: the same sharpness everywhere.
    value = float(sharpness(data, start).value[0])
    reach = kind(learning_rate=1.0, momentum=beta).reach
    below, above = (
        kind(learning_rate=share * reach / value, momentum=beta).run(data, start, steps=40_000)
        for share in (0.99, 1.01)
    )
    assert below.count(State.SETTLED) == 3
    assert above.count(State.DIVERGED) == 3
    expected = kind(learning_rate=0.99 * reach / value, momentum=beta).edge
    assert float(expected) == pytest.approx(value / 0.99)


def test_edges_of_the_others():
    rates = np.array([0.1, 0.5])
    np.testing.assert_allclose(GradientDescent(learning_rate=rates).edge, [20.0, 4.0])
    assert GradientFlow().edge is None
    assert [METHODS[name].name for name in METHODS] == list(METHODS)


@pytest.mark.parametrize("kind", MOVING)
def test_bits_do_not_depend_on_threads_lanes_slices_or_neighbours(kind, monkeypatch):
    data, start = paper_samples().regression(), networks(21, depth=5)
    rates, steps = np.linspace(0.001, 0.03, 21), np.arange(21) * 40 + 300

    def run(chosen, threads, recording=None):
        some = Ensemble.from_flat(start.architecture, start.flat()[chosen])
        method = kind(learning_rate=rates[chosen], momentum=0.9)
        return method.run(data, some, steps=steps[chosen], threads=threads, recording=recording)

    every = np.arange(21)
    whole = run(every, 1)
    assert len(set(whole.state)) > 1

    def same(outcome, chosen):
        for name in ("steps", "excess_risk", "gradient_norm", "state"):
            expected = getattr(whole, name)[chosen]
            np.testing.assert_array_equal(getattr(outcome, name), expected)
        np.testing.assert_array_equal(outcome.ensemble.flat(), whole.ensemble.flat()[chosen])
        np.testing.assert_array_equal(outcome.beside, whole.beside[chosen])

    same(run(every, 2), every)
    same(run(every[::-1].copy(), 1), every[::-1])
    for i in (0, 20):
        same(run(np.array([i]), 1), np.array([i]))
    same(run(every, 1, Recording(7, ("excess_risk", "sharpness"))), every)
    monkeypatch.setattr(rounds, "_SLICE_FLOPS", 1.0)
    monkeypatch.setattr(rounds, "_ROUNDS", (3, 50))
    same(run(every, 2), every)


@pytest.mark.parametrize("kind", MOVING)
def test_a_run_is_continued_from_its_velocity(kind):
    data, start = paper_samples().regression(), networks(4, depth=5)
    rule = kind(learning_rate=0.005, momentum=0.9).rule

    def go(ensemble, steps, velocity=None):
        return descent.descend(
            data, ensemble, 0.005, steps, rule=rule, beside=velocity, tolerance=NEVER
        )

    half = go(start, 32)
    np.testing.assert_array_equal(
        go(half.ensemble, 32, half.beside).ensemble.flat(), go(start, 64).ensemble.flat()
    )
    chosen = np.ones(4, dtype=bool)
    middle = midway(data, half, 0.005, chosen).flat()
    after = go(start, 33).ensemble.flat()
    np.testing.assert_array_equal(middle, 0.5 * (half.ensemble.flat() + after))


def test_a_gradient_that_vanishes_in_passing_is_no_end():
    # One weight that swings through its minimum: gradient 0 at a check, velocity not.
    data, start = gaussian_samples(n=20, d=1, seed=0).regression(), networks(1, depth=1, d=1)
    at_minimum = Ensemble.from_flat(start.architecture, [[float(data.w_star[0])]])
    rule = HeavyBall(learning_rate=1e-3, momentum=0.9).rule
    settings = {"rule": rule, "tolerance": 1e-3, "observe_ends": False}
    rest = descent.descend(data, at_minimum, 1e-3, 17, beside=np.zeros((1, 1)), **settings)
    moving = descent.descend(data, at_minimum, 1e-3, 17, beside=np.ones((1, 1)), **settings)
    assert rest.state[0] == State.SETTLED
    assert moving.state[0] != State.SETTLED


@pytest.mark.parametrize("kind", MOVING)
def test_settled_runs_keep_below_their_edge_and_the_ledger_says_so(kind):
    data, start = paper_samples().regression(), networks(40, depth=10, scale=0.45)
    least = minimal_sharpness(data, 10).exact
    rate = 0.5 * kind(learning_rate=1.0, momentum=0.5).reach / least
    method = kind(learning_rate=rate, momentum=0.5)
    outcome = method.run(data, start, steps=6000)
    assert outcome.count(State.SETTLED) > 5
    runs = evidence_of(
        data,
        start,
        outcome,
        init="gaussian",
        scale=0.45,
        method=method,
    )
    np.testing.assert_allclose(runs.edge, method.edge)
    assert {record.verdict for record in edge(runs)} == {Verdict.HOLDS}
    # Heavy ball settles where gradient descent could not: at its own edge, beyond 2/eta.
    beyond = runs.sharpness[runs.settled].max() > 2.0 / rate
    assert beyond == (kind is HeavyBall)


@pytest.mark.parametrize("kind", MOVING)
@pytest.mark.parametrize(("share", "beta"), [(0.02, 0.9), (0.1, 0.9), (0.002, 0.99), (1.02, 0.3)])
def test_endings_foretell_what_more_steps_show(kind, share, beta):
    # Swings that die out are no oscillation; above the critical rate there is nothing else.
    data, start = paper_samples().regression(), networks(20, depth=5, scale=0.35)
    rate = share * kind(learning_rate=1.0, momentum=beta).reach / minimal_sharpness(data, 5).exact
    method = kind(learning_rate=rate, momentum=beta)
    later = method.run(data, start, steps=40_000)
    expected = {State.SETTLED: {"settled", "learning"}} | {
        state: {state.value} for state in (State.OSCILLATING, State.DIVERGED)
    }
    for steps in (50, 200, 800) if share < 1.0 else (3000,):
        found = method.run(data, start, steps=steps)
        for early, late in zip(found.state, later.state, strict=True):
            assert early in expected[State(late)]
    if share > 1.0:
        assert later.count(State.OSCILLATING) > 10
        assert set(later.period[later.state == State.OSCILLATING]) == {2}


def test_a_velocity_of_another_shape_is_told():
    data, start = paper_samples().regression(), networks(2)
    rule = HeavyBall(learning_rate=0.01, momentum=0.5).rule
    with pytest.raises(SettingError, match=r"beside must have shape \(2, 80\)"):
        descent.descend(data, start, 0.01, 5, rule=rule, beside=np.zeros((1, 3)))


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture.mlp(5, 3, activation="tanh"),
        Architecture.mlp(5, 3, width=4, activation="leaky-relu", biases=True),
        Architecture.mlp(5, 2, biases=True),
        Architecture.multivariate(5, 3, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [GradientDescent, *MOVING])
def test_trajectories_on_samples(architecture, kind):
    samples = gaussian_samples(20, 5, seed=1, targets=len(architecture.output_map))
    start = initialise(architecture, "gaussian", 0.5, 0, networks=9)
    eta, beta = 0.02, 0.8 * (kind is not GradientDescent)
    method = method_of(kind.name, learning_rate=eta, momentum=beta)
    found = method.run(samples, start, steps=50, tolerance=NEVER)
    gradient = jax.jit(
        jax.grad(
            lambda row: oracles.risk(
                architecture, samples.X, samples.y, oracles.split(architecture, row)
            )
        )
    )
    for one, ended in zip(start.flat(), found.ensemble.flat(), strict=True):
        w, v = one, np.zeros_like(one)
        for _ in range(50):
            g = np.asarray(gradient(w))
            v = beta * v - eta * g
            w = w + beta * v - eta * g if kind is Nesterov else w + v
        # Rounding of 50 steps whose error the problem hardly amplifies.
        np.testing.assert_allclose(ended, w, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("kind", MOVING)
def test_on_samples_a_run_settles_only_at_rest(kind):
    samples = gaussian_samples(40, 3, seed=2)
    start = initialise(Architecture.mlp(3, 2, biases=True), "gaussian", 0.5, 0, networks=3)
    method = kind(learning_rate=0.05, momentum=0.9)
    outcome = method.run(samples, start, steps=20_000)
    assert (outcome.state == State.SETTLED.value).all()
    # The least risk of an affine map: least squares with a column of ones.
    design = np.column_stack([samples.X, np.ones(len(samples.X))])
    best = np.mean((samples.y - design @ np.linalg.lstsq(design, samples.y)[0]) ** 2)
    risk = outcome.excess_risk + samples.regression().risk_min
    np.testing.assert_allclose(risk, best, rtol=1e-12)


@pytest.mark.parametrize("value", [1, 1.0, -0.1, "x", float("nan"), None, True])
@pytest.mark.parametrize("kind", MOVING)
def test_a_wrong_momentum_is_told(kind, value):
    with pytest.raises(SettingError, match="momentum must be a number of at least 0 and below 1"):
        kind(learning_rate=0.1, momentum=value)


def test_methods_by_name():
    assert method_of("descent", learning_rate=0.1, momentum=None) == GradientDescent(0.1)
    assert method_of("nesterov", learning_rate=0.1, momentum=0.5) == Nesterov(0.1, 0.5)
    assert method_of("flow", learning_rate=None, rtol=1e-6) == GradientFlow(1e-6)
    with pytest.raises(SettingError, match="did you mean 'nesterov'"):
        method_of("nesterow", learning_rate=0.1)


def test_train_takes_a_method_or_a_rate():
    network = Architecture.mlp(5, 3)
    by_rate = train(paper_samples(), network, learning_rate=0.05, steps=200)
    by_method = train(paper_samples(), network, method=GradientDescent(0.05), steps=200)
    assert by_rate.as_dict() == by_method.as_dict()


@pytest.mark.parametrize(
    ("flags", "name", "reach"), [((), "heavy-ball", 3.8), (("--nesterov",), "nesterov", 3.8 / 2.8)]
)
def test_train_on_the_command_line(flags, name, reach, monkeypatch, capsys, tmp_path):
    out_dir = tmp_path / "run"
    command = ("train", "--depth", "4", "--learning-rate", "0.1critical", "--momentum", "0.9")
    code, out, err = call(
        monkeypatch, capsys, *command, *flags, "--steps", "3000", "--json", "--out", out_dir
    )
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["method"], result["momentum"]) == (name, 0.9)
    assert result["edge"] == pytest.approx(reach / result["learning_rate"])
    assert result["edge"] == pytest.approx(10.0 * result["minimal_sharpness"])
    assert result["state"] == "settled"
    assert result["edge_share"] == pytest.approx(result["sharpness"]["value"] / result["edge"])
    (runs,) = directory_evidence(out_dir)
    np.testing.assert_allclose(runs.edge, result["edge"])
    assert {record.verdict for record in edge(runs)} == {Verdict.HOLDS}


@pytest.mark.parametrize("value", ["1", "-0.1", "x"])
def test_a_wrong_momentum_on_the_command_line(value, monkeypatch, capsys):
    code, _, err = call(
        monkeypatch, capsys, "train", "--learning-rate", "0.1", f"--momentum={value}"
    )
    assert code == 2
    assert "--momentum must be a number" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--momentum", "0.9"), "--momentum needs --learning-rate"),
        (("--momentum", "0.9", "--flow"), "--momentum needs --learning-rate"),
        (("--nesterov", "--learning-rate", "0.1"), "--nesterov needs --momentum"),
    ],
)
def test_options_that_do_not_go_together(options, message, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "train", *options)
    assert code == 2
    assert message in err


STUDY = """\
repetitions = 6
[problem]
paper = "linear"
[architecture]
depth = 5
[initialisation]
scale = 0.35
[method]
{method}
learning_rate_unit = "critical"
steps = 2000
[grid]
learning_rate = [0.1, 0.5, 1.5]
[record]
every = 100
quantities = ["excess_risk", "sharpness"]
"""


@pytest.mark.parametrize("kind", MOVING)
def test_a_study(kind):
    study = parse_spec(STUDY.format(method=f'name = "{kind.name}"\nmomentum = 0.9'))
    assert parse_spec(study.to_toml()).canonical() == study.canonical()
    rows = [row for shard in plan(study) for row in run_shard(study, shard).rows.to_pylist()]
    assert len(rows) == 18
    least = minimal_sharpness(paper_samples().regression(), 5).exact
    for row in rows:
        method = kind(learning_rate=row["learning_rate"], momentum=0.9)
        assert row["edge"] == pytest.approx(float(method.edge))
        assert row["edge"] == pytest.approx(least / row["relative_rate"])
        if row["state"] == "settled":
            assert row["edge_share"] == pytest.approx(row["sharpness"] / row["edge"])
            assert row["edge_share"] <= 1.0 + 1e-9
            assert row["relative_rate"] < 1.0
    assert any(row["state"] == "settled" for row in rows)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ('name = "nesterov"', "method.momentum is missing"),
        ('name = "descent"\nmomentum = 0.9', "method.momentum is for method.name 'heavy-ball'"),
        ('name = "heavy-ball"\nmomentum = 1', "method.momentum must be a number of at least 0"),
        ('name = "heavy-ball"\nmomentum = -0.1', "method.momentum must be a number of at least 0"),
        ('name = "heavy-ball"\nmomentum = "x"', "method.momentum must be a number"),
    ],
)
def test_a_wrong_study(method, message):
    with pytest.raises(SettingError, match=message):
        parse_spec(STUDY.format(method=method))


def test_a_study_of_networks_that_are_not_linear():
    text = STUDY.format(method='name = "heavy-ball"\nmomentum = 0.9')
    text = text.replace('learning_rate_unit = "critical"\n', "")
    study = parse_spec(text.replace("depth = 5", 'depth = 5\nactivation = "tanh"\nbiases = true'))
    assert study.method.momentum == 0.9
    assert architecture_of(study, 5, 5, None).beyond == "tanh and biases"


@pytest.mark.parametrize("given", [{}, {"learning_rate": 0.1, "method": GradientFlow()}])
def test_train_takes_one_of_the_two(given):
    with pytest.raises(SettingError, match="either a method or the learning rate"):
        train(paper_samples(), Architecture.mlp(5, 2), **given)


@pytest.mark.parametrize("kind", [GradientDescent, *MOVING])
@pytest.mark.parametrize("recording", [None, Recording(3, ("excess_risk", "gradient"))])
def test_the_kernel_of_small_square_layers_keeps_the_bits(kind, recording, monkeypatch):
    """Also where lanes end at different steps, and where one diverges."""
    data = gaussian_samples(seed=0).regression()
    for architecture in (Architecture.mlp(5, 4), Architecture.residual(5, 3, np.eye(5)[1])):
        ensemble = initialise(architecture, "gaussian", 0.5, 0, [(i,) for i in range(19)])
        rates = np.full(19, 0.01)
        rates[[2, 9]] = 40.0, 0.02
        own = {} if kind is GradientDescent else {"momentum": 0.7}
        outcomes = []
        for least in (0.0, np.inf):
            monkeypatch.setattr(backends, "_HELD_FLOPS", least)
            method = kind(learning_rate=rates, **own)
            outcomes.append(method.run(data, ensemble, steps=700, recording=recording))
        held, plain = outcomes
        assert set(np.flatnonzero(plain.state == State.DIVERGED)) == {2}
        np.testing.assert_array_equal(held.ensemble.flat(), plain.ensemble.flat())
        for name in ("steps", "state", "excess_risk", "distance"):
            np.testing.assert_array_equal(getattr(held, name), getattr(plain, name), name)
        if recording is not None:
            for name, values in plain.recorded.values.items():
                np.testing.assert_array_equal(held.recorded.values[name], values, name)
