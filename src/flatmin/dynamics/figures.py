"""Figures of runs and of rates. Nothing here computes results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.figures import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    RED,
    legend_above,
    new_figure,
    plain_log_ticks,
)
from flatmin.dynamics.working_rates import RateCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def draw_trace(
    panel: Any, along: Any, trace: Any, name: str, colour: str, label: str | None
) -> None:
    """A recorded quantity on a logarithmic axis: all that lies between its extremes, or its line.

    Of gradient descent the extremes since the entry before are known (`Recording`); a line through
    the entries themselves would hide that it alternates from step to step.
    """
    ends = [trace[end] for end in (f"{name}_low", f"{name}_high") if end in trace]
    ends = [end.where(end > 0) for end in ends if end.notna().any()]
    if len(ends) != 2:
        panel.plot(along, trace[name].where(trace[name] > 0), color=colour, label=label)
        return
    panel.fill_between(along, *ends, color=colour, alpha=0.3, lw=0)
    for end, words in zip(ends, (label, None), strict=True):
        panel.plot(along, end, color=colour, lw=0.7, label=words)


def training_figure(
    trace: Any,
    title: str,
    edge: float | None,
    least: float | None,
    edge_label: str = "2 / learning rate",
) -> Figure:
    """One run: distance and risk; sharpness with its edge and S_min; layer norms and alignment.

    What was not recorded has no panel. A flow is drawn against its time, see `_flow_time`.
    """
    figure, panels = new_figure(3, width=12.0, height=3.8)
    left, middle, right = panels
    figure.suptitle(title)
    along, words, linear = trace["step"], "step", None
    if "time" in trace:
        along, words, linear = _flow_time(trace)
    curves = {"distance": (BLUE, "|w - w*|²"), "excess_risk": (ORANGE, "risk - R_min")}
    drawn = [name for name in curves if name in trace and (trace[name] > 0).any()]
    for name in drawn:
        draw_trace(left, along, trace, name, *curves[name])
    left.set(ylabel=" and ".join(drawn).replace("_", " "), yscale="log")
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
        middle.axhline(edge, color=RED, ls="--", label=edge_label)
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
    right.set(ylabel="per layer, at the entries", ylim=(0.0, None))
    for panel in panels:
        panel.set_xlabel(words)
        if linear is not None:
            panel.set_xscale("symlog", linthresh=linear, linscale=1.5)
        first, last = float(along.min()), float(along.max())
        margin = 0.0 if linear is not None else 0.03 * last
        if first < last:  # a run shorter than its stride has one record
            panel.set_xlim(first - margin, last + margin)
        legend_above(panel, 3)
    return _without_empty_panels(figure)


def _without_empty_panels(figure: Figure) -> Figure:
    """The figure with the panels in which something is drawn, each as wide as before."""
    shown = [panel for panel in figure.axes if panel.has_data()]
    if 0 < len(shown) < len(figure.axes):
        figure.set_figwidth(figure.get_figwidth() * len(shown) / len(figure.axes))
        for panel in set(figure.axes) - set(shown):
            panel.remove()
        places = figure.add_gridspec(1, len(shown))
        for i, panel in enumerate(shown):
            panel.set_subplotspec(places[0, i])
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
