"""What a command may find around it: streams, folders, limits, variables; in real processes.

A case is a command in one to three surroundings. The rule is that of every case; where the streams
are gone or full, only that no traceback and no signal ends it.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import hypothesis.strategies as st

from adversary.folders import STUDY, TRAIN, truth
from adversary.grammar import numbered
from adversary.options import EXAMPLE, TABLE
from adversary.watchdog import Answer, Case, Score, rule, run_alone

COMMANDS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", TABLE, "--target", "y", "--depth", "2", "--effort", "0.01"),
    "figure": ("predict", TABLE, "--target", "y", "--depth", "2", "--no-measure",
               "--figure", "f.png"),
    "standard input": ("predict", "-", "--target", "y", "--depth", "2", "--no-measure"),
    "train": TRAIN,
    "study": STUDY,
    "show": ("study", "show", "study"),
    "check": ("check", "train"),
    "help": ("train", "--help"),
    "nothing": (),
}  # fmt: skip
VARIABLES: list[dict[str, str]] = [
    *({name: value} for name in ("LC_ALL", "LANG") for value in ("C", "xx_YY", "tr_TR.UTF-8", "²")),
    *({"PYTHONIOENCODING": value} for value in ("ascii", "utf-16", "latin-1:strict", "cp437")),
    {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
    *({"TZ": value} for value in ("Nowhere/No", ":/etc/passwd", "²", "UTC+99")),
    *({"HOME": value} for value in ("", "/nowhere", "/dev/null", "/proc/1")),
    *({"XDG_CACHE_HOME": value} for value in ("/dev/null", "relative", "/proc/1/x", "")),
    *({"NUMBA_CACHE_DIR": value} for value in ("/dev/null/x", "/proc/x", "")),
    *({"MPLCONFIGDIR": value} for value in ("/dev/null", "/nowhere/x", "")),
    *({"TMPDIR": value} for value in ("/nowhere", "/dev/null", "")),
    *({"COLUMNS": value} for value in ("0", "1", "2", "-5", "9999999", "x", "²", "")),
    *({"TERM": value} for value in ("", "dumb", "xterm-kitty", "²", "x" * 999)),
    {"NO_COLOR": "1"},
    {"FORCE_COLOR": "1"},
    *({"FLATMIN_THREADS": value} for value in ("0", "²", "1e9", "-1", "", "3")),
    *({"OMP_NUM_THREADS": value} for value in ("x", "0")),
    *({"OPENBLAS_NUM_THREADS": value} for value in ("x", "0")),
    *({"NUMBA_NUM_THREADS": value} for value in ("x", "0", "99999")),
    {"NUMBA_DISABLE_JIT": "1"},
    {"MPLBACKEND": "²"},
    *({"MATPLOTLIBRC": value} for value in ("/dev/zero", "/dev/null", "/nowhere", "²", "")),
    {"PYTHONHASHSEED": "1"},
    {"PAGER": "/nowhere", "BROWSER": "/nowhere"},
]  # fmt: skip
# What a shell does first.
WRAPS = {
    "no wrap": 'exec "$@"',
    "no input": 'exec "$@" <&-',
    "no output": 'exec "$@" >&-',
    "no complaints": 'exec "$@" 2>&-',
    "no streams": 'exec "$@" <&- >&- 2>&-',
    "a full disk for output": 'exec "$@" >/dev/full',
    "a full disk for complaints": 'exec "$@" 2>/dev/full',
    "a full disk for both": 'exec "$@" >/dev/full 2>&1',
    "a reader that goes": '"$@" | head -c 1 >/dev/null; exit "${PIPESTATUS[0]}"',
    "a reader that has gone": '"$@" | exec true; exit "${PIPESTATUS[0]}"',
    "zeros for input": 'exec "$@" </dev/zero',
    "a folder that is gone": 'mkdir gone; cd gone; rmdir ../gone; exec "$@"',
    "a folder that is deep": (
        "name=$(printf x%.0s $(seq 200)); for i in $(seq 18); do mkdir $name; cd $name; done; "
        'exec "$@"'
    ),
    # Who may read everything: the interpreter may lie where nobody else looks.
    "a folder of somebody else": (
        "exec setpriv --reuid 65534 --clear-groups --inh-caps +dac_read_search "
        '--ambient-caps +dac_read_search "$@"'
    ),
    "settings that are a pipe": 'mkfifo matplotlibrc; exec "$@"',
    "settings of the compiler": 'echo "disable_jit: 1" >.numba_config.yaml; exec "$@"',
    "settings that are none": 'echo "[:" >.numba_config.yaml; exec "$@"',
    "a folder of traps": (
        "for name in numpy numba typing logging pickle multiprocessing subprocess yaml; "
        """do echo 'open("sprung", "w")' >$name.py; done; """
        '"$@"; code=$?; [ ! -e sprung ] || exit 99; exit $code'
    ),
    "few file handles": 'ulimit -n 20; exec "$@"',
    "more file handles": 'ulimit -n 64; exec "$@"',
    "small files": 'ulimit -f 1; exec "$@"',
    "a small stack": 'ulimit -s 512; exec "$@"',
    "little memory": 'ulimit -v 900000; exec "$@"',
    "signals that are ignored": 'trap "" INT PIPE CHLD TERM; exec "$@"',
}
DEAF = {name for name, text in WRAPS.items() if "2>" in text}  # where nobody hears a complaint


class Attack(NamedTuple):
    """A command, what its shell does first, and variables."""

    command: str
    wrap: str
    variables: tuple[dict[str, str], ...]


def attacks() -> st.SearchStrategy[Attack]:
    return st.builds(
        Attack,
        st.sampled_from(list(COMMANDS)),
        st.sampled_from([*WRAPS, *["no wrap"] * 15]),
        st.lists(st.sampled_from(VARIABLES), max_size=2).map(tuple),
    )


def case(attack: Attack) -> Case:
    """The command, its files, and the variables."""
    variables: dict[str, str] = {}
    for some in attack.variables:
        variables |= some
    there = dict(truth().files)
    if attack.command in ("train", "study"):
        there = {"spec.toml": there["spec.toml"]}
    there[TABLE] = EXAMPLE.read_bytes()
    codes = (0, 1, 2) if attack.command in ("check", "nothing") else (0, 2)
    stdin = there[TABLE] if attack.command == "standard input" else b""
    return Case(COMMANDS[attack.command], there, stdin=stdin, env=variables, codes=codes)


def run_one(attack: Attack) -> tuple[Answer, str | None]:
    """The answer in such surroundings, and what is wrong with it."""
    made = case(attack)
    variables = (f"{name}={value}" for name, value in made.env.items())
    wrap = ("bash", "-c", WRAPS[attack.wrap], "bash", "env", *variables)
    answer = run_alone(replace(made, env={}), wrap, preexec_fn=_no_core)
    heard = answer
    if answer.code == 2 and not answer.err and (attack.wrap in DEAF or attack.command == "nothing"):
        heard = replace(answer, err=b"flatmin: -\n", out=b"")
    if made.env.get("PYTHONIOENCODING") == "utf-16":
        heard = replace(heard, err=heard.err.replace(b"\xff\xfe", b"").replace(b"\0", b""))
    return answer, rule(made, heard, Path())


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(cases: int, seed: int = 0, first: int = 0) -> Score:
    """So many surroundings, and what came of them."""
    truth()
    score = Score()
    for number, attack in numbered(attacks(), cases, seed, first):
        answer, wrong = run_one(attack)
        score.judged(f"{number} {attack}", Case(COMMANDS[attack.command]), answer, wrong)
    return score
