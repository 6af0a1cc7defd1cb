"""What is happening, in a sentence, at any record of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatmin.core.arrays import Float

_NEAR, _WINDOW = 0.93, 12


@dataclass(frozen=True, eq=False)
class Sight:
    """What a sentence is about: a run up to a record."""

    step: int
    excess: Float
    sharpness: Float
    edge: float | None
    formula: str
    excess_at_zero: float
    goal: float
    networks: int = 1


def sentence(seen: Sight) -> str:
    """One sentence or two about the last record, in the light of the ones before it."""
    if not len(seen.excess):
        return ""
    words = _subject(_risk(seen), seen.networks)
    sharp = _sharpness(seen)
    return f"{words} {sharp}".strip()


def _subject(text: str, networks: int) -> str:
    return text if networks == 1 else f"Median of {networks} networks: {text[0].lower()}{text[1:]}"


def _risk(seen: Sight) -> str:
    now = seen.excess[-1]
    before = seen.excess[max(0, len(seen.excess) - _WINDOW)]
    share = now / seen.excess_at_zero
    if not np.isfinite(now) or share > 100.0:
        return "The steps overshoot more and more: the weights run away."
    if len(seen.excess) > 2 and now > 3.0 * seen.excess.min() and now > 3.0 * seen.goal:
        if now > before:
            return f"The risk jumps, to {share:.2g} of that of w = 0."
        return f"After a jump the risk falls again: {share:.2g} of that of w = 0."
    if now <= seen.goal:
        step = int(np.argmax(seen.excess <= seen.goal))
        ago = "" if step < len(seen.excess) - 1 else " now"
        return f"Learned{ago}: the excess risk is {share:.2g} of that of w = 0."
    if len(seen.excess) > _WINDOW and share > 0.5 and now > 0.98 * before:
        return "The risk hardly moves: near the saddle at w = 0 there is next to no gradient."
    return f"The risk is {share:.2g} of that of w = 0."


def _sharpness(seen: Sight) -> str:
    recent = seen.sharpness[-_WINDOW:]
    now = float(np.mean(seen.sharpness[-2:]))
    if not np.isfinite(now):
        return ""
    earlier = float(np.mean(recent[:2]))
    rising, falling = now > 1.02 * earlier, now < 0.98 * earlier
    if seen.edge is None:
        trend = "rises" if rising else "falls" if falling else "stays"
        return f"Sharpness {trend}: {now:.4g}."
    share, name = now / seen.edge, seen.formula
    crossed = np.flatnonzero(seen.sharpness >= seen.edge)
    above = seen.sharpness[-1] > seen.edge
    calm = len(recent) > 2 and float(np.ptp(recent)) < 0.02 * now
    if crossed.size and crossed[0] > 0 and len(seen.sharpness) - crossed[0] <= 2 * _WINDOW:
        return f"Sharpness has reached {name}: from here it oscillates."
    if crossed.size and share >= _NEAR and not calm:
        if float(np.min(recent)) > seen.edge:
            return f"Sharpness is {share:.3g} of {name}: every step overshoots until it comes down."
        return f"Sharpness swings about {name}: this is the edge of stability."
    if crossed.size and falling:
        return f"Sharpness comes down from {name}: {share:.2g} of it."
    if above:
        return f"Sharpness is above {name}: every step overshoots along the sharpest direction."
    if rising:
        return f"Sharpness rises, to {share:.2g} of {name}: progressive sharpening."
    return f"Sharpness is {share:.2g} of {name}."
