"""The file of a study: what it means, what is refused and how, and the plan it leads to."""

from __future__ import annotations

import pickle
import re
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatmin.core.errors import DataError, SettingError
from flatmin.study import toml
from flatmin.study.inputs import architecture_of, data_of
from flatmin.study.plan import LEAST_RUNS, plan
from flatmin.study.spec import STARTER, Study, parse_spec

BASE = """\
name = "base"
repetitions = 3
[problem]
generator = "gaussian"
[architecture]
depth = 4
[initialisation]
scale = 0.3
[method]
learning_rate = 0.02
steps = 100
"""

PAPER = {
    "figure 1": (
        """
[problem]
paper = "linear"
[architecture]
depth = 10
[grid]
scale = { linspace = [0.25, 0.6, 10] }
[[grid.zip]]
learning_rate = [0.005, 0.02, 0.07, 0.1, 0.2]
steps = [40000, 10000, 4000, 4000, 2000]
repetitions = [20, 20, 20, 20, 80]
""",
        10 * 160,
        10 * (800_000 + 200_000 + 80_000 + 80_000 + 160_000),
    ),
    "figure 1c": (
        """
[problem]
paper = "linear"
[architecture]
depth = 10
[initialisation]
scale = 0.35
[method]
steps = 450
[grid]
learning_rate = [0.02, 0.1]
[record]
every = 5
quantities = ["distance", "sharpness"]
""",
        2,
        900,
    ),
    "figure 2": (
        """
repetitions = 50
[problem]
paper = "linear"
[architecture]
kind = "residual"
output = "paper-by-depth"
[initialisation]
name = "residual"
scale = 0.25
[method]
steps = 1000
[grid]
depth = [5, 10, 20, 40]
learning_rate = { logspace = [-2, -0.3, 25] }
""",
        4 * 25 * 50,
        4 * 25 * 50 * 1000,
    ),
    "figure 4": (
        """
repetitions = 20
[problem]
paper = "linear"
[architecture]
kind = "residual"
output = "paper"
depth = 10
[initialisation]
name = "residual"
[method]
steps = 4000
[grid]
scale = { linspace = [0, 1.7, 10] }
learning_rate = [0.005, 0.02, 0.07, 0.1, 0.2]
""",
        1000,
        4_000_000,
    ),
    "figure 6": (
        """
[problem]
paper = "underdetermined"
[architecture]
depth = 5
[grid]
scale = { linspace = [0.1, 0.36, 9] }
[[grid.zip]]
learning_rate = [0.001, 0.004, 0.01]
steps = [40000, 10000, 4000]
repetitions = [100, 20, 20]
""",
        9 * 140,
        9 * (4_000_000 + 200_000 + 80_000),
    ),
    "figure 7": (
        """
repetitions = 20
[problem]
paper = "nonlinear"
[architecture]
depth = 10
activation = "gelu-tanh"
[grid]
scale = { linspace = [0.428, 0.7, 8] }
[[grid.zip]]
learning_rate = [0.005, 0.02, 0.07]
steps = [160000, 40000, 16000]
""",
        8 * 3 * 20,
        8 * 20 * 216_000,
    ),
}


@pytest.mark.parametrize("figure", PAPER)
def test_every_figure_of_the_paper_is_one_study(figure):
    text, runs, steps = PAPER[figure]
    study = parse_spec(text)
    shards = plan(study)
    assert study.runs == runs == sum(len(shard) for shard in shards)
    assert steps == sum(shard.network_steps for shard in shards)
    assert sorted(run.index for shard in shards for run in shard.runs) == list(range(runs))


@pytest.mark.parametrize("text", [STARTER, BASE, *(text for text, _, _ in PAPER.values())])
def test_round_trip(text):
    study = parse_spec(text)
    again = parse_spec(study.to_toml())
    assert again.canonical() == study.canonical()
    assert again.to_toml() == study.to_toml()
    assert [shard.id for shard in plan(again)] == [shard.id for shard in plan(study)]
    assert pickle.loads(pickle.dumps(study)).canonical() == study.canonical()


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
        | st.integers(-(2**62), 2**62)
        | st.floats(allow_nan=False)
        | st.booleans()
        | st.lists(st.floats(allow_nan=False), max_size=3),
    )
)
def test_toml_text_reads_back(table):
    import tomllib

    assert tomllib.loads(toml.write({"a": 1, "t": table})) == {"a": 1, "t": table}


# What is wrong, and what the line must say: where, and what is expected.
BAD = {
    "not toml": (BASE + "depth = = 3", "is not valid TOML"),
    "unknown table": (BASE + "[grids]\n", "grids is not a known key; did you mean 'grid'"),
    "unknown key": (BASE.replace("depth", "dept"), "architecture.dept .*did you mean 'depth'"),
    "unknown axis": (BASE + "[grid]\nscales = [1]", "grid.scales .*did you mean 'scale'"),
    "unknown in zip": (BASE + "[[grid.zip]]\nrate = [1]", "grid.zip.0.rate is not a known key"),
    "no problem": ("[architecture]\ndepth = 2", "problem is missing"),
    "no source": (BASE.replace('generator = "gaussian"', ""), "problem must have exactly one of"),
    "two sources": (
        BASE.replace("[problem]", '[problem]\npaper = "linear"'),
        "problem must have exactly one of .* got generator and paper",
    ),
    "no target": (
        BASE.replace('generator = "gaussian"', 'file = "t.csv"'),
        "problem must name the target",
    ),
    "foreign setting": (
        BASE.replace("[problem]", "[problem]\ncondition_number = 10"),
        "problem must not have condition_number with generator = 'gaussian'",
    ),
    "generator": (
        BASE.replace('"gaussian"', '"gausian"'),
        "problem.generator must be one of gaussian, .*did you mean 'gaussian'",
    ),
    "count": (BASE.replace("depth = 4", "depth = 0"), "architecture.depth must be a whole number"),
    "fraction": (BASE.replace("steps = 100", "steps = 1.5"), "method.steps must be a whole number"),
    "negative": (BASE.replace("0.3", "-0.3"), "initialisation.scale must be a number of at least"),
    "text": (BASE.replace("0.02", '"0.02"'), "method.learning_rate must be a number, got '0.02'"),
    "truth": (BASE.replace("0.02", "true"), "method.learning_rate must be a number, got True"),
    "infinite": (BASE.replace("0.02", "inf"), "method.learning_rate must be a positive number"),
    "seed": ("seed = -1\n" + BASE, "seed must be a whole number of at least 0, got -1"),
    "twice": (BASE + "[grid]\nscale = [0.1]", "initialisation.scale is set, and the grid varies"),
    "crossed and zipped": (
        BASE + "[grid]\nwidth = [3]\n[[grid.zip]]\nwidth = [4]",
        "grid must give width once",
    ),
    "nowhere": (BASE.replace("scale = 0.3", ""), "initialisation.scale is missing"),
    "uneven zip": (
        BASE.replace("steps = 100", "").replace("learning_rate = 0.02", "")
        + "[[grid.zip]]\nlearning_rate = [0.1, 0.2]\nsteps = [3]",
        r"grid.zip.0 must hold lists of one length, got learning_rate 2, steps 1",
    ),
    "scalar axis": (BASE + "[grid]\nwidth = 3", "grid.width must be a list of values"),
    "empty axis": (BASE + "[grid]\nwidth = []", "grid.width must be a list of values"),
    "bad range": (
        BASE + "[grid]\nwidth = { linspace = [1, 2] }",
        r"grid.width linspace must be \[from, to, number of values\]",
    ),
    "whole axis": (BASE + "[grid]\nwidth = [2.5]", "grid width must be a whole number .*got 2.5"),
    "repeated": (BASE + "[grid]\nwidth = [3, 3]", "grid must not repeat a value of width"),
    "crossed repetitions": (
        BASE.replace("repetitions = 3", "") + "[grid]\nrepetitions = [1, 2]",
        "grid must not cross repetitions",
    ),
    "activation": (
        BASE.replace("depth = 4", 'depth = 4\nactivation = "gelu-tan"'),
        "architecture.activation must be one of linear, .*did you mean 'gelu-",
    ),
    "residual init": (
        BASE.replace("[initialisation]", '[initialisation]\nname = "residual"'),
        "initialisation.name 'residual' needs architecture.kind = 'residual'",
    ),
    "residual width": (
        BASE.replace("depth = 4", 'depth = 4\nkind = "residual"\nwidth = 3'),
        "architecture.width must be left out",
    ),
    "mlp output": (
        BASE.replace("depth = 4", 'depth = 4\noutput = "paper"'),
        "architecture.output is for kind = 'residual' only",
    ),
    "flow rate": (
        BASE.replace("[method]", '[method]\nname = "flow"'),
        "method.name 'flow' has no learning rate",
    ),
    "flow nonlinear": (
        BASE.replace("learning_rate = 0.02", 'name = "flow"').replace(
            "depth = 4", 'depth = 4\nactivation = "tanh"'
        ),
        "method.name 'flow' is for linear networks",
    ),
    "rtol": (BASE.replace("[method]", "[method]\nrtol = 1e-3"), "method.rtol is for .*'flow' only"),
    "datasets": (
        "datasets = 2\n" + BASE.replace('generator = "gaussian"', 'paper = "linear"'),
        "datasets must be 1 unless the problem has a generator, got 2",
    ),
    "half a record": (BASE + "[record]\nevery = 5", "record must have every and quantities"),
    "quantity": (
        BASE + '[record]\nevery = 5\nquantities = ["sharpnes"]',
        "record.quantities.0 must be one of .*did you mean 'sharpness'",
    ),
    "too many runs": (
        "datasets = 100000\n" + BASE.replace("repetitions = 3", "repetitions = 1e5"),
        "a study has at most 1e.09 runs",
    ),
    "long axis": (BASE + "[grid]\nwidth = { linspace = [1, 9, 1e9] }", "must be at most 1000000"),
    "table": ("problem = 3\n[architecture]\ndepth = 2", "problem must be a table of keys, got 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_spec_is_refused_in_one_line(case):
    text, message = BAD[case]
    with pytest.raises(SettingError) as refused:
        parse_spec(text, "bad.toml")
    line = str(refused.value)
    assert line.startswith("bad.toml")
    assert "\n" not in line
    assert re.search(message, line), line


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"gaussian"', '"spectrum"\nn = 4', "n must be at least 5"),
        ('"gaussian"', '"gaussian"\nn = 1e9\nd = 1e6', "would need .* GiB of memory"),
        ("depth = 4", 'depth = 4\nkind = "residual"\noutput = "paper-by-depth"', "depths 5, 10"),
    ],
)
def test_what_only_the_data_can_tell_is_refused_by_the_plan(old, new, message):
    study = parse_spec(BASE.replace(old, new))
    with pytest.raises(SettingError, match=message):
        plan(study)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SettingError, match=r"none.toml' cannot be read: No such file"):
        Study(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="not a text file in UTF-8"):
        Study(tmp_path / "binary.toml")


def file_study(folder, rows, activation="linear"):
    np.savetxt(folder / "t.csv", rows, delimiter=",", header="a,b,y", comments="")
    text = BASE.replace('generator = "gaussian"', 'file = "t.csv"\ntarget = "y"')
    text = text.replace("depth = 4", f'depth = 4\nactivation = "{activation}"')
    (folder / "s.toml").write_text(text)
    return Study(folder / "s.toml")


def test_a_data_file_is_carried_along_and_known_by_its_content(tmp_path):
    rows = np.random.default_rng(0).standard_normal((20, 3))
    study = file_study(tmp_path, rows)
    (tmp_path / "elsewhere").mkdir()
    moved = file_study(tmp_path / "elsewhere", rows)
    changed = file_study(tmp_path / "elsewhere", rows + 1)
    assert moved.canonical() == study.canonical() != changed.canonical()
    again = parse_spec(study.to_toml())
    assert again.canonical() == study.canonical()
    (tmp_path / "t.csv").unlink()
    carried = pickle.loads(pickle.dumps(study))
    assert carried.canonical() == study.canonical()
    assert data_of(carried, 0).regression.d == 2
    with pytest.raises(DataError):
        parse_spec(study.to_toml())
    nonlinear = file_study(tmp_path, rows, "tanh")
    np.testing.assert_array_equal(data_of(nonlinear, 0).problem(False).X, rows[:, :2])


def test_output_vectors_of_the_paper():
    from flatmin.data.sets import paper_output_vector

    by_depth, plain = (parse_spec(PAPER[name][0]) for name in ("figure 2", "figure 4"))
    for depth in (5, 40):
        p = architecture_of(by_depth, 5, depth, None).p
        np.testing.assert_array_equal(p, paper_output_vector(depth))
    np.testing.assert_array_equal(architecture_of(plain, 5, 10, None).p, paper_output_vector())


def test_data_sets_are_draws_of_the_generator():
    from flatmin.data.generators import gaussian_split

    study = parse_spec("seed = 7\ndatasets = 3\n" + BASE)
    train, test = gaussian_split(50, 5, 1.0, seed=9)
    found = data_of(study, 2)
    np.testing.assert_array_equal(found.samples.X, train.X)
    np.testing.assert_array_equal(found.test.y, test.y)


def coordinates(shards):
    return {astuple(run)[1:]: run for shard in shards for run in shard.runs}


def test_the_plan_does_not_depend_on_the_order_of_keys_or_the_name():
    text = PAPER["figure 1"][0]
    head, zipped = text.split("[[grid.zip]]")
    problem, grid = head.split("[grid]")
    reordered = "name = 'x'\n[[grid.zip]]" + zipped + "[grid]" + grid + problem
    first, second = plan(parse_spec(text)), plan(parse_spec(reordered))
    assert first == second


def test_a_run_is_addressed_by_its_coordinates_not_by_its_place():
    base = parse_spec(BASE + "[grid]\nwidth = [3, 4]")
    longer = parse_spec(BASE + "[grid]\nwidth = [2, 3, 4]")
    few, many = coordinates(plan(base)), coordinates(plan(longer))
    assert set(few) < set(many)
    for place, run in few.items():
        assert run.address() == many[place].address()
    assert len({run.address() for run in many.values()}) == len(many)


@pytest.mark.parametrize("flops", [1e6, 1e9, 3e10, None])
def test_shards_are_long_first_and_hold_enough_runs(flops):
    study = parse_spec(PAPER["figure 1"][0])
    shards = plan(study, flops)
    costs = [shard.cost for shard in shards]
    assert costs == sorted(costs, reverse=True)
    assert len({shard.id for shard in shards}) == len(shards)
    sizes = sorted(len(shard) for shard in shards)
    assert sizes[1:] == [] or sizes[1] >= LEAST_RUNS
    assert sum(sizes) == study.runs
    for shard in shards:
        assert len({(run.dataset, run.depth, run.width) for run in shard.runs}) == 1


def test_a_large_study_is_planned_in_stretches():
    study = parse_spec(BASE.replace("repetitions = 3", "repetitions = 1e8"))
    shards = plan(study, 1e13)
    assert study.runs == 10**8 == sum(len(shard) for shard in shards)
    assert all(len(shard.stretches) == 1 for shard in shards)


def test_the_excess_risk_has_an_older_name():
    text = BASE + '\n[record]\nevery = 10\nquantities = ["{}", "sharpness"]\n'
    old, new = (parse_spec(text.format(name)) for name in ("risk", "excess_risk"))
    assert new.record.quantities == ("excess_risk", "sharpness")
    assert old.canonical() == new.canonical()


def test_every_column_and_key_is_documented():
    from pathlib import Path

    from flatmin.study.grid import AXES
    from flatmin.study.schema import ROW_COLUMNS, TRACE_COLUMNS
    from flatmin.study.sections import ArchitectureSpec, Method, Problem, RecordSpec

    text = (Path(__file__).parents[1] / "docs" / "studies.md").read_text()
    for name, _, meaning in (*ROW_COLUMNS, *TRACE_COLUMNS):
        assert f"| `{name}` |" in text
        assert meaning.replace("|", "&#124;") in text
    for section in (ArchitectureSpec, Method, Problem, RecordSpec):
        assert all(f"`{name}" in text for name in section.model_fields)
    assert all(f"`{name}`" in text for name in AXES)
