"""Scenes: settings worth seeing, each with what to look at.

A scene is a row of `SCENES`; the page makes a button of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scene:
    """A setting, what it shows, and what of the page to open."""

    name: str
    title: str
    short: str
    text: str
    settings: dict[str, Any]
    tab: str = "layers"
    axis: str = "scale"


def _settings(
    problem: dict[str, Any],
    network: dict[str, Any],
    start: tuple[str, float],
    method: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    return {
        "seed": 0,
        "problem": problem,
        "architecture": network,
        "initialisation": {"name": start[0], "scale": start[1]},
        "method": {"name": "descent"} | method,
    } | more


PAPER = {"paper": "linear"}

SCENES = (
    Scene(
        "edge",
        "Edge of stability",
        "Edge of stability",
        "Sharpness begins far above 2/η, where no minimum is stable. It swings about the line, "
        "comes down and settles on it, while the risk falls all the same.",
        _settings(
            PAPER,
            {"kind": "residual", "depth": 10},
            ("residual", 1.2),
            {"learning_rate": 0.07, "steps": 400},
        ),
    ),
    Scene(
        "catapult",
        "Catapult",
        "Catapult",
        "A small rate leads to a sharp minimum. At step 40 the rate is raised, and 2/η falls below "
        "the sharpness: the risk shoots up and throws the weights to a flatter place.",
        _settings(
            PAPER,
            {"kind": "residual", "depth": 10},
            ("residual", 1.2),
            {"learning_rate": 0.02, "steps": 200},
            changes=[[40, 0.08]],
        ),
    ),
    Scene(
        "sharpening",
        "Sharpening in progress",
        "Sharpening",
        "From small weights the network first lingers near the saddle at 0. Then it learns, and "
        "sharpness rises with it, up to what a minimum at this depth needs.",
        _settings(
            PAPER,
            {"kind": "mlp", "depth": 5},
            ("gaussian", 0.15),
            {"learning_rate": 0.1, "steps": 300},
        ),
        tab="eigenvalues",
    ),
    Scene(
        "depth",
        "Flattest depth",
        "Flattest depth",
        "Deeper is not always sharper. On these data the ceiling (the line on the map) is highest "
        "at a depth above 1: there minima are flattest, and the largest rates work.",
        _settings(
            {
                "generator": "spectrum",
                "n": 50,
                "d": 5,
                "noise": 0.0,
                "condition_number": 30.0,
                "alignment": "weak",
            },
            {"kind": "mlp", "depth": 3},
            ("xavier-normal", 1.0),
            {"learning_rate": 1.0, "steps": 500},
        ),
        axis="depth",
    ),
    Scene(
        "balance",
        "Layers that balance themselves",
        "Balancing layers",
        "Layers begin with unlike sizes. The rate is above the ceiling, so descent swings and does "
        "not settle; swinging balances the layers: their first singular values come together.",
        _settings(
            PAPER,
            {"kind": "mlp", "depth": 3},
            ("gaussian", 0.4),
            {"learning_rate": 0.42, "steps": 300},
        ),
    ),
    Scene(
        "residual",
        "A residual network",
        "Residual",
        "Layers near the identity: no saddle at the start, hardly any change in each layer, and "
        "a rate just below the ceiling works.",
        _settings(
            PAPER,
            {"kind": "residual", "depth": 20},
            ("residual", 0.25),
            {"learning_rate": 0.045, "steps": 300},
        ),
    ),
    Scene(
        "above",
        "Above the ceiling",
        "Above the ceiling",
        "At a rate above 2/S_min no minimum is stable, so descent cannot settle. It need not "
        "diverge: here it jumps to and fro for ever between two sides of the valley.",
        _settings(
            PAPER,
            {"kind": "mlp", "depth": 3},
            ("gaussian", 0.3),
            {"learning_rate": 0.4, "steps": 300},
        ),
        tab="orbits",
    ),
    Scene(
        "underdetermined",
        "Underdetermined data",
        "Underdetermined",
        "More features than rows: many linear maps fit. Sharpness counts only in the "
        "directions of the data, and the ceiling holds all the same.",
        _settings(
            {"paper": "underdetermined"},
            {"kind": "mlp", "depth": 3},
            ("gaussian", 0.1),
            {"learning_rate": 0.15, "steps": 600},
        ),
        tab="eigenvalues",
    ),
)


def scene(name: str) -> Scene:
    """The scene of this name."""
    return next(one for one in SCENES if one.name == name)
