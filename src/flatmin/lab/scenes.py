"""Scenes: settings worth seeing, each with what to look at, from `scenes.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Scene:
    """A setting, what it shows, and what of the page to open."""

    name: str
    title: str
    text: str
    settings: dict[str, Any]
    short: str = ""
    tab: str = "layers"
    axis: str = "scale"


SCENES = tuple(
    Scene(**row)
    for row in tomllib.loads((files("flatmin.lab") / "scenes.toml").read_text("utf-8"))["scenes"]
)
