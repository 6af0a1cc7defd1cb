"""Settings that several tests of the lab share."""

from __future__ import annotations

import copy
from typing import Any

EDGE: dict[str, Any] = {
    "seed": 0,
    "problem": {"paper": "linear"},
    "architecture": {"kind": "residual", "depth": 10},
    "initialisation": {"name": "residual", "scale": 1.2},
    "method": {"name": "descent", "learning_rate": 0.07, "steps": 60},
}


def like(base: dict[str, Any] = EDGE, **changes: Any) -> dict[str, Any]:
    """A copy with other values, named by their places: `method__steps=10`."""
    content = copy.deepcopy(base)
    for place, value in changes.items():
        *folders, last = place.split("__")
        inner = content
        for name in folders:
            inner = inner[name]
        inner[last] = value
    return content


PLAIN = like(
    architecture={"kind": "mlp", "depth": 3}, initialisation={"name": "pytorch", "scale": 1.0}
)

VARIED = {
    "edge": EDGE,
    "plain": PLAIN,
    "change": like(changes=[[20, 0.1], [40, 0.02]]),
    "momentum": like(PLAIN, method__name="heavy-ball", method__momentum=0.5),
    "nesterov-change": like(
        PLAIN, method__name="nesterov", method__momentum=0.5, changes=[[30, 0.1]]
    ),
    "flow": like(PLAIN, method={"name": "flow", "steps": 500}),
    "ensemble": like(PLAIN, repetitions=9),
    "tanh": like(PLAIN, architecture__activation="tanh", method__steps=20),
    "gaussian": like(PLAIN, problem={"generator": "gaussian", "n": 30, "d": 4, "noise": 0.5}),
    "outputs": like(PLAIN, problem={"generator": "gaussian", "targets": 2}, method__steps=20),
    "strided": like(method__steps=2500, method__learning_rate=0.09),
}
"""One of each kind."""
