"""The directory of a study: what is there is complete, what is not ours is left alone."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flatmin.cli import main
from flatmin.core.errors import FlatminError
from flatmin.study import execute, plan, runner
from flatmin.study.identity import spec_difference
from flatmin.study.results import Results
from flatmin.study.schema import ROWS_SCHEMA, TRACES_SCHEMA
from flatmin.study.spec import parse_spec
from flatmin.study.store import Store
from study_runs import SHARDS, SPEC, files, results, shard_files, write_spec

SMALL = SPEC.replace("datasets = 12", "datasets = 3").replace("repetitions = 30", "repetitions = 5")
STUDY = parse_spec(SMALL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The small study, undisturbed."""
    directory = tmp_path_factory.mktemp("whole") / "out"
    runner.run_study(STUDY, directory)
    return directory


@pytest.fixture
def call(monkeypatch, capsys):
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flatmin", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


def run(directory: Path, **options) -> tuple[runner.StudyRun, list[str]]:
    notes: list[str] = []
    return runner.run_study(STUDY, directory, note=notes.append, **options), notes


def copy(source: Path, target: Path) -> Path:
    for name, content in files(source).items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return target


def test_a_study_is_plain_parquet_in_a_directory(whole):
    shards = plan.plan(STUDY)
    assert {path.name for path in shard_files(whole)} == {f"shard-{s.id}.parquet" for s in shards}
    assert parse_spec((whole / "study.toml").read_text()).canonical() == STUDY.canonical()
    record = json.loads((whole / "study.json").read_text())
    assert record["study"] == STUDY.canonical()
    assert {"flatmin", "kernels", "numpy", "numba"} <= set(record["versions"])
    for folder, schema in (("runs", ROWS_SCHEMA), ("traces", TRACES_SCHEMA)):
        frame = pd.read_parquet(whole / folder)
        assert list(frame.columns) == schema.names
        for path in (whole / folder).iterdir():
            metadata = pq.read_schema(path).metadata
            assert metadata[b"flatmin_schema_version"] == b"3"
    rows = Store.open(whole).read_rows()
    assert rows.schema.equals(ROWS_SCHEMA, check_metadata=True)
    assert rows["run"].to_pylist() == list(range(STUDY.runs))


def of_version_1(path: Path) -> dict[bytes, bytes]:
    """The marks of a file as version 1 had them: without digests."""
    marks = dict(pq.read_schema(path).metadata)
    for name in (b"flatmin_rows", b"flatmin_digests", b"flatmin_kind"):
        del marks[name]
    return marks | {b"flatmin_schema_version": b"1"}


def test_a_study_of_the_first_schema_stays_readable(whole, tmp_path):
    """Version 1 called the excess risk of a trace risk, and had no extremes between records."""
    out = copy(whole, tmp_path / "out")
    now = Store.open(whole).read_traces()
    added = [name for name in now.column_names if name.endswith(("_low", "_high"))]
    for path in (out / "traces").iterdir():
        table = pq.read_table(path)
        marks = of_version_1(path)
        table = table.drop_columns(added)
        names = ["risk" if name == "excess_risk" else name for name in table.column_names]
        pq.write_table(table.rename_columns(names).replace_schema_metadata(marks), path)
    then = Store.open(out).read_traces()
    assert then.schema.equals(TRACES_SCHEMA, check_metadata=True)
    assert then.drop_columns(added).equals(now.drop_columns(added))
    assert then["excess_risk"].null_count == 0
    assert all(then[name].null_count == len(then) for name in added)
    assert Store.open(out).read_rows().equals(Store.open(whole).read_rows())


def test_states_of_the_first_schema_are_read_in_todays_words(whole, tmp_path):
    """Version 1 knew `converged`, `diverged` and `stepped out`, and no word on learning."""
    out = copy(whole, tmp_path / "out")
    now = Store.open(whole).read_rows()
    added = ["learned", "period", "more_steps", "edge_share"]
    old = {"settled": "converged", "diverged": "diverged"}
    for path in (out / "runs").iterdir():
        table = pq.read_table(path)
        words = [old.get(state, "stepped out") for state in table["state"].to_pylist()]
        place = table.column_names.index("state")
        table = table.set_column(place, "state", pa.array(words)).drop_columns(added)
        marks = of_version_1(path)
        pq.write_table(table.replace_schema_metadata(marks), path)
    store = Store.open(out)
    then = store.read_rows().to_pandas()
    settled = (now["state"].to_numpy() == "settled").tolist()
    assert (then["state"] == "settled").tolist() == settled
    assert set(then["state"]) <= {"settled", "diverged", "stepped out"}
    assert then.loc[settled, "learned"].all()
    np.testing.assert_allclose(
        then.loc[settled, "edge_share"],
        (then["sharpness"] / then["edge"])[settled],
        rtol=1e-14,
    )
    counts = run(out)[0].counts
    assert counts["settled"] == sum(settled) <= counts["learned"]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_a_byte(whole, tmp_path, threads):
    run(tmp_path / "out", threads=threads)
    assert files(tmp_path / "out") == files(whole)


def test_shard_sizes_do_not_change_the_tables(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "plan", lambda study: plan.plan(study, 2e7))
    summary, _ = run(tmp_path / "out")
    assert summary.total_shards > len(plan.plan(STUDY))
    assert results(tmp_path / "out") == results(whole)


def test_the_same_call_again_runs_what_is_missing(whole, tmp_path, monkeypatch):
    out = copy(whole, tmp_path / "out")
    first, second = shard_files(out)[:2]
    first.unlink()
    (out / "traces" / second.name).unlink()
    seen: list[str] = []
    real = execute.run_shard
    monkeypatch.setattr(
        execute,
        "run_shard",
        lambda study, shard, *rest: (seen.append(shard.id), real(study, shard, *rest))[1],
    )
    states: list[runner.Status] = []
    summary, notes = run(out, progress=states.append)
    assert sorted(f"shard-{name}.parquet" for name in seen) == [first.name, second.name]
    assert (summary.finished, summary.shards_run, notes) == (STUDY.runs, 2, [])
    steps = sum(shard.network_steps for shard in plan.plan(STUDY))
    assert states[-1].steps == states[-1].total_steps == steps
    counted = ("learned", "edge of stability")
    states = {state: n for state, n in summary.counts.items() if state not in counted}
    assert sum(states.values()) == STUDY.runs
    assert files(out) == files(whole)
    assert run(out)[0].shards_run == 0


def test_another_spec_is_refused_with_the_difference(whole, tmp_path, call):
    before = files(whole)
    text = SMALL.replace("steps = 4000", "steps = 4001").replace("[0.02, 0.2]", "[0.02, 0.3]")
    code, out, err = call("study", "run", write_spec(tmp_path, text), "--out", whole)
    assert (code, out) == (2, "")
    assert "another spec" in err
    assert "method.steps: 4000 -> 4001" in err
    assert "grid.learning_rate: [0.02, 0.2] -> [0.02, 0.3]" in err
    assert err.count("\n") == 1
    assert files(whole) == before


def test_a_difference_in_many_keys_is_cut_short():
    old = json.dumps({str(i): i for i in range(9)})
    assert spec_difference(old, '{"0": 0}').endswith("3: 3 -> nothing; and 5 more")


@pytest.mark.parametrize("name", ["flatmin", "kernels"])
def test_another_flatmin_is_refused(whole, tmp_path, name):
    out = copy(whole, tmp_path / "out")
    record = json.loads((out / "study.json").read_text())
    record["versions"][name] = "0.0.0"
    (out / "study.json").write_text(json.dumps(record))
    with pytest.raises(FlatminError, match=rf"another flatmin \(this is {name} .* of 0.0.0"):
        run(out)


def test_other_libraries_are_noted(whole, tmp_path):
    out = copy(whole, tmp_path / "out")
    record = json.loads((out / "study.json").read_text())
    record["versions"]["scipy"] = "0.0.0"
    (out / "study.json").write_text(json.dumps(record))
    _, notes = run(out)
    assert len(notes) == 1
    assert "instead of 0.0.0; last digits may differ" in notes[0]


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
@pytest.mark.parametrize("folder", ["runs", "traces"])
def test_a_truncated_shard_is_put_aside_and_run_again(whole, tmp_path, folder, keep):
    out = copy(whole, tmp_path / "out")
    path = out / folder / shard_files(out)[1].name
    content = path.read_bytes()[:keep]
    path.write_bytes(content)
    with pytest.raises(FlatminError, match=f"{path.name}' is truncated or damaged: run the study"):
        Store.open(out).read_rows()
    summary, notes = run(out)
    assert summary.shards_run == 1
    assert len(notes) == 1
    assert f"{path.name}' is truncated or damaged: kept as" in notes[0]
    assert (path.parent / f".{path.name}.1.broken").read_bytes() == content
    assert files(out) == files(whole)
    pd.read_parquet(out / folder)


def test_a_damaged_page_is_found_when_it_is_read(whole, tmp_path):
    out = copy(whole, tmp_path / "out")
    path = shard_files(out)[0]
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(FlatminError, match=r"cannot be read .*run the study again"):
        Store.open(out).read_rows()


def edited(path: Path, change) -> None:
    """The file as a person with pyarrow leaves it: other content, the same metadata."""
    table = pq.read_table(path)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)


def with_number(table: pa.Table, name: str) -> pa.Table:
    """One value of a column in its last digit."""
    values = table[name].to_pylist()
    place = next(i for i, value in enumerate(values) if value)
    values[place] = np.nextafter(values[place], 1e9)
    return table.set_column(table.column_names.index(name), name, pa.array(values))


DAMAGE = {
    "a row less": (lambda t: t.slice(1), r"has \d+ rows where \d+ were written"),
    "a row more": (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "rows where"),
    "rows swapped": (lambda t: t.take([1, 0, *range(2, len(t))]), "other values in its column"),
    "a digit": (
        lambda t: with_number(t, "excess_risk"),
        "other values in its column 'excess_risk'",
    ),
    "a column less": (
        lambda t: t.drop_columns("gradient_norm"),
        "lacks its column 'gradient_norm'",
    ),
    "a name": (
        lambda t: t.rename_columns([n.replace("gradient_norm", "g") for n in t.column_names]),
        "a column 'g' that was not written",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_an_edited_shard_is_never_used_and_is_run_again(whole, tmp_path, call, kind):
    change, words = DAMAGE[kind]
    out = copy(whole, tmp_path / "out")
    path = shard_files(out)[0]
    edited(path, change)
    with pytest.raises(FlatminError, match=words):
        Store.open(out).read_rows()
    for command in (("show",), ("export", tmp_path / "runs.csv"), ("plot", tmp_path / "a.png")):
        code, _, err = call("study", command[0], out, *command[1:])
        assert code == 2
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs.csv").exists()
    summary, notes = run(out)
    assert summary.shards_run == 1
    assert "kept as" in notes[0]
    assert files(out) == files(whole)


def test_a_whole_study_is_verified(whole, call):
    found = Results(directory=whole).verify()
    assert found.whole
    assert (found.shards, found.faults, found.missing) == (len(shard_files(whole)), {}, 0)
    code, out, _ = call("study", "verify", whole)
    assert code == 0
    assert "every one as it was written" in " ".join(out.split())


def test_what_is_wrong_with_a_folder_is_said(whole, tmp_path, call):
    out = copy(whole, tmp_path / "out")
    first, second, third = shard_files(out)[:3]
    rows = pq.read_metadata(second).num_rows
    edited(first, lambda table: with_number(table, "distance"))
    second.unlink()
    (out / "traces" / third.name).unlink()
    (out / "runs" / "mine.txt").write_text("mine")
    found = Results(directory=out).verify()
    assert found.faults == {
        f"runs/{first.name}": "has other values in its column 'distance' than were written",
        "runs/mine.txt": "is not part of this study",
        f"traces/{third.name}": "is missing",
    }
    assert found.missing == rows + sum(pq.read_metadata(p).num_rows for p in (first, third))
    code, text, err = call("study", "verify", out, "--json")
    assert (code, err) == (1, "")
    assert json.loads(text)["faults"] == found.faults


def test_missing_runs_are_always_said(whole, tmp_path, call):
    out = copy(whole, tmp_path / "out")
    path = shard_files(out)[0]
    words = f"{pq.read_metadata(path).num_rows:,} runs of the study are missing"
    path.unlink()
    for command in (
        ("study", "show", out),
        ("study", "export", out, tmp_path / "runs.csv"),
        ("study", "plot", out, "--out", tmp_path / "runs.png"),
        ("check", out),
    ):
        code, text, _ = call(*command)
        assert code == 0
        assert words in text


@pytest.mark.parametrize("folder", ["runs", "traces"])
def test_something_that_is_no_file_is_not_waited_for(whole, tmp_path, folder):
    out = copy(whole, tmp_path / "out")
    path = out / folder / shard_files(out)[0].name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FlatminError, match="is not a plain file"):
        Store.open(out).read_rows()
    run(out)
    assert files(out) == files(whole)


def test_traces_in_the_place_of_runs_are_put_aside(whole, tmp_path):
    out = copy(whole, tmp_path / "out")
    path = shard_files(out)[0]
    path.write_bytes((out / "traces" / path.name).read_bytes())
    with pytest.raises(FlatminError, match="holds traces, not runs"):
        Store.open(out).read_rows()
    _, notes = run(out)
    assert "holds traces, not runs" in notes[0]
    assert files(out) == files(whole)


def test_shards_of_another_study_or_name_are_put_aside(whole, tmp_path):
    out = copy(whole, tmp_path / "out")
    first, second, third = shard_files(out)[:3]
    first.write_bytes(second.read_bytes())
    other = parse_spec(SMALL.replace("seed = 3", "seed = 4"))
    runner.run_study(other, tmp_path / "other")
    third.write_bytes((tmp_path / "other" / "runs" / third.name).read_bytes())
    _, notes = run(out)
    assert "belongs to another shard" in notes[0]
    assert "belongs to another study" in notes[1]
    assert files(out) == files(whole)


def test_foreign_files_are_left_alone(whole, tmp_path):
    out = copy(whole, tmp_path / "out")
    (out / "notes.txt").write_text("mine")
    (out / "runs" / "mine.parquet").write_text("mine")
    (out / "runs" / "shard-.parquet").write_text("mine")
    (out / "failures").mkdir()
    (out / "failures" / "mine.json").write_text("[]")
    _, notes = run(out)
    assert len(notes) == 2
    assert all("is not part of this study and was left alone" in line for line in notes)
    assert results(out) == results(whole)
    assert (out / "runs" / "mine.parquet").read_text() == "mine"
    assert Store.open(out).failures() == []


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"study": "x", "sha256": "y"}'])
def test_a_damaged_record_is_refused(whole, tmp_path, call, content):
    out = copy(whole, tmp_path / "out")
    (out / "study.json").write_text(content)
    code, _, err = call("study", "run", write_spec(tmp_path, SMALL), "--out", out)
    assert code == 2
    assert "study.json' is damaged or not flatmin's: restore it, or give a new folder" in err
    assert shard_files(out)


def test_a_folder_with_other_things_is_refused(tmp_path, call):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    code, _, err = call("study", "run", write_spec(tmp_path, SMALL), "--out", out)
    assert code == 2
    assert "is not empty and holds no study (it has 'thesis.tex' but no study.json)" in err
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def test_a_spec_beside_its_results_is_not_written_over(whole, tmp_path, call):
    """It has comments; what a run leaves that was stopped before it began has none."""
    spec = tmp_path / "study.toml"
    spec.write_text(f"# mine\n{SMALL}")
    code, _, err = call("study", "run", spec, "--out", tmp_path)
    assert code == 2
    assert "study.toml' is there already, and the study as it is run would be written over" in err
    assert spec.read_text() == f"# mine\n{SMALL}"
    spec.write_text((whole / "study.toml").read_text())
    run(tmp_path)
    assert results(tmp_path) == results(whole)


def test_shards_are_not_exported_over(whole, tmp_path, call):
    copy(whole, tmp_path / "out")
    before = files(tmp_path / "out")
    for place in (
        next((tmp_path / "out" / "runs").glob("*.parquet")),
        tmp_path / "out/traces/x.csv",
    ):
        code, _, err = call("study", "export", tmp_path / "out", place)
        assert code == 2
        assert "is among the study's own files" in err
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("place", ["out", "out/runs", "out/.lock"])
def test_a_folder_that_cannot_be_written_is_one_line(whole, tmp_path, call, place):
    if place != "out":
        copy(whole, tmp_path / "out")
    blocked = tmp_path / place
    if blocked.is_dir():
        blocked.rename(tmp_path / "runs")
    if place == "out/.lock":
        blocked.mkdir()
    else:
        blocked.write_text("a file, not a folder")
    code, out, err = call("study", "run", write_spec(tmp_path, SMALL), "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert str(blocked) in err


@pytest.mark.parametrize("call_number", range(8))
def test_a_full_disk_is_one_line_and_the_next_call_continues(
    whole, tmp_path, call, monkeypatch, call_number
):
    real, calls = Path.write_bytes, iter(range(1000))

    def write(path: Path, content: bytes) -> int:
        if next(calls) == call_number:
            real(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, content)

    spec, out = write_spec(tmp_path, SMALL), tmp_path / "out"
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", write)
        code, printed, err = call("study", "run", spec, "--out", out)
    assert (code, printed) == (2, "")
    assert err.count("\n") == 1
    assert "cannot be written: No space left on device" in err
    assert not list(out.rglob("*.part.*"))
    assert call("study", "run", spec, "--out", out)[0] == 0
    assert files(out) == files(whole)


def test_a_failing_shard_is_recorded_and_tried_again(whole, tmp_path, call, monkeypatch):
    bad = plan.plan(STUDY)[2].id
    real = execute.run_shard

    def run_shard(study, shard, *rest):
        if shard.id == bad:
            raise ArithmeticError("no room")
        return real(study, shard, *rest)

    spec, out = write_spec(tmp_path, SMALL), tmp_path / "out"
    with monkeypatch.context() as broken:
        broken.setattr(execute, "run_shard", run_shard)
        code, printed, err = call("study", "run", spec, "--out", out)
    assert code == 1
    assert "failed now" in printed
    assert f"shard {bad} failed: ArithmeticError: no room" in err
    assert f"flatmin study run {spec} --out {out} --only {bad}" in err
    assert len(shard_files(out)) == len(shard_files(whole)) - 1
    (failure,) = Store.open(out).failures()
    assert failure.shard_id == bad
    assert "run_shard" in failure.traceback
    assert json.loads((out / "failures" / f"{bad}.json").read_text())["command"] == failure.command

    code, printed, _ = call("study", "run", spec, "--out", out, "--only", bad, "--json")
    assert code == 0
    assert json.loads(printed)["shards_run"] == 1
    assert Store.open(out).failures() == []
    assert files(out) == files(whole)


def test_a_shard_run_alone_shows_its_traceback(tmp_path, call, monkeypatch):
    spec, out, first = write_spec(tmp_path, SMALL), tmp_path / "out", plan.plan(STUDY)[0].id
    monkeypatch.setattr(execute, "run_shard", lambda *arguments: 1 / 0)
    code, _, err = call("study", "run", spec, "--out", out, "--only", first)
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert "ZeroDivisionError" in err
    assert shard_files(out) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "nothing"), "there is no shard 'nothing' in this study: it has 6"),
        (("--threads", "0"), "--threads must be a whole number of at least 1, got '0'"),
        (("--workers", "x"), "--workers must be a number, got 'x'"),
        (("--workers", "2", "--threads", "2"), "--threads and --workers exclude each other"),
        (("--workers", "2", "--scheduler", "a"), "--workers and --scheduler exclude each other"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, call, arguments, message):
    spec = write_spec(tmp_path, SMALL)
    code, out, err = call("study", "run", spec, "--out", tmp_path / "out", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_without_a_study_is_not_read(tmp_path):
    with pytest.raises(FlatminError, match=r"holds no study: there is no study.json in it"):
        Store.open(tmp_path)


def test_the_larger_study_of_the_other_tests_has_its_shards():
    assert len(plan.plan(parse_spec(SPEC))) == SHARDS
