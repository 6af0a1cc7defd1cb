"""Confidence intervals against SciPy's, and how often they cover what they are about."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy.stats import binom, binomtest, sem, t, ttest_ind

from flatmin.core.statistics import (
    difference_half_width,
    mean_half_width,
    median_interval,
    share_band,
    share_interval,
)

DRAWS = 2000
# Of so many intervals at 95 %, four standard deviations on either side.
OFTEN = 0.95 + 4.0 * np.sqrt(0.95 * 0.05 / DRAWS) * np.array([-1.0, 1.0])


@pytest.mark.parametrize(("successes", "runs"), [(0, 10), (10, 10), (3, 17), (1, 2000)])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_shares_against_scipy(successes, runs, confidence):
    test = binomtest(successes, runs)
    exact = test.proportion_ci(confidence, method="exact")
    # SciPy finds its limits by bisection to 2e-12, the default of `brentq`.
    assert share_interval(successes, runs, confidence) == pytest.approx(exact[:], abs=4e-12)
    wilson = test.proportion_ci(confidence, method="wilson")
    assert share_band(successes, runs, confidence) == pytest.approx(wilson[:], rel=1e-12, abs=1e-15)


def test_bands_of_shares_cover_on_average():
    """Exactly, by the binomial distribution, averaged over all shares."""
    runs, shares = 40, np.linspace(0.0005, 0.9995, 1000)
    low, high = np.array([share_band(k, runs) for k in range(runs + 1)]).T[:, None]
    chance = binom.pmf(np.arange(runs + 1), runs, shares[:, None])
    covered = np.sum(chance * ((low <= shares[:, None]) & (shares[:, None] <= high)), axis=1)
    assert covered.mean() == pytest.approx(0.95, abs=0.01)
    assert covered.min() < 0.95


def test_means_against_scipy_and_their_coverage():
    values = np.random.default_rng(0).standard_normal((DRAWS, 5))
    low, high = t.interval(0.99, 4, values[0].mean(), sem(values[0]))
    assert mean_half_width(values[0], 0.99) == pytest.approx((high - low) / 2.0, rel=1e-10)
    half = np.array([mean_half_width(row) for row in values])
    assert OFTEN[0] <= np.mean(np.abs(values.mean(axis=1)) <= half) <= OFTEN[1]
    assert mean_half_width(np.ones(1)) == 0.0


def test_differences_against_scipy_and_their_coverage():
    random = np.random.default_rng(8)
    first, second = random.standard_normal((DRAWS, 5)), 3.0 * random.standard_normal((DRAWS, 9))
    interval = ttest_ind(first[0], second[0], equal_var=False).confidence_interval(0.99)
    expected = (interval.high - interval.low) / 2.0
    spread = np.column_stack([np.std(one, axis=1, ddof=1) for one in (first, second)])
    found = difference_half_width(spread[0], (5, 9), 0.99)
    assert found == pytest.approx(expected, rel=1e-10)
    half = np.array([difference_half_width(pair, (5, 9)) for pair in spread])
    apart = np.abs(first.mean(axis=1) - second.mean(axis=1))
    assert OFTEN[0] <= np.mean(apart <= half) <= OFTEN[1]
    assert difference_half_width((0.0, 0.0), (3, 4)) == 0.0


@pytest.mark.parametrize("n", [6, 7, 20, 61])
def test_the_interval_of_a_median_covers_it_as_often_as_it_says(n):
    """Counted over all ways in which n values fall on either side of the median."""
    low, high = median_interval(np.arange(n))
    assert low + high == n - 1
    # The interval misses the median if no more than `low` values lie on one side of it.
    missed = 2 * sum(comb(n, k) for k in range(int(low) + 1)) / 2**n
    wider = 2 * sum(comb(n, k) for k in range(int(low) + 2)) / 2**n
    assert missed <= 0.05 < wider


def test_few_values_leave_a_median_open():
    assert median_interval(np.arange(5)) == median_interval([]) == (-np.inf, np.inf)
