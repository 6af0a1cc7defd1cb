"""How much of the way of sharpness along gradient flow the closed form explains.

The form is that of balanced networks (`theory.progressive_sharpening`) and sees w alone. Here it is
taken to runs from Gaussian starts, which are not balanced: does it say when sharpness rises and
when it falls? A move is a change from one entry to the next of more than a thousandth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flatmin.core.figures import BLACK, COLOURS, MARKERS, new_figure
from flatmin.paper.claims import Claim, Rows, compared, judged, within
from flatmin.paper.measures import STILL
from flatmin.paper.tables import StudyTables, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDY = "beyond-progressive-sharpening"
FIGURE = "beyond-sharpening-explained"


def moves(study: StudyTables) -> pd.DataFrame:
    """Every move of the runs that settled: depth, scale, its logarithm and that of the form."""
    kept = study.rows[study.rows["state"] == "settled"].set_index("run")
    parts = []
    for run, trace in study.traces.dropna(subset=["sharpness"]).groupby("run"):
        if run not in kept.index:
            continue
        trace = trace.sort_values("step")
        form = np.array([pair[0] for pair in trace["balanced_sharpness"]], dtype=float)
        change = np.diff(np.log(trace["sharpness"].to_numpy()))
        part = pd.DataFrame({"run": run, "change": change, "form": np.diff(np.log(form))})
        parts.append(part[np.abs(change) > STILL])
    table = pd.concat(parts, ignore_index=True)
    table["explained"] = np.sign(table["change"]) == np.sign(table["form"])
    joined: pd.DataFrame = table.join(kept[["depth", "scale"]], on="run")
    return joined


def ratios(study: StudyTables) -> pd.DataFrame:
    """Sharpness over the form at the end of each run that settled."""
    kept = study.rows[study.rows["state"] == "settled"].set_index("run")
    last = study.traces.dropna(subset=["sharpness"]).sort_values("step").groupby("run").last()
    form = last["balanced_sharpness"].map(lambda pair: pair[0])
    ratio = (last["sharpness"] / form).rename("ratio")
    return kept[["depth", "scale"]].join(ratio, how="inner")


def explained(tables: Tables) -> list[Claim]:
    """When sharpness rises along gradient flow, and when it falls, told from w alone."""
    table = moves(tables[STUDY])
    shares = table["explained"].groupby([table["depth"], table["scale"]]).mean()
    least: Any = shares.idxmin()
    scale = table["scale"].min()
    falls, rises = table[table["change"] < 0.0], table[table["change"] > 0.0]
    weight = table["change"].abs()
    ended = ratios(tables[STUDY])
    small = ended[ended["scale"] == ended["scale"].min()]["ratio"]
    farthest = float(small.iloc[(small - 1.0).abs().argmax()]) if len(small) else float("nan")
    most = compared("at least", 0.85)
    rows: Rows = {
        "the closed form for balanced networks, which sees w alone, says whether sharpness rises "
        f"or falls, also from unbalanced starts: share of {len(table)} moves (of their total size "
        f"{float((weight * table['explained']).sum() / weight.sum()):.3f}; that sharpness always "
        "rises would explain "
        f"{len(rises) / len(table):.3f})": ("direction", table["explained"].mean(), most),
        "it explains most falls too, where the rule that sharpness rises explains none: share of "
        f"the falls ({rises['explained'].mean():.3f} of the "
        "rises)": ("falls", falls["explained"].mean(), compared("at least", 0.65)),
        "at every depth and scale: the least share of moves it explains (depth "
        f"{least[0]}, scale {least[1]:g})": ("everywhere", shares.min(), compared("at least", 0.6)),
        f"from scale {scale:g} its value is right too: the final sharpness over the form that is "
        "farthest from 1": ("small-scale", farthest, within(1.0, 0.05)),
    }
    return judged(FIGURE, rows)


def explained_figure(tables: Tables) -> Figure:
    """By scale: the share of moves explained, beside that of rises; and of falls; and S over it."""
    figure, (left, middle, right) = new_figure(3, width=12.0, height=3.9)
    table, ended = moves(tables[STUDY]), ratios(tables[STUDY])
    for i, depth in enumerate(sorted(table["depth"].unique())):
        mine = table[table["depth"] == depth]
        style: Any = {"marker": MARKERS[i], "ms": 4, "color": COLOURS[i]}
        by_scale = mine.groupby("scale")
        left.plot(by_scale["explained"].mean(), label=f"L = {depth}", **style)
        left.plot(
            by_scale["change"].agg(lambda change: (change > 0.0).mean()),
            ls=":",
            lw=1,
            color=COLOURS[i],
        )
        falls = mine[mine["change"] < 0.0].groupby("scale")["explained"].mean()
        middle.plot(falls, label=f"L = {depth}", **style)
        ratio = ended[ended["depth"] == depth].groupby("scale")["ratio"].median()
        right.plot(ratio, label=f"L = {depth}", **style)
    left.plot([], [], color=BLACK, ls=":", lw=1, label="rises")
    left.set(ylabel="share of moves", title="direction as the form says", ylim=(0.0, 1.03))
    middle.set(ylabel="share of falls", title="falls that the form has too", ylim=(0.0, 1.03))
    right.set(ylabel="median", title="final sharpness / closed form", yscale="log")
    for panel in (left, middle, right):
        panel.set_xlabel("scale of initialisation")
        panel.title.set_fontsize(10)
        panel.legend(frameon=False, fontsize=8)
    return figure
