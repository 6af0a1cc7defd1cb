"""Intervals."""

from __future__ import annotations

CONFIDENCE = 0.95


def share_interval(
    successes: int, runs: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934) for a share: covers at least as often as said.

    Its ends are the shares at which so many successes, or fewer, and so many, or more, have
    probability (1 - confidence)/2.

    >>> low, high = share_interval(100, 100)
    >>> round(low, 4), high
    (0.9638, 1.0)
    """
    from scipy.special import betaincinv

    tail = 0.5 * (1.0 - confidence)
    low = 0.0 if successes == 0 else float(betaincinv(successes, runs - successes + 1, tail))
    high = (
        1.0 if successes == runs else float(betaincinv(successes + 1, runs - successes, 1 - tail))
    )
    return low, high
