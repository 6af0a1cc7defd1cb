"""Pictures of what probes found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flatmin.core.figures import BLUE, ORANGE, legend_above, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flatmin.probes.density import Density
    from flatmin.probes.watch import Watch


def density_figure(found: Density) -> Figure:
    """The smoothed density and one standard error around it."""
    figure, (panel,) = new_figure(1, width=6.0)
    ends = np.concatenate(found.nodes)
    margin = 5.0 * found.width
    x = np.linspace(ends.min() - margin, ends.max() + margin, 1000)
    value, error = found.at(x)
    floor = 0.1 / (found.size * found.width)  # a tenth of what one eigenvalue contributes
    panel.fill_between(
        x, np.maximum(value - error, floor), value + error, color=BLUE, alpha=0.3, lw=0
    )
    panel.plot(x, value, color=BLUE, lw=1.2)
    panel.set_yscale("log")
    panel.set_ylim(bottom=floor)
    panel.set_xlabel(f"eigenvalue of the {found.matrix}")
    panel.set_ylabel("density")
    panel.set_title(f"{found.size} eigenvalues, {found.products} products", loc="left", fontsize=9)
    return figure


def watch_figure(watch: Watch) -> Figure:
    """What was measured against the edge, and the headroom, along a training."""
    figure, (left, right) = new_figure(2, width=9.0)
    table = watch.table()
    steps = table["step"]
    left.plot(steps, table["edge"], color="black", ls="--", lw=1.0, label="edge")
    left.plot(steps, table["measured"], color=BLUE, lw=1.2, marker=".", ms=3, label="measured")
    full = table[table["full"]]
    left.errorbar(
        full["step"], full["measured"],
        yerr=[full["measured"] - full["low"], full["high"] - full["measured"]],
        color=ORANGE, fmt="none", lw=1.2, label="interval",
    )  # fmt: skip
    left.set_ylabel(f"gauge: {table['gauge'].iloc[-1]}")
    right.plot(steps, table["headroom"], color=BLUE, lw=1.2, marker=".", ms=3)
    right.axhline(1.0, color="black", ls="--", lw=1.0)
    right.set_yscale("log")
    right.set_ylabel("headroom: edge over measured")
    for panel in (left, right):
        panel.set_xlabel("step")
    left.set_ylim(bottom=0.0)
    legend_above(left, 3)
    return figure
