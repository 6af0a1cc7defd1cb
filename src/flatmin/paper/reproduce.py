"""The whole paper from one call: run its studies, draw its figures, judge its claims.

A figure takes the road that a user's own study takes: a shipped spec, the store, a table, a drawing
function. What is already there is not run again, so an interrupted reproduction continues.

Figures are drawn by one thread of their own, beside the studies that still run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
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
    pen = ThreadPoolExecutor(1, "figures")
    try:
        drawn, seconds = _run(directory, items, preset, say, pen)
        sections = [_paid(item, drawn[item.id], seconds, items, say) for item in items]
    finally:
        pen.shutdown(wait=False, cancel_futures=True)
    report = Report(
        preset=preset, sections=sections, study_seconds=seconds, seconds=time.perf_counter() - begin
    )
    report.write(directory)
    return report


def _run(
    directory: Path, items: list[Item], preset: str, say: Say, pen: ThreadPoolExecutor
) -> tuple[dict[str, Future[Section]], dict[str, float]]:
    """Every study that the items need, once; an item goes to the pen when its last one is done."""
    tables: dict[str, StudyTables] = {}
    seconds: dict[str, float] = {}
    drawn: dict[str, Future[Section]] = {}
    for name in dict.fromkeys(study for item in items for study in item.studies):
        begin = time.perf_counter()
        place = directory / "data" / name
        run_study(shipped_study(name, preset), place, progress=partial(say, name))
        store = Store.open(place)
        tables[name] = StudyTables(store.read_rows().to_pandas(), store.read_traces().to_pandas())
        seconds[name] = time.perf_counter() - begin
        for item in items:
            if item.id not in drawn and tables.keys() >= set(item.studies):
                drawn[item.id] = pen.submit(_section, directory, item, dict(tables), preset)
    return drawn, seconds


def _section(directory: Path, item: Item, tables: Tables, preset: str) -> Section:
    """Draw and judge."""
    begin = time.perf_counter()
    figure = item.draw(tables)
    if preset == "quick":
        note: Any = {"ha": "left", "va": "bottom", "fontsize": 7, "color": "#888888"}
        figure.text(0.005, 0.005, "quick preset: fewer repetitions", **note)
    picture = directory / "figures" / f"{item.id if item.beyond else f'figure-{item.id}'}.png"
    for suffix in (".pdf", ".png"):
        save(figure, picture.with_suffix(suffix))
    return Section(item, picture, item.claims(tables), time.perf_counter() - begin)


def _paid(
    item: Item, drawn: Future[Section], seconds: dict[str, float], items: list[Item], say: Say
) -> Section:
    """The section when it is drawn; the time of a study goes to the first figure that needs it."""
    say(f"figure {item.id}", None)
    before = {study for other in items[: items.index(item)] for study in other.studies}
    studies = [study for study in item.studies if study not in before]
    section = drawn.result()
    return replace(section, seconds=section.seconds + sum(seconds[study] for study in studies))
