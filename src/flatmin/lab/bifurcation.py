"""Above the ceiling: where gradient descent goes when it cannot settle, against the rate.

Networks begin beside the flattest minimiser, one for each rate c 2/S_min; after a while the share
w.w*/|w*|^2 is seen at every step. It is 1 where descent settles, two numbers on an orbit of period
2, and so on. The picture is the number of visits of each cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatmin import initialise
from flatmin.core.arrays import Float, Whole
from flatmin.core.errors import SettingError
from flatmin.core.progress import Advance
from flatmin.dynamics.descent import descend
from flatmin.lab.engine import Ground

RATES, CELLS = 240, 160
WAIT, SEEN = 1500, 96
FROM, TO = 0.8, 3.2
_KICK = 1e-3
_NO_STOP = 1e-200


@dataclass(frozen=True, eq=False)
class Orbits:
    """Visits `[cell, rate]`; rates over the ceiling; edges of the cells; shares that diverged."""

    relative_rates: Float
    shares: Float
    visits: Whole
    diverged_from: float | None


def orbits(ground: Ground, progress: Advance | None = None) -> Orbits:
    """The picture for the data, depth and method of a setting."""
    method = ground.method()
    if method.continuous:
        raise SettingError("the picture above the ceiling needs a learning rate, not gradient flow")
    if not ground.network.linear or ground.network.output is None:
        raise SettingError("the picture above the ceiling is for linear networks with one output")
    assert ground.ceiling is not None
    relative = np.linspace(FROM, TO, RATES)
    rates = relative * ground.ceiling
    regression = ground.samples.regression()
    here = initialise(
        ground.network, "flattest", _KICK, ground.setting.seed, [("orbit",)] * RATES, regression
    )
    rule, beside = method.rule, None
    seen = np.full((SEEN, RATES), np.nan)
    target = regression.w_star / regression.w_star_norm**2
    for i in range(-1, SEEN):
        found = descend(
            regression,
            here,
            rates,
            WAIT if i < 0 else 1,
            rule=rule,
            beside=beside,
            tolerance=_NO_STOP,
            observe_ends=False,
            threads=1,
            progress=progress,
        )
        here, beside = found.ensemble, found.beside
        if i >= 0:
            kept = np.isfinite(found.excess_risk)
            product = np.broadcast_to(ground.network.p, (RATES, ground.network.p.size))[:, None, :]
            with np.errstate(over="ignore", invalid="ignore"):  # of networks that are lost
                for w in reversed(here.layers()):
                    product = product @ w
            seen[i, kept] = (product[:, 0, :] @ target)[kept]
    lost = np.isnan(seen).any(axis=0)
    seen[:, lost] = np.nan
    inside = seen[np.isfinite(seen)]
    low, high = (float(inside.min()), float(inside.max())) if inside.size else (0.0, 2.0)
    room = 0.05 * max(high - low, 0.2)
    edges = np.linspace(low - room, high + room, CELLS + 1)
    visits = np.stack([np.histogram(column[np.isfinite(column)], edges)[0] for column in seen.T])
    first = float(relative[lost].min()) if lost.any() else None
    return Orbits(relative, 0.5 * (edges[1:] + edges[:-1]), visits.T, first)
