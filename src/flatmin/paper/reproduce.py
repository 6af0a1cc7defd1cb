"""The whole paper from one call: run its studies, draw its figures, judge its claims.

A figure takes the road that a user's own study takes: a shipped spec, the store, a table, a drawing
function. What is already there is not run again, so an interrupted reproduction continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from flatmin.core.checks import check_choice
from flatmin.core.figures import save
from flatmin.core.files import make_directory
from flatmin.paper.report import Report, Section
from flatmin.paper.shipped import PRESETS, shipped_study
from flatmin.paper.tables import Item, StudyTables, Tables
from flatmin.study.runner import Status, run_study
from flatmin.study.store import Store

Say = Callable[[str, Status | None], None]


def reproduce(
    directory: Path,
    figures: Iterable[str] = (),
    preset: str = "paper",
    beyond: bool = False,
    say: Say = lambda study, status: None,
) -> Report:
    """Run, draw, judge and write the report; `say` is told of progress."""
    from flatmin.paper import catalogue

    check_choice("preset", preset, PRESETS)
    wanted = [check_choice("figure", figure, catalogue.FIGURES) for figure in figures]
    items = [item for item in catalogue.ITEMS if not wanted or item.id in wanted]
    if beyond:
        from flatmin.paper.beyond import ITEMS

        items += ITEMS
    begin = time.perf_counter()
    make_directory(directory / "figures")
    tables, seconds = _run(directory, items, preset, say)
    unpaid = dict(seconds)
    sections = [_section(directory, item, tables, preset, unpaid, say) for item in items]
    report = Report(
        preset=preset, sections=sections, study_seconds=seconds, seconds=time.perf_counter() - begin
    )
    report.write(directory)
    return report


def _run(
    directory: Path, items: list[Item], preset: str, say: Say
) -> tuple[Tables, dict[str, float]]:
    """Every study that the items need, once."""
    tables: dict[str, StudyTables] = {}
    seconds: dict[str, float] = {}
    for name in dict.fromkeys(study for item in items for study in item.studies):
        begin = time.perf_counter()
        place = directory / "data" / name
        run_study(shipped_study(name, preset), place, progress=partial(say, name))
        store = Store.open(place)
        tables[name] = StudyTables(store.read_rows().to_pandas(), store.read_traces().to_pandas())
        seconds[name] = time.perf_counter() - begin
    return tables, seconds


def _section(
    directory: Path, item: Item, tables: Tables, preset: str, unpaid: dict[str, float], say: Say
) -> Section:
    """Draw and judge; the time of a study goes to the first figure that needs it."""
    begin = time.perf_counter() - sum(unpaid.pop(study, 0.0) for study in item.studies)
    say(f"figure {item.id}", None)
    figure = item.draw(tables)
    if preset == "quick":
        note: Any = {"ha": "left", "va": "bottom", "fontsize": 7, "color": "#888888"}
        figure.text(0.005, 0.005, "quick preset: fewer repetitions", **note)
    picture = directory / "figures" / f"{item.id if item.beyond else f'figure-{item.id}'}.png"
    for suffix in (".pdf", ".png"):
        save(figure, picture.with_suffix(suffix))
    return Section(item, picture, item.claims(tables), time.perf_counter() - begin)
