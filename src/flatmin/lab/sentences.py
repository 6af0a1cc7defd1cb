"""What is happening, in a sentence, at any entry of a run."""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float

_NEAR, _WINDOW = 0.93, 12


def sentence(
    excess: Float,
    sharpness: Float,
    edge: float | None,
    *,
    formula: str,
    excess_at_zero: float,
    goal: float,
    networks: int = 1,
) -> str:
    """One sentence or two about the last entry of a run, in the light of the ones before it."""
    if not len(excess):
        return ""
    words = _risk(excess, excess_at_zero, goal)
    if networks > 1:
        words = f"Median of {networks} networks: {words[0].lower()}{words[1:]}"
    return f"{words} {_sharpness(sharpness, edge, formula)}".strip()


def _risk(excess: Float, excess_at_zero: float, goal: float) -> str:
    now = excess[-1]
    before = excess[max(0, len(excess) - _WINDOW)]
    share = now / excess_at_zero
    if not np.isfinite(now) or share > 100.0:
        return "The steps overshoot more and more: the weights run away."
    if len(excess) > 2 and now > 3.0 * excess.min() and now > 3.0 * goal:
        if now > before:
            return f"The risk jumps, to {share:.2g} of that of w = 0."
        return f"After a jump the risk falls again: {share:.2g} of that of w = 0."
    if now <= goal:
        step = int(np.argmax(excess <= goal))
        ago = "" if step < len(excess) - 1 else " now"
        return f"Learned{ago}: the excess risk is {share:.2g} of that of w = 0."
    if len(excess) > _WINDOW and share > 0.5 and now > 0.98 * before:
        return "The risk hardly moves: near the saddle at w = 0 there is next to no gradient."
    return f"The risk is {share:.2g} of that of w = 0."


def _sharpness(sharpness: Float, edge: float | None, name: str) -> str:
    recent = sharpness[-_WINDOW:]
    now = float(np.mean(sharpness[-2:]))
    if not np.isfinite(now):
        return ""
    earlier = float(np.mean(recent[:2]))
    rising, falling = now > 1.02 * earlier, now < 0.98 * earlier
    if edge is None:
        trend = "rises" if rising else "falls" if falling else "stays"
        return f"Sharpness {trend}: {now:.4g}."
    share = now / edge
    crossed = np.flatnonzero(sharpness >= edge)
    above = sharpness[-1] > edge
    calm = len(recent) > 2 and float(np.ptp(recent)) < 0.02 * now
    if crossed.size and crossed[0] > 0 and len(sharpness) - crossed[0] <= 2 * _WINDOW:
        return f"Sharpness has reached {name}: from here it oscillates."
    if crossed.size and share >= _NEAR and not calm:
        if float(np.min(recent)) > edge:
            return f"Sharpness is {share:.3g} of {name}: every step overshoots until it comes down."
        return f"Sharpness swings about {name}: this is the edge of stability."
    if crossed.size and falling:
        return f"Sharpness comes down from {name}: {share:.2g} of it."
    if above:
        return f"Sharpness is above {name}: every step overshoots along the sharpest direction."
    if rising:
        return f"Sharpness rises, to {share:.2g} of {name}: progressive sharpening."
    return f"Sharpness is {share:.2g} of {name}."
