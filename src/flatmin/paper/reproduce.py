"""The whole paper from one call: run its studies, draw its figures, judge its claims.

A figure takes the road that a user's own study takes: a shipped spec, the store, a table, a drawing
function. What is already there is not run again, so an interrupted reproduction continues.

Figures are drawn by one thread of their own, beside the studies that still run; of these, two run
at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from flatmin.core.checks import check_choice
from flatmin.core.figures import save
from flatmin.core.files import make_directory
from flatmin.core.threads import Slots, thread_count
from flatmin.paper.report import Report, Section
from flatmin.paper.shipped import PRESETS, shipped_study
from flatmin.paper.tables import Item, StudyTables, Tables
from flatmin.study.plan import plan
from flatmin.study.runner import Status, run_study
from flatmin.study.spec import Study
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
    sections, seconds = _run(directory, items, preset, say)
    report = Report(
        preset=preset, sections=sections, study_seconds=seconds, seconds=time.perf_counter() - begin
    )
    report.write(directory)
    return report


def _run(
    directory: Path, items: list[Item], preset: str, say: Say
) -> tuple[list[Section], dict[str, float]]:
    """Every study that the items need, once, and every item when its last study is done.

    The costliest study runs behind all others, where their last shards would leave cores idle, and
    is told of after them.
    """
    tables: dict[str, StudyTables] = {}
    seconds: dict[str, float] = {}
    drawn: dict[str, Future[Section]] = {}
    given_up, told, slots = Event(), Event(), Slots(thread_count())

    def run(name: str) -> tuple[StudyTables, float]:
        begin = time.perf_counter()
        place, quiet = directory / "data" / name, name == costliest

        def tell(status: Status) -> None:
            if given_up.is_set():
                raise KeyboardInterrupt
            if told.is_set() or not quiet:
                say(name, status)

        slot = slots.behind if quiet else slots.front
        run_study(shipped_study(name, preset), place, progress=tell, slot=slot)
        store = Store.open(place)
        found = StudyTables(store.read_rows().to_pandas(), store.read_traces().to_pandas())
        return found, time.perf_counter() - begin

    def keep(name: str, found: tuple[StudyTables, float]) -> None:
        tables[name], seconds[name] = found
        for item in items:
            if item.id not in drawn and tables.keys() >= set(item.studies):
                drawn[item.id] = pen.submit(_section, directory, item, dict(tables), preset)

    names = list(dict.fromkeys(study for item in items for study in item.studies))
    costliest = max(names, key=lambda name: _cost(shipped_study(name, preset)))
    pen, beside = ThreadPoolExecutor(1, "figures"), ThreadPoolExecutor(1, "study")
    try:
        last = beside.submit(run, costliest)
        for name in names:
            if name != costliest:
                keep(name, run(name))
        told.set()
        keep(costliest, last.result())
        unpaid, sections = dict(seconds), []
        for item in items:
            say(f"figure {item.id}", None)
            section = drawn[item.id].result()
            # The time of a study goes to the first figure that needs it.
            studies = sum(unpaid.pop(study, 0.0) for study in item.studies)
            sections.append(replace(section, seconds=section.seconds + studies))
        return sections, seconds
    finally:
        given_up.set()
        for pool in (pen, beside):
            pool.shutdown(wait=False, cancel_futures=True)


def _cost(study: Study) -> float:
    return sum(shard.cost for shard in plan(study))


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
        figure.set_layout_engine("none")  # laid out once: it takes as long as drawing
    return Section(item, picture, item.claims(tables), time.perf_counter() - begin)
