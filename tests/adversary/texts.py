"""Texts that come from elsewhere: certificates for `verify`, addresses for `lab --replay`.

A certificate is proved (exit 0), proves nothing (exit 1) or is refused in one line (exit 2). One
that is proved is true: S_min = min over t of 2 lambda_max(t FF' + (L-1) (|p|^2/t)^{1/(L-1)} H'H) is
found again by SciPy, and lies between its ends.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
from scipy.optimize import minimize_scalar

from adversary.grammar import numbered
from adversary.options import ADDRESS, WORDS
from adversary.watchdog import Answer, Case, Score, Watchdog, run_cases
from flatmin.data.generators import gaussian_samples
from flatmin.theory.certificate import FORMAT, certify

NUMBERS = [
    0, 1, -1, 2, 0.5, 1e-320, 1e-308, 1e-160, 1e-12, 1e12, 1e160, 1e308, math.inf, -math.inf,
    math.nan, 2**63, 10**400, -(10**400), True, None, "x", "1", [], {}, [1.0], [[1.0]], [[]],
]  # fmt: skip
SCRAPS = ["", "[" * 100_000, "]", "}", ",", '"', "\x00", "\udcff", "9" * 5000, "NaN", "1e999", "\\"]


def _good() -> list[dict[str, Any]]:
    made = []
    for d, targets, depth in ((1, 1, 1), (3, 1, 2), (4, 1, 10), (3, 2, 3), (5, 1, 1)):
        data = gaussian_samples(n=20, d=d, seed=d, targets=targets).regression()
        made.append({"format": FORMAT} | certify(data, depth).as_dict())
    return [json.loads(json.dumps(one, default=np.ndarray.tolist)) for one in made]


@st.composite
def certificates(draw: st.DrawFn, good: list[dict[str, Any]]) -> Case:
    """A good certificate with up to three changes."""
    content = json.loads(json.dumps(draw(st.sampled_from(good))))
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from(sorted(content)))
        how = draw(st.sampled_from(["near", "near", "near", "odd", "entry", "entry", "no"]))
        if how == "no":
            content.pop(key)
            break
        if how == "odd":
            content[key] = draw(st.sampled_from(NUMBERS))
        elif isinstance(content[key], list):
            _change(draw, content, key, how)
        elif isinstance(content[key], float | int) and not isinstance(content[key], bool):
            content[key] = _near(draw, content[key])
    text = json.dumps(content)
    if draw(st.integers(0, 7)) == 0:
        place = draw(st.integers(0, len(text)))
        end = place if draw(st.booleans()) else len(text)
        text = text[:place] + draw(st.sampled_from(SCRAPS)) + text[end:]
    return Case(
        ("verify", "c.json"), {"c.json": text.encode("utf-8", "surrogateescape")}, codes=(0, 1, 2),
        right=_true,
    )  # fmt: skip


def _near(draw: st.DrawFn, value: Any) -> Any:
    """A number beside this one, by a bit or by much; whole ones stay whole."""
    if isinstance(value, int):
        return value + draw(st.sampled_from([-1, 1, 2, 10**6]))
    factor = draw(st.sampled_from([1 + 1e-15, 1 - 1e-15, 1 + 1e-9, 1 - 1e-6, 0.5, 2.0, -1.0]))
    return value * factor


def _change(draw: st.DrawFn, content: dict[str, Any], key: str, how: str) -> None:
    row = content[key]
    while row and isinstance(row[0], list):
        row = draw(st.sampled_from(row))
    if not row:
        return
    place = draw(st.integers(0, len(row) - 1))
    if how == "entry":
        row[place] = draw(st.sampled_from(NUMBERS))
    elif isinstance(row[place], float):
        row[place] = _near(draw, row[place])


def _true(answer: Answer, folder: Path) -> str | None:
    if answer.code == 1:
        return None if answer.out.startswith(b"not proved") else "no verdict"
    content = json.loads((folder / "c.json").read_text())
    factor, product = (np.atleast_2d(content[name]).astype(float) for name in ("factor", "product"))
    depth, p = content["depth"], float(content["output_norm"])
    gram, seen = factor @ factor.T, product @ factor.T

    def above(log_t: float) -> float:
        t = math.exp(log_t)
        if depth == 1:
            return float(2 * p * p * np.linalg.eigvalsh(gram)[-1])
        share = (depth - 1) * math.exp((2 * math.log(p) - log_t) / (depth - 1))
        return float(2 * np.linalg.eigvalsh(t * gram + share * seen.T @ seen)[-1])

    at = math.log(content["t"])
    found = minimize_scalar(above, bounds=(at - 20, at + 20), method="bounded",
                            options={"xatol": 1e-9})  # fmt: skip
    room = 1e-8 * found.fun
    if not content["lower"] - room <= found.fun <= content["upper"] + room:
        return f"proved, and S_min is {found.fun!r}"
    return None


KEYS = [
    *("seed", "problem.paper", "problem.generator", "problem.n", "problem.d", "problem.noise"),
    *("problem.targets", "problem.file", "problem.target", "problem.seed", "architecture.depth"),
    *("architecture.width", "architecture.kind", "architecture.activation", "architecture.biases"),
    *("initialisation.name", "initialisation.scale", "method.name", "method.learning_rate"),
    *("method.steps", "method.momentum", "method.tolerance", "method.learned_at", "repetitions"),
    *("changes", "datasets", "grid.scale", "b", "view", "b.x", "x", "", ".", "problem", "method."),
]
VALUES = [
    *("linear", "gaussian", "whitened", "spectrum", "2", "3", "10", "0.5", "1.5"),
    *("descent", "flow", "heavy-ball", "nesterov", "relu", "gelu-tanh", "true", "residual"),
    *("minimiser", "flattest"),
    *("[[5,0.02]]", "[[5,0.02],[10,0.001]]", "[[10,1e300]]", "[[0,1]]", "[]", "{}", '{"a":1}'),
    *("null", "%", "%zz", "%00", "%ff", "%5B%2Fred%5D", "a=b", "0.05critical", '"x"'),
    *("[" * 9999,),
]  # fmt: skip


@st.composite
def addresses(draw: st.DrawFn) -> Case:
    """A good address with some pairs changed, some gone and others there."""
    pairs = [pair.split("=", 1) for pair in ADDRESS.split("&")]
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(KEYS))
        value = draw(st.sampled_from(VALUES * 3 + WORDS))
        pairs = [pair for pair in pairs if pair[0] != key]
        if draw(st.integers(0, 9)):
            pairs.append([key, value])
    text = draw(st.sampled_from(["", "#", "http://127.0.0.1:8765/#"])) + "&".join(
        "=".join(pair) for pair in pairs
    )
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.sampled_from(["&", "=", "%", "#", "&&", "\n"])) + text[place:]
    out = ("--out", "records.csv") if draw(st.booleans()) else ()
    return Case(("lab", f"--replay={text}", *out), right=_records)


def _records(answer: Answer, folder: Path) -> str | None:
    place = folder / "records.csv"
    text = place.read_text() if place.exists() else answer.out.decode()
    lines = text.splitlines()
    wide = {len(line.split(",")) for line in lines}
    return None if len(lines) > 1 and len(wide) == 1 else "no records"


def run(cases: int, seed: int = 0, first: int = 0) -> Score:
    """So many texts, and what came of them."""
    good = _good()
    both = st.sampled_from([certificates(good), addresses()]).flatmap(lambda kind: kind)
    return run_cases(
        numbered(both, cases, seed, first), Watchdog((("lab", "--replay", ADDRESS),))
    )  # fmt: skip
