"""The command under a watchdog: limits of time and memory, and one rule for every answer.

    exit 0 with a right answer, or exit 2 with one line on standard error;
    nothing of a library on the screen, no file half written.

A case runs in a fork of a process that has imported everything and compiled what it needs, which
takes milliseconds: its exit code, a signal that ended it, its output and the files that it leaves
are those of a process of its own. `run_alone` starts a real process instead, for surroundings that
a fork cannot have.
"""

from __future__ import annotations

import gc
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A hang uses the processor or waits for something; a busy machine is neither.
PROCESSOR_SECONDS, WALL_SECONDS = 30, 240
MEMORY = 2 << 30
# What a library or the interpreter prints of its own accord.
STRANGE = re.compile(r"Traceback|Warning\b|Exception ignored|Segmentation|core dumped|\x1b|Error:")
# What had been written before there was no more room stays.
UNWRITTEN = re.compile(r"flatmin: standard output cannot be written")
SHOWN = 400
PARTS = re.compile(r"\.part(\.\w+)?$")


@dataclass(frozen=True)
class Answer:
    """What came of a command: its exit code (minus the signal that ended it), output and files."""

    code: int
    out: bytes
    err: bytes
    seconds: float
    left: tuple[str, ...] = ()  # files in its folder that were not there before
    hung: bool = False

    def lines(self) -> list[str]:
        """Lines on standard error."""
        return self.err.decode("utf-8", "backslashreplace").splitlines()


@dataclass(frozen=True)
class Case:
    """One call of the command in a folder of its own.

    `files` are written first, then `prepare` is called with the folder. `codes` are the exit codes
    that are answers (1 where the command gives a verdict); `right` says what is wrong with an
    answer of exit code 0, or nothing, and `always` the same of any answer. `child` is called in the
    process before the command.
    """

    args: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[int, ...] = (0, 2)
    prepare: Callable[[Path], object] | None = None
    right: Callable[[Answer, Path], str | None] | None = None
    always: Callable[[Answer, Path], str | None] | None = None
    child: Callable[[], object] | None = None


@dataclass
class Score:
    """What came of many cases."""

    count: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def judged(self, place: object, case: Case, answer: Answer, wrong: str | None) -> None:
        """Count a case, and keep it if it failed."""
        self.count["cases"] += 1
        self.count[f"exit {answer.code}"] += 1
        if wrong is not None:
            self.count[f"WRONG: {wrong.splitlines()[0]}"[:100]] += 1
            shown = repr(case.args)
            shown += "" if not case.files else f" {dict(case.files)!r}"[:SHOWN]
            last = "\n    ".join(answer.lines()[-6:])
            self.failures.append(f"{place}: {wrong}: {shown}\n    {last}")


def rule(case: Case, answer: Answer, folder: Path) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    lines = answer.lines()
    if answer.hung:
        return "no answer"
    if answer.code < 0:
        return f"ended by signal {-answer.code}"
    if any(STRANGE.search(line) for line in lines if not line.startswith("flatmin: ")):
        return "a traceback or a warning"
    if answer.code not in case.codes:
        return f"exit code {answer.code}"
    if any(not line.startswith("flatmin: ") for line in lines):
        return "standard error that is not flatmin's own"
    if any(PARTS.search(name) for name in answer.left):
        return "a file half written"
    if answer.code == 2:
        if len(lines) != 1:
            return f"{len(lines)} lines on standard error"
        if answer.out and not UNWRITTEN.match(lines[0]):
            return "output besides a complaint"
        return None
    return case.right(answer, folder) if case.right is not None else None


class Watchdog:
    """Runs cases one after the other, each in a fork of this process.

    The process must have one thread; `warm` are calls made in it first, so that every fork finds
    modules imported and kernels compiled.
    """

    def __init__(
        self,
        warm: tuple[tuple[str, ...], ...] = (),
        seconds: float = PROCESSOR_SECONDS,
        memory: int = MEMORY,
    ) -> None:
        self.seconds, self.memory = seconds, memory
        os.environ.setdefault("FLATMIN_THREADS", "1")
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        with tempfile.TemporaryDirectory() as place:
            before = os.getcwd()
            try:
                os.chdir(place)
                for args in warm:
                    code = _silently(args)
                    assert code in (0, 1), f"{args} should run, and ended with {code}"
            finally:
                os.chdir(before)
        gc.freeze()

    def run(self, case: Case) -> tuple[Answer, str | None]:
        """The answer to a case, and what is wrong with it."""
        folder = Path(tempfile.mkdtemp(prefix="adversary-"))
        inside = folder / "inside"
        try:
            _lay_out(case, inside)
            before = set(_names(inside))
            answer = self._forked(case, folder, inside)
            left = tuple(name for name in _names(inside) if name not in before)
            answer = Answer(answer.code, answer.out, answer.err, answer.seconds, left, answer.hung)
            wrong = None if case.always is None else case.always(answer, inside)
            return answer, wrong or rule(case, answer, inside)
        finally:
            _unlock(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def _forked(self, case: Case, folder: Path, inside: Path) -> Answer:
        (folder / "in").write_bytes(case.stdin)
        pid = os.fork()
        if pid == 0:
            _child(case, folder, inside, self.seconds, self.memory)
        handle = os.pidfd_open(pid)
        hung = not select.select([handle], [], [], WALL_SECONDS)[0]
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        os.close(handle)
        code = os.waitstatus_to_exitcode(status)
        out, err = (folder / "out").read_bytes(), (folder / "err").read_bytes()
        hung |= code == -signal.SIGXCPU
        return Answer(code, out, err, used.ru_utime + used.ru_stime, hung=hung)


def _lay_out(case: Case, folder: Path) -> None:
    folder.mkdir()
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if case.prepare is not None:
        case.prepare(folder)


def _names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))]


def _unlock(folder: Path) -> None:
    """Folders that a case made unreadable can be removed again."""
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(path, 0o700)


def _silently(args: tuple[str, ...]) -> int:
    """The exit code of the command, called here, without its output."""
    kept = sys.argv, sys.stdout
    with open(os.devnull, "w") as nowhere:
        sys.argv, sys.stdout = ["flatmin", *args], nowhere
        try:
            return _main()
        finally:
            sys.argv, sys.stdout = kept


def _main() -> int:
    from flatmin.cli import main

    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _child(case: Case, folder: Path, inside: Path, seconds: float, memory: int) -> None:
    """The command as a process would run it; does not return."""
    code = 70
    try:
        os.setsid()
        os.chdir(inside)
        for number, (name, how) in enumerate((("in", "rb"), ("out", "wb"), ("err", "wb"))):
            with open(folder / name, how) as file:
                os.dup2(file.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, how, errors=errors, closefd=False)
            for number, how, errors in (
                (0, "r", None),
                (1, "w", None),
                (2, "w", "backslashreplace"),
            )
        )
        os.environ.update(case.env)
        tempfile.tempdir = str(folder)  # removed with it
        sys.argv = ["flatmin", *case.args]
        _show_warnings()
        if case.child is not None:
            case.child()
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        space = address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        try:
            code = _main()
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 1
        try:
            sys.stdout.flush()
        except OSError as error:
            print(f"Exception ignored: {error}", file=sys.stderr)
            code = 120
        sys.stderr.flush()
    finally:
        os._exit(code)


def _show_warnings() -> None:
    """What Python shows by itself is shown: the command keeps it from people, not from here."""
    sys.warnoptions[:] = ["default"]
    warnings.resetwarnings()
    warnings.simplefilter("default")
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)


def address_space() -> int:
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def run_alone(case: Case, wrap: tuple[str, ...] = (), **options: object) -> Answer:
    """The answer of a process of its own, `wrap` before the command, `options` for Popen."""
    with tempfile.TemporaryDirectory(prefix="adversary-") as place:
        folder = Path(place) / "inside"
        _lay_out(case, folder)
        before = set(_names(folder))
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **case.env}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        # -P: like the installed command, which takes no module of its folder.
        code = ("-P", "-c", "from flatmin.cli import main; main()")
        start = (*wrap, sys.executable, *code, *case.args)
        with subprocess.Popen(
            start,
            cwd=folder,
            env=environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            **pipes,
        ) as process:  # type: ignore[call-overload]
            hung = False
            try:
                out, err = process.communicate(case.stdin, timeout=WALL_SECONDS)
            except subprocess.TimeoutExpired:
                hung = True
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            if hung:
                out, err = process.communicate()
        left = tuple(name for name in _names(folder) if name not in before)
        return Answer(process.returncode, out or b"", err or b"", 0.0, left, hung)


def run_cases(cases, watchdog: Watchdog) -> Score:
    """The score of (number, case) pairs."""
    score = Score()
    for number, case in cases:
        answer, wrong = watchdog.run(case)
        score.judged(number, case, answer, wrong)
    return score
