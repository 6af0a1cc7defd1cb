"""The figure of Lemma 3: measured failure probability and the bound, and which u work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.figures import BLACK, COLOURS, MARKERS, new_figure, plain_log_ticks
from flatmin.ledger.lemma_3 import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = ("-", "--", ":", "-.")
_LEAST = 1e-4
_MOST = 12.0


def lemma_3_figure(curves: Sequence[Curve]) -> Figure:
    """Failure probability against u, a panel per s; in the last one the smallest u that works.

    A line is the share of networks that may fail, and goes on thin as the upper confidence limit
    where none does. A band goes from the lower to the upper confidence limit. Thick pale lines
    are the bound, which says nothing where it is above 1.
    """
    scales, dimensions, depths = (
        sorted({getattr(one, name) for one in curves}) for name in ("s", "d", "L")
    )
    count = len(scales) + 1
    rows = -(-count // 2)
    figure, panels = new_figure(2, 9.0, 3.6 * rows + 0.9, rows)
    for panel in panels[count:]:
        panel.remove()
    colours = {d: COLOURS[i % len(COLOURS)] for i, d in enumerate(dimensions)}
    lines = {L: _LINES[i % len(_LINES)] for i, L in enumerate(depths)}
    for panel, s in zip(panels, scales, strict=False):
        for curve in curves:
            if curve.s == s:
                _draw(panel, curve, colours[curve.d], lines[curve.L], band=depths[-1] == curve.L)
        us = curves[0].us
        panel.axhspan(1.0, _MOST, color="0.94", lw=0, zorder=0)
        panel.text(us[0] * 1.1, 1.25, "bound above 1", fontsize=8, color="0.35")
        panel.set(xlabel="u", ylabel="failure probability", xscale="log", yscale="log")
        panel.set(title=f"s = {s:g}", xlim=(us[0], us[-1]), ylim=(_LEAST, _MOST))
        plain_log_ticks(panel.xaxis)
    _draw_admissible(panels[count - 1], curves, scales, dimensions)
    _add_legend(figure, colours, lines)
    return figure


def _draw(panel: Axes, curve: Curve, colour: str, line: str, band: bool) -> None:
    """What was measured; for one L also its band, and the bound, which does not depend on L."""
    some = curve.at_most > 0
    share = np.where(some, curve.at_most / curve.draws, np.nan)
    panel.plot(curve.us, share, color=colour, lw=1.4, ls=line)
    panel.plot(curve.us, np.where(some, np.nan, curve.high), color=colour, lw=0.7, ls=line)
    if band:
        panel.plot(curve.us, curve.bound, color=colour, lw=3.5, alpha=0.45)
        low = np.maximum(curve.low, _LEAST / 10.0)
        panel.fill_between(curve.us, low, curve.high, where=some, color=colour, alpha=0.13, lw=0)


def _draw_admissible(
    panel: Axes, curves: Sequence[Curve], scales: list[float], dimensions: list[int]
) -> None:
    """The smallest admissible u, and where failures become rare, at the worst depth."""
    for i, s in enumerate(scales):
        marker, colour = MARKERS[i % len(MARKERS)], str(0.5 * i / max(1, len(scales) - 1))
        groups = [[one for one in curves if (one.s, one.d) == (s, d)] for d in dimensions]
        works = [_worst([one.smallest_admissible for one in group]) for group in groups]
        quiet = [_worst([one.quiet_from for one in group]) for group in groups]
        panel.plot(dimensions, works, f"{marker}-", color=colour, ms=6, label=f"s = {s:g}")
        panel.plot(dimensions, quiet, f"{marker}:", color=colour, ms=6, mfc="white", lw=1)
    panel.set(title="smallest u", xlabel="dimension d", ylabel="u", xscale="log", yscale="log")
    panel.set_xticks(dimensions, labels=[str(d) for d in dimensions])
    panel.set_xticks([], minor=True)
    low, high = panel.get_ylim()
    panel.set_ylim(low, 1.3 * high)
    plain_log_ticks(panel.yaxis)
    panel.legend(frameon=False, fontsize=8, loc="upper right")


def _worst(found: list[float | None]) -> float:
    """The largest over depths; not a number where one has none."""
    return float(np.max(np.array(found or [None], dtype=float)))


def _add_legend(figure: Figure, colours: dict[int, str], lines: dict[int, str]) -> None:
    """One legend below all panels."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=colour, label=f"d = {d}") for d, colour in colours.items()]
    handles += [Line2D([], [], color=BLACK, ls=ls, label=f"L = {L}") for L, ls in lines.items()]
    handles += [
        Line2D([], [], color=BLACK, lw=0.7, label="none fails: upper limit"),
        Line2D([], [], color="0.4", lw=3.5, alpha=0.6, label="bound 8 exp(-d u² / (32 s²))"),
        Patch(color="0.4", alpha=0.25, label=f"95 % confidence, L = {max(lines)}"),
        Line2D([], [], color=BLACK, marker="o", label="the bound works from here"),
        Line2D([], [], color=BLACK, marker="o", mfc="white", ls=":", label="failures below 5 %"),
    ]
    how: Any = {"ncols": -(-len(handles) // 3), "loc": "outside lower center"}
    figure.legend(handles=handles, frameon=False, fontsize=8, **how)
