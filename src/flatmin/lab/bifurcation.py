"""Above the ceiling: where gradient descent goes when it cannot settle, against the rate.

One run beside the flattest minimiser for each rate c 2/S_min, followed as in an atlas
(`dynamics/orbits`). The picture is how often its output w'Sigma w*/(w*'Sigma w*) visits each cell.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from flatmin import initialise
from flatmin.core.errors import SettingError
from flatmin.core.progress import Advance
from flatmin.dynamics.atlas import FIRST_RATE, NOISE
from flatmin.dynamics.orbits import DIVERGED, follow_orbits
from flatmin.lab.engine import Ground, together
from flatmin.lab.settings import MOST_TOGETHER

RATES = np.linspace(FIRST_RATE, 3.0, 240)
CELLS, STEPS = 160, 3000
ORBIT_STEPS = len(RATES) * STEPS
"""Of all networks together: what a picture takes."""
_FEWEST = 4
"""Rates that a kind of orbit must fill to be told."""


def orbits(ground: Ground, progress: Advance | None = None) -> dict[str, Any]:
    """The picture for the data and network of a setting: visits `[cell, rate]`, and in words."""
    if ground.setting.method.name != "descent" or ground.ceiling is None:
        raise SettingError("the picture above the ceiling is for gradient descent without biases")
    regression, network = ground.samples.regression(), ground.network
    if together(network) < len(RATES):
        raise SettingError(
            "the picture above the ceiling is for networks of at most "
            f"{MOST_TOGETHER // len(RATES)} weights, got {network.parameters}"
        )
    start = initialise(
        network, "flattest", NOISE, ground.setting.seed, [("orbit",)] * len(RATES), regression
    )
    found = follow_orbits(
        regression,
        start,
        RATES * ground.ceiling,
        STEPS,
        first_rates=FIRST_RATE * ground.ceiling,
        progress=progress,
    )
    lost = found.kind == DIVERGED
    first = int(np.argmax(lost)) if lost.any() else len(RATES)
    if not first:
        raise SettingError("at every rate of the picture above the ceiling descent diverges")
    seen = found.output[:, :first]
    low, high = float(seen.min()), float(seen.max())
    room = 0.05 * max(high - low, 0.2)
    edges = np.linspace(low - room, high + room, CELLS + 1)
    return {
        "relative_rates": RATES[:first],
        "shares": 0.5 * (edges[1:] + edges[:-1]),
        "visits": np.stack([np.histogram(column, edges)[0] for column in seen.T]).T,
        "kinds": found.kind[:first],
        "sentence": _sentence([str(kind) for kind in found.kind]),
    }


def _sentence(kinds: list[str]) -> str:
    """From which multiple of the ceiling on there is what, the short stretches left out."""
    told: dict[str, float] = {}
    place = 0
    for kind, some in groupby(kinds):
        count = len(list(some))
        if count >= _FEWEST or kind == DIVERGED:
            told.setdefault(kind, RATES[place])
        place += count
        if kind == DIVERGED:
            break
    first, *others = told or {kinds[0]: FIRST_RATE}
    return ", ".join([first, *(f"{kind} from {told[kind]:.3g}" for kind in others)])
