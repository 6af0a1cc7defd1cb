"""The picture of an atlas: orbits against the rate, exponents, and what becomes of fresh starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.figures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW, new_figure
from flatmin.dynamics.atlas_record import Atlas, Basins
from flatmin.dynamics.orbits import CHAOTIC, DIVERGED, QUASI, SETTLED, STALLED
from flatmin.theory.oscillation import mode_orbit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Outputs drawn lie between these quantiles: the rest are rare and far away. Cells from end to end.
_DRAWN, _LEVELS = (0.0001, 0.9999), 600
_KINDS = {
    SETTLED: GREEN,
    "period 2": BLUE,
    "other periods": SKY,
    QUASI: YELLOW,
    CHAOTIC: ORANGE,
    STALLED: PURPLE,
    DIVERGED: "#BBBBBB",
}


def atlas_figure(found: Atlas) -> Figure:
    """Two panels, or three with basins, over the same axis of rates c = eta S_min/2."""
    panels = 3 if found.basins is not None else 2
    heights = [3.2, 1.5, 1.3][:panels]
    figure, axes = new_figure(
        1, 8.0, 1.15 * sum(heights) + 0.6, panels, sharex=True, height_ratios=heights
    )
    _draw_orbits(axes[0], found)
    _draw_exponents(axes[1], found)
    if found.basins is not None:
        _draw_basins(axes[2], found.basins)
    axes[-1].set_xlabel("rate c = η S_min / 2; the ceiling is 1")
    edges = _edges(np.unique(found.c))
    # Where all runs diverge there is nothing to see.
    last = _bounded_until(found)
    right = min(edges[-1], last + 0.15 * (last - edges[0]))
    axes[0].set_xlim(edges[0], max(right, edges[0] + 1e-9 * max(1.0, abs(edges[0]))))
    figure.suptitle(f"Depth {found.depth}", x=0.01, ha="left", fontsize=11)
    return figure


def orbits_figure(atlases: Sequence[Atlas]) -> Figure:
    """Orbits alone, two panels a row, one a depth, over the same rates."""
    rows = -(-len(atlases) // 2)
    columns = min(2, len(atlases))
    figure, axes = new_figure(columns, 5.0 * columns, 3.3 * rows, rows, sharex=True, sharey=True)
    for panel, found in zip(axes, atlases, strict=False):
        _draw_orbits(panel, found)
        legend = panel.get_legend()
        if panel is not axes[0] and legend is not None:
            legend.remove()
        panel.set_title(f"depth {found.depth}", fontsize=10, loc="left")
        panel.set_xlabel("rate c = η S_min / 2")
    for panel in axes[len(atlases) :]:
        panel.remove()
    edges = _edges(np.unique(np.concatenate([one.c for one in atlases])))
    axes[0].set_xlim(edges[0], edges[-1])
    return figure


def _draw_orbits(panel: Axes, found: Atlas) -> None:
    panel.set_ylabel("output  w'Σw* / w*'Σw*")
    _draw_density(panel, found)
    end = min(found.c.max(), 1.4 if found.c_4 is None else found.c_4.c + 0.15)
    if end > 1.0:
        rates = np.linspace(1.0, end, 200)[1:]
        orbits = [mode_orbit(found.depth, float(c)) for c in rates]
        both = [[one.low**found.depth, one.high**found.depth] for one in orbits]
        lines = panel.plot(rates, both, color=RED, lw=1.2, ls="--")
        lines[0].set_label("exact for white data")
        panel.legend(frameon=True, framealpha=0.8, edgecolor="none", fontsize=8, loc="lower left")
    for name, threshold in (("c₂", found.c_2), ("c₄", found.c_4), ("c_div", found.c_div)):
        if threshold is None or not found.c.min() <= threshold.c <= found.c.max():
            continue
        panel.axvline(threshold.c, color=BLUE, lw=0.8, ls=":")
        late = threshold.c > 0.95 * found.c.max()
        panel.annotate(
            f"{name} = {threshold.digits(4)}", (threshold.c, 1.0),
            (-3 if late else 3, -2), xycoords=panel.get_xaxis_transform(),
            textcoords="offset points", ha="right" if late else "left", va="top", fontsize=8,
            color=BLUE, rotation=90, bbox={"fc": "white", "ec": "none", "alpha": 0.8, "pad": 1.0},
        )  # fmt: skip


def _draw_density(panel: Axes, found: Atlas) -> None:
    """How often each output is taken at each rate; grey where every run diverged."""
    rates = np.unique(found.c)
    edges = _edges(rates)
    kept = np.flatnonzero(found.orbits.kind != DIVERGED)
    if len(kept):
        values = found.orbits.output[:, kept]
        low, high = np.quantile(values, _DRAWN)
        margin = 0.06 * max(high - low, 0.1)
        levels = np.linspace(low - margin, high + margin, _LEVELS + 1)
        column = np.broadcast_to(np.searchsorted(rates, found.c[kept]), values.shape)
        counts, _, _ = np.histogram2d(
            column.ravel(), values.ravel(), (np.arange(len(rates) + 1) - 0.5, levels)
        )
        totals = np.maximum(counts.max(axis=1, keepdims=True), 1.0)
        shade = np.where(counts > 0, 0.15 + 0.85 * (counts / totals) ** 0.35, 0.0)
        # Lines get three cells, so that none falls between two pixels.
        shade[:, 1:-1] = np.maximum(shade[:, 1:-1], np.maximum(shade[:, :-2], shade[:, 2:]))
        panel.pcolormesh(edges, levels, shade.T, cmap="Greys", vmin=0.0, vmax=1.0, rasterized=True)
        panel.set_ylim(levels[0], levels[-1])
    first = _bounded_until(found)
    if first < edges[-1]:
        panel.axvspan(first, edges[-1], color="#EEEEEE", lw=0)
        panel.text(
            0.99, 0.5, "diverged", transform=panel.transAxes, ha="right", va="center", fontsize=8,
            color="#777777", rotation=90,
        )  # fmt: skip


def _bounded_until(found: Atlas) -> float:
    """Where the cell of the last rate ends at which a run did not diverge."""
    rates = np.unique(found.c)
    alive = found.c[found.orbits.kind != DIVERGED]
    edges = _edges(rates)
    return float(edges[np.searchsorted(rates, alive.max()) + 1] if len(alive) else edges[-1])


def _edges(rates: Float) -> Float:
    """Ends of cells around the rates."""
    if len(rates) == 1:
        return np.array([rates[0] - 0.01, rates[0] + 0.01])
    middle = 0.5 * (rates[1:] + rates[:-1])
    first, last = 2 * rates[0] - middle[0], 2 * rates[-1] - middle[-1]
    return np.concatenate([[first], middle, [last]])


def _draw_exponents(panel: Axes, found: Atlas) -> None:
    rates = np.unique(found.c)
    for values, colour, label in (
        (found.orbits.exponent, BLUE, "largest"),
        (found.orbits.transverse, ORANGE, "of imbalance"),
    ):
        drawn = values.reshape(len(rates), -1)
        known = np.isfinite(drawn).any(axis=1)
        if known.any():
            mean = np.full(len(rates), np.nan)
            mean[known] = np.nanmean(drawn[known], axis=1)
            panel.plot(rates, mean, color=colour, lw=0.9, label=label)
    panel.axhline(0.0, color=BLACK, lw=0.6)
    panel.set_ylabel("Lyapunov\nexponent")
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, -0.8), high)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def _draw_basins(panel: Axes, basins: Basins) -> None:
    merged = {name: np.zeros(len(basins.c)) for name in _KINDS}
    for name, found in basins.shares.items():
        merged[name if name in merged else "other periods"] += np.array(found)
    kept = {name: shares for name, shares in merged.items() if shares.any()}
    edges = _edges(np.array(basins.c))
    below = np.zeros(len(basins.c))
    for name, shares in kept.items():
        panel.bar(
            edges[:-1], shares, np.diff(edges), below, align="edge", color=_KINDS[name], label=name
        )
        below = below + shares
    panel.set(ylabel=f"share of\n{basins.runs} starts", ylim=(0.0, 1.0))
    words = f"from {basins.init}, scale {basins.scale:g}, at the rate at once:"
    panel.set_title(words, fontsize=8, loc="left", pad=16)
    panel.legend(
        frameon=False, fontsize=8, ncols=7, loc="lower left", bbox_to_anchor=(-0.005, 1.0),
        borderaxespad=0.1, columnspacing=1.0, handlelength=1.0,
    )  # fmt: skip
