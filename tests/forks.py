"""Processes without the second of imports: a process that has done them copies itself.

The copy is a process of its own, with its own files, locks and threads, and may be killed. It
begins where a new one is after its imports, with the kernels it needs loaded.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import processes

FLATMIN = "flatmin.cli:main"


@contextmanager
def forks(folder: Path, ready: str, **environment: str) -> Iterator[Forks]:
    """Copies of one process inside the block, each of which first executes `ready`."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = (sys.executable, __file__, ready)
    with processes.started(command, env=os.environ | environment, **pipes) as server:
        yield Forks(folder, server)


class Forks:
    """The process that is copied; the copies are in its session and end with it."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self._folder, self._count, self._server = folder, 0, server
        assert self._server.stdout is not None
        threads = json.loads(self._server.stdout.readline())
        # A copy has only the thread that copied: none of the others may hold a lock.
        assert threads == 1

    def ask(self, **request: Any) -> Any:
        """One request, one answer."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(
        self,
        *arguments: object,
        before: str = "",
        entry: str = FLATMIN,
        cwd: Path | None = None,
    ) -> Fork:
        """A copy that executes `before` and then the command `entry` with these arguments."""
        self._count += 1
        out = self._folder / f"{self._count}.out"
        pid = self.ask(
            entry=entry,
            arguments=[str(argument) for argument in arguments],
            before=before,
            cwd=str(cwd or Path.cwd()),
            out=str(out),
        )
        return Fork(self, pid, out)


class Fork:
    """A copy, as `subprocess.Popen` shows a process."""

    def __init__(self, forks: Forks, pid: int, out: Path) -> None:
        self._forks, self._out = forks, out
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        """Exit code, minus the signal that killed it, or None."""
        if self.returncode is None:
            self.returncode = self._forks.ask(poll=self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """A signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = processes.LIMIT_SECONDS) -> int:
        """Until it has ended."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return code

    def communicate(self, timeout: float = processes.LIMIT_SECONDS) -> tuple[str, str]:
        """What it wrote to standard output and standard error."""
        self.wait(timeout)
        return self._out.read_text(), self._out.with_suffix(".err").read_text()


def _become(request: dict[str, Any]) -> None:
    """In the copy: the command, as if the interpreter had been started with it."""
    from importlib import import_module

    out = Path(request["out"])
    for number, path in enumerate((Path(os.devnull), out, out.with_suffix(".err"))):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(request["cwd"])
    sys.argv = ["command", *request["arguments"]]
    exec(request["before"], {})
    module, name = request["entry"].split(":")
    getattr(import_module(module), name)()


def _serve() -> None:
    exec(sys.argv[1], {})
    gc.freeze()  # a copy shares what is there instead of counting it at its end
    print(threading.active_count(), flush=True)
    while request := sys.stdin.readline():
        asked = json.loads(request)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _become(asked)
                return
        print(json.dumps(answer), flush=True)
    # The tests have ended, perhaps killed themselves: no copy stays behind.
    os.killpg(os.getpid(), signal.SIGKILL)  # the leader of the group is this process


if __name__ == "__main__":
    _serve()
