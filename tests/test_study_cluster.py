"""A real Dask scheduler and real worker processes; the files are those of a local run.

Most begin as copies of a process that has imported Dask and flatmin (see `Forks`).
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from flatmin.study import execute
from flatmin.study.cluster import _Tasks, _written, run_pickled
from flatmin.study.identity import hash_of
from flatmin.study.index import Checked
from flatmin.study.plan import SHARD_FLOPS, Shard, plan
from flatmin.study.runner import run_study
from flatmin.study.shard_files import Packed
from flatmin.study.spec import Study, parse_spec
from flatmin.study.store import Failure
from forks import Fork, Forks
from forks import forks as forked
from processes import run, started
from study_runs import SHARDS, SPEC, command, files, finish, ready, shard_files, write_spec

OTHER_VERSION = "import flatmin; flatmin.__version__ = '0.0.0'"

# A worker may execute its preload more than once.
NO_ROOM = """
from flatmin.study import execute
def no_room(study, shard, *rest, real=execute.run_shard):
    if shard.runs[0].dataset == 5:
        raise ArithmeticError("no room")
    return real(study, shard, *rest)
if execute.run_shard.__name__ != "no_room":
    execute.run_shard = no_room
"""

# Where the folder of the study is not that of the client.
ELSEWHERE = "from flatmin.study import cluster; cluster.sees = lambda probe: False"

# Dies in its n-th flush of a file, before it is renamed, after it, or between the two files.
DIES = """
import os, signal
from flatmin.core import files
from flatmin.study import store
real, calls = os.fsync, iter(range(1, 1000))
def fsync(handle):
    if next(calls) == {moment}:
        os.kill(os.getpid(), signal.SIGKILL)
    real(handle)
os.fsync = fsync
"""

# What the processes of a cluster have imported when they begin.
READY = """\
import distributed.cli.dask_scheduler, distributed.cli.dask_worker
import flatmin.study.cluster, flatmin.study.execute
"""


class Cluster:
    """A scheduler and workers without guardians, each a process that can be killed."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        self._forks, self._folder = forks, folder
        self._processes: list[Fork] = []
        place = folder / "scheduler.json"
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self._begin("scheduler", *options, "--scheduler-file", place)
        self.address = json.loads(self._content(place))["address"]

    def _begin(self, kind: str, *arguments: object) -> Fork:
        entry = f"distributed.cli.dask_{kind}:main"
        process = self._forks.start(*arguments, entry=entry, cwd=self._folder)
        self._processes.append(process)
        return process

    def _content(self, path: Path) -> str:
        deadline = time.monotonic() + 60
        while not path.exists() or not path.read_text().strip():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return path.read_text()

    def add_worker(self, preload: str | None = None) -> Fork:
        """One more worker with one thread, which first executes `preload`."""
        options: list[object] = ["--nthreads", 1, "--no-nanny", "--no-dashboard"]
        if preload is not None:
            file = self._folder / "preload.py"
            file.write_text(preload + "\n")
            options += ["--preload", file]
        return self._begin("worker", self.address, *options)

    def wait_for_workers(self, count: int) -> None:
        """Until so many workers have joined."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=60)

    def close(self) -> None:
        """End every process."""
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def forks(tmp_path_factory, spec):
    # Workers are not begun by the command, which would give them one thread of BLAS.
    imported, threads = ready(spec) + READY, {"OPENBLAS_NUM_THREADS": "2"}
    with forked(tmp_path_factory.mktemp("forks"), imported, **threads) as running:
        yield running


@pytest.fixture
def cluster(forks, tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    running = Cluster(forks, folder)
    yield running
    running.close()


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return write_spec(tmp_path_factory.mktemp("spec"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, spec):
    """The study by threads."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run_study(Study(spec), out)
    return files(out)


def wait_for_shards(directory: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(shard_files(directory)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_two_workers_give_the_bytes_of_a_local_run(cluster, spec, whole, tmp_path):
    cluster.add_worker()
    cluster.add_worker()
    cluster.wait_for_workers(2)
    out = tmp_path / "out"
    code, printed, err = run(
        command("study", "run", spec, "--out", out, "--scheduler", cluster.address, "--json")
    )
    assert (code, err) == (0, "")
    found = json.loads(printed)
    assert (found["shards_run"], found["by_workers"]) == (SHARDS, SHARDS)
    assert files(out) == whole
    assert not list(out.rglob("*.part.*"))


def test_a_worker_without_the_folder_sends_its_shards(cluster, forks, spec, whole, tmp_path):
    cluster.add_worker(ELSEWHERE)
    cluster.wait_for_workers(1)
    out = tmp_path / "out"
    code, printed, err = finish(
        forks.start("study", "run", spec, "--out", out, "--scheduler", cluster.address)
    )
    assert (code, err) == (0, "")
    said = [line.split() for line in printed.splitlines() if "by workers" in line]
    assert [(words[0], words[-1]) for words in said] == [("written", "0"), ("sent", f"{SHARDS}")]
    assert files(out) == whole


@pytest.mark.parametrize("moment", [1, 2, 3, 4, 7])
def test_a_worker_killed_while_it_writes_changes_nothing(
    cluster, forks, spec, whole, tmp_path, moment
):
    cluster.add_worker(DIES.format(moment=moment))
    cluster.wait_for_workers(1)
    out = tmp_path / "out"
    process = forks.start("study", "run", spec, "--out", out, "--scheduler", cluster.address)
    deadline = time.monotonic() + 120
    while len(list((out / "traces").glob("*"))) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    cluster.add_worker()
    code, _, err = finish(process)
    assert (code, err) == (0, "")
    assert files(out) == whole
    assert not list(out.rglob("*.part.*"))


def test_shards_that_a_dead_client_asked_for_are_not_written(spec, tmp_path):
    study = Study(spec)
    shards = plan(study)[:2]
    out = tmp_path / "out"
    run_study(study, out, only=shards[0].id)
    before = files(out)
    arguments = (pickle.dumps(study), pickle.dumps(shards), hash_of(study.canonical()))
    probe = out / ".0.part.probe"
    sent = run_pickled(*arguments, str(probe))
    assert all(isinstance(one, Packed) for one in sent)
    assert files(out) == before
    probe.touch()
    assert isinstance(_written(probe, sent[1]), Checked)
    assert sorted(set(files(out)) - set(before)) == [
        f"{kind}/shard-{shards[1].id}.parquet" for kind in ("runs", "traces")
    ]
    after = files(out)
    probe.unlink()
    assert isinstance(_written(probe, sent[0]), Failure)
    assert files(out) == after


def test_a_shard_that_is_there_is_not_run_again(spec, whole, tmp_path, monkeypatch):
    study = Study(spec)
    (first, second), out = plan(study)[:2], tmp_path / "out"
    run_study(study, out, only=first.id)
    probe = out / ".0.part.probe"
    probe.touch()
    monkeypatch.setattr(execute, "run_shard", lambda *rest: 1 / 0)
    shards = pickle.dumps([first, second])
    found = run_pickled(pickle.dumps(study), shards, hash_of(study.canonical()), str(probe))
    assert [type(one) for one in found] == [Checked, Failure]
    assert found[0].counts == run_study(study, out, only=first.id).counts


def test_tasks_have_fewer_shards_towards_the_end():
    class Four:
        def nthreads(self):
            return {"a": 2, "b": 2}

        def get_executor(self, pure):
            return None

    tasks = _Tasks(Four(), parse_spec(SPEC), Path("probe"))
    short = [Shard(str(i), 1.0, ()) for i in range(2000)]
    long = [Shard(str(i), SHARD_FLOPS, ()) for i in range(2000)]
    tasks.width()
    assert [tasks.batch(short[:left]) for left in (2000, 160, 40, 15, 1)] == [64, 10, 2, 1, 1]
    assert [tasks.batch(long[:left]) for left in (2000, 40, 1)] == [8, 2, 1]


def test_a_worker_killed_in_mid_study_changes_nothing(cluster, forks, spec, whole, tmp_path):
    victim = cluster.add_worker()
    cluster.add_worker()
    cluster.wait_for_workers(2)
    out = tmp_path / "out"
    process = forks.start("study", "run", spec, "--out", out, "--scheduler", cluster.address)
    wait_for_shards(out, 2)
    victim.kill()
    assert len(shard_files(out)) < SHARDS
    code, _, err = finish(process)
    assert (code, err) == (0, "")
    assert files(out) == whole


def test_the_client_killed_the_next_call_continues(cluster, forks, spec, whole, tmp_path):
    cluster.add_worker()
    cluster.add_worker()
    cluster.wait_for_workers(2)
    out = tmp_path / "out"
    arguments = ("study", "run", spec, "--out", out, "--scheduler", cluster.address)
    process = forks.start(*arguments)
    wait_for_shards(out, 2)
    process.kill()
    finish(process)
    assert len(shard_files(out)) < SHARDS
    assert finish(forks.start(*arguments))[0] == 0
    assert files(out) == whole


def test_processes_of_this_machine_give_the_bytes_of_a_local_run(spec, whole, tmp_path):
    out = tmp_path / "out"
    code, printed, err = run(command("study", "run", spec, "--out", out, "--workers", 2))
    assert (code, err) == (0, "")
    assert f"{SHARDS} of {SHARDS}" in printed
    assert files(out) == whole


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_processes_of_this_machine_end_with_the_client(spec, whole, tmp_path, how):
    out = tmp_path / "out"
    arguments = command("study", "run", spec, "--out", out, "--workers", 2)
    with started(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        wait_for_shards(out, 2)
        # The scheduler, its two workers, and a process that each may have beside it.
        begun = psutil.Process(client.pid).children(recursive=True)
        assert len(begun) >= 3
        client.send_signal(how)
        _, err = client.communicate(timeout=60)
        assert client.returncode == (-how if how == signal.SIGKILL else 130)
        assert err.count("\n") <= 1
        assert not psutil.wait_procs(begun, timeout=60)[1]
    assert run_study(Study(spec), out).shards == SHARDS
    assert files(out) == whole


def test_a_worker_with_another_flatmin_is_refused(cluster, forks, spec, tmp_path):
    cluster.add_worker()
    cluster.add_worker(OTHER_VERSION)
    cluster.wait_for_workers(2)
    out = tmp_path / "out"
    code, printed, err = finish(
        forks.start("study", "run", spec, "--out", out, "--scheduler", cluster.address)
    )
    assert (code, printed) == (2, "")
    assert "is refused: it has flatmin 0.0.0 instead of" in err
    assert err.count("\n") == 1
    assert shard_files(out) == []


def test_a_worker_with_another_flatmin_that_joins_later_is_refused(
    cluster, forks, spec, whole, tmp_path
):
    cluster.add_worker()
    cluster.wait_for_workers(1)
    out = tmp_path / "out"
    arguments = ("study", "run", spec, "--out", out, "--scheduler", cluster.address)
    process = forks.start(*arguments)
    wait_for_shards(out, 1)
    process.send_signal(signal.SIGSTOP)
    intruder = cluster.add_worker(OTHER_VERSION)
    cluster.wait_for_workers(2)
    process.send_signal(signal.SIGCONT)
    code, _, err = finish(process)
    assert code == 2
    assert "is refused: it has flatmin 0.0.0 instead of" in err
    assert err.count("\n") == 1
    intruder.kill()
    intruder.wait()
    assert finish(forks.start(*arguments))[0] == 0
    assert files(out) == whole


def test_a_failing_shard_of_a_worker_is_recorded(cluster, forks, spec, tmp_path):
    cluster.add_worker(NO_ROOM)
    out = tmp_path / "out"
    code, _, err = finish(
        forks.start("study", "run", spec, "--out", out, "--scheduler", cluster.address)
    )
    assert code == 1
    assert err.count("failed: ArithmeticError: no room; to run it alone: flatmin study run") == 2
    assert len(shard_files(out)) == SHARDS - 2
    assert len(list((out / "failures").iterdir())) == 2


def test_no_scheduler_at_the_address_is_one_line(forks, spec, tmp_path):
    # A second is enough here; people begin schedulers and studies in one script.
    before = "from flatmin.study import cluster; cluster._CONNECT_SECONDS = 1"
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        arguments = ("study", "run", spec, "--out", tmp_path / "out", "--scheduler", address)
        code, printed, err = finish(forks.start(*arguments, before=before))
        assert (code, printed) == (2, "")
        assert f"--scheduler: no Dask scheduler answers at '{address}'" in err
        assert err.count("\n") == 1


def test_a_scheduler_that_goes_away_is_one_line(cluster, forks, spec, whole, tmp_path):
    cluster.add_worker()
    out = tmp_path / "out"
    process = forks.start("study", "run", spec, "--out", out, "--scheduler", cluster.address)
    wait_for_shards(out, 2)
    cluster.close()
    code, _, err = finish(process)
    assert code == 2
    assert "the Dask scheduler is gone; finished shards are kept" in err
    assert finish(forks.start("study", "run", spec, "--out", out))[0] == 0
    assert files(out) == whole


def test_without_distributed_it_says_what_to_install(spec, tmp_path):
    before = "import sys; sys.modules['distributed'] = None"
    code, printed, err = run(
        command("study", "run", spec, "--out", tmp_path / "out", "--workers", 2, before=before)
    )
    assert (code, printed) == (2, "")
    assert "pip install 'flatmin[cluster]'" in err
    assert err.count("\n") == 1
