"""kill -9 at random instants: nothing lost, nothing half-written, continuing gives the same.

A case is one command in a fork of a process that has everything imported and compiled, killed
somewhere between its start and its end, two to four times. What is then on disk must be whole:
every file that is not hidden is one of those that an undisturbed run writes, and what was finished
before is still there. Then the same command runs to its end, and all files are those of the
undisturbed run.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from adversary.folders import SPEC, STUDY, TRAIN
from adversary.watchdog import Score, _main, _silently

LIMIT_SECONDS = 300.0
KILLS = 2, 4  # of a case
REPRODUCE = ("reproduce", "1c", "4c", "--preset", "quick", "--out", "paper", "--json")
OLDER = ("train", "--depth", "3", "--steps", "30", "--learning-rate", "0.02", "--out", "train")


@dataclass(frozen=True)
class Subject:
    """A command, what may differ between two undisturbed runs, and how often it is taken."""

    args: tuple[str, ...]
    share: int
    before: tuple[str, ...] = ()
    free: Callable[[str], bool] = lambda name: False


def _reports(name: str) -> bool:
    """Files with times in them."""
    return name.startswith("paper/report") or name.endswith(".pdf")


SUBJECTS = {
    "study": Subject(STUDY, 12),
    "train": Subject(TRAIN, 3),
    "train over an older run": Subject(TRAIN, 2, OLDER),
    "reproduce": Subject(REPRODUCE, 1, free=_reports),
    "lab": Subject(("lab", "--no-browser", "--port"), 2),
}


def files(folder: Path) -> dict[str, bytes]:
    """What a reader of the folder sees: no hidden files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


@dataclass(frozen=True)
class Undisturbed:
    """The files that were there before, those of a whole run, and the seconds it took."""

    before: dict[str, bytes]
    files: dict[str, bytes]
    seconds: float


@cache
def undisturbed(name: str) -> Undisturbed:
    subject = SUBJECTS[name]
    if name == "lab":
        return Undisturbed({}, {}, 0.5)
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        folder = Path(place)
        _prepare(folder, subject)
        before = files(folder)
        _here(folder, subject.args)  # in this process: imports and kernels stay
        first = files(folder)
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        _prepare(folder, subject)
        gc.freeze()
        begin = time.monotonic()
        assert _wait(_start(folder, subject.args)) == 0
        seconds = time.monotonic() - begin
        again = files(folder)
        different = [n for n in first if first[n] != again.get(n) and not subject.free(n)]
        assert not different, different
        return Undisturbed(before, again, seconds)


def _prepare(folder: Path, subject: Subject) -> None:
    (folder / "spec.toml").write_text(SPEC)
    if subject.before:
        _here(folder, subject.before)


def _here(folder: Path, args: tuple[str, ...]) -> None:
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert _silently(args) == 0
    finally:
        os.chdir(before)


def _start(folder: Path, args: tuple[str, ...]) -> int:
    """A copy of this process that becomes the command."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        with open(folder / ".err", "ab") as err:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(err.fileno(), 2)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["flatmin", *args]
        code = _main()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _wait(pid: int) -> int:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    _kill(pid)
    return 99


def _kill(pid: int) -> int:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def attack(number: int, seed: int, score: Score, only: str | None = None) -> str | None:
    """Case `number`: what went wrong, if anything."""
    rng = random.Random(f"{seed}/{number}")
    names = [name for name, subject in SUBJECTS.items() for _ in range(subject.share)]
    name = only or rng.choice(names)
    subject, whole = SUBJECTS[name], undisturbed(name)
    score.count[name] += 1
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        folder = Path(place)
        if name == "lab":
            return _lab(folder, rng, score)
        there: dict[str, bytes] = {}
        wanted, killed = rng.randint(*KILLS), 0
        _begin(folder, whole)
        for _ in range(4 * wanted):
            pid = _start(folder, subject.args)
            time.sleep(rng.uniform(0, whole.seconds))
            in_time = _kill(pid) == -signal.SIGKILL
            score.count["kills"] += in_time
            killed += in_time
            found = files(folder)
            if wrong := _half(found, there, whole, subject):
                return f"{name}: {wrong} after a kill"
            score.count["in the middle"] += whole.before.keys() < found.keys() < whole.files.keys()
            there = {n: c for n, c in found.items() if "/shard-" in n}
            if killed == wanted:
                break
            if not in_time:  # it had ended: from the beginning again
                there = {}
                _begin(folder, whole)
        if _wait(_start(folder, subject.args)):
            return (
                f"{name}: the next call does not end well: {(folder / '.err').read_text()[-300:]}"
            )
        found = files(folder)
        for path in sorted(found.keys() | whole.files.keys()):
            if found.get(path) != whole.files.get(path) and not subject.free(path):
                return f"{name}: {path} is not that of an undisturbed run"
        if "study" in name and list(folder.rglob(".*.part.*")):
            return f"{name}: leftovers stay"
    return None


def _begin(folder: Path, whole: Undisturbed) -> None:
    """The folder as it is before the command."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in {"spec.toml": SPEC.encode(), **whole.before}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _half(
    found: dict[str, bytes], there: dict[str, bytes], whole: Undisturbed, subject: Subject
) -> str | None:
    """A file that is neither of the run before nor of the whole one, or a finished one lost."""
    for path, content in found.items():
        if subject.free(path):
            continue
        if content not in (whole.before.get(path), whole.files.get(path)):
            return f"{path} is half written"
    if any(path not in found for path in there):
        return "a finished shard is lost"
    # A summary stands for all files of its run.
    summary = "train/summary.json"
    if summary in found:
        of = whole.files if found[summary] == whole.files[summary] else whole.before
        if any(found.get(path) != content for path, content in of.items()):
            return "a summary beside files of another run"
    return None


def _lab(folder: Path, rng: random.Random, score: Score) -> str | None:
    """A server killed at some instant leaves nothing, and its port is free again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    before = set(_everything(folder))
    for _ in range(rng.randint(*KILLS)):
        pid = _start(folder, (*SUBJECTS["lab"].args, str(port)))
        if rng.random() < 0.5:
            _ask(port, LIMIT_SECONDS)
        time.sleep(rng.uniform(0, 0.5))
        score.count["kills"] += _kill(pid) == -signal.SIGKILL
        if left := set(_everything(folder)) - before - {".err"}:
            return f"lab: left {sorted(left)}"
    pid = _start(folder, (*SUBJECTS["lab"].args, str(port)))
    try:
        return None if _ask(port, LIMIT_SECONDS) else "lab: does not answer after a kill"
    finally:
        _kill(pid)


def _everything(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


def _ask(port: int, seconds: float) -> bool:
    """Whether the lab gives its page."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as talk:
                talk.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n\r\n" % port)
                return b"200" in talk.recv(100)
        except OSError:
            time.sleep(0.02)
    return False


def run(cases: int, seed: int = 0, first: int = 0, only: str | None = None) -> Score:
    """So many cases, each with a kill or two."""
    os.environ["FLATMIN_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import flatmin.lab.serve  # noqa: F401

    for name in SUBJECTS if only is None else [only]:
        undisturbed(name)
    gc.freeze()
    score = Score()
    for number in range(first, first + cases):
        score.count["cases"] += 1
        if wrong := attack(number, seed, score, only):
            score.count[f"WRONG: {wrong}"[:100]] += 1
            score.failures.append(f"{number}: {wrong}")
    return score
