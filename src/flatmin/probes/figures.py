"""Pictures of what probes found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flatmin.core.figures import BLUE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flatmin.probes.density import Density


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
