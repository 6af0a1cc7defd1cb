"""The studies that come with the package, by name, at the paper's sizes or at the quick ones."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from flatmin.study.spec import Study

PRESETS = ("paper", "quick")
# The quick preset divides repetitions by this: linear networks are cheap, others are not.
_FEWER_LINEAR, _FEWER_OTHERS = 5, 20


@cache
def shipped_study(name: str, preset: str = "paper") -> Study:
    """A spec that comes with the package; quick means a fifth of the repetitions, and a
    twentieth of the data sets and where networks are not linear."""
    text = files("flatmin.paper").joinpath("studies", f"{name}.toml").read_text("utf-8")
    spec = tomllib.loads(text)
    return Study(_reduced(spec) if preset == "quick" else spec)


def _reduced(spec: dict[str, Any]) -> dict[str, Any]:
    linear = spec["architecture"].get("activation", "linear") == "linear"
    divisor = _FEWER_LINEAR if linear else _FEWER_OTHERS

    def fewer(count: int, divisor: int = divisor) -> int:
        return max(1, -(-count // divisor))

    if "repetitions" in spec:
        spec["repetitions"] = fewer(spec["repetitions"])
    if "datasets" in spec:
        spec["datasets"] = max(min(spec["datasets"], 3), fewer(spec["datasets"], _FEWER_OTHERS))
    for table in spec.get("grid", {}).get("zip", []):
        if "repetitions" in table:
            table["repetitions"] = [fewer(count) for count in table["repetitions"]]
    return spec
