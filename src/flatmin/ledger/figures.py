"""Pictures of the ledger: each statement's bound and measurement, and the slack of all of them.

What a panel shows depends on what a comparison runs over. Along a run: both sides over its entries,
and below them the slack. Over something that was varied: both sides against it. Over an ensemble:
every network, in the order of its bound, a lower and an upper bound of one quantity together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.figures import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    new_figure,
    plain_log_ticks,
    save,
)
from flatmin.core.files import make_directory
from flatmin.ledger.record import Record, Sides, Verdict
from flatmin.ledger.statement import Statement
from flatmin.ledger.statements import STATEMENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PANELS = 5
COLUMNS = 3
# Networks of a run's panel, and comparisons of a panel over something varied.
LINES = 4
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
# Slack outside of these is drawn at the ends: equality up to rounding, and nothing to compare with.
LEAST_SLACK, MOST_SLACK = 1e-8, 1e8
# Values below this are not drawn on a logarithmic axis.
LEAST = 1e-18
BOTH = {"lower", "upper"}


def write_figures(records: Sequence[Record], directory: Path) -> list[Path]:
    """A picture for every statement that was measured, and one of all slacks.

    `records` are those of a ledger before they were merged, one for each piece of evidence.
    """
    make_directory(directory)
    figures = {"slack": slack_figure(records)}
    for statement in STATEMENTS:
        found = [r for r in records if r.statement == statement.id and r.sides is not None]
        if found:
            figures[statement.id] = statement_figure(statement, found)
    paths = []
    for name, figure in figures.items():
        paths.append(directory / f"{name}.png")
        save(figure, paths[-1])
    return paths


def statement_figure(statement: Statement, records: Sequence[Record]) -> Figure:
    """Bound and measurement, a panel for each part of the statement."""
    groups = _panels([r for r in records if r.sides is not None])
    along = any(_over_entries(group[0]) for group in groups)
    figure, panels = _grid(len(groups), slack=along)
    figure.suptitle(f"{statement.id}: {statement.title}", fontsize=11)
    kinds = set()
    for (panel, below), group in zip(panels, groups, strict=True):
        kinds |= _draw(panel, below, group)
        parts = list(dict.fromkeys(record.part for record in group))
        panel.set_title(" and ".join(parts), fontsize=9)
        panel.set_ylabel(statement.quantity_of(parts[0]), fontsize=9)
        for axes in (panel, below):
            if axes is not None:
                axes.tick_params(labelsize=8)
    _add_legend(figure, kinds)
    return figure


def _panels(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each panel: those of one part, or of both bounds of one quantity."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.part, []).append(record)
    # A yes or no has the same two sides everywhere: there is nothing to see.
    groups = {
        part: group
        for part, group in groups.items()
        if not all(np.array_equal(_sides(r).measured, _sides(r).bound) for r in group)
    } or groups
    if set(groups) >= BOTH and _same_measured(groups["lower"], groups["upper"]):
        groups["lower"] += groups.pop("upper")
    return list(groups.values())[:PANELS]


def _sides(record: Record) -> Sides:
    """Both sides of a record that has them, as all that are drawn do."""
    assert record.sides is not None
    return record.sides


def _same_measured(lower: Sequence[Record], upper: Sequence[Record]) -> bool:
    """Whether both bounds are of the same measurements, not along runs."""
    if _over_entries(lower[0]) or len(lower) != len(upper):
        return False
    pairs = zip(lower, upper, strict=True)
    return all(np.array_equal(_sides(a).measured, _sides(b).measured) for a, b in pairs)


def _over_entries(record: Record) -> bool:
    return "entry" in _sides(record).axes


def _grid(count: int, slack: bool) -> tuple[Figure, list[tuple[Axes, Axes | None]]]:
    """Panels in rows of at most three, each with a lower one for the slack if asked for."""
    columns = min(count, COLUMNS) if count != 4 else 2
    rows = -(-count // columns)
    width = 5.0 if count == 1 else 9.0
    if slack:
        how: Any = {"sharex": "col", "height_ratios": [2, 1] * rows}
        figure, panels = new_figure(columns, width, 4.8 * rows + 0.3, 2 * rows, **how)
        grid: Any = np.array(panels, dtype=object).reshape(-1, columns)
        pairs: list[Any] = list(zip(grid[::2].ravel(), grid[1::2].ravel(), strict=True))
    else:
        figure, panels = new_figure(columns, width, 3.3 * rows + 0.3, rows)
        pairs = [(panel, None) for panel in panels]
    for panel, below in pairs[count:]:
        panel.remove()
        if below is not None:
            below.remove()
    return figure, pairs[:count]


def _draw(panel: Axes, below: Axes | None, records: Sequence[Record]) -> set[str]:
    """Draw one panel; what its legend needs."""
    x = _sides(records[0]).x
    if _over_entries(records[0]) and below is not None:
        return _draw_along(panel, below, _shown(records))
    if x is not None and len(x) > 1:
        return _draw_over_x(panel, _spread(records))
    return _draw_ensemble(panel, below, records)


def _order(record: Record) -> tuple[bool, float]:
    """Where it applies first, then the least slack."""
    assert record.slack is not None
    return record.verdict is Verdict.NOT_APPLICABLE, record.slack


def _shown(records: Sequence[Record]) -> Record:
    """The tightest piece of evidence; if there are such, one with several networks."""
    several = [record for record in records if _sides(record).slack.shape[1] >= LINES]
    return min(several or records, key=_order)


def _spread(records: Sequence[Record]) -> list[Record]:
    """A few, from the tightest to the loosest."""
    ordered = sorted(records, key=_order)
    chosen = np.linspace(0, len(ordered) - 1, min(len(ordered), LINES)).astype(int)
    return [ordered[i] for i in chosen]


def _draw_along(panel: Axes, below: Axes, record: Record) -> set[str]:
    """A colour for each of the tightest networks; of its layers, the one with the least slack."""
    measured, bound, slack, room = _tightest_layer(record)
    larger = np.maximum(measured, bound)
    slack = np.where((room < larger) & (slack > 0.0), slack, np.nan)
    least = np.min(np.where(np.isnan(slack), np.inf, slack), axis=0)
    for network, colour in zip(np.argsort(least, kind="stable"), COLOURS[:LINES], strict=False):
        panel.plot(measured[:, network], color=colour, lw=1.2)
        panel.plot(bound[:, network], color=colour, lw=1.2, ls="--")
        below.plot(slack[:, network], color=colour, lw=1.0)
    below.set_xlabel(f"entry along the run, {record.at.split(',')[0]}", fontsize=9)
    below.set_ylabel("slack", fontsize=9)
    _log_if_wide(panel)
    if not _log_if_wide(below):
        below.set_ylim(0.0, 1.1 * below.get_ylim()[1])
    return {"line"}


def _tightest_layer(record: Record) -> Float:
    """measured, bound, slack and room, each `[entry, network]`."""
    sides = _sides(record)
    arrays = np.stack([sides.measured, sides.bound, sides.slack, sides.room])
    if arrays.ndim == 4:
        layer = np.argmin(np.where(np.isnan(sides.slack), np.inf, sides.slack), axis=2)
        arrays = np.take_along_axis(arrays, layer[None, :, :, None], axis=3)[..., 0]
    return arrays


def _draw_over_x(panel: Axes, records: Sequence[Record]) -> set[str]:
    """Both sides against what was varied; a bar is the room for errors."""
    drawn = {"mark"}
    for record, colour in zip(records, COLOURS, strict=False):
        sides = _sides(record)
        assert sides.x is not None
        bound, room = np.ravel(sides.bound), np.ravel(sides.room)
        against = RED if len(records) == 1 else colour
        panel.plot(sides.x, np.ravel(sides.measured), "o-", color=colour, ms=4, lw=1.2)
        panel.plot(sides.x, bound, "x--", color=against, ms=7, mew=1.5, lw=1.2, zorder=3)
        if np.any(room > 0.02 * bound):
            drawn.add("bar")
            panel.errorbar(sides.x, bound, room, fmt="none", ecolor=RED, elinewidth=1.0, capsize=4)
        panel.set_xlabel(sides.x_name, fontsize=9)
    x = np.unique(np.concatenate([_sides(record).x for record in records]))
    if x.min() > 0.0 and x.max() > 3.0 * x.min():
        panel.set_xscale("log")
        if len(x) <= LINES:
            panel.set_xticks(x, labels=[f"{value:.3g}" for value in x])
            panel.set_xticks([], minor=True)
        elif x.max() < 300.0 * x.min():
            plain_log_ticks(panel.xaxis)
    if not _log_if_wide(panel):
        panel.set_ylim(0.0, 1.1 * panel.get_ylim()[1])
    return drawn


def _draw_ensemble(panel: Axes, below: Axes | None, records: Sequence[Record]) -> set[str]:
    """Every entry of every piece of evidence once, in the order of its (upper) bound."""
    from matplotlib.ticker import MaxNLocator

    parts = list(dict.fromkeys(record.part for record in records))
    table = np.column_stack([_column(records, part, "bound") for part in reversed(parts)])
    measured = _column(records, parts[0], "measured")
    # A statement whose hypotheses are not met is still worth seeing, in grey.
    one = [(r, _sides(r).slack.size) for r in records if r.part == parts[0]]
    outside = np.concatenate([np.full(size, float(not _counts(r))) for r, size in one])
    rows = np.unique(np.column_stack([table, measured, outside]), axis=0)
    at, size = np.arange(len(rows)), 3 if len(rows) > 60 else 5
    for column, marker in zip(range(len(parts)), "x+", strict=False):
        panel.plot(at, rows[:, column], marker, color=RED, ms=size + 2, ls="none")
    inside = rows[:, -1] == 0.0
    _log_if_wide(panel)
    for chosen, colour in ((inside, BLUE), (~inside, "0.6")):
        panel.plot(at[chosen], rows[chosen, -2], "o", color=colour, ms=size, mec="none", alpha=0.8)
    zeros = at[rows[:, -2] == 0.0]
    if _log_if_wide(panel) and len(zeros):
        low = panel.get_ylim()[0]
        panel.plot(zeros, np.full(len(zeros), low), "o", color=BLUE, ms=size, clip_on=False)
        panel.set_ylim(bottom=low)
    panel.set_xlabel("over the ensemble, by bound", fontsize=9)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if below is not None:
        below.remove()
        panel.tick_params(labelbottom=True)
    return {"dot"} if inside.all() else {"dot", "outside"}


def _column(records: Sequence[Record], part: str, name: str) -> Float:
    return np.concatenate(
        [np.ravel(getattr(record.sides, name)) for record in records if record.part == part]
    )


def _add_legend(figure: Figure, kinds: set[str]) -> None:
    from matplotlib.lines import Line2D

    kinds_of_line: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "line": [("measured", {}), ("bound", {"ls": "--"})],
        "mark": [("measured", {"marker": "o"}), ("bound", {"marker": "x", "ms": 6, "ls": "--"})],
        "dot": [
            ("measured", {"color": BLUE, "marker": "o", "ls": "none"}),
            ("bound", {"color": RED, "marker": "x", "ms": 5, "ls": "none"}),
        ],
        "bar": [("room for errors", {"color": RED, "marker": "|", "ms": 9, "ls": "none"})],
        "outside": [("hypotheses not met", {"color": "0.6", "marker": "o", "ls": "none"})],
    }
    handles = [
        Line2D([], [], **{"color": "0.3", "ms": 4, **how}, label=label)
        for kind, found in kinds_of_line.items()
        if kind in kinds
        for label, how in found
    ]
    place: Any = {"loc": "outside lower center", "ncols": len(handles)}
    figure.legend(handles=handles, frameon=False, fontsize=9, **place)


def _log_if_wide(panel: Axes) -> bool:
    """A logarithmic axis where the values spread over more than a factor of ten."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in panel.lines])
    values = values[np.isfinite(values) & (values > LEAST)]
    if not len(values) or values.max() <= 10.0 * values.min():
        return False
    panel.set_yscale("log", nonpositive="mask")
    panel.set_ylim(values.min() / 3.0, values.max() * 3.0)
    return True


def slack_figure(records: Sequence[Record]) -> Figure:
    """The slack of every statement that applies, over the ensemble, on one logarithmic axis.

    A dot is a network (its tightest entry) or, where a statement is not about networks, a case.
    What cannot be told from equality is drawn at the left end, and what has nothing to compare with
    (one side is rounding) at the right.
    """
    rows = [(s, [r for r in records if r.statement == s.id and _counts(r)]) for s in STATEMENTS]
    rows = [(s, found) for s, found in rows if found][::-1]
    figure, (panel,) = new_figure(1, 8.0, 0.9 + 0.3 * len(rows))
    for height, (_, found) in enumerate(rows):
        slack = np.concatenate([slack_by_network(record) for record in found])
        slack = np.clip(slack[~np.isnan(slack)], LEAST_SLACK, MOST_SLACK)
        if not len(slack):
            continue
        shift = 0.2 * np.sin(np.arange(len(slack)) * 2.4)
        panel.plot(slack, height + shift, ".", color=BLUE, ms=4, alpha=0.4, mec="none")
        panel.plot(np.median(slack), height, "|", color=ORANGE, ms=14, mew=2)
        colour = RED if any(r.verdict is Verdict.VIOLATED for r in found) else GREEN
        panel.plot(slack.min(), height, "|", color=colour, ms=14, mew=2)
    for label, colour in (("tightest", GREEN), ("median", ORANGE), ("violated", RED)):
        panel.plot([], [], "|", color=colour, ms=12, mew=2, label=label)
    panel.set_yticks(range(len(rows)), labels=[s.id for s, _ in rows], fontsize=9)
    panel.set(xscale="log", xlabel="slack: larger side / smaller side - 1")
    panel.set_xlim(LEAST_SLACK / 3.0, MOST_SLACK * 3.0)
    panel.axvline(1.0, color="0.8", lw=0.8, zorder=0)
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return figure


def _counts(record: Record) -> bool:
    return record.slack is not None and record.verdict is not Verdict.NOT_APPLICABLE


def slack_by_network(record: Record) -> Float:
    """The least slack of each network; every entry where the axes do not count networks."""
    assert record.slack is not None
    if record.sides is None:
        return np.array([record.slack])
    slack, axes = record.sides.slack, record.sides.axes
    if "network" not in axes:
        return np.ravel(slack)
    others = tuple(i for i, name in enumerate(axes) if name != "network")
    return np.asarray(np.min(np.where(np.isnan(slack), np.inf, slack), axis=others))
