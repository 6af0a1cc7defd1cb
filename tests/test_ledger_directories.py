"""What `flatmin train` and `flatmin study run` leave behind is evidence, the same as in memory."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import tracemalloc
import zipfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flatmin
from commands import call
from flatmin.core.errors import DataError
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.data.sets import paper_output_vector, paper_samples
from flatmin.dynamics.descent import descend
from flatmin.dynamics.methods import GradientFlow, HeavyBall
from flatmin.dynamics.recording import Recording
from flatmin.dynamics.training import FILES, Training, train
from flatmin.ledger import check as check_module
from flatmin.ledger import directories
from flatmin.ledger.check import check
from flatmin.ledger.collect import evidence_of
from flatmin.ledger.directories import directory_evidence
from flatmin.ledger.evidence import Evidence
from flatmin.ledger.record import Record, Verdict
from flatmin.network.architecture import Architecture
from study_runs import write_spec

MLP = Architecture.mlp(5, 3)


def flow_run() -> Training:
    return train(paper_samples(), MLP, scale=0.3, method=GradientFlow())


def descent_run() -> Training:
    return train(paper_samples(), MLP, scale=0.3, learning_rate=0.02)


def slow_run() -> Training:
    return train(paper_samples(), MLP, scale=0.3, learning_rate=1e-3, steps=8000)


def residual_run() -> Training:
    architecture = Architecture.residual(5, 3, paper_output_vector())
    return train(paper_samples(), architecture, init="residual", scale=0.25, method=GradientFlow())


def nonlinear_run() -> Training:
    architecture = Architecture.mlp(5, 2, activation="tanh")
    return train(paper_samples("nonlinear"), architecture, learning_rate=0.05, steps=400)


def diverged_run() -> Training:
    return train(paper_samples(), MLP, learning_rate=8.0, steps=400)


def two_targets_run() -> Training:
    random = np.random.default_rng(2)
    X = random.standard_normal((30, 4))
    samples = Samples.from_arrays(X, X[:, :2] + 0.1 * random.standard_normal((30, 2)))
    return train(samples, Architecture.multivariate(4, 2, 2), scale=0.4, method=GradientFlow())


RUNS = {
    "flow": flow_run,
    "descent": descent_run,
    "slow": slow_run,
    "residual": residual_run,
    "nonlinear": nonlinear_run,
    "diverged": diverged_run,
    "two targets": two_targets_run,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> dict[str, tuple[Training, Path]]:
    """Every run, with the directory it was saved in."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for name, make in RUNS.items():
        run, directory = make(), folder / name
        run.save(directory)
        found[name] = run, directory
    return found


def in_memory(run: Training) -> Evidence:
    return evidence_of(
        run.regression,
        run.initial,
        run.outcome,
        init=run.init,
        scale=run.scale,
        method=run.method,
    )


def by_name(records: list[Record]) -> dict[tuple[str, str], Record]:
    return {(record.statement, record.part): record for record in records}


def assert_same_regression(one: Regression, other: Regression) -> None:
    for field in fields(Regression):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert type(a) is type(b)
        assert np.array_equal(a, b)


def test_a_trace_with_the_older_name_of_the_excess_risk_is_read(saved: Any, tmp_path: Path) -> None:
    name = next(iter(RUNS))
    _, directory = saved[name]
    old = tmp_path / "old"
    shutil.copytree(directory, old)
    frame = pd.read_parquet(old / FILES["trace"])
    frame.rename(columns={"excess_risk": "risk"}).to_parquet(old / FILES["trace"], index=False)
    (now,), (then,) = directory_evidence(directory), directory_evidence(old)
    assert np.array_equal(now.excess_risk, then.excess_risk)


@pytest.mark.parametrize("name", [n for n in RUNS if n not in ("nonlinear", "diverged")])
def test_a_run_read_back_is_the_run_in_memory(saved: Any, name: str) -> None:
    run, directory = saved[name]
    (read,) = directory_evidence(directory)
    kept = in_memory(run)
    assert_same_regression(read.regression, kept.regression)
    assert read.initial.architecture == kept.initial.architecture
    assert np.array_equal(read.initial.flat(), kept.initial.flat())
    assert np.array_equal(read.final.flat(), kept.final.flat())
    assert (read.init, read.scale, read.steps) == (kept.init, kept.scale, kept.steps)
    assert (read.flow, read.settled, read.excess) == (kept.flow, kept.settled, kept.excess)
    assert read.error == kept.error
    assert read.learning_rate == kept.learning_rate
    np.testing.assert_allclose(read.sharpness, kept.sharpness, rtol=1e-6)
    assert set(kept.trace) <= set(read.trace)
    # Records that are not there (a step was rejected, or the run has ended) are not written.
    known = ~np.isnan(kept.trace["excess_risk"][:, 0])
    for quantity, values in kept.trace.items():
        np.testing.assert_array_equal(read.trace[quantity], values[known])
    for quantity, values in kept.last.items():
        np.testing.assert_allclose(read.last[quantity], values, rtol=1e-12, atol=1e-15)
    verdicts = {key: record.verdict for key, record in by_name(check([read])).items()}
    assert verdicts == {key: record.verdict for key, record in by_name(check([kept])).items()}


@pytest.mark.parametrize("name", RUNS)
def test_real_runs_violate_nothing(saved: Any, name: str, monkeypatch: Any, capsys: Any) -> None:
    code, out, err = call(monkeypatch, capsys, "check", saved[name][1])
    assert (code, err) == (0, "")
    assert "VIOLATED" not in out
    assert ("all of them hold" in out) == (name != "nonlinear")
    assert "VIOLATED" not in out


@pytest.mark.parametrize(
    ("name", "applies", "not_about"),
    [
        ("flow", ["lemma-1", "lemma-2", "lemma-7", "exact-minimal-sharpness"], ["edge"]),
        ("descent", ["edge", "gradient-sandwich", "lemma-8"], ["lemma-1", "theorem-3"]),
        # The paper's p is far from its w*: Theorem 4 asks for a small risk to begin with.
        ("residual", ["lemma-1", "lemma-9", "corollary-3"], ["lemma-2", "theorem-4", "theorem-5"]),
        ("two targets", ["lemma-1", "exact-minimal-sharpness"], ["theorem-1", "theorem-2"]),
        ("nonlinear", [], ["lemma-1", "theorem-2", "exact-minimal-sharpness", "lemma-8"]),
        ("diverged", ["theorem-1"], ["edge", "exact-minimal-sharpness", "rescaling"]),
    ],
)
def test_what_a_run_says_something_about(
    saved: Any, name: str, applies: list[str], not_about: list[str]
) -> None:
    records = check(directory_evidence(saved[name][1]))
    held = {record.statement for record in records if record.verdict is Verdict.HOLDS}
    assert set(applies) <= held
    assert not held & set(not_about)


def test_descent_is_marked_and_misses_lemma_1_in_proportion_to_eta(saved: Any) -> None:
    records = by_name(check(directory_evidence(saved["slow"][1])))
    record = records["lemma-1", ""]
    assert record.flow_only
    assert record.verdict is Verdict.NOT_APPLICABLE
    assert record.slack < 0.0
    assert power(record.note) == pytest.approx(1.0, abs=0.1)
    rates = [float(rate) for rate in re.findall(r"at ([\d.e-]+)", record.note)]
    np.testing.assert_allclose(rates, [2.5e-4, 5e-4, 1e-3])
    # Others about flow are measured at the same three rates.
    for key in (("lemma-2", "rank one"), ("lemma-7", "from the start")):
        assert records[key].flow_only
        assert "at 0.001" in records[key].note


def power(note: str) -> float:
    return float(re.search(r"about eta\^([\d.e+-]+)", note)[1])


def test_at_a_rate_that_diverges_there_is_nothing_to_compare(saved: Any) -> None:
    notes = [record.note for record in check(directory_evidence(saved["diverged"][1]))]
    assert not any("missed by" in note for note in notes)


DESCENT = """\
seed = 5
repetitions = 3
problem = { paper = "linear" }
architecture = { depth = 3 }
method = { steps = 2000 }
initialisation = { name = "balanced", scale = 0.9 }

[record]
every = 40
quantities = ["excess_risk", "gradient", "gradient_floor", "drift", "spectral_norm", "map_gradient"]

[grid]
learning_rate = [0.0005, 0.001, 0.002, 4.0]
"""
FLOW = """\
seed = 5
datasets = 2
repetitions = 2
problem = { generator = "gaussian", n = 30, d = 4 }
method = { name = "flow" }
initialisation = { name = "residual", scale = 0.2 }

[architecture]
kind = "residual"

[record]
every = 4
quantities = ["excess_risk", "gradient", "gradient_floor", "drift", "theta"]

[grid]
depth = [2, 3]
"""


@pytest.fixture(scope="module")
def studies(tmp_path_factory: Any) -> dict[str, Path]:
    """Two finished studies."""
    from flatmin.study.runner import run_study
    from flatmin.study.spec import Study

    found = {}
    for name, text in (("descent", DESCENT), ("flow", FLOW)):
        folder = tmp_path_factory.mktemp(name)
        spec = write_spec(folder, text)
        run_study(Study(spec), folder / "out")
        found[name] = folder / "out"
    return found


def test_a_study_of_descent(studies: dict[str, Path]) -> None:
    (runs,) = directory_evidence(studies["descent"])
    # Runs at the largest rate diverge and are no evidence.
    assert len(runs) == 9
    assert sorted(set(runs.learning_rate)) == [0.0005, 0.001, 0.002]
    quantities = (
        "excess_risk",
        "gradient",
        "gradient_floor",
        "drift",
        "spectral_norm",
        "map_gradient",
    )
    recording = Recording(40, quantities)
    again = descend(runs.regression, runs.initial, runs.learning_rate, 2000, recording=recording)
    np.testing.assert_array_equal(runs.steps, again.steps)
    np.testing.assert_array_equal(runs.excess, again.excess_risk)
    for name in quantities:
        values = again.recorded.values[name]
        length = len(runs.trace[name])
        np.testing.assert_array_equal(runs.trace[name], values[:length])
    records = check([runs])
    assert not records.violated
    record = by_name(records)["lemma-1", ""]
    assert record.flow_only
    assert 0.7 < power(record.note) < 1.4
    assert "run" in record.at


def test_a_study_of_flow(studies: dict[str, Path]) -> None:
    cases = list(directory_evidence(studies["flow"]))
    assert [(runs.depth, len(runs)) for runs in cases] == [(2, 2), (3, 2), (2, 2), (3, 2)]
    assert not np.array_equal(cases[0].regression.w_star, cases[2].regression.w_star)
    for runs in cases:
        assert runs.flow
        assert runs.settled.all()
        assert (runs.error > 0.0).all()
        assert runs.trace["drift"].shape[2] == runs.depth - 1
        assert np.isfinite(runs.time[0]).all()
    ledger = check(cases)
    assert not ledger.violated
    records = by_name(ledger)
    assert records["lemma-1", ""].verdict is Verdict.HOLDS
    assert records["lemma-1", ""].networks == 8
    # A random p is far from w*: Theorem 4 asks for a small risk to begin with.
    assert records["theorem-4", "converges"].verdict is Verdict.NOT_APPLICABLE
    assert records["corollary-3", "lower"].networks == 8


def test_a_study_whose_runs_all_diverged_is_no_evidence(tmp_path: Path) -> None:
    from flatmin.study.runner import run_study
    from flatmin.study.spec import Study

    text = DESCENT.replace("[0.0005, 0.001, 0.002, 4.0]", "[4.0]")
    run_study(Study(write_spec(tmp_path, text)), tmp_path / "out")
    with pytest.raises(DataError, match="none has finished without diverging"):
        check(directory_evidence(tmp_path / "out"))


def damaged(saved: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved["descent"][1], tmp_path / "copy"))


def edit(directory: Path, **changes: Any) -> None:
    path = directory / FILES["summary"]
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def without_a_layer(directory: Path) -> None:
    path = directory / FILES["final"]
    arrays = dict(np.load(path))
    del arrays["W2"]
    np.savez(path, **arrays)


DAMAGE = {
    "no trace": lambda d: (d / FILES["trace"]).unlink(),
    "trace cut": lambda d: cut(d / FILES["trace"]),
    "weights cut": lambda d: cut(d / FILES["final"]),
    "weights empty": lambda d: (d / FILES["initial"]).write_bytes(b""),
    "weights foreign": lambda d: (d / FILES["final"]).write_bytes(b"hello"),
    "a layer missing": without_a_layer,
    "no problem": lambda d: (d / FILES["problem"]).unlink(),
    "summary cut": lambda d: cut(d / FILES["summary"]),
    "summary foreign": lambda d: (d / FILES["summary"]).write_text("[1, 2]"),
    "summary of something else": lambda d: (d / FILES["summary"]).write_text("{}"),
    "other widths": lambda d: edit(d, widths=[7, 7, 1]),
    "unknown activation": lambda d: edit(d, activation="wavy"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_is_one_line(
    saved: Any, tmp_path: Path, what: str, monkeypatch: Any, capsys: Any
) -> None:
    directory = damaged(saved, tmp_path)
    DAMAGE[what](directory)
    code, out, err = call(monkeypatch, capsys, "check", directory)
    assert (code, out) == (2, "")
    assert err.startswith("flatmin: ")
    assert err.count("\n") == 1
    assert "not a complete run of flatmin train" in err


ODD = (
    *(None, 0, -1, 1e308, -1e308, 1e-320, math.nan, math.inf, 2**70, 10**400, True, False),
    *("", "x", "1", "[/red]", [], [[]], [1, 2], [0.5], ["x"], {}, {"a": 1}, {"value": 1.0}),
)


@pytest.mark.parametrize("kind", ["descent", "flow", "nonlinear", "two targets"])
def test_whatever_a_summary_says_is_judged_or_one_line(
    saved: Any, tmp_path: Path, monkeypatch: Any, capsys: Any, kind: str
) -> None:
    """Every entry of it, those of the sharpness too, with some of what JSON may hold."""
    draw, read = random.Random(kind), ("scale", "steps", "learning_rate", "widths")
    directory = Path(shutil.copytree(saved[kind][1], tmp_path / "copy"))
    path = directory / FILES["summary"]
    whole = json.loads(path.read_text())
    changed = [
        whole | {key: odd} for key in whole for odd in (ODD if key in read else draw.sample(ODD, 2))
    ]
    changed += [{key: whole[key] for key in whole if key != left} for left in whole]
    sharp = whole["sharpness"]
    odd_ones = [(key, odd) for key in sharp for odd in draw.sample(ODD, 2)]
    changed += [whole | {"sharpness": sharp | {key: odd}} for key, odd in odd_ones]
    for summary in changed:
        path.write_text(json.dumps(summary))
        code, out, err = call(monkeypatch, capsys, "check", directory)
        assert code in (0, 1, 2), summary
        assert (err.count("\n"), out) == (1, "") if code == 2 else not err, summary


def test_a_damaged_study_is_one_line(
    studies: dict[str, Path], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    directory = Path(shutil.copytree(studies["flow"], tmp_path / "copy"))
    (directory / "study.json").write_text("{")
    code, out, err = call(monkeypatch, capsys, "check", directory)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_an_edited_spec_does_not_change_what_is_checked(
    studies: dict[str, Path], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    directory = Path(shutil.copytree(studies["flow"], tmp_path / "copy"))
    wanted = call(monkeypatch, capsys, "check", directory)
    spec = directory / "study.toml"
    text = spec.read_text()
    assert "seed = " in text
    for content in (text.replace("seed = ", "seed = 1"), "{"):
        spec.write_text(content)
        assert call(monkeypatch, capsys, "check", directory) == wanted


def test_a_foreign_directory_is_one_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    code, _, err = call(monkeypatch, capsys, "check", tmp_path)
    assert code == 2
    assert "neither a study nor a run" in err
    code, _, err = call(monkeypatch, capsys, "check", tmp_path / "notes.txt")
    assert code == 2
    assert "there is no folder" in err


def test_a_planted_violation_of_the_edge_cannot_be_missed(
    saved: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    directory = damaged(saved, tmp_path)
    summary = json.loads((directory / FILES["summary"]).read_text())
    assert summary["state"] == "settled"
    edit(directory, learning_rate=2.2 / summary["sharpness"]["value"])
    code, out, _ = call(monkeypatch, capsys, "check", directory)
    assert code == 1
    assert "VIOLATED: edge." in out
    assert "VIOLATED edge upper" in out
    assert "hypothesis: gradient descent that settled: 1 of 1 runs" in out
    assert "the integrator's own error none" in out
    assert "by 1 of 1 networks" in out
    assert "all of them hold" not in out
    code, out, _ = call(monkeypatch, capsys, "check", directory, "--json")
    assert code == 1
    (broken,) = [record for record in json.loads(out) if record["verdict"] == "violated"]
    assert (broken["statement"], broken["violations"]) == ("edge", 1)
    assert broken["measured"] > broken["bound"]


def test_a_planted_violation_by_flow_has_the_integrators_error_next_to_it(
    saved: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    directory = Path(shutil.copytree(saved["flow"][1], tmp_path / "copy"))
    path = directory / FILES["final"]
    arrays = dict(np.load(path))
    arrays["W1"], arrays["W2"] = 1.1 * arrays["W1"], arrays["W2"] / 1.1
    np.savez(path, **arrays)
    code, out, _ = call(monkeypatch, capsys, "check", directory)
    error = json.loads((directory / FILES["summary"]).read_text())["integration_error"]
    assert code == 1
    assert "VIOLATED: lemma-1." in out
    assert "hypothesis: gradient flow of a linear network" in out
    assert f"the integrator's own error {error:.6g}" in out
    assert "the end, layer" in out


def test_train_by_the_command_and_its_check(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.standard_normal((30, 4)), columns=["a", "b", "y", "z"])
    frame.to_csv(tmp_path / "data.csv", index=False)
    arguments = ("--target", "y", "--target", "z", "--flow", "--depth", "2", "--scale", "0.5")
    code, _, _ = call(
        monkeypatch,
        capsys,
        *("train", tmp_path / "data.csv", *arguments, "--out", tmp_path / "run"),
    )
    assert code == 0
    code, out, _ = call(monkeypatch, capsys, "check", tmp_path / "run", "--json")
    assert code == 0
    records = {r["statement"]: r for r in json.loads(out) if r["verdict"] == "holds"}
    assert records["exact-minimal-sharpness"]["slack"] >= 0.0


def _awkward(name: str) -> Samples:
    """Data at the edge of what regression can be."""
    random = np.random.default_rng(3)
    X = random.standard_normal((30, 5))
    if name == "rank 2 of 5":
        X = X[:, :2] @ random.standard_normal((2, 5))
    elif name == "fewer rows than columns":
        X = X[:3]
    elif name == "large features":
        X = 1e3 * X
    elif name == "one feature":
        X = X[:, :1]
    y = X @ random.standard_normal(X.shape[1]) + 0.1 * random.standard_normal(len(X))
    return Samples.from_arrays(X, 1e6 * y if name == "large target" else y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    "name",
    ["rank 2 of 5", "fewer rows than columns", "large features", "large target", "one feature"],
)
def test_awkward_data_violate_nothing(name: str, depth: int, tmp_path: Path) -> None:
    data = _awkward(name)
    train(data, Architecture.mlp(data.d, depth), scale=0.3, method=GradientFlow()).save(tmp_path)
    records = check(directory_evidence(tmp_path))
    assert not records.violated
    assert by_name(records)["lemma-8", "upper"].verdict is Verdict.HOLDS


def test_a_flow_ended_early_says_nothing_about_where_it_goes(tmp_path: Path) -> None:
    data = _awkward("large target")
    network = Architecture.residual(5, 3, np.eye(5)[0])
    flow = GradientFlow()
    run = train(data, network, init="residual", scale=0.25, method=flow, steps=1, record_every=1)
    run.save(tmp_path)
    assert not check(directory_evidence(tmp_path)).violated


def test_a_saved_run_with_biases_is_read_whole(tmp_path: Path) -> None:
    architecture = Architecture.mlp(5, 3, activation="leaky-relu", biases=True)
    run = train(
        paper_samples(), architecture, method=HeavyBall(learning_rate=0.01, momentum=0.5), steps=60
    )
    assert run.minimal_sharpness is None
    run.save(tmp_path)
    arrays = np.load(tmp_path / "final.npz")
    assert arrays["W2"].shape == (5, 5)
    assert arrays["b2"].shape == (5,)
    (evidence,) = directory_evidence(tmp_path)
    assert evidence.initial.architecture == architecture
    np.testing.assert_array_equal(evidence.final.flat(), run.outcome.ensemble.flat())
    assert evidence.method == run.method
    np.testing.assert_allclose(evidence.edge, run.edge)


@pytest.mark.parametrize("name", ["descent", "flow"])
def test_evidence_in_pieces_says_the_same(
    studies: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(directory_evidence(studies[name]))
    pieces = [runs.some(np.arange(len(runs)) == i) for runs in whole for i in range(len(runs))]
    fields = ("verdict", "slack", "bound", "measured", "room", "violations")
    one, few = check(whole), check(pieces)
    # Without room for pictures records are merged as they come.
    monkeypatch.setattr(check_module, "_PICTURE_BYTES", 0)
    merged = check(pieces)
    assert len(merged.single) < len(few.single)
    for ledger in map(by_name, (few, merged)):
        # A piece may have a part that the runs together do not, never the other way round.
        for record in (record for record in one if record.verdict is not Verdict.NOT_APPLICABLE):
            other = ledger[record.statement, record.part]
            for field in fields:
                found, expected = getattr(other, field), getattr(record, field)
                if isinstance(expected, float):  # BLAS rounds products of another batch otherwise
                    expected = pytest.approx(expected, rel=1e-12, abs=1e-12 * (field == "slack"))
                assert found == expected, (record.name, field)
    assert one.networks == few.networks == merged.networks


def test_a_study_larger_than_a_piece_is_read_in_pieces(
    studies: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(directory_evidence(studies["flow"]))
    monkeypatch.setattr(directories, "PIECE_BYTES", 0)
    pieces = list(directory_evidence(studies["flow"]))
    assert len(pieces) >= len(whole)
    for name in ("scale", "sharpness", "steps"):
        both = [np.concatenate([getattr(runs, name) for runs in one]) for one in (whole, pieces)]
        np.testing.assert_array_equal(*both)
    assert [runs.name(i) for runs in whole for i in range(len(runs))] == [
        runs.name(i) for runs in pieces for i in range(len(runs))
    ]


# Statements about one piece and about all: of small starts at two scales, and of residual networks
# at three depths on three data sets.
MANY = {
    "small": """\
repetitions = 64
problem = { generator = "gaussian", n = 20, d = 2 }
architecture = { depth = 2 }
initialisation = { name = "gaussian" }
method = { name = "flow" }
grid = { scale = [0.01, 0.1] }
""",
    "residual": """\
datasets = 3
repetitions = 30
problem = { generator = "gaussian", n = 20, d = 2 }
architecture = { kind = "residual" }
initialisation = { name = "residual", scale = 0.25 }
method = { name = "flow" }
grid = { depth = [2, 4, 8] }
""",
}


def in_shards(name: str, folder: Path, times: int = 1, most: int = 16) -> Path:
    """A study of so many times the runs, in shards of a few runs."""
    from flatmin.study import plan, runner

    spec = re.sub(
        r"repetitions = (\d+)", lambda m: f"repetitions = {times * int(m[1])}", MANY[name]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MOST_RUNS", most)
        runner.run_study(write_spec(folder, spec), folder / "out")
    return folder / "out"


@pytest.mark.parametrize("name", MANY)
def test_a_study_read_shard_by_shard_says_what_the_whole_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = in_shards(name, tmp_path)
    whole = check(place)
    swept = {"small": "vanishing-scale-limit", "residual": "corollary-3"}[name]
    assert any(r.statement == swept and r.slack is not None for r in whole)
    monkeypatch.setattr(directories, "PIECE_BYTES", 1)
    monkeypatch.setattr(check_module, "_PICTURE_BYTES", 0)
    pieces = [len(runs) for runs in directory_evidence(place)]
    assert len(pieces) > 4
    assert max(pieces) <= 16
    streamed = check(place)
    assert (streamed.networks, streamed.missing) == (whole.networks, whole.missing)
    assert by_name(streamed).keys() == by_name(whole).keys()
    for one, other in zip(whole, streamed, strict=True):
        assert (one.verdict, one.why, one.violations) == (
            other.verdict,
            other.why,
            other.violations,
        )
        if one.slack is not None:
            numbers = [(r.slack, r.bound, r.measured) for r in (one, other)]
            assert numbers[1] == pytest.approx(numbers[0], rel=1e-12, abs=1e-12), one.name


def test_memory_of_a_check_does_not_grow_with_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By less than one number a run."""
    monkeypatch.setattr(check_module, "_PICTURE_BYTES", 0)
    (piece,) = directory_evidence(in_shards("small", tmp_path, times=4, most=512))
    assert len(piece) == 512
    peaks = []
    for count in (10, 10, 100):  # the first one loads what all need
        tracemalloc.start()
        pieces = (piece.some(np.ones(len(piece), dtype=bool)) for _ in range(count))
        assert check(pieces).networks == count * len(piece)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] - peaks[1] < 8 * 90 * len(piece)


def test_arrays_whose_compression_is_broken_are_no_run(tmp_path):
    """Bytes that inflate to nothing: zlib's own error once came through."""
    run = flatmin.train_network(depth=2, learning_rate=0.05, steps=20)
    run.save(tmp_path)
    path = tmp_path / "final.npz"
    with zipfile.ZipFile(path) as archive:
        member = max(archive.infolist(), key=lambda one: one.compress_size)
    content = bytearray(path.read_bytes())
    begin = member.header_offset + 30 + len(member.filename) + 20
    content[begin : begin + member.compress_size // 2] = b"\xff" * (member.compress_size // 2)
    path.write_bytes(content)
    with pytest.raises(zlib.error):
        dict(np.load(path))
    with pytest.raises(DataError, match="not a complete run of flatmin train"):
        flatmin.check(tmp_path)


def rewritten(file: str, name: str, change: Any) -> Any:
    def change_file(directory: Path) -> None:
        arrays = dict(np.load(directory / FILES[file]))
        np.savez(directory / FILES[file], **(arrays | {name: change(arrays[name])}))

    return change_file


def retraced(change: Any) -> Any:
    def change_file(directory: Path) -> None:
        frame = pd.read_parquet(directory / FILES["trace"])
        change(frame).to_parquet(directory / FILES["trace"])

    return change_file


def compressed_otherwise(path: Path) -> None:
    """By a method that no library knows."""
    content = path.read_bytes()
    for sign, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = content.index(sign) + place
        content = content[:at] + b"\x63\x00" + content[at + 2 :]
    path.write_bytes(content)


FORGED = {
    "half precision": rewritten("problem", "w_star", lambda a: a.astype(np.float16)),
    "more precision": rewritten("problem", "sigma", lambda a: a.astype(np.longdouble)),
    "a Sigma of its own": rewritten("problem", "sigma", lambda a: 2.0 * a),
    "a Sigma that overflows": rewritten("problem", "sigma", lambda a: 1e308 + a),
    "negative": rewritten("problem", "eigenvalues", lambda a: -1e200 * a),
    "a matrix of outputs": rewritten("initial", "p", lambda a: a[None]),
    "yes for an output": rewritten("initial", "p", lambda a: a.astype(bool)),
    "infinite weights": rewritten("initial", "W1", lambda a: a + np.inf),
    "weights that overflow": rewritten("initial", "W1", lambda a: a + 1e308),
    "squares that overflow": rewritten("final", "W2", lambda a: a + 1e200),
    "another compression": lambda d: compressed_otherwise(d / FILES["final"]),
    "no steps": retraced(lambda frame: frame.drop(columns="step")),
    "no entries": retraced(lambda frame: frame.iloc[:0]),
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_arrays_are_judged_or_one_line(
    saved: Any, tmp_path: Path, what: str, monkeypatch: Any, capfd: Any
) -> None:
    """Nor does LAPACK write anything."""
    directory = damaged(saved, tmp_path)
    FORGED[what](directory)
    code, out, err = call(monkeypatch, capfd, "check", directory)
    assert code in (0, 1, 2)
    assert "DLASCL" not in out
    assert (err.count("\n"), out) == (1, "") if code == 2 else not err


def test_complex_weights_are_no_run(tmp_path):
    flatmin.train_network(depth=2, learning_rate=0.05, steps=20).save(tmp_path)
    path = tmp_path / "final.npz"
    np.savez(path, **{name: array + 0j for name, array in np.load(path).items()})
    with pytest.raises(DataError, match="not finite numbers in double precision"):
        flatmin.check(tmp_path)
