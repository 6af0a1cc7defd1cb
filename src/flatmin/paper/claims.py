"""What the paper claims of its figures, each as a number with a verdict that can fail.

A function takes the tables of a study and gives rows: what is claimed -> the claim's name, what was
measured, and what is expected of it, which is fixed here before anything is measured. Where the
runs are too few to tell, a claim is undecided and says what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import ge, gt, le, lt
from typing import Any

import numpy as np
import pandas as pd

from flatmin.core.shown import Shown
from flatmin.core.statistics import median_interval
from flatmin.data.regression import Regression
from flatmin.paper.measures import PAPER_SLOPE, PAPER_SLOPE_ERROR, finished, gap_line
from flatmin.paper.tables import StudyTables
from flatmin.theory.minimal_sharpness import (
    corollary_2_bound,
    critical_learning_rate,
    lower_bound,
    paper_learning_rate,
    vanishing_scale_limit,
)

_RELATIONS = {"at most": le, "at least": ge, "below": lt, "above": gt}
HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
# The paper draws distances: a run is near w* when its squared distance is below this; |w*| = 1.
NEAR = 1e-2
# The fewest values that have a 95 % interval of their median (`median_interval`).
FEWEST = 6
# Runs a point needs for "half of them": of ten, a share of three quarters or more comes out below a
# half in 2 % of cases at most.
SHARE_RUNS = 10


class Claim(Shown, eq=True):
    """One statement about a figure, what it expects, what was measured, and the verdict.

    `needs` is what would decide an undecided claim.
    """

    id: str
    figure: str
    statement: str
    expected: str
    measured: float | None
    tolerance: str
    verdict: str
    needs: str = ""


@dataclass(frozen=True)
class Expected:
    """What is expected of a number: in words, as a test, and with which tolerance."""

    words: str
    met: Callable[[float], bool]
    tolerance: str = "none"

    def judge(self, measured: Any) -> tuple[float, str, str]:
        """The number, the verdict, and what would decide it; a number that does not exist fails."""
        number = float(measured)
        return number, HOLDS if np.isfinite(number) and self.met(number) else FAILS, ""


@dataclass(frozen=True)
class ExpectedMedian(Expected):
    """An interval for the median of runs; undecided if the median's own contains an end of it."""

    low: float = -np.inf
    high: float = np.inf

    def judge(self, measured: Any) -> tuple[float, str, str]:
        """The median of the values that exist, judged by its 95 % interval."""
        kept = pd.Series(measured).dropna()
        from_, to = median_interval(kept)
        number, verdict, _ = super().judge(kept.median() if len(kept) else np.nan)
        if (self.low <= from_ and to <= self.high) or to < self.low or from_ > self.high:
            return number, verdict, ""
        needs = f"at least {FEWEST} runs; there are {len(kept)}"
        if np.isfinite(from_):
            needs = (
                f"more runs than {len(kept)}: the 95 % interval of the median, {from_:.3g} to "
                f"{to:.3g}, contains an end of the expected one"
            )
        return number, UNDECIDED, needs


def within(expected: float, tolerance: float) -> Expected:
    """A number that lies within a tolerance of another."""
    return Expected(
        f"{expected:.4g}", lambda x: abs(x - expected) <= tolerance, f"+- {tolerance:.2g}"
    )


def between(low: float, high: float) -> Expected:
    """A number that lies in an interval."""
    return Expected(f"{low:.4g} to {high:.4g}", lambda x: low <= x <= high)


def median_between(low: float, high: float) -> Expected:
    """Runs whose median lies in an interval."""
    interval = between(low, high)
    return ExpectedMedian(interval.words, interval.met, low=low, high=high)


def compared(relation: str, limit: float) -> Expected:
    """A number that is "at most", "at least", "below" or "above" another."""
    return Expected(f"{relation} {limit:.3g}", lambda x: bool(_RELATIONS[relation](x, limit)))


ALL = Expected("1", lambda share: share == 1.0)
"""Of a share of runs: every one of them."""

Rows = dict[str, tuple[str, Any, Expected]]


def judged(figure: str, rows: Rows) -> list[Claim]:
    """The claims of a figure: what is claimed -> name, what was measured, what is expected."""
    claims = []
    for statement, (name, measured, expected) in rows.items():
        number, verdict, needs = expected.judge(measured)
        claims.append(
            Claim(
                id=f"{figure}-{name}",
                figure=figure,
                statement=statement,
                expected=expected.words,
                measured=number if np.isfinite(number) else None,
                tolerance=expected.tolerance,
                verdict=verdict,
                needs=needs,
            )
        )
    return claims


def needing(claims: list[Claim], least: int, what: str, have: int) -> list[Claim]:
    """Claims that are undecided, whatever was measured, with fewer than `least` of something."""
    if have >= least:
        return claims
    needs = f"at least {least} {what}; there are {have}"
    return [replace(claim, verdict=UNDECIDED, needs=needs) for claim in claims]


def success_and_failure(
    rows: pd.DataFrame, data: Regression, figure: str, depth: int, p_norm: float
) -> list[Claim]:
    """1a, 4a: training succeeds below the critical rate whatever the scale, and fails above."""
    critical = critical_learning_rate(data, depth, p_norm)
    kept = finished(rows)
    below = kept[kept["learning_rate"] < critical]
    above = kept[kept["learning_rate"] > critical]
    near, far = compared("at most", NEAR), compared("at least", NEAR)
    above_it = "above 2/S_min they do not: the smallest median of |w - w*|^2 over scales"
    most = below.groupby(["learning_rate", "scale"])["distance"].median().max()
    least = above.groupby("scale")["distance"].median().min()
    claims: Rows = {
        "below 2/S_min the runs that do not diverge come near w*, whatever the scale: the largest "
        "median of |w - w*|^2 over rates and scales": ("learns-below", most, near),
        above_it: ("fails-above", least, far),
    }
    return judged(figure, claims)


def edge_bounds(rows: pd.DataFrame, figure: str) -> list[Claim]:
    """S_min <= S <= 2/eta at the end of every settled run."""
    ended = rows[rows["state"] == "settled"]
    low = (ended["sharpness"] / ended["minimal_sharpness"]).min()
    high = (ended["sharpness"] / ended["edge"]).max()
    above = Expected("at least 1", lambda x: x >= 1.0 - 1e-6, "1e-6")
    below = Expected("at most 1", lambda x: x <= 1.0 + 1e-6, "1e-6")
    every = f"at the end of all {len(ended)} settled runs"
    claims: Rows = {
        f"S >= S_min {every}: the smallest S/S_min": ("above-s-min", low, above),
        f"S <= 2/eta {every}: the largest S eta/2": ("below-edge", high, below),
    }
    return judged(figure, claims)


def small_scale(rows: pd.DataFrame, data: Regression, depth: int) -> list[Claim]:
    """1b at the smallest scale: Corollary 2's bounds, no dependence on the rate, the exact limit.

    Over the rates that the figure shows, those below 0.09.
    """
    shown = rows[rows["learning_rate"] < 0.09]
    ended = shown[(shown["state"] == "settled") & (shown["scale"] == shown["scale"].min())]
    means = ended.groupby("learning_rate")["sharpness"].mean()
    low, high = lower_bound(data, depth), corollary_2_bound(data, depth)
    inside = ended["sharpness"].between(low * (1 - 1e-9), high).mean()
    spread = means.max() / means.min() if len(means) > 1 else np.nan
    share = ended["sharpness"].mean() / vanishing_scale_limit(data, depth)
    claims: Rows = {
        "from the smallest scale all runs end between Theorem 1's lower and Corollary 2's "
        "upper bound: share inside": ("corollary-2", inside, ALL),
        "from the smallest scale final sharpness does not depend on the rate: largest over "
        "smallest mean": ("rate-independent", spread, within(1.0, 0.05)),
        "from the smallest scale final sharpness is close to the exact vanishing-scale limit: "
        "mean S over the limit": ("vanishing-limit", share, within(1.0, 0.2)),
    }
    return judged("1b", claims)


def plateau(rows: pd.DataFrame, figure: str, rates: list[float], scales: int) -> list[Claim]:
    """Large scales plateau at 2/eta: the median of S eta/2 over the largest scales that train."""
    claims = {}
    for rate in rates:
        kept = finished(rows[np.isclose(rows["learning_rate"], rate)])
        largest = sorted(kept["scale"].unique())[-scales:]
        shares = (kept["sharpness"] / kept["edge"])[kept["scale"].isin(largest)]
        words = (
            f"at rate {rate:g} large scales end at the edge of stability: median of S eta/2 over "
            f"the {scales} largest scales (spread {shares.quantile(0.1):.2f} to "
            f"{shares.quantile(0.9):.2f})"
        )
        claims[words] = (f"plateau-{rate:g}", shares, median_between(0.9, 1.05))
    return judged(figure, claims)


def two_runs(study: StudyTables, figures: tuple[str, str]) -> list[Claim]:
    """1c, 4c: the run stays below 2/eta. 1d, 4d: the run goes to 2/eta and stays around it."""
    rows, traces = study.rows, study.traces
    slow, fast = rows["learning_rate"].min(), rows["learning_rate"].max()

    def shares(rate: float) -> Any:
        run = rows.loc[rows["learning_rate"] == rate, "run"].iloc[0]
        return traces[traces["run"] == run].sort_values("step")["sharpness"].dropna() * rate / 2.0

    most, around = shares(slow).max(), shares(fast)
    late = around.iloc[len(around) // 2 :].mean()
    below = f"the run at rate {slow:g} stays below the edge: the largest S eta/2"
    at = f"the run at rate {fast:g} settles around the edge: mean of S eta/2 over the second half"
    return [
        *judged(figures[0], {below: ("below-edge", most, compared("below", 1.0))}),
        *judged(figures[1], {at: ("at-edge", late, within(1.0, 0.1))}),
    ]


def depth_thresholds(rows: pd.DataFrame, data: Regression) -> list[Claim]:
    """2: the rate at which learning stops, against the exact 2/S_min and the paper's formula."""
    claims = {}
    for depth in sorted(rows["depth"].unique()):
        group = rows[rows["depth"] == depth]
        near = (group["distance"] < NEAR).groupby(group["learning_rate"]).mean()
        rates = near.index.to_numpy()
        fails = np.flatnonzero(near.to_numpy() < 0.5)
        first = int(fails[0]) if len(fails) and fails[0] > 0 else -1
        # Geometric middle of the last rate that works and the first that does not.
        threshold = float(np.sqrt(rates[first - 1] * rates[first])) if first > 0 else np.nan
        step = float(np.sqrt(rates[1] / rates[0]))
        for name, words, value in (
            ("exact", "the exact 2/S_min", critical_learning_rate(data, int(depth))),
            ("paper", "the paper's formula", paper_learning_rate(data, int(depth))),
        ):
            statement = (
                f"depth {depth}: learning stops at {words}, {value:.4g}, to within half a step of "
                "the grid: measured threshold"
            )
            expected = _within_factor(value, step)
            claims[statement] = (f"threshold-{depth}-{name}", threshold, expected)
    runs = int(rows.groupby(["depth", "learning_rate"]).size().min())
    return needing(judged("2", claims), SHARE_RUNS, "runs at each depth and rate", runs)


def _within_factor(value: float, factor: float) -> Expected:
    most = factor * (1 + 1e-9)
    return Expected(
        f"{value:.4g}", lambda x: max(x / value, value / x) <= most, f"factor {factor:.3f}"
    )


def divergence_rises(rows: pd.DataFrame, figure: str) -> list[Claim]:
    """3, 5: the share of diverged runs rises with scale and with rate.

    Along each line the share may fall below its maximum so far only by what 20 runs a point can
    do by chance (two standard deviations of the difference of two shares near a half).
    """
    points = (rows["state"] == "diverged").groupby([rows["learning_rate"], rows["scale"]])
    shares = points.mean().unstack("scale").to_numpy()
    chance = float(2.0 * np.sqrt(2.0 * 0.25 / points.size().min()))
    claims = {}
    for name, table in (("scale", shares), ("rate", shares.T)):
        drop = float(np.max(np.maximum.accumulate(table, axis=1) - table))
        rise = float(np.max(table[:, -1] - table[:, 0]))
        words = (
            f"the probability of divergence rises with the {name} (by {rise:.2f} at most): its "
            "largest fall below an earlier value"
        )
        most = chance if rise > chance else -np.inf
        expected = Expected("0", partial(ge, most), f"chance, {chance:.2f}")
        claims[words] = (f"rises-with-{name}", drop, expected)
    return judged(figure, claims)


def initial_sensitivity(linear: pd.DataFrame, residual: pd.DataFrame) -> list[Claim]:
    """4b: sharpness at initialisation depends less on the scale for residual networks."""

    def ratio(rows: pd.DataFrame) -> float:
        means = rows.groupby("scale")["initial_sharpness"].median()
        return float(means.max() / means.min())

    gaussian = ratio(linear)
    claims: Rows = {
        "initial sharpness varies over the scales by a smaller factor than from Gaussian "
        f"initialisation ({gaussian:.3g}): the "
        "factor": ("less-sensitive", ratio(residual), compared("below", gaussian))
    }
    return judged("4b", claims)


def generalisation(rows: pd.DataFrame) -> list[Claim]:
    """6b: slope 0.42 +- 0.01 and intercept -0.96 +- 0.03 on the authors' data.

    Theirs and ours are two samples of initial weights, so the tolerance is two standard errors of
    the difference.
    """
    line = gap_line(rows)
    slope = within(PAPER_SLOPE, 2.0 * float(np.hypot(line.stderr, PAPER_SLOPE_ERROR)))
    intercept = within(-0.96, 2.0 * float(np.hypot(line.intercept_stderr, 0.03)))
    words = f"slope of log10(test - train risk) on log10(sharpness), ours +- {line.stderr:.3f}"
    more = f"its intercept, ours +- {line.intercept_stderr:.3f}"
    claims: Rows = {
        words: ("slope", line.slope, slope),
        more: ("intercept", line.intercept, intercept),
    }
    return judged("6b", claims)


def gelu_small_scale(rows: pd.DataFrame, data: Regression, depth: int) -> list[Claim]:
    """7: from the smallest scale final sharpness is close to the linear networks' bounds."""
    kept = finished(rows)
    kept = kept[(kept["scale"] == kept["scale"].min()) & (kept["excess_risk"] < NEAR)]
    ratio = kept["sharpness"] / kept["minimal_sharpness"]
    bounds = median_between(1.0, corollary_2_bound(data, depth) / lower_bound(data, depth))
    claims: Rows = {
        "from the smallest scale the runs that learn end within the linear networks' bounds: "
        "median S over the linear S_min": ("linear-bounds", ratio, bounds)
    }
    return judged("7", claims)
