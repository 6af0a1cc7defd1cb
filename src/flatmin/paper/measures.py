"""What is measured on the tables of studies; figures and claims take the same measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from flatmin.data.regression import Regression
from flatmin.paper.shipped import shipped_study
from flatmin.paper.tables import Tables
from flatmin.study.inputs import data_of
from flatmin.theory.minimal_sharpness import critical_learning_rate, paper_learning_rate

ALIGNMENTS = {"spread": "w* spread over all eigenvectors", "weak": "w* on the weak eigenvectors"}
CONDITIONS = (100, 1000)
FEATURES = (2, 4, 8, 16, 32, 64)
STARTS = {"small": "small initialisation", "residual": "residual initialisation"}
# The slope of the paper's Figure 6b, with its standard error.
PAPER_SLOPE, PAPER_SLOPE_ERROR = 0.42, 0.01
# Changes of sharpness below this share of it do not count as a rise or a fall.
STILL = 1e-3
# A network with an activation has died when its sharpness is below this share of the linear S_min.
DEAD = 1e-3


def finished(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs that did not diverge."""
    return rows[rows["state"] != "diverged"]


def gap_points(rows: pd.DataFrame, rate: float = 0.001) -> tuple[Any, Any]:
    """6b: log10 of final sharpness and of test risk minus train risk, one point a run."""
    kept = finished(rows[np.isclose(rows["learning_rate"], rate)])
    gap = kept["test_risk"] - kept["train_risk"]
    kept, gap = kept[gap > 0], gap[gap > 0]
    return np.log10(kept["sharpness"].to_numpy()), np.log10(gap.to_numpy())


def gap_line(rows: pd.DataFrame) -> Any:
    """6b's regression line: `slope` and `intercept`, with `stderr` and `intercept_stderr`."""
    from scipy.stats import linregress

    return linregress(*gap_points(rows))


def regression_of(name: str) -> Regression:
    """The data of a shipped study with one data set."""
    return data_of(shipped_study(name), 0).regression


def working_rates(rows: pd.DataFrame, data: Regression) -> pd.DataFrame:
    """By depth, in units of the exact 2/S_min: the largest rate at which at least half of the runs
    learned (`measured`, NaN if there is none) and the paper's formula (`paper`)."""
    # Not the distance to w*: directions of small eigenvalue hardly change the risk, and reaching w*
    # along them takes a number of steps of the order of the condition number.
    shares = rows["learned"].groupby([rows["depth"], rows["relative_rate"]]).mean()
    table = {}
    for depth in sorted(rows["depth"].unique()):
        works = shares[depth][shares[depth] >= 0.5].index
        paper = paper_learning_rate(data, int(depth)) / critical_learning_rate(data, int(depth))
        table[int(depth)] = {"measured": works.max() if len(works) else np.nan, "paper": paper}
    return pd.DataFrame.from_dict(table, orient="index", dtype=float)


def learned_above(rows: pd.DataFrame) -> tuple[float, float]:
    """The share of runs that learned above the exact 2/S_min: the largest at a depth and rate, and
    that of all of them."""
    above = rows[rows["relative_rate"] > 1.0]
    learned = above["learned"]
    largest = learned.groupby([above["depth"], above["relative_rate"]]).mean().max()
    return float(largest), float(learned.mean())


def dead(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which runs ended where the network hardly depends on its weights: no minimiser is so flat."""
    return rows["sharpness"] < DEAD * rows["minimal_sharpness"]


def slopes(rows: pd.DataFrame) -> pd.DataFrame:
    """The slope of Figure 6b and its standard error, by data set; too few runs give none."""
    table = {}
    for dataset, group in rows.groupby("dataset"):
        x, _ = gap_points(group)
        if len(x) >= 3 and np.ptp(x) > 0:
            line = gap_line(group)
            table[dataset] = {"slope": line.slope, "error": line.stderr}
    return pd.DataFrame.from_dict(table, orient="index", columns=["slope", "error"], dtype=float)


def sharpening(rows: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    """How sharpness moved along each run that settled.

    `change` is its final over its initial value; `monotone` whether no entry lies below an earlier
    one; `fall` the largest relative fall below an earlier entry; `peak` the largest entry over
    the final one.
    """
    kept = rows[rows["state"] == "settled"].set_index("run")
    table = {}
    for run, trace in traces.dropna(subset=["sharpness"]).groupby("run"):
        if run in kept.index:
            along = trace.sort_values("step")["sharpness"].to_numpy()
            fall = float(np.max(1.0 - along / np.maximum.accumulate(along)))
            table[run] = {"fall": fall, "peak": along.max() / along[-1]}
    moved = pd.DataFrame.from_dict(table, orient="index", columns=["fall", "peak"], dtype=float)
    moved["monotone"] = moved["fall"] <= STILL
    moved["change"] = kept["sharpness"] / kept["initial_sharpness"]
    return moved.join(kept[["depth", "scale"]])


def flatness(tables: Tables, axis: str, start: str) -> pd.DataFrame:
    """S/S_min of the settled runs against `size`: the depth, or the number of features.

    `bound` is Corollary 2's 4 Lam/lam of the data.
    """
    widths = [f"beyond-width-{start}-{d}" for d in FEATURES]
    names = widths if axis == "width" else [f"beyond-depth-{start}"]
    parts = []
    for name in names:
        rows = tables[name].rows
        ended, data = rows[rows["state"] == "settled"], regression_of(name)
        size = ended["depth"] if axis == "depth" else data.d
        ratio = ended["sharpness"] / ended["minimal_sharpness"]
        bound = 4.0 * data.condition_number
        parts.append(pd.DataFrame({"size": size, "ratio": ratio, "bound": bound}))
    return pd.concat(parts, ignore_index=True)
