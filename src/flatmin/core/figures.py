"""How figures look: colours, panels, ticks, legends, and files that appear whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatmin.core.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, legible with any kind of colour vision.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#000000"
# Of curves, in this order.
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "x")


def new_figure(
    columns: int, width: float = 8.0, height: float = 3.4, rows: int = 1, **how: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with its panels row by row, drawn without a display; `how` goes to `subplots`."""
    from flatmin.core.picture import Picture

    figure = Picture(figsize=(width, height), layout="constrained")
    panels: Any = figure.subplots(rows, columns, squeeze=False, **how).ravel()
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(panels)


def save(figure: Figure, path: Path) -> None:
    """Write a figure; its format is that of the path's suffix."""
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=150)


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


def colours(count: int) -> list[Any]:
    """Distinct colours for a few curves, a gradual scale for many."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    from matplotlib import colormaps

    return [colormaps["viridis"](i / (count - 1)) for i in range(count)]
