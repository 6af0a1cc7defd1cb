"""What is measured and drawn beyond the paper's figures, from the tables of shipped studies.

Measures come first: figures and claims (`beyond`) take the same ones. As in `figures`, lines are
geometric means over the runs that did not diverge, bands their 95 % confidence intervals.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flatmin.core.figures import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    new_figure,
    plain_log_ticks,
)
from flatmin.data.regression import Regression
from flatmin.paper.claims import finished, gap_line, gap_points
from flatmin.paper.figures import band, draw_means, sharpness_figure
from flatmin.paper.tables import Tables
from flatmin.study.inputs import data_of
from flatmin.study.spec import Study, parse_spec
from flatmin.theory.minimal_sharpness import critical_learning_rate, paper_learning_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, BLACK)
_MARKERS = ("o", "s", "^", "D", "v", "x")


@cache
def shipped_study(name: str) -> Study:
    """A study of this folder by name."""
    place = files("flatmin.paper").joinpath("studies", f"{name}.toml")
    return parse_spec(place.read_text(encoding="utf-8"), f"the shipped study {name!r}")


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
            table[dataset] = {"slope": line.slope, "error": line.slope_error}
    return pd.DataFrame.from_dict(table, orient="index", columns=["slope", "error"], dtype=float)


def sharpening(rows: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    """How sharpness moved along each run that settled.

    `change` is its final over its initial value; `monotone` whether no record lies below an earlier
    one; `fall` the largest relative fall below an earlier record; `peak` the largest record over
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
    names = {
        "depth": [f"beyond-depth-{start}"],
        "width": [f"beyond-width-{start}-{d}" for d in FEATURES],
    }[axis]
    parts = []
    for name in names:
        rows = tables[name].rows
        ended, data = rows[rows["state"] == "settled"], regression_of(name)
        size = ended["depth"] if axis == "depth" else data.d
        ratio = ended["sharpness"] / ended["minimal_sharpness"]
        bound = 4.0 * data.condition_number
        parts.append(pd.DataFrame({"size": size, "ratio": ratio, "bound": bound}))
    return pd.concat(parts, ignore_index=True)


def _named_ticks(panel: Axes, values: Any) -> None:
    """A logarithmic x axis with ticks at the values of a study and nowhere else."""
    panel.set_xscale("log")
    panel.set_xticks(list(values), labels=[f"{value:g}" for value in values])
    panel.set_xticks([], minor=True)


def noisy_gelu_figure(tables: Tables) -> Figure:
    """Figure 7 on noisy data; networks that died are counted and left out of the means."""
    name = "beyond-noisy-gelu"
    rows = tables[name].rows
    died = dead(rows)
    figure = sharpness_figure(rows[~died], regression_of(name), 10)
    if died.any():
        note = f"{died.sum()} of {len(rows)} runs died (S below {DEAD:g} S_min) and are left out"
        figure.axes[0].set_title(note, fontsize=8, loc="right")
    return figure


def ill_conditioned_figure(tables: Tables) -> Figure:
    """The measured largest rate and the paper's formula over the exact ceiling, against depth."""
    figure, panels = new_figure(2, width=9.0, height=4.0)
    for panel, (alignment, title) in zip(panels, ALIGNMENTS.items(), strict=True):
        depths: Any = []
        for i, condition in enumerate(CONDITIONS):
            name = f"beyond-ill-conditioned-{alignment}-{condition}"
            table = working_rates(tables[name].rows, regression_of(name))
            depths = table.index
            words = f"condition number {condition}"
            panel.plot(
                depths, table["measured"], marker=_MARKERS[i], ms=5, color=_COLOURS[i],
                label=f"measured, {words}",
            )  # fmt: skip
            panel.plot(
                depths, table["paper"], ls=":", marker="x", ms=5, color=_COLOURS[i],
                label=f"the paper's formula, {words}",
            )  # fmt: skip
        panel.axhline(1.0, color=BLACK, lw=1, zorder=0, label="2/S_min, exact")
        panel.set(xlabel="depth L", ylabel="learning rate / (2/S_min)", title=title, yscale="log")
        panel.title.set_fontsize(10)
        low, high = panel.get_ylim()
        panel.set_ylim(min(low, 0.5), max(high, 2.2))
        _named_ticks(panel, depths)
        plain_log_ticks(panel.yaxis)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, ncols=3, loc="outside lower center")
    return figure


def generalisation_figure(tables: Tables) -> Figure:
    """The slope of Figure 6b on each data set, in order, with two standard errors."""
    figure, (panel,) = new_figure(1, width=6.4, height=4.2)
    table = slopes(tables["beyond-generalisation"].rows).sort_values("slope")
    panel.errorbar(
        np.arange(1, len(table) + 1), table["slope"], yerr=2.0 * table["error"], fmt="o", ms=4,
        lw=1, color=BLUE, label="slope on a fresh data set, +- 2 standard errors",
    )  # fmt: skip
    panel.axhline(PAPER_SLOPE, color=RED, label=f"the paper's data: {PAPER_SLOPE:g}")
    panel.axhline(0.0, color=BLACK, lw=0.8, ls=":")
    panel.set(xlabel="data sets in order of their slope")
    panel.set_ylabel("slope of log10(test - train risk) on log10(S)")
    panel.locator_params(axis="x", integer=True)
    panel.margins(y=0.12)
    panel.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def flow_figure(tables: Tables) -> Figure:
    """Final sharpness of gradient descent against its rate, beside that of gradient flow."""
    figure, (left, right) = new_figure(2, width=9.6, height=4.2)
    flow, descent = tables["beyond-flow-reference"].rows, tables["beyond-flow-descent"].rows
    reference = band(flow, "scale", "sharpness")
    rates = np.array(sorted(descent["learning_rate"].unique()))
    for i, (scale, rows) in enumerate(descent.groupby("scale")):
        label = f"scale {scale:g}"
        draw_means(
            left, finished(rows), "learning_rate", "sharpness", label, _COLOURS[i], _MARKERS[i]
        )
        if scale in reference.index:
            mean, low, high = (float(x) for x in reference.loc[scale].to_numpy()[:3])
            left.axhspan(low, high, color=_COLOURS[i], alpha=0.3, lw=0)
            left.axhline(mean, color=_COLOURS[i], lw=1, ls="-.")
        share = (rows["state"] == "diverged").groupby(rows["learning_rate"]).mean()
        right.plot(share.index, share, marker=_MARKERS[i], ms=4, color=_COLOURS[i], label=label)
    left.plot(rates, 2.0 / rates, color=BLACK, ls="--", lw=1, label="2/eta")
    left.plot([], [], color=BLACK, ls="-.", lw=1, label="gradient flow")
    left.set(ylabel="final sharpness", yscale="log")
    plain_log_ticks(left.yaxis)
    right.set(ylabel="share of runs that diverged", ylim=(-0.03, 1.03))
    for panel in (left, right):
        panel.set_xlabel("learning rate eta")
        _named_ticks(panel, rates)
        panel.tick_params(axis="x", labelsize=8)
        panel.legend(frameon=False, fontsize=8)
    return figure


def sharpening_figure(tables: Tables) -> Figure:
    """By scale: how often sharpness rises, and never falls; and its way down the risk."""
    figure, (left, middle, right) = new_figure(3, width=12.0, height=3.9)
    study = tables["beyond-progressive-sharpening"]
    assert study.traces is not None
    moved = sharpening(study.rows, study.traces)
    for i, (depth, runs) in enumerate(moved.groupby("depth")):
        for panel, rises in ((left, runs["change"] > 1.0), (middle, runs["monotone"])):
            share = rises.groupby(runs["scale"]).mean()
            panel.plot(
                share.index,
                share,
                marker=_MARKERS[i],
                ms=4,
                color=_COLOURS[i],
                label=f"L = {depth}",
            )
    left.set(ylabel="share of runs", title="sharper at the end than at the start")
    middle.set(ylabel="share of runs", title="sharpness never falls")
    for panel in (left, middle):
        panel.set(xlabel="scale of initialisation", ylim=(-0.03, 1.03))
        panel.title.set_fontsize(10)
        panel.legend(frameon=False, fontsize=8)
    depths = sorted(moved["depth"].unique())
    if depths:
        depth = depths[-2] if len(depths) > 1 else depths[0]
        _sharpness_by_risk(right, study.rows, study.traces, moved[moved["depth"] == depth])
        right.set_title(f"sharpness as the risk falls, L = {depth}", fontsize=10)
    return figure


def _sharpness_by_risk(
    panel: Axes, rows: pd.DataFrame, traces: pd.DataFrame, runs: pd.DataFrame
) -> None:
    """Geometric mean of S/S_min over the runs at equal shares of the initial excess risk."""
    left = np.geomspace(1.0, 1e-4, 41)
    least = rows.set_index("run")["minimal_sharpness"]
    for i, (scale, group) in enumerate(runs.groupby("scale")):
        ways = []
        for run in group.index:
            trace = traces[traces["run"] == run].sort_values("step")
            # Risk falls along gradient flow; rounding at its end must not turn the axis back.
            excess = trace["excess_risk"].to_numpy()
            share = np.minimum.accumulate(excess / excess[0])
            logs = np.log(trace["sharpness"].to_numpy() / least[run])
            ways.append(np.interp(-np.log(left), -np.log(np.maximum(share, 1e-300)), logs))
        colour = _COLOURS[i % len(_COLOURS)]
        panel.plot(left, np.exp(np.mean(ways, axis=0)), color=colour, label=f"scale {scale:g}")
    panel.axhline(1.0, color=BLACK, lw=0.8, ls=":")
    panel.set(xlabel="excess risk left, share of the initial one", ylabel="sharpness / S_min")
    panel.set(xscale="log", yscale="log", xlim=(1.0, 1e-4))
    panel.legend(frameon=False, fontsize=8, ncols=2)


def flatness_figure(tables: Tables) -> Figure:
    """S/S_min after gradient flow against depth and against the number of features."""
    figure, panels = new_figure(2, width=9.0, height=4.0)
    for panel, axis, words in zip(
        panels, ("depth", "width"), ("depth L", "number of features d"), strict=True
    ):
        bound = None
        for i, (start, label) in enumerate(STARTS.items()):
            table = flatness(tables, axis, start)
            draw_means(panel, table, "size", "ratio", label, _COLOURS[i], _MARKERS[i])
            bound = table.groupby("size")["bound"].first()
            _named_ticks(panel, bound.index)
        assert bound is not None
        panel.plot(bound.index, bound, color=BLACK, ls="--", lw=1, label="Corollary 2: 4 Lam/lam")
        panel.axhline(1.0, color=BLACK, lw=0.8, ls=":")
        panel.set(xlabel=words, ylabel="final sharpness / S_min", yscale="log")
        panel.set_ylim(0.9, 3.0 * float(bound.max()))
        plain_log_ticks(panel.yaxis)
        panel.legend(frameon=False, fontsize=8, loc="upper left")
    return figure
