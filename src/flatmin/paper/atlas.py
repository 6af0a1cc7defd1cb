"""Beyond the paper: above the ceiling. The atlas of the paper's data, its picture and its claims.

Expected values come from the theory and from runs with seed 0; what is judged here has seed 1. (A
seed draws starts and kicks only: where orbits do not depend on them, this is no fresh evidence.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from flatmin.data.sets import paper_samples
from flatmin.dynamics.atlas import atlas
from flatmin.dynamics.atlas_figure import orbits_figure
from flatmin.dynamics.atlas_record import Atlas
from flatmin.dynamics.orbits import CHAOTIC, SETTLED, STALLED
from flatmin.paper.claims import Claim, Rows, compared, judged
from flatmin.paper.tables import Item
from flatmin.theory.flip import Flip, flip
from flatmin.theory.oscillation import mode_doubling

FIGURE = "beyond-atlas"
DEPTHS, SEED = (2, 3, 5, 10), 1
RATES = np.linspace(0.9, 3.1, 221)
# Above the ceiling by more than runs of this length need to leave it.
ABOVE = 1.01
# Where the flip's first order is compared with runs, and by how much they may differ there.
NEAR, NEAR_ERROR = (1.01, 1.03), 0.06
# Rates at which the deepest networks fall asleep at the saddle.
ASLEEP = (2.5, 2.8)


@cache
def atlases() -> dict[int, Atlas]:
    """The paper's data at every depth, about ten seconds."""
    data = paper_samples("linear").regression()
    return {depth: atlas(data, depth, c=RATES, seed=SEED) for depth in DEPTHS}


@cache
def flips() -> dict[int, Flip]:
    """The flip at the ceiling of the same."""
    data = paper_samples("linear").regression()
    return {depth: flip(data, depth) for depth in DEPTHS}


def judge_atlas(found: Mapping[int, Atlas], born: Mapping[int, Flip]) -> list[Claim]:
    """What is claimed of atlases by depth, each with a verdict."""
    above = {depth: one.c > ABOVE for depth, one in found.items()}
    second = max(_off(one.c_2.c if one.c_2 else np.nan, 1.0) for one in found.values())
    fourth = max(
        _off(one.c_4.c if one.c_4 else np.nan, mode_doubling(depth)) for depth, one in found.items()
    )
    lost = [one.c_div.c if one.c_div else np.nan for one in found.values()]
    settled = sum(int(np.sum(one.orbits.kind[above[d]] == SETTLED)) for d, one in found.items())
    excess = max(_excess_error(one, born[depth]) for depth, one in found.items())
    chaos = [one.orbits.exponent[one.orbits.kind == CHAOTIC] for one in found.values()]
    most = min(float(np.max(exponents, initial=-np.inf)) for exponents in chaos)
    balance = max(_largest_transverse(one, above[d]) for d, one in found.items() if d > 2)
    spread = max(_spread(one) for one in found.values())
    deepest = found[max(found)]
    asleep = (deepest.c >= ASLEEP[0]) & (deepest.c <= ASLEEP[1])
    stalled = float(np.mean(deepest.orbits.kind[asleep] == STALLED)) if asleep.any() else np.nan
    depths = ", ".join(map(str, found))
    listed = ", ".join(f"{value:.3f}" for value in lost)
    rows: Rows = {
        f"at depths {depths} descent begins to oscillate at the ceiling 2/S_min: the largest "
        "|c_2 - 1|": ("flip", second, compared("at most", 5e-4)),
        f"between {NEAR[0]:g} and {NEAR[1]:g} of the ceiling the mean excess risk of the orbit is "
        "that of the flip formula: the largest relative "
        "difference": ("amplitude", excess, compared("at most", NEAR_ERROR)),
        "the period doubles where it does on white data: the largest |c_4 - exact|": (
            "doubling",
            fourth,
            compared("at most", 2e-3),
        ),
        f"no run above {ABOVE:g} of the ceiling settles at a minimiser: how many do": (
            "nothing-settles",
            settled,
            compared("at most", 0.0),
        ),
        f"yet runs stay bounded far above it: the least c_div (by depth {listed})": (
            "bounded",
            np.min(lost),
            compared("at least", 1.4),
        ),
        "c_div grows with depth: its least increase from a depth to the next": (
            "deeper-diverges-later",
            np.min(np.diff(lost)),
            compared("above", 0.0),
        ),
        "at every depth there is chaos: the least over depths of the largest Lyapunov exponent": (
            "chaos",
            most,
            compared("above", 0.2),
        ),
        "wherever it oscillates, periodically or not, layers are drawn to balance: the largest "
        "transverse exponent": ("oscillation-balances", balance, compared("below", 0.0)),
        "the orbit of period two does not depend on the start: the largest spread of its width "
        "over starts": ("one-attractor", spread, compared("at most", 1e-3)),
        f"at depth {max(found)} runs between {ASLEEP[0]:g} and {ASLEEP[1]:g} of the ceiling end "
        "near the saddle w = 0, where they hardly move: share of "
        "runs": ("stalls", stalled, compared("at least", 0.9)),
    }
    return judged(FIGURE, rows)


def _off(value: float, expected: float) -> float:
    """How far off; infinite if it was not found."""
    return abs(value - expected) if np.isfinite(value) else np.inf


def _excess_error(one: Atlas, born: Flip) -> float:
    near = (one.c >= NEAR[0]) & (one.c <= NEAR[1])
    if not near.any():
        return np.inf
    predicted = np.array([born.excess_risk(c) for c in one.c[near]])
    return float(np.max(np.abs(one.orbits.excess[near] / predicted - 1.0)))


def _largest_transverse(one: Atlas, above: np.ndarray) -> float:
    """Of the runs that go on oscillating."""
    kept = above & ((one.orbits.period > 1) | (one.orbits.kind == CHAOTIC))
    return float(np.max(one.orbits.transverse[kept])) if kept.any() else np.inf


def _spread(one: Atlas) -> float:
    twice = one.orbits.period == 2
    widths = [np.ptp(one.orbits.swing[twice & (one.c == c)]) for c in np.unique(one.c[twice])]
    return float(max(widths, default=np.inf))


ATLAS = Item(
    FIGURE,
    "Above the ceiling",
    "The paper's data at learning rates from 0.9 to 3.1 times 2/S_min, followed from the flattest "
    "minimiser by raising the rate: how often gradient descent takes each output, with the exact "
    "orbit of period two of white data. Nothing settles above the ceiling, but nothing diverges "
    "until far above it.",
    (),
    lambda tables: orbits_figure(list(atlases().values())),
    lambda tables: judge_atlas(atlases(), flips()),
)
