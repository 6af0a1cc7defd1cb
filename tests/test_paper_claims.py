"""Each claim's checker is shown tables that satisfy it and tables that must fail it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flatmin.data.sets import paper_samples
from flatmin.paper import claims
from flatmin.paper.claims import FAILS, HOLDS, UNDECIDED
from flatmin.paper.tables import StudyTables
from flatmin.theory.minimal_sharpness import critical_learning_rate, minimal_sharpness

DATA = paper_samples("linear").regression()
LEAST = minimal_sharpness(DATA, 10).exact
RATES, SCALES = (0.02, 0.07, 0.2), np.linspace(0.25, 0.6, 4)


def table(**columns: object) -> pd.DataFrame:
    """A row per rate, scale and repetition of a study in which all is well."""
    rows = [
        {
            "run": i,
            "learning_rate": rate,
            "scale": scale,
            "state": "settled" if rate < 0.1 else "stepped out",
            "distance": 1e-12 if rate < 0.1 else 0.4,
            "initial_sharpness": 10.0 * scale**4,
            "sharpness": min(1.1 * LEAST * (1 + 20 * (scale - 0.25)), 0.99 * 2 / rate),
            "minimal_sharpness": LEAST,
            "edge": 2 / rate,
            "excess_risk": 1e-9,
            "depth": 10,
            "train_risk": 0.1,
            "test_risk": 0.2,
        }
        for i, (rate, scale, _) in enumerate(
            (r, s, k) for r in RATES for s in SCALES for k in range(20)
        )
    ]
    return pd.DataFrame(rows).assign(**columns)


def verdicts(found: list[claims.Claim]) -> dict[str, str]:
    return {claim.id: claim.verdict for claim in found}


def test_success_and_failure():
    good = claims.success_and_failure(table(), DATA, "1a", 10, 1.0)
    assert set(verdicts(good).values()) == {HOLDS}
    slow = table()
    slow.loc[np.isclose(slow["learning_rate"], 0.07), "distance"] = 0.5
    assert verdicts(claims.success_and_failure(slow, DATA, "1a", 10, 1.0)) == {
        "1a-learns-below": FAILS,
        "1a-fails-above": HOLDS,
    }
    lucky = table(distance=1e-9)
    assert verdicts(claims.success_and_failure(lucky, DATA, "1a", 10, 1.0)) == {
        "1a-learns-below": HOLDS,
        "1a-fails-above": FAILS,
    }


def test_edge_bounds():
    assert set(verdicts(claims.edge_bounds(table(), "1b")).values()) == {HOLDS}
    flat = table(sharpness=0.9 * LEAST)
    assert verdicts(claims.edge_bounds(flat, "1b"))["1b-above-s-min"] == FAILS
    sharp = table(sharpness=200.0)
    assert verdicts(claims.edge_bounds(sharp, "1b"))["1b-below-edge"] == FAILS
    nothing = table(state="diverged")
    assert set(verdicts(claims.edge_bounds(nothing, "1b")).values()) == {FAILS}


def test_small_scale():
    assert set(verdicts(claims.small_scale(table(), DATA, 10)).values()) == {HOLDS}
    outside = verdicts(claims.small_scale(table(sharpness=500.0), DATA, 10))
    assert outside["1b-corollary-2"] == FAILS
    assert outside["1b-vanishing-limit"] == FAILS
    depends = table()
    depends.loc[np.isclose(depends["learning_rate"], 0.07), "sharpness"] = 1.3 * LEAST
    assert verdicts(claims.small_scale(depends, DATA, 10))["1b-rate-independent"] == FAILS


def test_plateau():
    assert verdicts(claims.plateau(table(), "1b", [0.07], 2)) == {"1b-plateau-0.07": HOLDS}
    low = table(sharpness=20.0)
    assert verdicts(claims.plateau(low, "1b", [0.07], 2)) == {"1b-plateau-0.07": FAILS}
    gone = table(state="diverged")
    assert verdicts(claims.plateau(gone, "1b", [0.07], 2)) == {"1b-plateau-0.07": UNDECIDED}


def test_two_runs():
    rows = pd.DataFrame({"run": [0, 1], "learning_rate": [0.02, 0.1]})
    steps = np.arange(0, 400, 5)
    calm = pd.DataFrame({"run": 0, "step": steps, "sharpness": 25.0})
    edge = pd.DataFrame({"run": 1, "step": steps, "sharpness": 20.0 + 3 * (-1.0) ** (steps // 5)})
    good = claims.two_runs(StudyTables(rows, pd.concat([calm, edge])), ("1c", "1d"))
    assert verdicts(good) == {"1c-below-edge": HOLDS, "1d-at-edge": HOLDS}
    bad = pd.concat([calm.assign(sharpness=130.0), edge.assign(sharpness=12.0)])
    assert verdicts(claims.two_runs(StudyTables(rows, bad), ("1c", "1d"))) == {
        "1c-below-edge": FAILS,
        "1d-at-edge": FAILS,
    }


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, HOLDS), (1.3, FAILS), (0.7, FAILS)])
def test_depth_thresholds(factor, verdict):
    critical = critical_learning_rate(DATA, 10)
    rates = np.geomspace(0.01, 0.5, 25)
    rows = pd.DataFrame(
        {
            "depth": 10,
            "learning_rate": np.repeat(rates, 10),
            "distance": np.repeat(np.where(rates < factor * critical, 1e-9, 0.5), 10),
        }
    )
    found = verdicts(claims.depth_thresholds(rows, DATA))
    assert found == {"2-threshold-10-exact": verdict, "2-threshold-10-paper": verdict}
    never = rows.assign(distance=0.5)
    assert set(verdicts(claims.depth_thresholds(never, DATA)).values()) == {FAILS}
    few = claims.depth_thresholds(rows.groupby("learning_rate").head(9), DATA)
    assert set(verdicts(few).values()) == {UNDECIDED}
    assert {claim.needs for claim in few} == {
        "at least 10 runs at each depth and rate; there are 9"
    }


def test_divergence_rises():
    rows = table()
    share = (rows["scale"] - 0.25) * 2 + rows["learning_rate"] * 2
    place = rows.groupby(["learning_rate", "scale"]).cumcount() / 20
    rising = rows.assign(state=np.where(place < share, "diverged", "settled"))
    assert set(verdicts(claims.divergence_rises(rising, "3")).values()) == {HOLDS}
    falling = rows.assign(state=np.where(place < 1 - share, "diverged", "settled"))
    assert set(verdicts(claims.divergence_rises(falling, "3")).values()) == {FAILS}
    never = rows.assign(state="settled")
    assert set(verdicts(claims.divergence_rises(never, "3")).values()) == {FAILS}


def test_initial_sensitivity():
    calm = table(initial_sharpness=np.linspace(20, 40, len(table())))
    assert verdicts(claims.initial_sensitivity(table(), calm)) == {"4b-less-sensitive": HOLDS}
    assert verdicts(claims.initial_sensitivity(calm, table())) == {"4b-less-sensitive": FAILS}


@pytest.mark.parametrize(
    ("slope", "intercept", "slope_verdict", "intercept_verdict"),
    [(0.42, -0.96, HOLDS, HOLDS), (0.2, -0.96, FAILS, HOLDS), (0.42, -0.4, HOLDS, FAILS)],
)
def test_generalisation(slope, intercept, slope_verdict, intercept_verdict):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, 900)
    gap = 10 ** (intercept + slope * x + 0.05 * rng.standard_normal(900))
    rows = pd.DataFrame(
        {
            "learning_rate": 0.001,
            "state": "learning",
            "sharpness": 10**x,
            "train_risk": 0.0,
            "test_risk": gap,
        }
    )
    assert verdicts(claims.generalisation(rows)) == {
        "6b-slope": slope_verdict,
        "6b-intercept": intercept_verdict,
    }


def test_gelu_small_scale():
    good = claims.gelu_small_scale(table(), DATA, 10)
    assert verdicts(good) == {"7-linear-bounds": HOLDS}
    bad = claims.gelu_small_scale(table(sharpness=900.0), DATA, 10)
    assert verdicts(bad) == {"7-linear-bounds": FAILS}
    none = claims.gelu_small_scale(table(excess_risk=1.0), DATA, 10)
    assert verdicts(none) == {"7-linear-bounds": UNDECIDED}
    assert none[0].measured is None


@pytest.mark.parametrize(
    ("values", "verdict", "needs"),
    [
        ([1.0] * 5, UNDECIDED, "at least 6 runs; there are 5"),
        ([], UNDECIDED, "at least 6 runs; there are 0"),
        ([1.0] * 6, HOLDS, ""),
        ([2.0] * 6, FAILS, ""),
        ([1.0] * 10 + [2.0] * 9, UNDECIDED, "more runs than 19"),
        ([1.0] * 18 + [2.0], HOLDS, ""),
    ],
)
def test_too_few_runs_leave_a_median_undecided(values, verdict, needs):
    rows = {"the median": ("id", values, claims.median_between(0.9, 1.05))}
    (claim,) = claims.judged("7", rows)
    assert claim.verdict == verdict
    assert claim.needs.startswith(needs)
    assert bool(claim.needs) == (verdict == UNDECIDED)
