"""Options: every command with values of its own parser's options, good, odd and absurd."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from adversary.folders import truth
from adversary.grammar import numbered
from adversary.watchdog import Case, Watchdog, run_cases
from flatmin.data.regression import read_regression
from flatmin.theory.certificate import certify

EXAMPLE = Path(__file__).parents[2] / "examples" / "gaussian.csv"
TABLE = "t.csv"
ADDRESS = (
    "seed=0&problem.paper=linear&architecture.depth=2&initialisation.scale=0.4"
    "&method.learning_rate=0.05&method.steps=20"
)

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
    "activation": ["linear", "tanh", "relu", "gelu-tanh"],
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
    "x": ["scale", "depth"],
    "y": ["sharpness", "learned"],
    "by": ["depth", "dataset"],
    "preset": ["quick", "small-init"],
    "directory": ["study", "train"],
    "file": [TABLE],
    "replay": [ADDRESS, "#" + ADDRESS, ADDRESS + "&x=1"],
    "rtol": ["1e-6"],
    "order": ["1", "2"],
    "only": ["x"],
    "scheduler": ["tcp://127.0.0.1:1"],
    "host": ["127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "no-such-host.invalid"],
    "port": ["0", "70000", "65536", "1"],
    "threads": ["1", "2"],
}
# A good call of each command, and a short one; what is drawn comes after it and wins.
CALLS = {
    "predict": [(TABLE, "--target", "y", "--depth", "3", "--no-measure"),
                (TABLE, "--target", "y", "--depth", "2", "--effort", "0.01"),
                (TABLE, "--target", "y", "--depth", "2", "--measure", "--runs", "3",
                 "--steps", "200")],
    "train": [("--depth", "2", "--steps", "20", "--learning-rate", "0.01"),
              ("--depth", "2", "--steps", "20", "--flow"),
              ("--depth", "2", "--steps", "20", "--learning-rate", "0.01", "--activation", "relu",
               "--biases"),
              (TABLE, "--target", "y", "--depth", "2", "--steps", "20", "--learning-rate", "0.01"),
              (TABLE, "--target", "y", "--target", "x1", "--depth", "2", "--steps", "20",
               "--learning-rate", "0.01")],
    "atlas": [("--depth", "2", "--rates", "0.5,1.5", "--starts", "1", "--steps", "60",
               "--runs", "1")],
    "check": [("train",), ("study",)],
    "bench": [("no-such-case",)],
    "reproduce": [("no-such-figure",), ("2", "x"), ("1a", "--preset", "quick", "--out", "folder")],
    "lab": [("--replay", ADDRESS), ("--no-browser", "--port", "0"),
            (TABLE, "--target", "y", "--no-browser", "--port", "0")],
    "verify": [("proof.json",)],
    "study new": [("new.toml",)],
    "study check": [("spec.toml",)],
    "study run": [("spec.toml", "--out", "study"), ("spec.toml", "--out", "folder")],
    "study show": [("study",)],
    "study export": [("study", "table.csv"), ("study", "table.parquet")],
    "study plot": [("study", "--out", "f.svg")],
    "study verify": [("study",)],
}  # fmt: skip
OFTEN = ("predict", "predict", "train", "train", "train", "train", "atlas", "lab", "check")
NEVER = {"help", "no_browser", "workers", "beyond"}  # a browser, what stays, what takes minutes


@cache
def commands():
    """The parameters of every command, from the parser: {name: [parameter]}."""
    from typer import Context
    from typer.main import get_command

    from flatmin.cli import app

    found = {}
    for name, command in get_command(app).commands.items():
        for inner, one in getattr(command, "commands", {"": command}).items():
            found[f"{name} {inner}".strip()] = list(one.get_params(Context(one)))
    assert set(found) == set(CALLS), "a command that is not attacked"
    assert {"flow", "momentum", "central"} <= {one.name for one in found["train"]}
    return found


@cache
def files():
    """A table, a study and a run with their folders, and a certificate."""
    made = {name: content for name, content in truth().files.items() if content}
    proof = Path(tempfile.mkdtemp(prefix="adversary-")) / "proof.json"
    certify(read_regression(EXAMPLE, target="y"), 3).write(proof)
    content = proof.read_bytes()
    shutil.rmtree(proof.parent)
    return {TABLE: EXAMPLE.read_bytes(), "proof.json": content, **made}


@st.composite
def cases(draw):
    """A call of any command."""
    known = commands()
    name = draw(st.sampled_from([*OFTEN, *known]))
    call = draw(st.sampled_from(CALLS[name]))
    args = [*name.split(), *call]
    of_table = {one.name for one in known["lab"]} - {"out", "replay", "host", "port"}
    parameters = [
        one
        for one in known[name]
        if one.name not in NEVER and (one.name not in of_table or TABLE in call)
    ]
    for parameter in draw(st.lists(st.sampled_from(parameters), max_size=4)) if parameters else ():
        good = GOOD.get(parameter.name, ["x"])
        value = draw(st.sampled_from(good) if draw(st.integers(0, 2)) else words)
        if parameter.param_type_name == "argument":
            if draw(st.integers(0, 4)) == 0:
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
    codes = (0, 1, 2) if name.startswith(("study", "check")) else (0, 2)
    return Case(tuple(args), files(), env=env, codes=codes, prepare=pipes, child=no_service)


def no_service():
    """A lab that has started ends: nobody would ask it anything."""
    from flatmin.lab.serve import _Server

    _Server.run = lambda self, sockets: None


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
    ("atlas", *CALLS["atlas"][0]),
    ("lab", *CALLS["lab"][0]),
    ("check", "--preset", "small-init"),
    ("reproduce", *CALLS["reproduce"][-1]),
)


def run(count, seed=0, first=0):
    """Cases first .. first + count - 1 of a seed."""
    files()
    return run_cases(numbered(cases(), count, seed, first), Watchdog(WARM))
