"""The paper's figures, drawn from the tables of its studies; nothing here computes a run.

Lines are geometric means over the runs that did not diverge, bands their 95 % confidence intervals,
dots the runs themselves where a point has few; a point is left out where every run diverged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flatmin.core.figures import (
    BLACK,
    BLUE,
    COLOURS,
    MARKERS,
    RED,
    SKY,
    new_figure,
    plain_log_ticks,
)
from flatmin.core.statistics import mean_half_width, share_band
from flatmin.data.regression import Regression
from flatmin.dynamics.figures import training_figure
from flatmin.paper.measures import finished, gap_line, gap_points
from flatmin.theory.minimal_sharpness import (
    corollary_2_bound,
    critical_learning_rate,
    lower_bound,
    minimal_sharpness,
    paper_learning_rate,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SMALLEST = 1e-25
# From this many values on an interval is drawn instead of the values.
FEW = 8


def band(rows: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Geometric mean of y at each x with its 95 % interval, over the `count` values that exist.

    Fewer than three values have no interval.
    """
    kept = rows[[x, y]].dropna()
    logs = np.log(kept[y].clip(lower=_SMALLEST))
    groups = logs.groupby(kept[x])
    count, mean = groups.count(), groups.mean()
    width = groups.agg(mean_half_width).where(count >= 3, 0.0)
    low, high = np.exp(mean - width), np.exp(mean + width)
    return pd.DataFrame({"mean": np.exp(mean), "low": low, "high": high, "count": count})


def draw_means(
    panel: Axes, rows: pd.DataFrame, x: str, y: str, label: str, number: int | None = None
) -> pd.DataFrame:
    """`band` as line number so many (black without a number); where a point has fewer than FEW
    values, these instead of the interval.

    The interval of a few logarithms is as wide as the plot and says less than they do.
    """
    table = band(rows, x, y)
    colour, marker = (BLACK, "x") if number is None else (COLOURS[number], MARKERS[number])
    panel.plot(table.index, table["mean"], marker=marker, ms=4, color=colour, label=label)
    many = (table["count"] >= FEW).to_numpy()
    panel.fill_between(
        table.index, table["low"], table["high"], where=many, color=colour, alpha=0.2, lw=0
    )
    few = rows[rows[x].map(table["count"]).fillna(0) < FEW].dropna(subset=[x, y])
    panel.scatter(
        few[x], few[y].clip(lower=_SMALLEST), s=9, color=colour, alpha=0.45, lw=0, zorder=1.5
    )
    return table


def _rates(rows: pd.DataFrame) -> list[float]:
    return sorted(rows["learning_rate"].unique())


def distance_figure(rows: pd.DataFrame) -> Figure:
    """1a, 4a: |w - w*|^2 after training against initial scale, one line per rate."""
    figure, (panel,) = new_figure(1, width=6.0, height=4.2)
    draw_means(panel, rows, "scale", "initial_distance", "initialisation")
    for i, rate in enumerate(_rates(rows)):
        kept = finished(rows[rows["learning_rate"] == rate])
        draw_means(panel, kept, "scale", "distance", f"rate {rate:g}", i)
    panel.set(xlabel="scale of initialisation", ylabel="squared distance |w - w*|²", yscale="log")
    figure.legend(frameon=False, fontsize=8, ncols=3, loc="outside upper center")
    return figure


def sharpness_figure(
    rows: pd.DataFrame, data: Regression, depth: int, p_norm: float = 1.0, corollary: bool = True
) -> Figure:
    """1b, 4b, 6a, 7: sharpness before and after training, with 2/eta, the bounds and S_min."""
    figure, (panel,) = new_figure(1, width=6.6, height=4.6)
    first = draw_means(panel, rows, "scale", "initial_sharpness", "initialisation")
    shown = [*first["mean"]]
    for i, rate in enumerate(r for r in _rates(rows) if r < 0.09):
        kept = finished(rows[rows["learning_rate"] == rate])
        colour = COLOURS[i]
        table = draw_means(panel, kept, "scale", "sharpness", f"rate {rate:g}", i)
        panel.axhline(2.0 / rate, color=colour, ls="--", lw=1)
        panel.text(
            1.01, 2.0 / rate, f"2/{rate:g}", transform=panel.get_yaxis_transform(),
            fontsize=7, color=colour, va="center",
        )  # fmt: skip
        shown += [*table["mean"], 2.0 / rate]
    bounds = [("lower bound", lower_bound(data, depth, p_norm), -9)]
    if corollary:
        bounds.append(("Corollary 2", corollary_2_bound(data, depth), 3))
    how: Any = {"xycoords": panel.get_yaxis_transform(), "textcoords": "offset points"}
    how["bbox"] = {"fc": "white", "ec": "none", "pad": 0.5, "alpha": 0.8}
    for name, value, above in bounds:
        panel.axhline(value, color=BLACK, ls=":", lw=1)
        panel.annotate(name, (0.02, value), xytext=(0, above), fontsize=7, **how)
    exact = minimal_sharpness(data, depth, p_norm).exact
    panel.axhline(exact, color=SKY, lw=1.2, zorder=0, label=f"S_min, exact: {exact:.2f}")
    panel.set(xlabel="scale of initialisation", ylabel="sharpness", yscale="log")
    # What a network has before training can be smaller by orders of magnitude.
    levels = [*shown, exact, *(value for _, value, _ in bounds)]
    low = max(min(levels), exact / 1000.0)
    panel.set_ylim(low / 1.6, 1.6 * max(levels))
    if max(levels) / low < 1e3:
        plain_log_ticks(panel.yaxis)
    figure.legend(frameon=False, fontsize=8, ncols=3, loc="outside upper center")
    return figure


def divergence_figure(rows: pd.DataFrame) -> Figure:
    """3, 5: share of diverged runs against initial scale, with 95 % Wilson intervals."""
    figure, (panel,) = new_figure(1, width=6.6, height=4.2)
    rates, scales = _rates(rows), np.sort(rows["scale"].unique())
    # Side by side within half of the way from scale to scale, so that intervals do not overlap.
    between = float(np.diff(scales).min()) if len(scales) > 1 else 1.0
    for i, rate in enumerate(rates):
        groups = (rows["state"] == "diverged")[rows["learning_rate"] == rate].groupby(rows["scale"])
        count, size = groups.sum(), groups.count()
        share = count / size
        intervals = [share_band(int(k), int(n)) for k, n in zip(count, size, strict=True)]
        x = share.index + (i - (len(rates) - 1) / 2) * 0.5 * between / len(rates)
        panel.plot(
            x, share, marker=MARKERS[i], ms=4, lw=1, color=COLOURS[i], label=f"rate {rate:g}"
        )
        panel.vlines(x, *zip(*intervals, strict=True), color=COLOURS[i], lw=1.6, alpha=0.35)
    panel.set(xlabel="scale of initialisation", ylabel="share of runs that diverged")
    panel.set_ylim(-0.03, 1.03)
    figure.legend(frameon=False, fontsize=8, ncols=5, loc="outside upper center")
    return figure


def run_figure(traces: pd.DataFrame, rows: pd.DataFrame, rate: float, least: float) -> Figure:
    """1c, 1d, 4c, 4d: distance and sharpness along one run, with 2/eta and S_min."""
    run = rows.loc[np.isclose(rows["learning_rate"], rate), "run"].iloc[0]
    trace = traces[traces["run"] == run].sort_values("step")
    shown = trace.filter(regex="^(step|distance|sharpness)")
    return training_figure(
        shown, f"learning rate {rate:g}", 2.0 / rate, least, f"2/eta = {2.0 / rate:g}"
    )


def depth_figure(rows: pd.DataFrame, data: Regression) -> Figure:
    """2: distance against rate, one line per depth, with both predictions of the threshold."""
    figure, (panel,) = new_figure(1, width=7.0, height=4.2)
    for i, depth in enumerate(sorted(rows["depth"].unique())):
        kept = finished(rows[rows["depth"] == depth])
        colour = COLOURS[i]
        draw_means(panel, kept, "learning_rate", "distance", f"L = {depth}", i)
        panel.axvline(critical_learning_rate(data, int(depth)), color=colour, ls="-", lw=1)
        panel.axvline(paper_learning_rate(data, int(depth)), color=colour, ls=":", lw=1.6)
    panel.plot([], [], color=BLACK, lw=1, label="2/S_min, exact")
    panel.plot([], [], color=BLACK, ls=":", lw=1.6, label="the paper's approximation")
    panel.set(xlabel="learning rate", ylabel="squared distance |w - w*|²")
    panel.set(xscale="log", yscale="log")
    plain_log_ticks(panel.xaxis)
    figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=6)
    return figure


def generalisation_figure(rows: pd.DataFrame) -> Figure:
    """6b: generalisation gap against final sharpness at rate 0.001, one dot a run."""
    figure, (panel,) = new_figure(1, width=5.6, height=4.2)
    x, y = gap_points(rows)
    line = gap_line(rows)
    panel.scatter(x, y, s=7, color=BLUE, alpha=0.35, lw=0, label=f"{len(x)} runs")
    ends: Any = np.array([x.min(), x.max()])
    label = (
        f"slope {line.slope:.3f} +- {line.stderr:.3f}\n"
        f"intercept {line.intercept:.3f} +- {line.intercept_stderr:.3f}"
    )
    panel.plot(ends, line.intercept + line.slope * ends, color=RED, label=label)
    panel.set(xlabel="log10 of final sharpness", ylabel="log10 of (test risk - train risk)")
    panel.legend(frameon=False, fontsize=8)
    return figure
