"""The whole paper from one call: run its studies, draw its figures, judge its claims.

A figure takes the road that a user's own study takes: a shipped spec, the store, a table, a drawing
function. What is already there is not run again, so an interrupted reproduction continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flatmin.core.checks import check_choice
from flatmin.core.figures import save
from flatmin.core.files import make_directory
from flatmin.paper.report import Report, Section
from flatmin.paper.shipped import PRESETS, shipped_study
from flatmin.paper.tables import Item, StudyTables, Tables
from flatmin.study.runner import Status, run_study
from flatmin.study.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reproduce(
    directory: Path,
    figures: Iterable[str] = (),
    preset: str = "paper",
    beyond: bool = False,
    say: Callable[[str, Status | None], None] = lambda study, status: None,
) -> Report:
    """Run, draw, judge and write the report; `say` is told of progress."""
    from flatmin.paper import catalogue

    check_choice("preset", preset, PRESETS)
    wanted = [check_choice("figure", figure, catalogue.FIGURES) for figure in figures]
    items = [item for item in catalogue.ITEMS if not wanted or item.id in wanted]
    extra = _beyond() if beyond else []
    begin = time.perf_counter()
    make_directory(directory / "figures")
    tables, seconds = _run(directory, [*items, *extra], preset, say)
    unpaid = dict(seconds)
    sections = [_section(directory, item, tables, preset, unpaid, say) for item in items]
    beyond_sections = [_section(directory, item, tables, preset, unpaid, say) for item in extra]
    report = Report(
        preset=preset,
        paper=sections,
        beyond=beyond_sections,
        study_seconds=seconds,
        seconds=time.perf_counter() - begin,
    )
    report.write(directory)
    return report


def _beyond() -> list[Item]:
    from flatmin.paper.beyond import ITEMS

    return list(ITEMS)


def _run(
    directory: Path,
    items: list[Item],
    preset: str,
    say: Callable[[str, Status | None], None],
) -> tuple[Tables, dict[str, float]]:
    """Every study that the items need, once."""
    tables: dict[str, StudyTables] = {}
    seconds: dict[str, float] = {}
    for name in dict.fromkeys(study for item in items for study in item.studies):
        begin = time.perf_counter()
        study = shipped_study(name, preset)
        place = directory / "data" / name
        run_study(study, place, progress=partial(say, name))
        store = Store.open(place)
        traces = store.read_traces().to_pandas() if study.record.every is not None else None
        tables[name] = StudyTables(store.read_rows().to_pandas(), traces)
        seconds[name] = time.perf_counter() - begin
    return tables, seconds


def _section(
    directory: Path,
    item: Item,
    tables: Tables,
    preset: str,
    unpaid: dict[str, float],
    say: Callable[[str, Status | None], None],
) -> Section:
    """Draw and judge; the time of a study goes to the first figure that needs it."""
    begin = time.perf_counter() - sum(unpaid.pop(study, 0.0) for study in item.studies)
    say(f"figure {item.id}", None)
    figure = item.draw(tables)
    if preset == "quick":
        _mark(figure)
    name = item.id if item.id.startswith("beyond") else f"figure-{item.id}"
    for suffix in ("pdf", "png"):
        save(figure, directory / "figures" / f"{name}.{suffix}")
    picture = directory / "figures" / f"{name}.png"
    claims = item.claims(tables)
    return Section(item.id, item.title, item.sentence, picture, claims, time.perf_counter() - begin)


def _mark(figure: Figure) -> None:
    figure.text(
        0.005, 0.005, "quick preset: fewer repetitions", ha="left", va="bottom", fontsize=7,
        color="#888888",
    )  # fmt: skip
