"""The tests' own processes: interrupted where the tests are not, and none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from forks import forks
from processes import run, started

# A process that ignores every request to stop, has a child that does too, and says who they are.
STUBBORN = """\
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
time.sleep(600)
"""


class FailureError(Exception):
    """What goes wrong in a test."""


@pytest.fixture
def ignored():
    """As in a job that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def alive(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and waits for its parent."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")


def gone(pids: list[int]) -> bool:
    """Whether all have ended, or do soon: signals take effect some time after they are sent."""
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_a_test_that_fails_leaves_no_process():
    with (
        suppress(FailureError),
        started([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process,
    ):
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        raise FailureError
    assert gone(pids)


def test_copies_end_with_the_block(tmp_path):
    with suppress(FailureError), forks(tmp_path, "pass") as running:
        copy = running.start("600", before="import sys, time; time.sleep(float(sys.argv[1]))")
        assert alive(copy.pid)
        raise FailureError
    assert gone([copy.pid])


def test_copies_end_when_the_tests_are_killed(tmp_path):
    """A process that starts copies and is killed before it can end them."""
    code = (
        "import os, signal, sys, time\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from pathlib import Path\n"
        "from forks import forks\n"
        "with forks(Path(sys.argv[1]), 'pass') as running:\n"
        "    copy = running.start(before='import time; time.sleep(600)')\n"
        "    print(copy.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    returned, out, _ = run([sys.executable, "-c", code, tmp_path])
    assert returned == -signal.SIGKILL
    assert gone([int(out)])


@pytest.mark.usefixtures("ignored")
def test_interrupts_reach_children_of_tests_that_ignore_them(tmp_path):
    waiting = "import time; print('waiting', flush=True); time.sleep(600)"
    with started([sys.executable, "-c", waiting], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (1, -signal.SIGINT)
    with forks(tmp_path, "pass") as running:
        mark = tmp_path / "waiting"
        # Not open(): an interrupt in the destructor of its file would be lost. And no long sleep:
        # one that comes between the last instruction and the sleep waits for its end.
        wait = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch()\n"
        copy = running.start(before=f"{wait}while True: time.sleep(0.05)")
        deadline = time.monotonic() + 60
        while not mark.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        copy.send_signal(signal.SIGINT)
        assert copy.wait(60) in (1, -signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
