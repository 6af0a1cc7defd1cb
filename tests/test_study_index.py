"""The index of a study's folder saves reading; it is believed about the files it was made of."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from flatmin.study import runner, shard_files
from flatmin.study.index import NAME
from flatmin.study.spec import parse_spec
from study_runs import SPEC, files
from study_runs import shard_files as runs_of

STUDY = parse_spec(
    SPEC.replace("datasets = 12", "datasets = 2").replace("repetitions = 30", "repetitions = 3")
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "out"
    runner.run_study(STUDY, directory)
    return directory


@pytest.fixture
def out(tmp_path):
    """The study, run here: a copy would not be the files that the index knows."""
    runner.run_study(STUDY, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def read(monkeypatch):
    """The names of files that are read as a whole, as they are."""
    seen: list[Path] = []
    real = shard_files.deep_fault

    def deep_fault(path: Path, study_hash: str) -> str | None:
        seen.append(path)
        return real(path, study_hash)

    monkeypatch.setattr(shard_files, "deep_fault", deep_fault)
    return seen


def run(directory: Path) -> tuple[runner.StudyRun, list[str]]:
    notes: list[str] = []
    return runner.run_study(STUDY, directory, note=notes.append), notes


def test_what_the_index_knows_is_not_read(whole, out, read):
    first = run(out)[0]
    assert read == []
    assert first.shards_run == 0
    lost = runs_of(out)[0]
    lost.unlink()
    again = run(out)[0]
    # What is left of the shard is read: its traces.
    assert read == [out / "traces" / lost.name]
    assert (again.shards_run, again.counts, again.finished) == (1, first.counts, STUDY.runs)
    assert files(out) == files(whole)


def test_an_edit_that_keeps_size_and_time_is_found(whole, out, read):
    path = runs_of(out)[0]
    before, content = path.stat(), bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    found, notes = run(out)
    assert path in read
    assert found.shards_run == 1
    assert "kept as" in notes[0]
    assert files(out) == files(whole)


def test_a_copied_folder_is_read(whole, out, tmp_path, read):
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    assert (copy / NAME).read_bytes() == (out / NAME).read_bytes()
    assert run(copy)[0].shards_run == 0
    assert len(read) == 2 * len(runs_of(out))
    read.clear()
    assert run(copy)[0].shards_run == 0
    assert read == []


def replaced(path: Path, kind: str, whole: Path) -> None:
    text = path.read_text()
    path.unlink()
    if kind == "a link":
        path.symlink_to(whole / NAME)
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "another study's":
        path.write_text(text.replace('"study":"', '"study":"0'))
    elif kind == "cut":
        path.write_text(text[:-100])
    elif kind == "deep":
        path.write_text("[" * 100_000)
    elif kind == "large":
        path.write_text(text + " " * 1_000_000)
    elif kind == "words for numbers":
        content = json.loads(text)
        content["counts"] = [["x" for _ in column] for column in content["counts"]]
        path.write_text(json.dumps(content))
    elif kind == "columns of other lengths":
        content = json.loads(text)
        path.write_text(json.dumps(content | {"shards": content["shards"][1:]}))
    elif kind != "lost":
        path.write_text(kind)


@pytest.mark.parametrize(
    "kind",
    [
        *("lost", "cut", "deep", "large", "a link", "a pipe", "another study's"),
        *(
            "words for numbers",
            "columns of other lengths",
            "",
            "{}",
            "[]",
            "null",
            '{"study": 1, "shards": []}',
        ),
    ],
)
def test_an_index_that_is_lost_or_damaged_is_made_again(whole, out, read, kind):
    text = (out / NAME).read_text()
    replaced(out / NAME, kind, whole)
    found, notes = run(out)
    assert (found.shards_run, notes) == (0, [])
    assert len(read) == 2 * len(runs_of(out))
    if kind != "a pipe":  # which is no file to be replaced
        assert (out / NAME).read_text() == text
    assert files(out) == files(whole)


def test_an_index_that_cannot_be_written_is_no_error(whole, out, read):
    replaced(out / NAME, "a folder", whole)
    for _ in range(2):
        found, notes = run(out)
        assert (found.shards_run, notes) == (0, [])
    assert len(read) == 4 * len(runs_of(out))
