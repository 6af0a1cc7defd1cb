"""Pictures of the ledger: each statement's bound and measurement, and the slack of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flatmin.atomic import make_directory
from flatmin.ledger.record import Record, Sides, Verdict, merge
from flatmin.ledger.statements import STATEMENTS, Statement
from flatmin.plots import BLUE, GREEN, ORANGE, RED, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flatmin.ledger.lemma_3 import Lemma3Table

Float = NDArray[np.float64]

PANELS = 5
LINES = 4
# Slack outside of these is drawn at the ends: equality up to rounding, and nothing to compare with.
LEAST_SLACK, MOST_SLACK = 1e-8, 1e8


def write_figures(
    records: Sequence[Record], lemma_3: Lemma3Table | None, directory: Path
) -> list[Path]:
    """A picture for every statement that was measured, and one of all slacks.

    `records` are those of `all_records`, one for each piece of evidence.
    """
    make_directory(directory)
    figures = {"slack": slack_figure(records)}
    for statement in STATEMENTS:
        found = [r for r in records if r.statement == statement.id and r.sides is not None]
        if found:
            figures[statement.id] = statement_figure(statement, found)
    if lemma_3 is not None:
        from flatmin.ledger.lemma_3_figure import lemma_3_figure

        figures["lemma-3"] = lemma_3_figure(lemma_3)
    paths = []
    for name, figure in figures.items():
        paths.append(directory / f"{name}.png")
        save(figure, paths[-1])
    return paths


def statement_figure(statement: Statement, records: Sequence[Record]) -> Figure:
    """Bound and measurement, a panel for each part of the statement."""
    tightest = [record for record in merge(records) if record.sides is not None]
    tightest = (list(filter(_differs, tightest)) or tightest)[:PANELS]
    figure, panels = new_figure(len(tightest), width=max(5.0, 3.3 * len(tightest)), height=3.4)
    figure.suptitle(f"{statement.id}: {statement.title}", fontsize=11)
    for panel, record in zip(panels, tightest, strict=True):
        _draw(panel, record, [r for r in records if r.part == record.part and r.sides is not None])
        panel.set_title(record.part, fontsize=9)
    panels[0].set_ylabel("both sides")
    panels[0].plot([], [], "-o", color="0.3", ms=3, label="measured")
    panels[0].plot([], [], "--x", color="0.3", ms=4, label="bound")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _differs(record: Record) -> bool:
    """Whether there is anything to see: a yes or no has the same two sides everywhere."""
    assert record.sides is not None
    return not np.array_equal(record.sides.measured, record.sides.bound)


def _draw(panel: Axes, record: Record, same: Sequence[Record]) -> None:
    sides = record.sides
    assert sides is not None
    if "record" in sides.axes:
        _over_records(panel, record)
    elif sides.x is not None and len(sides.x) > 1:
        _over_x(panel, sides)
    else:
        _over_ensemble(panel, same)


def _over_records(panel: Axes, record: Record) -> None:
    """A colour for each network; of its layers, the one with the least slack."""
    measured, bound, _ = _tightest_layer(record)
    for network, colour in zip(range(measured.shape[1]), (BLUE, ORANGE, GREEN, RED), strict=False):
        panel.plot(measured[:, network], color=colour, lw=1.0)
        panel.plot(bound[:, network], color=colour, lw=1.0, ls="--")
    panel.set_xlabel(f"record along the run, {record.at.split(',')[0]}")
    _log_if_wide(panel)


def _tightest_layer(record: Record) -> tuple[Float, Float, Float]:
    """measured, bound and slack as `[record, network]`."""
    sides = record.sides
    assert sides is not None
    if sides.slack.ndim == 2:
        return sides.measured, sides.bound, sides.slack
    layer = np.argmin(np.where(np.isnan(sides.slack), np.inf, sides.slack), axis=2)[:, :, None]
    measured, bound, slack = (
        np.take_along_axis(np.asarray(values), layer, axis=2)[:, :, 0]
        for values in (sides.measured, sides.bound, sides.slack)
    )
    return measured, bound, slack


def _over_x(panel: Axes, sides: Sides) -> None:
    """Both sides against what was varied; the bar is the room for errors."""
    assert sides.x is not None
    panel.plot(sides.x, np.ravel(sides.measured), "o-", color=BLUE)
    panel.errorbar(
        sides.x, np.ravel(sides.bound), np.ravel(sides.room), fmt="x--", color=RED, capsize=3
    )
    panel.set_xlabel(sides.x_name)
    if sides.x.min() > 0.0 and sides.x.max() > 3.0 * sides.x.min():
        panel.set_xscale("log")
        if len(sides.x) <= LINES:
            panel.set_xticks(sides.x, labels=[f"{x:.3g}" for x in sides.x])
            panel.set_xticks([], minor=True)
    if not _log_if_wide(panel):
        panel.set_ylim(0.0, 1.1 * panel.get_ylim()[1])


def _over_ensemble(panel: Axes, records: Sequence[Record]) -> None:
    """Every entry of every piece of evidence, in the order of its bound."""
    measured, bound = (
        np.concatenate([np.ravel(getattr(r.sides, name)) for r in records])
        for name in ("measured", "bound")
    )
    order = np.argsort(bound, kind="stable")
    panel.plot(bound[order], "x", color=RED, ms=4)
    panel.plot(measured[order], "o", color=BLUE, ms=3, mec="none", alpha=0.7)
    panel.set_xlabel("over the ensemble, by bound")
    _log_if_wide(panel)


def _log_if_wide(panel: Axes) -> bool:
    """A logarithmic axis where the values spread over more than a factor of twenty."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in panel.lines])
    values = values[np.isfinite(values) & (values > 1e-18)]
    if not len(values) or values.max() <= 20.0 * values.min():
        return False
    panel.set_yscale("log")
    panel.set_ylim(values.min() / 3.0, values.max() * 3.0)
    return True


def slack_figure(records: Sequence[Record]) -> Figure:
    """The slack of every statement that applies, over the ensemble, on one logarithmic axis.

    A dot is a network (its tightest entry) or, where a statement is not about networks, a case.
    What cannot be told from equality is drawn at the left end, and what has nothing to compare with
    (one side is rounding) at the right.
    """
    from matplotlib.figure import Figure as NewFigure

    rows = [(s, [r for r in records if r.statement == s.id and _counts(r)]) for s in STATEMENTS]
    rows = [(s, found) for s, found in rows if found][::-1]
    figure = NewFigure(figsize=(8.0, 0.9 + 0.3 * len(rows)), layout="constrained")
    panel: Any = figure.subplots()
    panel.spines[["top", "right"]].set_visible(False)
    for height, (_, found) in enumerate(rows):
        slack = np.concatenate([_by_network(record) for record in found])
        slack = np.clip(slack[~np.isnan(slack)], LEAST_SLACK, MOST_SLACK)
        if not len(slack):
            continue
        shift = 0.12 * np.sin(np.arange(len(slack)) * 2.4)
        panel.plot(slack, height + shift, ".", color=BLUE, ms=3, alpha=0.4, mec="none")
        panel.plot(np.median(slack), height, "|", color=ORANGE, ms=14, mew=2)
        panel.plot(slack.min(), height, "|", color=_colour(found), ms=14, mew=2)
    for label, colour in (("tightest", GREEN), ("median", ORANGE), ("violated", RED)):
        panel.plot([], [], "|", color=colour, ms=12, mew=2, label=label)
    panel.set_yticks(range(len(rows)), labels=[s.id for s, _ in rows], fontsize=8)
    panel.set(xscale="log", xlabel="slack: larger side / smaller side - 1")
    panel.axvline(1.0, color="0.8", lw=0.8, zorder=0)
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    return figure


def _counts(record: Record) -> bool:
    return record.sides is not None and record.verdict is not Verdict.NOT_APPLICABLE


def _colour(records: Sequence[Record]) -> str:
    return RED if any(r.verdict is Verdict.VIOLATED for r in records) else GREEN


def _by_network(record: Record) -> Float:
    """The least slack of each network; every entry where the axes do not count networks."""
    assert record.sides is not None
    slack, axes = record.sides.slack, record.sides.axes
    if "network" not in axes:
        return np.ravel(slack)
    others = tuple(i for i, name in enumerate(axes) if name != "network")
    return np.asarray(np.min(np.where(np.isnan(slack), np.inf, slack), axis=others))
