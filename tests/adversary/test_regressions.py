"""What once broke, and the surroundings that a command may find itself in."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from adversary import surroundings
from adversary.folders import SPEC
from adversary.regressions import CSV, PREDICT
from adversary.surroundings import Attack
from adversary.watchdog import ROOT, Case, rule, run_alone
from processes import run, started

SOURCES = str(ROOT / "src")
RUNS = Case(("study", "run", "spec.toml", "--out", "out"), {"spec.toml": SPEC.encode()})
TABLE = Case((*PREDICT, "t.csv"), {"t.csv": CSV})


def test_what_once_broke():
    # In a process of its own, which may fork.
    code, out, err = run([sys.executable, "-m", "tests.adversary.regressions"], cwd=ROOT)
    assert code == 0, f"{out}\n{err}"


def alone(case, code=0, **how):
    answer = run_alone(case, **how)
    assert rule(case, answer, Path()) is None, answer
    assert answer.code == code, answer
    return answer


def test_output_on_a_full_disk():
    with open("/dev/full", "wb") as full:
        alone(TABLE, 2, stdout=full)


def test_closed_output(tmp_path):
    alone(TABLE, wrap=("sh", "-c", 'exec "$@" >&-', "sh"))


@pytest.mark.parametrize(
    "attack",
    [
        Attack("predict", "a reader that has gone", ()),
        Attack("show", "a reader that goes", ()),
        Attack("help", "a full disk for both", ()),
        Attack("train", "no wrap", ({"FORCE_COLOR": "1"}, {"NUMBA_DISABLE_JIT": "1"})),
        Attack("check", "no wrap", ({"NUMBA_NUM_THREADS": "0"},)),
        Attack("standard input", "small files", ()),
        Attack("figure", "settings that are a pipe", ()),
        Attack("train", "settings of the compiler", ()),
        Attack("predict", "settings that are none", ()),
        Attack("train", "a folder of traps", ({"NUMBA_CACHE_DIR": "new"},)),
        Attack("figure", "no wrap", ({"MATPLOTLIBRC": "/dev/zero"},)),
        Attack("train", "a full disk for output", ({"NUMBA_CACHE_DIR": "/dev/null/x"},)),
    ],
    ids=str,
)
def test_surroundings_that_once_broke_it(attack):
    answer, wrong = surroundings.run_one(attack)
    assert wrong is None, answer


def test_a_terminal_of_ascii():
    case = Case(
        (*PREDICT[:-1], "t.csv"), {"t.csv": CSV}, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    )
    assert b"S_min, exact" in alone(case).out


def test_a_bad_backend_for_figures():
    case = Case((*PREDICT, "--figure", "f.png", "t.csv"), {"t.csv": CSV}, env={"MPLBACKEND": "²"})
    assert "f.png" in alone(case).left


def test_a_user_without_a_home():
    """The user is unknown and HOME is not set: nothing is kept."""

    code = (
        "import os; from flatmin.lanes.compiling import cache_directory, kernels_version\n"
        "kernels_version(); os.environ.pop('HOME', None)\n"
        "os.setuid(54321); print(cache_directory())"
    )
    if os.getuid():  # only root can become someone unknown
        code = code.replace("os.setuid(54321)", "os.getuid = lambda: 54321")
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    code, out, err = run([sys.executable, "-c", code], env=kept | {"PYTHONPATH": SOURCES})
    assert (code, out, err) == (0, "None\n", "")


@pytest.mark.parametrize("limit", [200, 700, 900, 1500])
@pytest.mark.parametrize("case", [TABLE, RUNS], ids=["predict", "study run"])
def test_a_limit_of_memory(case, limit):
    """Not enough is an answer, in one line; LLVM, the BLAS, pyarrow's allocator and glibc's thread
    data end a process without asking."""

    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))

    answer = run_alone(case, preexec_fn=limited)
    assert answer.code in (0, 2), answer
    assert rule(case, answer, Path()) is None, answer


@pytest.mark.parametrize("limit", [600, 700, 800])
def test_a_limit_of_memory_where_kernels_must_be_compiled(monkeypatch, tmp_path, limit):
    """It is asked for before: LLVM ended the process."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    test_a_limit_of_memory(RUNS, limit)


def test_few_file_handles():
    def limited():
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))

    answer = run_alone(TABLE, preexec_fn=limited)
    assert rule(TABLE, answer, Path()) is None, answer


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "a folder", "no folder"])
def test_kernels_on_disk_that_cannot_be_used(tmp_path, damage):
    """The kernel is compiled, and one line says why; beside it nothing is left."""
    code = f"""
import sys
from pathlib import Path
from flatmin.lanes.kept import Kept
from numba import njit

def double(x):
    return 2 * x

def kernel():
    entry = njit(double)
    entry._cache = Kept(double, Path({str(tmp_path / "kernels")!r}))
    assert entry(3) == 6
    return sum(entry.stats.cache_hits.values())

assert kernel() == 0
assert kernel() == 1
place, = Path({str(tmp_path / "kernels")!r}).iterdir()
content, damage = place.read_bytes(), {damage!r}
if damage in ("truncated", "garbage", "empty"):
    place.write_bytes(dict(truncated=content[:-9], garbage=bytes(999), empty=b"")[damage])
elif damage == "a folder":
    place.unlink(), place.mkdir()
else:
    place.unlink(), place.parent.rmdir(), place.parent.write_text("a file")
assert kernel() == 0
if damage in ("truncated", "garbage", "empty"):
    assert kernel() == 1
    assert list(place.parent.iterdir()) == [place]
"""
    environment = os.environ | {"PYTHONPATH": SOURCES}
    code, out, err = run([sys.executable, "-c", code], env=environment)
    assert (code, out) == (0, ""), err
    lines = err.splitlines()
    assert lines
    assert all(line.startswith("kernels kept in") for line in lines)


def test_kernels_of_two_first_compilations(tmp_path):
    """Processes that save the same and other forms at once: afterwards all are there, and whole."""
    code = f"""
import sys
from pathlib import Path
from flatmin.lanes.kept import Kept
from numba import njit, types

def double(x):
    return 2 * x

entry = njit(double)
entry._cache = Kept(double, Path({str(tmp_path)!r}))
for kind in (types.int64, types.float64, types.float32):
    entry.compile((kind,))
print(sum(entry.stats.cache_hits.values()))
"""
    environment = os.environ | {"PYTHONPATH": SOURCES}
    command = [sys.executable, "-c", code]
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(started(command, env=environment, stderr=subprocess.PIPE))
            for _ in range(3)
        ]
        assert [(job.communicate()[1], job.returncode) for job in jobs] == 3 * [("", 0)]
    assert run(command, env=environment) == (0, "3\n", "")
    assert {path.suffix for path in tmp_path.iterdir()} == {".kernel"}
