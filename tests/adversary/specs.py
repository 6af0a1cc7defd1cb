"""Specs of studies, from good ones by mutation: odd values, types, names, sizes, syntax.

exit 0, or exit 2 with one line; nothing of a library on the screen, and no memory taken that
is not there. (`study run` may end with exit code 1: shards that failed, each with its line.)
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st

from adversary.grammar import numbered
from adversary.watchdog import Answer, Case, Score, Watchdog

Spec = dict[str, Any]

GOOD: tuple[Spec, ...] = (
    {
        "seed": 1,
        "repetitions": 2,
        "problem": {"generator": "gaussian", "n": 12, "d": 3, "noise": 1.0},
        "architecture": {"depth": 2},
        "method": {"steps": 20, "learning_rate": 0.05},
        "grid": {"scale": [0.3, 0.6]},
    },
    {
        "name": "flow",
        "problem": {"generator": "whitened", "n": 12, "d": 2},
        "architecture": {},
        "initialisation": {"name": "zero-layer", "scale": 0.5},
        "method": {"name": "flow", "steps": 40},
        "grid": {"depth": [2, 3]},
        "record": {"every": 10, "quantities": ["excess_risk", "sharpness"]},
    },
    {
        "problem": {"file": "table.csv", "target": "y"},
        "architecture": {"depth": 2, "activation": "tanh", "width": 3},
        "initialisation": {"scale": 0.4},
        "method": {"name": "heavy-ball", "momentum": 0.5},
        "grid": {"zip": [{"learning_rate": [0.01, 0.02], "steps": [10, 20]}]},
    },
    {
        "problem": {"generator": "spectrum", "n": 12, "d": 3, "condition_number": 10.0},
        "datasets": 2,
        "architecture": {"depth": 3},
        "initialisation": {"name": "minimiser", "scale": 9.0},
        "method": {"steps": 10, "learning_rate_unit": "critical"},
        "grid": {"learning_rate": {"linspace": [0.1, 0.9, 3]}},
    },
    {
        "problem": {"paper": "linear"},
        "architecture": {"kind": "residual", "depth": 3},
        "initialisation": {"name": "residual"},
        "method": {"steps": 10, "learning_rate": 0.01},
        "grid": {"scale": {"logspace": [-2, 0, 3]}},
    },
)
TABLE = b"a,b,y\n" + b"".join(
    b"%d,%d,%d\n" % (i * i % 7, i % 5, (3 * i * i + i) % 11) for i in range(14)
)
NUMBERS = [
    0, 1, -1, 2, 3, 0.5, 1e-308, 5e-324, 1e-160, 1e-12, 1e12, 1e150, 1e200, 1e308, 1e6, 1e9, 10**9,
    10**18, 2**63, 10**30, 10**400, float("inf"), float("-inf"), float("nan"), -0.0, 1.5, 1000,
]  # fmt: skip
TEXTS = [
    "", " ", "[/red]", "[bold]x[/bold]", "x" * 300, "\x1b[31m", "\x00", "a\nb", "é", "日本",
    "\ud800", "../x", "/dev/zero", "/dev/null", "/", ".", "table.csv", "missing.csv", "y", "a",
    "nan", "²", "1", "flow", "descent", "nesterov", "central-flow", "residual", "flattest",
    "minimiser", "balanced", "orthogonal", "pytorch", "gelu-tanh", "relu", "linear", "sharpness",
    "distance", "alignment", "critical", "fifo", ":memory:", "%s%n", "{0}", "\u202e",
]  # fmt: skip
KEYS = [
    "name", "seed", "repetitions", "datasets", "problem", "architecture", "initialisation",
    "method", "grid", "record", "n", "d", "noise", "condition_number", "alignment", "file",
    "target", "features", "drop", "missing", "intercept", "standardise", "one_hot", "generator",
    "paper", "kind", "depth", "width", "activation", "biases", "output", "scale", "learning_rate",
    "learning_rate_unit", "steps", "tolerance", "learned_at", "momentum", "rtol", "every",
    "quantities", "layers", "zip", "linspace", "logspace", "values", "sead", "[/red]", "x" * 300,
]  # fmt: skip
# Keys whose values are odd more often than their tables are.
FITTING = {
    "problem": {"n": [1, 2, 3, 30, 10**9], "d": [1, 2, 12, 13, 40, 10**6], "noise": NUMBERS,
                "condition_number": NUMBERS, "alignment": ["weak", "strong"], "seed": NUMBERS},
    "architecture": {"depth": [1, 2, 50, 1000, 10**6], "width": [1, 2, 100, 1000, 10**6, 10**9],
                     "activation": ["relu", "gelu-tanh", "gelu-erf", "softplus", "linear"],
                     "biases": [True, False], "kind": ["mlp", "residual"]},
    "initialisation": {"scale": NUMBERS, "name": TEXTS},
    "method": {"learning_rate": NUMBERS, "steps": [1, 2, 1000, 10**6, 10**12], "name": TEXTS,
               "tolerance": NUMBERS, "learned_at": NUMBERS, "momentum": [0, 0.9, 1, 1e-300],
               "rtol": NUMBERS, "learning_rate_unit": ["critical", "absolute"]},
    "record": {"every": [1, 7, 10**9], "quantities": [["sharpness"], ["alignment", "gradient"]]},
}  # fmt: skip

numbers = st.sampled_from(NUMBERS)
leaves = st.one_of(numbers, st.sampled_from(TEXTS), st.booleans())
axes = st.one_of(
    st.lists(numbers, max_size=4),
    st.builds(
        lambda kind, low, high, count: {kind: [low, high, count]},
        st.sampled_from(["linspace", "logspace"]),
        numbers,
        numbers,
        st.sampled_from([0, 1, 2, 3, 50, 10**6, 10**7, -1, 2.5]),
    ),
)
values = st.one_of(
    leaves,
    leaves,
    axes,
    st.lists(leaves, max_size=3),
    st.dictionaries(st.sampled_from(KEYS), leaves, max_size=2),
    st.just([{}]),
    st.lists(st.dictionaries(st.sampled_from(KEYS), axes, max_size=3), max_size=3),
)
mutation = st.tuples(
    st.sampled_from(["fit"] * 7 + ["axis", "axis", "set", "odd", "drop", "new"]),
    st.integers(0, 999), st.sampled_from(KEYS), values, numbers, axes,
)  # fmt: skip
mutations = st.sampled_from([1, 1, 1, 2, 3]).flatmap(
    lambda count: st.lists(mutation, min_size=count, max_size=count)
)


def mutated(spec: Spec, changes: list[tuple[str, int, str, Any, Any, Any]]) -> Spec:
    """A spec with some of its values changed, some keys gone and others there."""
    made: Spec = json.loads(json.dumps(spec))
    for kind, place, key, value, number, axis in changes:
        tables = [made, *(one for one in made.values() if isinstance(one, dict))]
        table = tables[place % len(tables)]
        names = sorted(table)
        if kind == "fit":
            section = sorted(FITTING)[place % len(FITTING)]
            options = FITTING[section]
            name = sorted(options)[place % len(options)]
            inner = made.setdefault(section, {})
            if isinstance(inner, dict):
                inner[name] = options[name][place % len(options[name])]
        elif kind == "axis" and isinstance(made.get("grid"), dict):
            name = ("scale", "learning_rate", "depth", "width", "steps")[place % 5]
            made["grid"][name] = axis
        elif kind == "new" or not names:
            table[key] = value
        elif kind == "drop":
            table.pop(names[place % len(names)])
        else:
            table[names[place % len(names)]] = number if kind == "odd" else value
    return made


def text(value: Any) -> str:
    """TOML, by hand, so that what is odd stays odd."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    return repr(value)


def _key(key: str) -> str:
    return key if key.isidentifier() else json.dumps(key)


def lines(spec: Spec) -> str:
    return "".join(f"{_key(key)} = {text(value)}\n" for key, value in spec.items())


SYNTAX = [
    b"\xff\xfe", b"\x00", b"[grid]\n[grid]\n", b"seed = 1\nseed = 2\n", b"x = " + b"[" * 3000,
    b"x = " + b"[" * 3000 + b"]" * 3000, b"a." * 3000 + b"b = 1\n", b"seed = 1e\n", b"= 3\n",
    b"\xef\xbb\xbf", b"x = 1979-05-27T07:32:00Z\n", b"name = '''\n", b"#" * 100_000 + b"\n",
    b"seed = " + b"9" * 5000 + b"\n", b"[[grid.zip]]\n", b"[[grid.zip]]\n[[grid.zip]]\n",
    b"grid.scale = 3\n", b"problem = 1\n", b"name = \"\\ud800\"\n",
]  # fmt: skip
COMMANDS = {
    "run": ("study", "run", "spec.toml", "--out", "out"),
    "run in an odd folder": ("study", "run", "spec.toml", "--out", "[/red] \x1b[1m"),
    "check": ("study", "check", "spec.toml", "--threads", "1"),
}


def cases() -> st.SearchStrategy[Case]:
    spec = st.builds(mutated, st.sampled_from(GOOD), mutations)
    plain = spec.map(lambda one: lines(one).encode("utf-8", "surrogatepass"))
    odd = st.sampled_from(SYNTAX)
    wrong = st.builds(lambda one, more, first: more + one if first else one + more,
                      plain, odd, st.booleans())  # fmt: skip
    content = st.sampled_from([plain] * 19 + [wrong]).flatmap(lambda kind: kind)
    return st.builds(case, content, st.sampled_from(list(COMMANDS)))


def case(content: bytes, command: str) -> Case:
    return Case(
        COMMANDS[command],
        {"spec.toml": content, "table.csv": TABLE},
        right=_right if command != "check" else None,
    )


def _right(answer: Answer, folder: Any) -> str | None:
    return None if b"Runs finished" in answer.out else "no summary"


def run(cases_: int, seed: int = 0, first: int = 0) -> Score:
    """So many specs, and what came of them."""
    dog, score = watchdog(), Score()
    for number, made in numbered(cases(), cases_, seed, first):
        answer, wrong = dog.run(made)
        if answer.hung and (said := _said_to_take(made, dog)):
            score.count[said] += 1
            wrong = None
        score.judged(number, made, answer, wrong)
    return score


def _said_to_take(made: Case, dog: Watchdog) -> str | None:
    """A study that asks for hours is no hang if `study check` says so."""
    answer, _ = dog.run(replace(made, args=(*COMMANDS["check"], "--json"), right=None))
    if answer.code or json.loads(answer.out)["seconds"] < 0.2 * dog.seconds:
        return None
    return "takes long, as study check says"


def watchdog() -> Watchdog:
    """With every good spec run once."""
    import os
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "table.csv").write_bytes(TABLE)
        for number, spec in enumerate(GOOD):
            (folder / f"{number}.toml").write_text(lines(spec))
        before = os.getcwd()
        warm = [
            args
            for number in range(len(GOOD))
            for args in (
                ("study", "check", str(folder / f"{number}.toml"), "--threads", "1"),
                ("study", "run", str(folder / f"{number}.toml"), "--out", f"out-{number}"),
            )
        ]
        made = Watchdog(tuple(warm))
        os.chdir(before)
    return made
