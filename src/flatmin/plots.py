"""Figures from tables and records. Nothing here computes results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.atomic import writing
from flatmin.theory.prediction import Prediction, flattest_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flatmin.study.summary import Curve, Facets
    from flatmin.working_rates import RateCurve

# Okabe and Ito's palette, legible with any kind of colour vision.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#000000"


def new_figure(columns: int, width: float = 8.0, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A figure with one row of panels, drawn without a display."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width, height), layout="constrained")
    panels: Any = figure.subplots(1, columns, squeeze=False)
    for panel in panels[0]:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(panels[0])


def save(figure: Figure, path: Path) -> None:
    """Write a figure; its format is that of the path's suffix."""
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=150)


def depth_figure(predictions: Sequence[Prediction]) -> Figure:
    """S_min between its bounds, and the critical learning rate, against depth."""
    figure, (left, right) = new_figure(2)
    depths = [one.depth for one in predictions]
    lower = [one.minimal.lower for one in predictions]
    upper = [one.minimal.upper for one in predictions]
    left.fill_between(depths, lower, upper, color=SKY, alpha=0.3, lw=0)
    left.plot(depths, lower, ":", color=BLACK, label="lower bound")
    left.plot(depths, upper, "--", color=BLACK, label="upper bound")
    exact = [one.exact for one in predictions if one.exact is not None]
    if exact:
        left.plot(depths, exact, "o-", color=BLUE, label="exact")
    flattest = flattest_of(predictions)
    if flattest is not None:
        label, least = f"flattest of these: {flattest.depth}", 2.0 / flattest.critical_rate
        left.plot(flattest.depth, least, "*", ms=13, color=ORANGE, label=label)
    left.set(xlabel="depth L", ylabel="minimal sharpness S_min", xscale="log", yscale="log")
    left.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    rate = [one.critical_rate for one in predictions]
    right.plot(depths, rate, "o-", color=BLUE, label="2 / S_min, exact" if exact else "ceiling")
    paper = [one.paper_rate for one in predictions if one.paper_rate is not None]
    if paper:
        right.plot(depths, paper, "x--", color=RED, label="the paper's approximation")
    right.set(xlabel="depth L", ylabel="critical learning rate", xscale="log", yscale="log")
    right.legend(frameon=False)
    for panel in (left, right):
        panel.set_xticks(depths, labels=[str(depth) for depth in depths])
        panel.set_xticks([], minor=True)
        plain_log_ticks(panel.yaxis)
    return figure


def rate_figure(curves: dict[str, RateCurve], advised: dict[str, float | None]) -> Figure:
    """The share of runs that learn against the learning rate, one panel a curve, under its title.

    What did not learn is divided into unstable (above) and too slow (below); the ceiling 2/S_min is
    dashed, the tested rate a solid line.
    """
    figure, panels = new_figure(len(curves), width=max(5.5, 3.2 * len(curves)), height=4.0)
    for panel, (title, curve) in zip(panels, curves.items(), strict=True):
        rates = [one.learning_rate for one in curve.points]
        slow = [one.slow for one in curve.points]
        learned = [one.slow + one.learned for one in curve.points]
        panel.fill_between(rates, 0.0, slow, color="0.75", lw=0, label="too slow")
        panel.fill_between(rates, slow, learned, color=GREEN, alpha=0.7, lw=0, label="learned")
        panel.fill_between(rates, learned, 1.0, color=RED, alpha=0.55, lw=0, label="unstable")
        panel.axvline(curve.ceiling, color=BLACK, ls="--", label="2 / S_min")
        tested = advised.get(title)
        if tested is not None:
            panel.axvline(tested, color=BLUE, lw=2, label="tested rate")
        panel.set(xscale="log", xlabel="learning rate", ylim=(0.0, 1.0))
        panel.set_title(f"{title}, {curve.steps} steps at most", fontsize=9)
        panel.set_xlim(min(rates), max(*rates, 1.2 * curve.ceiling))
        plain_log_ticks(panel.xaxis)
        panel.tick_params(axis="x", labelsize=8, rotation=45)
    panels[0].set_ylabel("share of runs")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def plain_log_ticks(axis: Any) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, written as ordinary numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_above(panel: Any, columns: int) -> None:
    """The legend over its panel, where it covers no curve."""
    if panel.get_legend_handles_labels()[1]:
        panel.legend(
            frameon=False, fontsize=8, ncols=columns, loc="lower left", bbox_to_anchor=(0.0, 1.0),
            borderaxespad=0.2, columnspacing=1.0, handlelength=1.4,
        )  # fmt: skip


def draw_trace(
    panel: Any, along: Any, trace: Any, name: str, colour: str, label: str | None
) -> None:
    """A recorded quantity on a logarithmic axis: all that lies between its extremes, or its line.

    Of gradient descent the extremes since the record before are known (`Recording`); a line through
    the records themselves would hide that it alternates from step to step.
    """
    ends = [trace[end] for end in (f"{name}_low", f"{name}_high") if end in trace]
    ends = [end.where(end > 0) for end in ends if end.notna().any()]
    if len(ends) != 2:
        panel.plot(along, trace[name].where(trace[name] > 0), color=colour, label=label)
        return
    panel.fill_between(along, *ends, color=colour, alpha=0.3, lw=0)
    for end, words in zip(ends, (label, None), strict=True):
        panel.plot(along, end, color=colour, lw=0.7, label=words)


def training_figure(trace: Any, title: str, edge: float | None, least: float | None) -> Figure:
    """One run: distance and risk; sharpness with 2/eta and S_min; layer norms and alignment.

    A flow is drawn against its time, see `_flow_time`.
    """
    figure, panels = new_figure(3, width=12.0, height=3.8)
    left, middle, right = panels
    figure.suptitle(title)
    along, words, linear = trace["step"], "step", None
    if "time" in trace:
        along, words, linear = _flow_time(trace)
    for name, colour, label in (
        ("distance", BLUE, "|w - w*|²"),
        ("excess_risk", ORANGE, "risk - R_min"),
    ):
        if name in trace and (trace[name] > 0).any():
            draw_trace(left, along, trace, name, colour, label)
    left.set(ylabel="distance and excess risk", yscale="log")
    excess = trace.get("excess_risk")
    if excess is not None and (excess < -1e-6 * excess.iloc[0]).any():
        # A network that is not linear can do better than every linear map.
        left.text(
            0.98, 0.96, "below R_min: not shown", transform=left.transAxes, ha="right", va="top",
            fontsize=8,
        )  # fmt: skip
    left.set_ylim(bottom=max(left.get_ylim()[0], 1e-20))
    if "sharpness" in trace:
        draw_trace(middle, along, trace, "sharpness", BLUE, "sharpness")
    if edge is not None:
        middle.axhline(edge, color=RED, ls="--", label="2 / learning rate")
    if least is not None:
        middle.axhline(least, color=GREEN, ls=":", label="S_min, exact")
    middle.set(ylabel="sharpness", yscale="log")
    low, high = middle.get_ylim()
    if high < 1.001 * low:  # at depth 1 the sharpness is the same everywhere
        middle.set_ylim(low / 1.5, 1.5 * high)
    if high / low < 1e3:
        plain_log_ticks(middle.yaxis)
    norms = [name for name in trace if name.startswith("spectral_norm")]
    aligned = [name for name in trace if name.startswith("alignment")]
    for names, colour, label in (
        (norms, BLUE, "layer norms |W_k|"),
        (aligned, ORANGE, "alignment"),
    ):
        for i, name in enumerate(names):
            right.plot(along, trace[name], color=colour, lw=0.9, label=label if i == 0 else None)
    right.set(ylabel="per layer, at the records", ylim=(0.0, None))
    for panel in panels:
        panel.set_xlabel(words)
        if linear is not None:
            panel.set_xscale("symlog", linthresh=linear, linscale=1.5)
        margin = 0.0 if linear is not None else 0.03 * float(along.max())
        panel.set_xlim(float(along.min()) - margin, float(along.max()) + margin)
        legend_above(panel, 3)
    return figure


def _flow_time(trace: Any) -> tuple[Any, str, float | None]:
    """Where to draw a flow: its time, what the axis is called, and how much of it is linear.

    Near a saddle a flow waits long and leaves at once: then time is counted from where half of the
    excess risk is gone, linear as long as it takes to fall from 90 to 10 %, logarithmic beyond.
    """
    time, excess = trace["time"], trace.get("excess_risk")
    if excess is not None and float(excess.iloc[-1]) < 0.1 * float(excess.iloc[0]):
        first, half, last = (
            float(time[excess <= share * excess.iloc[0]].iloc[0]) for share in (0.9, 0.5, 0.1)
        )
        if half > 10.0 * (last - first) > 0.0:
            words = f"time from t = {half:.4g}, half of the excess risk"
            return time - half, words, 10.0 ** np.ceil(np.log10(last - first))
    return time, "time t", None


def study_figure(found: Facets, x: str, y: str, by: str | None, log: bool) -> Figure:
    """Means of y along x with 95 % bands, a curve per value of `by`; gaps where no run has it.

    Of a sharpness, 2/eta (dashed) and S_min (dotted) are drawn where a curve has one of each.
    """
    from matplotlib.figure import Figure as NewFigure

    count = len(found.panels)
    columns = count if count <= 3 else (count + 1) // 2
    rows = -(-count // columns)
    width, height = (6.0, 4.0) if count == 1 else (3.6 * columns, 3.2 * rows)
    figure = NewFigure(figsize=(width, height), layout="constrained")
    places: Any = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    names = list(dict.fromkeys(curve.label for _, curves in found.panels for curve in curves))
    colours = dict(zip(names, _colours(len(names)), strict=True))
    for panel in places.flat[count:]:
        panel.remove()
    explained: set[str] = set()
    for panel, (label, curves) in zip(places.flat, found.panels, strict=False):
        _draw_curves(panel, curves, colours, y, by)
        panel.spines[["top", "right"]].set_visible(False)
        if found.axis is not None:
            panel.set_title(f"{found.axis.replace('_', ' ')} {label}", fontsize=10)
        panel.set(xlabel=x.replace("_", " "), ylabel=y.replace("_", " "))
        panel.label_outer()
        if log:
            panel.set_yscale("log")
            if y.endswith("sharpness"):
                plain_log_ticks(panel.yaxis)
        if x in ("learning_rate", "relative_rate"):
            panel.set_xscale("log")
        labels = set(panel.get_legend_handles_labels()[1])
        if labels - explained:
            panel.legend(frameon=False, fontsize=8)
            explained |= labels
    return figure


def _draw_curves(
    panel: Axes, curves: Sequence[Curve], colours: dict[str, Any], y: str, by: str | None
) -> None:
    """The curves of one panel."""
    for curve in curves:
        colour = colours[curve.label]
        middle, low, high = (
            [getattr(one, name) for one in curve.means] for name in ("value", "low", "high")
        )
        label = f"{by.replace('_', ' ')} {curve.label}" if by else None
        panel.plot(curve.x, middle, "o-", ms=4, color=colour, label=label)
        panel.fill_between(curve.x, low, high, color=colour, alpha=0.25, lw=0)
        if y == "sharpness" and curve.edge is not None:
            panel.axhline(curve.edge, color=colour, ls="--", lw=0.9)
    least = {curve.least for curve in curves if curve.least is not None}
    if y == "sharpness" and len(least) == 1:
        panel.axhline(least.pop(), color=BLACK, ls=":", lw=0.9, label="S_min, exact")


def _colours(count: int) -> list[Any]:
    """Distinct colours for a few curves, a gradual scale for many."""
    few = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK)
    if count <= len(few):
        return list(few[:count])
    from matplotlib import colormaps

    return [colormaps["viridis"](i / (count - 1)) for i in range(count)]
