"""Confidence intervals, every formula once: of shares, of means and of medians."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    tail = 0.5 * (1.0 - confidence)
    # Of n successes in n runs the low end is the p with p^n = tail. Importing `scipy.special` for
    # this would take 0.08 s of a short command.
    every = float(tail ** (1.0 / runs))
    if successes in (0, runs):
        return (every, 1.0) if successes else (0.0, 1.0 - every)
    from scipy.special import betaincinv

    low = float(betaincinv(successes, runs - successes + 1, tail))
    return low, float(betaincinv(successes + 1, runs - successes, 1.0 - tail))


def share_band(successes: int, runs: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's (1927) interval of a share: narrower, for pictures; covers so often on average.

    Its ends are the shares p with |successes/runs - p| = z sqrt(p (1 - p) / runs).
    """
    from scipy.special import ndtri

    share, z = successes / runs, float(ndtri(0.5 * (1.0 + confidence)))
    grown = z * z / runs
    centre = (share + 0.5 * grown) / (1.0 + grown)
    half = (grown * (share * (1.0 - share) + 0.25 * grown)) ** 0.5 / (1.0 + grown)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_half_width(values: Any, confidence: float = CONFIDENCE) -> float:
    """Half of Student's interval of a mean: t sqrt(s^2/n); one value has none, which is 0.

    >>> mean_half_width([3.0])
    0.0
    """
    count = len(values)
    return half_width(np.std(values, ddof=1), count, confidence) if count > 1 else 0.0


def half_width(deviation: float, count: int, confidence: float = CONFIDENCE) -> float:
    """The same from the standard deviation of a sample of two or more."""
    from scipy.special import stdtrit

    error = deviation / np.sqrt(count)
    return float(stdtrit(count - 1, 0.5 * (1.0 + confidence)) * error)


def difference_half_width(
    deviations: tuple[float, float], counts: tuple[int, int], confidence: float = CONFIDENCE
) -> float:
    """Half of Welch's (1947) interval of the difference of two means, from the standard deviations
    of both samples, of two values or more each.

    Its degrees of freedom are those of Satterthwaite, (v_1 + v_2)^2 / sum_i v_i^2/(n_i - 1) with
    v_i the squared standard errors.
    """
    from scipy.special import stdtrit

    squares = np.square(deviations) / counts
    if not squares.sum():
        return 0.0
    shares = squares / squares.sum()
    freedom = 1.0 / np.sum(shares**2 / (np.array(counts) - 1.0))
    return float(stdtrit(freedom, 0.5 * (1.0 + confidence)) * np.sqrt(squares.sum()))


def median_interval(values: Any, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a median between two of the values in order, whatever they follow.

    The k-th smallest lies above the median with probability P(Bin(n, 1/2) < k): k is the largest
    for which that is at most (1 - confidence)/2. Too few values (at 95 %, below 6) leave it open.
    """
    from scipy.stats import binom

    ordered = np.sort(np.asarray(values, dtype=float))
    k = int(binom.ppf(0.5 * (1.0 - confidence), len(ordered), 0.5)) if len(ordered) else 0
    if k < 1:
        return -np.inf, np.inf
    return float(ordered[k - 1]), float(ordered[-k])
