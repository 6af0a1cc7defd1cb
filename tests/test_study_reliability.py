"""Real processes that are killed, interrupted, doubled and starved of disk; the tables stay.

Most begin as copies of a process that has imported flatmin (see `Forks`): what may go wrong comes
after the imports, so that is where the moments of the kills lie.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from forks import Forks
from forks import forks as forked
from processes import LIMIT_SECONDS, run, started
from study_runs import (
    SHARDS,
    SPEC,
    command,
    files,
    finish,
    ready,
    results,
    shard_files,
    write_spec,
)

KILLS = 22
SMALL = SPEC.replace("datasets = 12", "datasets = 1").replace("repetitions = 30", "repetitions = 2")


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return write_spec(tmp_path_factory.mktemp("spec"))


@pytest.fixture(scope="module")
def forks(tmp_path_factory, spec):
    with forked(tmp_path_factory.mktemp("forks"), ready(spec)) as running:
        yield running


@pytest.fixture(scope="module")
def whole(tmp_path_factory, spec, forks):
    """The study, undisturbed, and the seconds it took; the same files by a process from scratch."""
    parent = tmp_path_factory.mktemp("whole")
    assert run(command("study", "run", spec, "--out", parent / "first"))[0] == 0
    begin = time.monotonic()
    assert finish(forks.start("study", "run", spec, "--out", parent / "out"))[0] == 0
    seconds = time.monotonic() - begin
    assert files(parent / "first") == files(parent / "out")
    assert len(shard_files(parent / "out")) == SHARDS
    return parent / "out", seconds


@pytest.fixture(scope="module")
def small(tmp_path_factory, forks):
    """A study of two shards, undisturbed: its spec and its files."""
    folder = tmp_path_factory.mktemp("small")
    spec = write_spec(folder, SMALL)
    assert finish(forks.start("study", "run", spec, "--out", folder / "out"))[0] == 0
    return spec, files(folder / "out")


def wait_for_shards(directory: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(shard_files(directory)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def exported(forks: Forks, directory: Path, folder: Path) -> list[bytes]:
    """What `flatmin study export` writes."""
    paths = [folder / "table.csv", folder / "table.parquet"]
    for path in paths:
        assert finish(forks.start("study", "export", directory, path))[0] == 0
    return [path.read_bytes() for path in paths]


def test_killed_at_random_moments_the_table_is_that_of_an_undisturbed_run(
    whole, spec, forks, tmp_path
):
    undisturbed, seconds = whole
    moments = random.Random(0)
    kills, unfinished, studies = 0, 0, 0
    wanted = exported(forks, undisturbed, tmp_path)
    while kills < KILLS:
        out = tmp_path / str(studies)
        while (done := len(shard_files(out))) < SHARDS and kills < KILLS:
            process = forks.start("study", "run", spec, "--out", out)
            # Some shards later, or at its start; then at any point of the next few.
            wait_for_shards(out, min(done + moments.randint(0, 6), SHARDS - 1))
            time.sleep(moments.uniform(0.0, 0.15) * seconds)
            process.kill()
            kills += finish(process)[0] == -signal.SIGKILL
            unfinished += 0 < len(shard_files(out)) < SHARDS
        assert finish(forks.start("study", "run", spec, "--out", out))[0] == 0
        studies += 1
        assert files(out) == files(undisturbed)
        assert results(out) == results(undisturbed)
        assert not list(out.rglob("*.part.*"))
        assert exported(forks, out, tmp_path) == wanted
    assert unfinished >= KILLS // 2


@pytest.mark.parametrize("moment", range(1, 10))
def test_killed_at_each_step_of_writing(small, forks, tmp_path, moment):
    """The process kills itself in its n-th flush: before, between and after the renames."""
    before = f"""
import os, signal
real, calls = os.fsync, iter(range(1, 1000))
def fsync(handle):
    if next(calls) == {moment}:
        os.kill(os.getpid(), signal.SIGKILL)
    real(handle)
os.fsync = fsync"""
    (spec, undisturbed), out = small, tmp_path / "out"
    killed = forks.start("study", "run", spec, "--out", out, before=before)
    assert finish(killed)[0] == -signal.SIGKILL
    # Each file is flushed, renamed, and its folder flushed; two files begin a study, two a shard.
    assert len(shard_files(out)) == (moment >= 8)
    assert len(list(out.rglob("*.part.*"))) == moment % 2
    code, _, err = finish(forks.start("study", "run", spec, "--out", out))
    assert (code, err) == (0, "")
    assert files(out) == undisturbed
    assert not list(out.rglob("*.part.*"))


def test_a_second_process_on_the_folder_is_refused(whole, spec, forks, tmp_path):
    out = tmp_path / "out"
    first = forks.start("study", "run", spec, "--out", out)
    wait_for_shards(out, 1)
    os.kill(first.pid, signal.SIGSTOP)
    code, printed, err = finish(forks.start("study", "run", spec, "--out", out))
    os.kill(first.pid, signal.SIGCONT)
    assert (code, printed) == (2, "")
    assert f"another process is running the study in '{out}'" in err
    assert err.count("\n") == 1
    assert finish(first)[0] == 0
    assert files(out) == files(whole[0])


def test_two_processes_at_once_on_a_new_folder(whole, spec, forks, tmp_path):
    out = tmp_path / "out"
    both = [forks.start("study", "run", spec, "--out", out) for _ in range(2)]
    codes = sorted(finish(process)[0] for process in both)
    # On a slow machine the second may begin after the first has ended.
    assert codes in ([0, 2], [0, 0])
    assert files(out) == files(whole[0])


@pytest.mark.parametrize("options", [(), ("--threads", "1")])
def test_interrupted_it_stops_at_once_and_continues(whole, spec, forks, tmp_path, options):
    out = tmp_path / "out"
    process = forks.start("study", "run", spec, "--out", out, *options)
    wait_for_shards(out, 2)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert err == f"flatmin: stopped; finished shards are in '{out}', the same command continues\n"
    assert 2 <= len(shard_files(out)) < SHARDS
    assert finish(forks.start("study", "run", spec, "--out", out))[0] == 0
    assert files(out) == files(whole[0])


def test_a_disk_that_takes_no_more_is_one_line(whole, spec, forks, tmp_path):
    """The kernel refuses files larger than a limit, in the middle of a write."""
    before = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))"
    out = tmp_path / "out"
    code, printed, err = finish(forks.start("study", "run", spec, "--out", out, before=before))
    assert (code, printed) == (2, "")
    assert "cannot be written: File too large" in err
    assert err.count("\n") == 1
    assert not list(out.rglob("*.part.*"))
    assert finish(forks.start("study", "run", spec, "--out", out))[0] == 0
    assert files(out) == files(whole[0])


def test_a_long_shard_does_not_hold_up_an_interruption(tmp_path):
    """Flow reports no steps before a shard is done, and here there is one long shard."""
    text = SPEC.replace("datasets = 12", "datasets = 1").replace("[3, 6]", "[40]")
    text = text.replace("steps = 4000", 'name = "flow"').replace(
        "repetitions = 30", "repetitions = 2000"
    )
    text = "\n".join(
        line for line in text.splitlines() if "learning_rate" not in line and "record" not in line
    )
    out = tmp_path / "out"
    with started(command("study", "run", write_spec(tmp_path, text), "--out", out)) as process:
        deadline = time.monotonic() + 120
        while not (out / "failures").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(1.0)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 130
    assert shard_files(out) == []
