"""Figures of studies. Nothing here computes results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flatmin.core.figures import BLACK, colours, new_figure, plain_log_ticks
from flatmin.study.summary import LOGARITHMIC, Curve, Facets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def study_figure(found: Facets) -> Figure:
    """Means of y along x with 95 % bands, a curve per value of `by`; gaps where no run has it.

    Of a sharpness, 2/eta (dashed) and S_min (dotted) are drawn where a curve has one of each.
    """
    x, y, by, count = found.x, found.y, found.by, len(found.panels)
    columns = count if count <= 3 else (count + 1) // 2
    rows = -(-count // columns)
    width, height = (6.0, 4.0) if count == 1 else (3.6 * columns, 3.2 * rows)
    figure, places = new_figure(columns, width, height, rows, sharex=True, sharey=True)
    names = list(dict.fromkeys(curve.label for _, curves in found.panels for curve in curves))
    palette = dict(zip(names, colours(len(names)), strict=True))
    for panel in places[count:]:
        panel.remove()
    explained: set[str] = set()
    for panel, (label, curves) in zip(places, found.panels, strict=False):
        _draw_curves(panel, curves, palette, y, by)
        if found.axis is not None:
            panel.set_title(f"{found.axis.replace('_', ' ')} {label}", fontsize=10)
        panel.set(xlabel=x.replace("_", " "), ylabel=y.replace("_", " "))
        panel.label_outer()
        if y in LOGARITHMIC:
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
