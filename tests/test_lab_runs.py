"""The lab's runs: the same bits as the engine's own, as Python and as a command; limits; words."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flatmin
from commands import call
from flatmin.lab import code, engine
from flatmin.lab.engine import QUANTITIES, follow, ground_of
from flatmin.lab.entries import csv_text
from flatmin.lab.scenes import SCENES
from flatmin.lab.settings import address, from_address, setting_of
from flatmin.lab.tables import Tables
from flatmin.study.spec import parse_spec
from lab_settings import EDGE, PLAIN, VARIED, like

TABLE = Path(__file__).parent.parent / "examples" / "gaussian.csv"


@pytest.fixture(scope="module")
def tables():
    found = Tables()
    yield found
    found.close()


def columns(ground):
    pieces = list(follow(ground))
    return {
        name: np.concatenate([piece.columns[name] for piece in pieces])
        for name in pieces[0].columns
    }, pieces


def ground(content, tables):
    return ground_of(setting_of(content), tables)


@pytest.mark.parametrize("name", [*VARIED, *(scene.name for scene in SCENES)])
def test_python_lines_give_the_same_bits(name, tables):
    content = VARIED.get(name) or next(s.settings for s in SCENES if s.name == name)
    here = ground(content, tables)
    shown, _ = columns(here)
    namespace: dict[str, object] = {}
    exec(code.as_python(here, tables), namespace)
    exact = [*QUANTITIES] if engine.piece_steps(here) >= 1000 else list(QUANTITIES[:3])
    if "run" in namespace:
        trace = namespace["trace"]
        for quantity in exact:
            np.testing.assert_array_equal(shown[quantity], trace[quantity].to_numpy())
        return
    traces = namespace.get("traces") or [namespace["trace"]]
    for quantity in exact:
        parts = [t.values[quantity][1 if i else 0 :] for i, t in enumerate(traces)]
        values = np.concatenate(parts)
        if here.setting.networks == 1:
            values = values[:, 0]
            np.testing.assert_array_equal(shown[quantity], values[np.isfinite(values)])
        else:
            assert not np.isnan(values).any()
            # The median of an odd number of networks is one of them.
            np.testing.assert_array_equal(shown[quantity], np.median(values, axis=1))


@pytest.mark.parametrize("name", [*VARIED, "table", *(f"scene-{one.name}" for one in SCENES)])
def test_the_command_gives_the_same_bits(name, tables, tmp_path, monkeypatch, capsys):
    if name == "table":
        problem = tables.keep(str(TABLE), ["y"], preparation=flatmin.Preparation(intercept=True))
        content = like(problem=problem, architecture__depth=3)
    else:
        scenes = {f"scene-{one.name}": one.settings for one in SCENES}
        content = VARIED.get(name) or scenes[name]
    here = ground(content, tables)
    shown, pieces = columns(here)
    words = shlex.split(code.as_command(here, tables))
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, capsys, *words[1:])[0] == 0
    if words[1] == "lab":
        assert (tmp_path / "run.csv").read_text() == csv_text(pieces)
        return
    trace = pd.read_parquet(tmp_path / "run" / "trace.parquet")
    exact = QUANTITIES if engine.piece_steps(here) >= 1000 else QUANTITIES[:3]
    for quantity in exact:
        kept = np.isfinite(trace["excess_risk"].to_numpy())
        np.testing.assert_array_equal(shown[quantity], trace[quantity].to_numpy()[kept])


def test_plain_runs_are_commands_of_train(tables):
    assert code.as_command(ground(EDGE, tables), tables).startswith("flatmin train --depth 10 ")
    assert code.as_command(ground(VARIED["change"], tables), tables).startswith(
        "flatmin lab --replay "
    )


def test_the_replay_of_a_pages_address(tables, tmp_path, monkeypatch, capsys):
    text = "http://127.0.0.1:8765/#" + address(EDGE | {"view": {"tab": "layers"}, "b": PLAIN})
    code_, out, _ = call(monkeypatch, capsys, "lab", "--replay", text)
    assert code_ == 0
    assert out == csv_text(list(follow(ground(EDGE, tables))))


def test_how_a_run_is_cut_changes_no_weight(tables, monkeypatch):
    here = ground(EDGE, tables)
    whole, pieces = columns(here)
    assert len(pieces) == 1
    monkeypatch.setattr(engine, "_PIECE_FLOPS", 1.0)
    cut, pieces = columns(here)
    assert len(pieces) == 4  # of 16 steps, and the rest
    assert [piece.first for piece in pieces] == [0, 17, 33, 49]
    for name in ("step", "excess_risk", "distance", "gradient", "excess_risk_high"):
        np.testing.assert_array_equal(whole[name], cut[name])
    np.testing.assert_allclose(whole["sharpness"], cut["sharpness"], rtol=1e-6)


def test_a_change_of_rate_is_a_new_run_from_there(tables):
    content = like(changes=[[20, 0.1]])
    shown, _ = columns(ground(content, tables))
    here = ground(EDGE, tables)
    first = flatmin.descend(here.samples, here.start(), 0.07, 20, observe_ends=False)
    second = flatmin.descend(here.samples, first.ensemble, 0.1, 40)
    assert shown["excess_risk"][20] == first.excess_risk[0]
    assert shown["excess_risk"][-1] == second.excess_risk[0]
    assert shown["step"].tolist() == list(range(61))


def test_an_ensembles_band_lies_between_its_quantiles(tables):
    here = ground(like(PLAIN, repetitions=20), tables)
    shown, _ = columns(here)
    alone = [
        flatmin.descend(here.samples, here.start()[[i]], 0.07, 60).excess_risk[0] for i in range(20)
    ]
    ordered = np.sort(alone)
    # The smallest value with at least this share of the networks at or below it.
    assert shown["excess_risk"][-1] == ordered[9]
    assert shown["excess_risk_low"][-1] == ordered[1]
    assert shown["excess_risk_high"][-1] == ordered[17]


def test_networks_of_an_ensemble_that_diverged_count_as_infinite(tables):
    content = like(PLAIN, repetitions=21, initialisation__scale=4.0, method__learning_rate=0.3)
    shown, pieces = columns(ground(content, tables))
    states = pieces[-1].end.states
    assert states["diverged"] > 10  # most of them, so the median has gone
    assert np.isinf(shown["excess_risk"][-1])


def test_the_end_is_told_as_train_tells_it(tables):
    here = ground(EDGE, tables)
    end = list(follow(here))[-1].end
    run = flatmin.train(
        here.samples, here.network, init="residual", scale=1.2, learning_rate=0.07, steps=60
    )
    assert end.sentence == run.interpretation()
    assert (end.state, end.learned, end.steps) == (run.state, run.learned, 60)


def test_facts_are_those_of_the_prediction(tables):
    here = ground(like(PLAIN, method__name="heavy-ball", method__momentum=0.5), tables)
    found = engine.facts(here)
    known = flatmin.predict(here.samples.regression(), 3)
    assert found["minimal"] == known.exact
    assert found["ceiling"] == pytest.approx(3.0 / known.exact)
    assert found["edge"] == pytest.approx(3.0 / 0.07)


WRONG = {
    "rate": (like(method__learning_rate=-1.0), "learning_rate = 0.07", "learning_rate = -1.0"),
    "name": (like(method__name="desent"), 'name = "descent"', 'name = "desent"'),
    "depth": (like(architecture__depth=0), "depth = 10", "depth = 0"),
    "kind": (like(architecture__kind="mlp"), 'kind = "residual"', 'kind = "mlp"'),
    "key": (like(architecture__dept=3), "depth = 10", "depth = 10\ndept = 3"),
    "paper": (like(problem__paper="linea"), 'paper = "linear"', 'paper = "linea"'),
    "momentum": (like(method__momentum=0.9), "steps = 60", "steps = 60\nmomentum = 0.9"),
}
FILE = """
seed = 0
[problem]
paper = "linear"
[architecture]
kind = "residual"
depth = 10
[initialisation]
name = "residual"
scale = 1.2
[method]
name = "descent"
learning_rate = 0.07
steps = 60
"""


@pytest.mark.parametrize("mistake", WRONG)
def test_page_and_file_say_the_same_words_about_the_same_mistake(mistake):
    content, right, wrong = WRONG[mistake]
    assert right in FILE
    with pytest.raises(flatmin.SettingError) as of_page:
        setting_of(content)
    with pytest.raises(flatmin.SettingError) as of_file:
        parse_spec(FILE.replace(right, wrong), "the page")
    assert str(of_page.value) == str(of_file.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (like(architecture__depth=500), "architecture.depth must be at most 200 in the lab"),
        (like(repetitions=1000), "repetitions must be at most 200"),
        (like(changes=[[10, 0.1], [10, 0.2]]), "changes must be in the order of steps"),
        (like(changes=[[60, 0.1]]), "changes must come before step 60"),
        (like(method__steps=3000, changes=[[4, 0.1]]), "changes must be at entries, every 3"),
        (like(method={"name": "flow"}, changes=[[9, 0.1]]), "gradient flow has no learning rate"),
        (like(method__name="central-flow"), "method.name must be one of descent, flow, heavy-ball"),
        (like(grid={"depth": [1, 2]}, architecture={"kind": "residual"}), "leave the grid out"),
        (like(problem={"generator": "gaussian", "targets": 2}), "'residual' is for one output"),
        (like(problem={"paper": "linear", "targets": 2}), "must not have targets without"),
        ([1], "settings must be a table of keys"),
    ],
)
def test_limits_are_said(content, words):
    with pytest.raises(flatmin.SettingError, match=words.replace("'", ".")):
        setting_of(content)


def test_what_is_null_is_not_given(tables):
    """A page's JSON has null where a file has nothing."""
    content = like(PLAIN, problem={"generator": "gaussian", "n": None, "d": 3, "paper": None})
    assert ground_of(setting_of(content), tables).samples.n == 50


def test_a_run_that_would_take_too_long_is_refused(tables):
    content = like(
        PLAIN,
        problem={"generator": "gaussian", "n": 1000, "d": 100},
        architecture={"kind": "mlp", "depth": 50, "activation": "tanh"},
        method__steps=100_000,
    )
    with pytest.raises(flatmin.SettingError, match=r"method\.steps must be at most"):
        ground(content, tables)


plain_values = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(min_size=1, max_size=8),
    st.lists(st.integers(0, 9), max_size=3),
)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,6}", fullmatch=True),
        plain_values | st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), plain_values),
        max_size=5,
    )
)
def test_an_address_holds_all_values(content):
    empty = [key for key, value in content.items() if value == {}]
    assert from_address("#" + address(content)) == {
        key: value for key, value in content.items() if key not in empty
    }
