"""Options: every command with values of its own parser's options, good, odd and absurd."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from adversary.grammar import numbered
from adversary.watchdog import Case, Watchdog, run_cases

EXAMPLE = Path(__file__).parents[2] / "examples" / "gaussian.csv"
TABLE = "t.csv"
FILES = {TABLE: EXAMPLE.read_bytes()}

# What no option should stumble over. Huge numbers are refused, or end by themselves.
WORDS = [
    *("", " ", "\u00b2", "\u0663", "\uff13", "+-3", "--3", "-3", "0", "-0", "+3", "3.0", "3.5"),
    *("1e3", "9" * 52, "1" * 5000, "nan", "inf", "-inf", "1e308", "1e309", "1e-308", "1e-320"),
    *("-1e308", "1e9", "1e12", "1e15", "1e18", "1e30", "1e150", "1e-150", "0x10", "1_0", "1,0"),
    *("3,", ",", "1:", "a", "y", "[/red]", "[bold]", "\x1b[31m", "\udcff", "\n", "\t", "a\nb"),
    *("'", '"', "%s", "{}", "None", "true", "critical", "2critical", "-1critical", "criticalx"),
    *("1e308critical", "x" * 3000, "é", "日本", "\u202e", "-", "--", ".", "~", "$HOME", "a b"),
    *("\U0001f600", "no/such/folder/f.png", "t.csv", "f.png", "f.svg", "folder", "fifo.csv"),
    *("fifo.png", "3:1:5", "1:2:3:4", "0:1:1e9", "1:inf:3", "a:b:c", "-1:1:3", "1:1:1", "2,2"),
    *("2,x", "1e6,2"),
]
# No path leads out of the folder of the case: what it names would be written to.
inside = st.text(max_size=6).filter(lambda text: not set(text) & set("\0/"))
words = st.sampled_from(WORDS) | inside
GOOD = {
    "depth": ["1", "2", "5", "40", "1000"],
    "depths": ["1", "2,3", "1,2,5,10"],
    "width": ["1", "2", "5", "12"],
    "runs": ["1", "2", "10"],
    "starts": ["1", "2"],
    "steps": ["1", "10", "100"],
    "record_every": ["1", "7", "1000"],
    "scale": ["0.1", "1", "2"],
    "seed": ["0", "1"],
    "init": [
        *("pytorch", "gaussian", "residual", "zero-layer", "balanced", "flattest", "minimiser"),
        *("xavier-normal", "xavier-uniform", "kaiming-normal", "kaiming-uniform", "lecun"),
        "orthogonal",
    ],
    "activation": ["linear", "tanh"],
    "learning_rate": ["0.01", "critical", "0.5critical", "1.1critical"],
    "momentum": ["0", "0.5", "0.9"],
    "target": ["y"],
    "features": ["x1", "x1,x2", "x3"],
    "drop": ["x1"],
    "one_hot": ["x1"],
    "missing": ["drop", "mean"],
    "share": ["0.5", "0.95"],
    "learned_at": ["0.001", "0.5"],
    "effort": ["0.01"],
    "output_norm": ["1", "0.5", "3"],
    "rates": ["0.5,1.5", "0.9:2:5"],
    "out": ["folder", "f.png"],
    "figure": ["f.png"],
    "certificate": ["c.json"],
    "x": ["scale"],
    "preset": ["quick"],
    "threads": ["1", "2"],
}
# What keeps a call short: options it begins with, and options whose good values take long.
SHORT = {
    "predict": (TABLE, "--target", "y", "--no-measure"),
    "train": ("--depth", "2", "--steps", "20", "--learning-rate", "0.01"),
    "atlas": (
        *("--depth", "2", "--rates", "0.5,1.5", "--starts", "1", "--steps", "60"),
        *("--runs", "1"),
    ),
    "check": ("--preset", "x"),
    "bench": ("no-such-case",),
    "reproduce": ("no-such-figure",),
    "lab": ("--replay", "#x"),
    "verify": (),
    "study new": (),
    "study check": (),
    "study run": ("no.toml", "--out", "folder"),
    "study show": (),
    "study export": (),
    "study plot": (),
    "study verify": (),
}
OFTEN = ("predict", "predict", "train", "train", "train", "atlas")
NEVER = {"help", "no_browser", "host", "port"}


@cache
def commands():
    """The parameters of every command, from the parser: {name: [parameter]}."""
    from typer.main import get_command

    from flatmin.cli import app

    found = {}
    for name, command in get_command(app).commands.items():
        for inner, one in getattr(command, "commands", {"": command}).items():
            found[f"{name} {inner}".strip()] = list(one.params)
    assert set(found) == set(SHORT), "a command that is not attacked"
    return found


@st.composite
def cases(draw):
    """A call of any command."""
    known = commands()
    name = draw(st.sampled_from([*OFTEN, *known]))
    args = [*name.split(), *SHORT[name]]
    parameters = [one for one in known[name] if one.name not in NEVER]
    for parameter in draw(st.lists(st.sampled_from(parameters), max_size=4)):
        good = GOOD.get(parameter.name, ["x"])
        value = draw(st.sampled_from(good) if draw(st.integers(0, 2)) else words)
        if parameter.param_type_name == "argument":
            args += [value] if not value.startswith("-") else ["--", value]
        elif parameter.is_flag:
            args.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
        elif draw(st.booleans()):
            args.append(f"{parameter.opts[0]}={value}")
        else:
            args += [parameter.opts[0], value]
    if draw(st.integers(0, 29)) == 0:
        args.insert(draw(st.integers(0, len(args))), draw(words))
    env = {}
    if draw(st.integers(0, 19)) == 0:
        env["FLATMIN_THREADS"] = draw(words.filter(lambda text: "\udcff" not in text))
    codes = (0, 1, 2) if name.startswith("study") else (0, 2)
    return Case(tuple(args), FILES, env=env, codes=codes, prepare=pipes)


def pipes(folder):
    """Names at which nobody ever writes or reads."""
    for name in ("fifo.csv", "fifo.png"):
        os.mkfifo(folder / name)


WARM = (
    ("predict", str(EXAMPLE), "--target", "y", "--depth", "2", "--effort", "0.01"),
    ("predict", str(EXAMPLE), "--target", "y", "--depth", "2", "--no-measure", "--figure", "f.png"),
    ("train", "--depth", "2", "--steps", "20", "--learning-rate", "0.01", "--out", "run"),
    ("train", "--depth", "2", "--steps", "20", "--learning-rate", "0.01", "--momentum", "0.5"),
    ("train", "--depth", "2", "--steps", "20", "--flow"),
    ("train", "--depth", "2", "--steps", "20", "--learning-rate", "0.01", "--activation", "tanh"),
    ("atlas", *SHORT["atlas"]),
)


def run(count, seed=0, first=0):
    """Cases first .. first + count - 1 of a seed."""
    return run_cases(numbered(cases(), count, seed, first), Watchdog(WARM))
