"""What is drawn beyond the paper's figures, from the tables of shipped studies.

As in `figures`, lines are geometric means over the runs that did not diverge, bands their 95 %
confidence intervals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flatmin.core.figures import BLACK, BLUE, COLOURS, MARKERS, RED, new_figure, plain_log_ticks
from flatmin.paper import measures
from flatmin.paper.figures import band, draw_means, sharpness_figure
from flatmin.paper.measures import ALIGNMENTS, CONDITIONS, DEAD, PAPER_SLOPE, STARTS
from flatmin.paper.tables import Tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _named_ticks(panel: Axes, values: Any) -> None:
    """A logarithmic x axis with ticks at the values of a study and nowhere else."""
    panel.set_xscale("log")
    panel.set_xticks(list(values), labels=[f"{value:g}" for value in values])
    panel.set_xticks([], minor=True)


def noisy_gelu_figure(tables: Tables) -> Figure:
    """Figure 7 on noisy data; networks that died are counted and left out of the means."""
    name = "beyond-noisy-gelu"
    rows = tables[name].rows
    died = measures.dead(rows)
    figure = sharpness_figure(rows[~died], measures.regression_of(name), 10)
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
            table = measures.working_rates(tables[name].rows, measures.regression_of(name))
            depths = table.index
            words, how = f"condition number {condition}", dict[str, Any](ms=5, color=COLOURS[i])
            panel.plot(table["measured"], marker=MARKERS[i], label=f"measured, {words}", **how)
            label = f"the paper's formula, {words}"
            panel.plot(table["paper"], ls=":", marker="x", label=label, **how)
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
    table = measures.slopes(tables["beyond-generalisation"].rows).sort_values("slope")
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
        kept = measures.finished(rows)
        draw_means(left, kept, "learning_rate", "sharpness", label, i)
        if scale in reference.index:
            mean, low, high = (float(x) for x in reference.loc[scale].to_numpy()[:3])
            left.axhspan(low, high, color=COLOURS[i], alpha=0.3, lw=0)
            left.axhline(mean, color=COLOURS[i], lw=1, ls="-.")
        share = (rows["state"] == "diverged").groupby(rows["learning_rate"]).mean()
        right.plot(share.index, share, marker=MARKERS[i], ms=4, color=COLOURS[i], label=label)
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
    moved = measures.sharpening(study.rows, study.traces)
    for i, (depth, runs) in enumerate(moved.groupby("depth")):
        for panel, rises in ((left, runs["change"] > 1.0), (middle, runs["monotone"])):
            share = rises.groupby(runs["scale"]).mean()
            how: Any = {"marker": MARKERS[i], "ms": 4, "color": COLOURS[i]}
            panel.plot(share.index, share, label=f"L = {depth}", **how)
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
        colour = COLOURS[i % len(COLOURS)]
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
            table = measures.flatness(tables, axis, start)
            draw_means(panel, table, "size", "ratio", label, i)
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
