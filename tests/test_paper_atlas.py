"""The claims of the atlas hold on an atlas made to satisfy them, and fail on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from flatmin.dynamics.atlas_figure import orbits_figure
from flatmin.dynamics.atlas_record import Atlas
from flatmin.dynamics.orbits import CHAOTIC, DIVERGED, SETTLED, STALLED, Orbits
from flatmin.dynamics.thresholds import Threshold
from flatmin.paper.atlas import DEPTHS, FIGURE, judge_atlas
from flatmin.paper.beyond import ITEMS
from flatmin.paper.claims import FAILS, HOLDS
from flatmin.theory.flip import Flip
from flatmin.theory.oscillation import mode_doubling

FLIP = Flip(sharpness=2.0, coefficient=4.0, first=np.ones(1), others=0.0, gap=1.0)


def made(depth: int) -> Atlas:
    """As the claims say: settled, period 2, period 4, chaotic, stalled or diverged."""
    rates = np.array([0.95, 1.02, 1.1, 1.27, 1.5, 2.6, 3.1])
    kinds = np.array([SETTLED, "period 2", "period 2", "period 4", CHAOTIC, STALLED, DIVERGED])
    periods = np.array([1, 2, 2, 4, 0, 0, 0])
    c, kind, period = (np.repeat(values, 2) for values in (rates, kinds, periods))
    bounded = kind != DIVERGED
    swing = np.where(bounded, np.sqrt(np.maximum(c - 1.0, 0.0)), np.nan)
    orbits = Orbits(
        rate=0.1 * c,
        kind=kind,
        period=period,
        exponent=np.where(kind == CHAOTIC, 0.4, -0.01),
        transverse=np.where(period > 1, -0.02, -0.01),
        excess=np.where(bounded, FLIP.excess_risk(2.0) * (c - 1.0), np.nan),
        swing=swing,
        output=1.0 + np.outer((-1.0) ** np.arange(200), swing / 2),
    )
    return Atlas(
        depth=depth,
        minimal_sharpness=20.0,
        steps=100,
        c=c,
        start=np.tile([0, 1], len(rates)),
        orbits=orbits,
        c_2=Threshold(c=1.0, error=1e-5),
        c_4=Threshold(c=mode_doubling(depth), error=1e-5),
        c_div=Threshold(c=1.5 + 0.1 * depth, error=1e-2),
    )


def changed(**fields: Callable[[Atlas], object]) -> dict[int, Atlas]:
    """Atlases of which the deepest has other values: of the atlas, or of its orbits."""
    found = {depth: made(depth) for depth in DEPTHS}
    last = found[DEPTHS[-1]]
    for name, change in fields.items():
        if hasattr(last, name):
            last = replace(last, **{name: change(last)})
        else:
            last = replace(last, orbits=replace(last.orbits, **{name: change(last)}))
    return found | {DEPTHS[-1]: last}


def verdicts(found: dict[int, Atlas]) -> dict[str, str]:
    claims = judge_atlas(found, dict.fromkeys(DEPTHS, FLIP))
    assert {claim.figure for claim in claims} == {FIGURE}
    return {claim.id.removeprefix(f"{FIGURE}-"): claim.verdict for claim in claims}


def at(c: float, value: object, name: str) -> Callable[[Atlas], np.ndarray]:
    """Other values of runs at a rate; of the first start only, if the value is a list of one."""

    def change(one: Atlas) -> np.ndarray:
        values = np.array(getattr(one.orbits, name))
        where = np.flatnonzero(one.c == c)
        values[where[: len(value)] if isinstance(value, list) else where] = value
        return values

    return change


def test_all_hold_on_what_they_say() -> None:
    assert set(verdicts(changed()).values()) == {HOLDS}


@pytest.mark.parametrize(
    ("fields", "failing"),
    [
        ({"c_2": lambda one: Threshold(c=1.01, error=1e-5)}, "flip"),
        ({"c_2": lambda one: None}, "flip"),
        ({"excess": at(1.02, 0.1, "excess")}, "amplitude"),
        ({"c_4": lambda one: Threshold(c=1.3, error=1e-5)}, "doubling"),
        ({"c_4": lambda one: None}, "doubling"),
        ({"kind": at(1.5, SETTLED, "kind")}, "nothing-settles"),
        ({"c_div": lambda one: Threshold(c=1.3, error=1e-2)}, "bounded"),
        ({"c_div": lambda one: None}, "bounded"),
        ({"c_div": lambda one: Threshold(c=1.75, error=1e-2)}, "deeper-diverges-later"),
        ({"kind": at(1.5, "period 6", "kind")}, "chaos"),
        ({"exponent": at(1.5, 0.1, "exponent")}, "chaos"),
        ({"transverse": at(1.5, 0.1, "transverse")}, "oscillation-balances"),
        ({"swing": at(1.1, [0.5], "swing")}, "one-attractor"),
        ({"kind": at(2.6, CHAOTIC, "kind")}, "stalls"),
    ],
)
def test_each_fails_on_what_contradicts_it(
    fields: dict[str, Callable[[Atlas], object]], failing: str
) -> None:
    assert verdicts(changed(**fields))[failing] == FAILS


def test_it_is_part_of_the_report() -> None:
    (item,) = [one for one in ITEMS if one.id == FIGURE]
    assert item.sentence.endswith(".")
    assert len(orbits_figure([made(depth) for depth in DEPTHS]).axes) == 4
