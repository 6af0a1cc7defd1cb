"""The lab's map, panels and sentences, against runs one at a time and plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import flatmin
import oracles
from flatmin.core.errors import SettingError
from flatmin.lab import bifurcation, maps, panels
from flatmin.lab.engine import ground_of
from flatmin.lab.sentences import sentence
from flatmin.lab.settings import setting_of
from flatmin.lab.tables import Tables
from lab_settings import EDGE, PLAIN, like


@pytest.fixture(scope="module")
def tables():
    found = Tables()
    yield found
    found.close()


@pytest.mark.parametrize("axis", maps.AXES)
def test_a_pixel_is_the_run_it_stands_for(axis, tables):
    plan = maps.plan(setting_of(PLAIN), axis, tables)
    picture = maps.Picture(plan)
    for number in range(len(plan.strides)):
        for batch in maps.batches(plan, number):
            picture.add(batch, maps.run(batch, plan.steps))
    pixels = picture.at(1)
    rows, columns = len(plan.rows), len(plan.rates)
    assert np.shape(pixels["state"]) == (rows, columns)
    assert np.min(pixels["state"]) >= 0  # every pixel was run
    for row, column in ((0, 40), (rows // 2, 30), (rows // 2, 60), (rows - 1, 45)):
        one = plan.rows[row]
        setting = one.ground.setting
        scale = one.value if axis == "scale" else setting.initialisation.scale
        run = flatmin.train(
            one.ground.samples,
            one.ground.network,
            init="pytorch",
            scale=scale,
            learning_rate=plan.rates[column],
            steps=plan.steps,
        )
        assert plan.as_dict()["states"][pixels["state"][row][column]] == run.state
        if run.state != "diverged":
            share = run.final_sharpness.value / run.minimal_sharpness
            assert pixels["ratio"][row][column] == pytest.approx(share, rel=2e-3)


def test_passes_add_up_to_the_whole_without_repeating(tables):
    plan = maps.plan(setting_of(EDGE), "scale", tables)
    seen = [
        (row, column)
        for number in range(len(plan.strides))
        for batch in maps.batches(plan, number)
        for row, column in zip(batch.rows.tolist(), batch.columns.tolist(), strict=True)
    ]
    assert len(seen) == len(set(seen)) == maps.SIDE**2
    first = sum(len(batch.rates) for batch in maps.batches(plan, 0))
    assert first == (maps.SIDE // maps.STRIDES[0]) ** 2


def test_ceilings_on_the_map_are_those_of_the_theory(tables):
    plan = maps.plan(setting_of(PLAIN), "depth", tables).as_dict()
    data = ground_of(setting_of(PLAIN), tables).samples.regression()
    for depth, ceiling in list(zip(plan["values"], plan["ceilings"], strict=True))[::7]:
        assert ceiling == pytest.approx(2.0 / flatmin.minimal_sharpness(data, int(depth)).exact)


def test_a_map_of_a_flow_is_refused(tables):
    with pytest.raises(flatmin.SettingError, match="gradient flow has none"):
        maps.plan(setting_of(like(PLAIN, method={"name": "flow"})), "scale", tables)


@pytest.mark.parametrize("width", [5, 40])  # the whole matrix, and iterations
def test_eigenvalues_and_singular_values_of_the_last_weights(width, tables):
    content = like(
        PLAIN, architecture={"kind": "mlp", "depth": 2, "width": width}, method__steps=30
    )
    ground = ground_of(setting_of(content), tables)
    taken = panels.snapshots(ground, 30)
    found = panels.layers(ground, taken)
    weights = flatmin.descend(ground.samples, ground.start(1), 0.07, 30).ensemble[0]
    _, hessian = oracles.gradient_and_hessian(ground.samples, ground.network, weights)
    largest = np.sort(np.linalg.eigvalsh(hessian))[::-1][:4]
    np.testing.assert_allclose(np.array(found["eigenvalues"])[:, -1], largest, rtol=1e-7)
    for layer, matrix in enumerate(weights):
        values = np.linalg.svd(matrix, compute_uv=False)
        assert found["first"][layer][-1] == pytest.approx(values[0])
        assert found["second"][layer][-1] == pytest.approx(values[1] if len(values) > 1 else 0.0)


@pytest.mark.parametrize("width", [5, 40])
def test_weights_too_large_for_numbers_have_no_eigenvalues(width, tables):
    network = {"kind": "mlp", "depth": 3, "width": width}
    content = like(PLAIN, architecture=network, initialisation__scale=1e99, method__steps=3)
    ground = ground_of(setting_of(content), tables)
    found = panels.layers(ground, panels.snapshots(ground, 3))
    assert all(value is None for value in np.ravel(found["eigenvalues"]))


def test_snapshots_follow_changes_of_the_rate(tables):
    content = like(changes=[[20, 0.1]])
    ground = ground_of(setting_of(content), tables)
    taken = panels.snapshots(ground, 60)
    first = flatmin.descend(ground.samples, ground.start(1), 0.07, 20, observe_ends=False)
    last = flatmin.descend(ground.samples, first.ensemble, 0.1, 40)
    np.testing.assert_array_equal(taken.weights.flat()[-1], last.ensemble.flat()[0])
    assert taken.at.tolist() == [float(i) for i in range(61)]


def test_the_ledger_of_a_settled_run(tables):
    content = like(PLAIN, method__steps=2000)
    rows = panels.ledger(ground_of(setting_of(content), tables), 2000)
    verdicts = {row["statement"]: row["verdict"] for row in rows}
    assert verdicts["theorem-2"] == "holds"
    assert verdicts["exact-minimal-sharpness"] == "holds"
    assert "violated" not in verdicts.values()


def test_orbits_are_those_of_the_balanced_map_on_white_data(tables):
    """On white data w.w*/|w*|^2 = u^L along u <- u - (2 c/L) (u^(2L-1) - u^(L-1))."""
    depth = 3
    content = like(
        PLAIN,
        problem={"generator": "whitened", "n": 20, "d": 3, "noise": 0.0},
        architecture={"kind": "mlp", "depth": depth},
    )
    found = bifurcation.orbits(ground_of(setting_of(content), tables))
    shares, rates = found["shares"], found["relative_rates"]
    cell = shares[1] - shares[0]
    for wanted, period in ((0.95, 1), (1.1, 2), (1.27, 4)):
        column = int(np.argmin(np.abs(rates - wanted)))
        c, u, orbit = rates[column], 1.01, []
        for step in range(bifurcation.STEPS):
            u -= 2.0 * c / depth * (u ** (2 * depth - 1) - u ** (depth - 1))
            if step >= bifurcation.STEPS - period:
                orbit.append(u**depth)
        cells = shares[found["visits"][:, column] > 0]
        for place in orbit:
            assert np.min(np.abs(cells - place)) <= cell
        for place in cells:
            assert np.min(np.abs(np.array(orbit) - place)) <= 1.5 * cell
    assert found["sentence"].startswith("settled, period 2 from 1.0")
    assert "diverged from 2." in found["sentence"]


@pytest.mark.parametrize("method", [{"name": "flow"}, {"name": "nesterov", "momentum": 0.5}])
def test_orbits_are_for_gradient_descent(method, tables):
    content = like(PLAIN, method=method | {"steps": 10})
    if method["name"] != "flow":
        content["method"]["learning_rate"] = 0.1
    with pytest.raises(SettingError, match="is for gradient descent"):
        bifurcation.orbits(ground_of(setting_of(content), tables))


def said(sharpness, excess=None, edge=10.0):
    values = np.asarray(sharpness, dtype=float)
    risk = np.geomspace(1.0, 0.1, len(values)) if excess is None else np.asarray(excess)
    return sentence(risk, values, edge, formula="2/eta", excess_at_zero=1.0, goal=1e-3)


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        (said(np.linspace(2, 8, 30)), "Sharpness rises, to 0.79 of 2/eta"),
        (said(np.linspace(2, 10.2, 30)), "has reached 2/eta: from here it oscillates"),
        (said([9.0] + [9.0, 12.0] * 40), "swings about 2/eta: this is the edge of stability"),
        (said([30.0] * 20), "above 2/eta: every step overshoots"),
        (said([5.0] * 30), "Sharpness is 0.5 of 2/eta"),
        (said([5.0] * 30, [1.0] * 30), "near the saddle"),
        (said([5.0] * 30, np.geomspace(1, 1e-4, 30)), "Learned"),
        (said([5.0] * 30, np.geomspace(1, 1e4, 30)), "run away"),
        (said([5.0] * 30, [*np.geomspace(1, 0.01, 20), *np.geomspace(0.01, 0.5, 10)]), "jumps"),
        (said(np.linspace(2, 8, 30), edge=None), "Sharpness rises: "),
    ],
)
def test_sentences_follow_what_happens(sentence, words):
    assert words in sentence
