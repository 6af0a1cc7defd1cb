"""What the paper claims of its figures, each as a number with a verdict that can fail.

One claim, one function: it takes the tables of a study and returns claims. `expected` and
`tolerance` are fixed here, before anything is measured; `measured` comes from the runs. Where these
are too few to tell, the claim is undecided and says what it needs.
"""

from __future__ import annotations

from dataclasses import replace
from operator import ge, gt, le, lt
from typing import Any

import numpy as np
import pandas as pd

from flatmin.core.shown import Shown
from flatmin.core.statistics import median_interval
from flatmin.data.regression import Regression
from flatmin.paper.measures import PAPER_SLOPE, PAPER_SLOPE_ERROR, finished, gap_line
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


def judge(
    id: str, figure: str, statement: str, expected: str, tolerance: str, measured: float, ok: bool
) -> Claim:
    """A claim with its verdict; a measurement that does not exist fails."""
    exists = bool(np.isfinite(measured))
    return Claim(
        id=id,
        figure=figure,
        statement=statement,
        expected=expected,
        measured=float(measured) if exists else None,
        tolerance=tolerance,
        verdict=HOLDS if ok and exists else FAILS,
    )


def within(
    id: str, figure: str, statement: str, measured: float, expected: float, tolerance: float
) -> Claim:
    """A claim that a number lies within a tolerance of another."""
    ok = abs(measured - expected) <= tolerance
    return judge(id, figure, statement, f"{expected:.4g}", f"+- {tolerance:.2g}", measured, ok)


def between(
    id: str, figure: str, statement: str, measured: float, low: float, high: float
) -> Claim:
    """A claim that a number lies in an interval."""
    expected = f"{low:.4g} to {high:.4g}"
    return judge(id, figure, statement, expected, "none", measured, low <= measured <= high)


def compared(
    id: str, figure: str, statement: str, measured: float, relation: str, limit: float
) -> Claim:
    """A claim that a number is "at most", "at least", "below" or "above" another."""
    ok = bool(_RELATIONS[relation](measured, limit))
    return judge(id, figure, statement, f"{relation} {limit:.3g}", "none", measured, ok)


def all_of(id: str, figure: str, statement: str, share: float) -> Claim:
    """A claim about every run: the share of those for which it is true is 1."""
    return judge(id, figure, statement, "1", "none", share, share == 1.0)


def median_between(
    id: str, figure: str, statement: str, values: Any, low: float, high: float
) -> Claim:
    """A claim that the median of runs lies in an interval; undecided if its own contains an end."""
    kept = pd.Series(values).dropna()
    median = float(kept.median()) if len(kept) else np.nan
    from_, to = median_interval(kept)
    claim = between(id, figure, statement, median, low, high)
    inside, outside = low <= from_ and to <= high, to < low or from_ > high
    if inside or outside:
        return claim
    needs = f"at least {FEWEST} runs; there are {len(kept)}"
    if np.isfinite(from_):
        needs = (
            f"more runs than {len(kept)}: the 95 % interval of the median, {from_:.3g} to "
            f"{to:.3g}, contains an end of the expected one"
        )
    return replace(claim, verdict=UNDECIDED, needs=needs)


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
    medians = below.groupby(["learning_rate", "scale"])["distance"].median()
    by_scale = above.groupby("scale")["distance"].median()
    return [
        compared(
            f"{figure}-learns-below",
            figure,
            "below 2/S_min the runs that do not diverge come near w*, whatever the scale: the "
            "largest median of |w - w*|^2 over rates and scales",
            medians.max(),
            "at most",
            NEAR,
        ),
        compared(
            f"{figure}-fails-above",
            figure,
            "above 2/S_min they do not: the smallest median of |w - w*|^2 over scales",
            by_scale.min(),
            "at least",
            NEAR,
        ),
    ]


def edge_bounds(rows: pd.DataFrame, figure: str) -> list[Claim]:
    """S_min <= S <= 2/eta at the end of every settled run."""
    ended = rows[rows["state"] == "settled"]
    low = float((ended["sharpness"] / ended["minimal_sharpness"]).min()) if len(ended) else np.nan
    high = float((ended["sharpness"] / ended["edge"]).max()) if len(ended) else np.nan
    return [
        judge(
            f"{figure}-above-s-min",
            figure,
            f"S >= S_min at the end of all {len(ended)} settled runs: the smallest S/S_min",
            "at least 1",
            "1e-6",
            low,
            low >= 1.0 - 1e-6,
        ),
        judge(
            f"{figure}-below-edge",
            figure,
            f"S <= 2/eta at the end of all {len(ended)} settled runs: the largest S eta/2",
            "at most 1",
            "1e-6",
            high,
            high <= 1.0 + 1e-6,
        ),
    ]


def small_scale(rows: pd.DataFrame, data: Regression, depth: int) -> list[Claim]:
    """1b at the smallest scale: Corollary 2's bounds, no dependence on the rate, the exact limit.

    Over the rates that the figure shows, those below 0.09.
    """
    shown = rows[rows["learning_rate"] < 0.09]
    ended = shown[(shown["state"] == "settled") & (shown["scale"] == shown["scale"].min())]
    means = ended.groupby("learning_rate")["sharpness"].mean()
    low, high = lower_bound(data, depth), corollary_2_bound(data, depth)
    limit = vanishing_scale_limit(data, depth)
    inside = ended["sharpness"].between(low * (1 - 1e-9), high)
    spread = float(means.max() / means.min()) if len(means) > 1 else np.nan
    return [
        all_of(
            "1b-corollary-2",
            "1b",
            "from the smallest scale all runs end between Theorem 1's lower and Corollary 2's "
            "upper bound: share inside",
            float(inside.mean()) if len(inside) else np.nan,
        ),
        judge(
            "1b-rate-independent",
            "1b",
            "from the smallest scale final sharpness does not depend on the rate: largest over "
            "smallest mean",
            "1",
            "+- 0.05",
            spread,
            spread <= 1.05,
        ),
        within(
            "1b-vanishing-limit",
            "1b",
            "from the smallest scale final sharpness is close to the exact vanishing-scale limit: "
            "mean S over the limit",
            float(ended["sharpness"].mean() / limit),
            1.0,
            0.2,
        ),
    ]


def plateau(rows: pd.DataFrame, figure: str, rates: list[float], scales: int) -> list[Claim]:
    """Large scales plateau at 2/eta: the median of S eta/2 over the largest scales that train."""
    claims = []
    for rate in rates:
        kept = finished(rows[np.isclose(rows["learning_rate"], rate)])
        largest = sorted(kept["scale"].unique())[-scales:]
        shares = (kept["sharpness"] / kept["edge"])[kept["scale"].isin(largest)]
        claims.append(
            median_between(
                f"{figure}-plateau-{rate:g}",
                figure,
                f"at rate {rate:g} large scales end at the edge of stability: median of S eta/2 "
                f"over the {scales} largest scales (spread {shares.quantile(0.1):.2f} to "
                f"{shares.quantile(0.9):.2f})",
                shares,
                0.9,
                1.05,
            )
        )
    return claims


def two_runs(traces: pd.DataFrame, rows: pd.DataFrame, figures: tuple[str, str]) -> list[Claim]:
    """1c, 4c: the run stays below 2/eta. 1d, 4d: the run goes to 2/eta and stays around it."""
    slow, fast = rows["learning_rate"].min(), rows["learning_rate"].max()

    def shares(rate: float) -> Any:
        run = rows.loc[rows["learning_rate"] == rate, "run"].iloc[0]
        return traces[traces["run"] == run].sort_values("step")["sharpness"].dropna() * rate / 2.0

    around = shares(fast)
    return [
        compared(
            f"{figures[0]}-below-edge",
            figures[0],
            f"the run at rate {slow:g} stays below the edge: the largest S eta/2",
            shares(slow).max(),
            "below",
            1.0,
        ),
        within(
            f"{figures[1]}-at-edge",
            figures[1],
            f"the run at rate {fast:g} settles around the edge: mean of S eta/2 over the second "
            "half",
            float(around.iloc[len(around) // 2 :].mean()),
            1.0,
            0.1,
        ),
    ]


def depth_thresholds(rows: pd.DataFrame, data: Regression) -> list[Claim]:
    """2: the rate at which learning stops, against the exact 2/S_min and the paper's formula."""
    claims = []
    for depth in sorted(rows["depth"].unique()):
        group = rows[rows["depth"] == depth]
        near = (group["distance"] < NEAR).groupby(group["learning_rate"]).mean()
        rates = near.index.to_numpy()
        fails = np.flatnonzero(near.to_numpy() < 0.5)
        first = int(fails[0]) if len(fails) and fails[0] > 0 else -1
        # Geometric middle of the last rate that works and the first that does not.
        threshold = float(np.sqrt(rates[first - 1] * rates[first])) if first > 0 else np.nan
        step = float(np.sqrt(rates[1] / rates[0]))
        for name, value in (
            ("exact", critical_learning_rate(data, int(depth))),
            ("paper", paper_learning_rate(data, int(depth))),
        ):
            words = "the exact 2/S_min" if name == "exact" else "the paper's formula"
            claims.append(
                judge(
                    f"2-threshold-{depth}-{name}",
                    "2",
                    f"depth {depth}: learning stops at {words}, {value:.4g}, to within half a step "
                    f"of the grid: measured threshold",
                    f"{value:.4g}",
                    f"factor {step:.3f}",
                    threshold,
                    max(threshold / value, value / threshold) <= step * (1 + 1e-9),
                )
            )
    runs = int(rows.groupby(["depth", "learning_rate"]).size().min())
    return needing(claims, SHARE_RUNS, "runs at each depth and rate", runs)


def divergence_rises(rows: pd.DataFrame, figure: str) -> list[Claim]:
    """3, 5: the share of diverged runs rises with scale and with rate.

    Along each line the share may fall below its maximum so far only by what 20 runs a point can
    do by chance (two standard deviations of the difference of two shares near a half).
    """
    shares = (
        (rows["state"] == "diverged")
        .groupby([rows["learning_rate"], rows["scale"]])
        .mean()
        .unstack("scale")
    )
    size = rows.groupby(["learning_rate", "scale"]).size().min()
    chance = float(2.0 * np.sqrt(2.0 * 0.25 / size))
    claims = []
    for name, table in (("scale", shares.to_numpy()), ("rate", shares.to_numpy().T)):
        drop = float(np.max(np.maximum.accumulate(table, axis=1) - table))
        rise = float(np.max(table[:, -1] - table[:, 0]))
        claims.append(
            judge(
                f"{figure}-rises-with-{name}",
                figure,
                f"the probability of divergence rises with the {name} (by {rise:.2f} at most): its "
                "largest fall below an earlier value",
                "0",
                f"chance, {chance:.2f}",
                drop,
                drop <= chance and rise > chance,
            )
        )
    return claims


def initial_sensitivity(linear: pd.DataFrame, residual: pd.DataFrame) -> list[Claim]:
    """4b: sharpness at initialisation depends less on the scale for residual networks."""

    def ratio(rows: pd.DataFrame) -> float:
        means = rows.groupby("scale")["initial_sharpness"].median()
        return float(means.max() / means.min())

    gaussian, identity = ratio(linear), ratio(residual)
    return [
        compared(
            "4b-less-sensitive",
            "4b",
            f"initial sharpness varies over the scales by a smaller factor than from Gaussian "
            f"initialisation ({gaussian:.3g}): the factor",
            identity,
            "below",
            gaussian,
        )
    ]


def generalisation(rows: pd.DataFrame) -> list[Claim]:
    """6b: slope 0.42 +- 0.01 and intercept -0.96 +- 0.03 on the authors' data.

    Theirs and ours are two samples of initial weights, so the tolerance is two standard errors of
    the difference.
    """
    line = gap_line(rows)
    return [
        within(
            "6b-slope",
            "6b",
            "slope of log10(test - train risk) on log10(sharpness), "
            f"ours +- {line.slope_error:.3f}",
            line.slope,
            PAPER_SLOPE,
            2.0 * float(np.hypot(line.slope_error, PAPER_SLOPE_ERROR)),
        ),
        within(
            "6b-intercept",
            "6b",
            f"its intercept, ours +- {line.intercept_error:.3f}",
            line.intercept,
            -0.96,
            2.0 * float(np.hypot(line.intercept_error, 0.03)),
        ),
    ]


def gelu_small_scale(rows: pd.DataFrame, data: Regression, depth: int) -> list[Claim]:
    """7: from the smallest scale final sharpness is close to the linear networks' bounds."""
    kept = finished(rows)
    kept = kept[(kept["scale"] == kept["scale"].min()) & (kept["excess_risk"] < NEAR)]
    high = corollary_2_bound(data, depth) / lower_bound(data, depth)
    return [
        median_between(
            "7-linear-bounds",
            "7",
            "from the smallest scale the runs that learn end within the linear networks' bounds: "
            "median S over the linear S_min",
            kept["sharpness"] / kept["minimal_sharpness"],
            1.0,
            high,
        )
    ]
