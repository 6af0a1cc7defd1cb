"""`flatmin reproduce`: the whole paper."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.cli import options
from flatmin.cli.output import show as print_record
from flatmin.core.progress import Show, live_bar

if TYPE_CHECKING:
    from flatmin.study.runner import Status


def reproduce(
    figures: Annotated[
        list[str] | None, typer.Argument(metavar="FIGURE", help="Default: all, 1a to 7.")
    ] = None,
    preset: Annotated[str, typer.Option(help="paper (its full sizes) or quick.")] = "paper",
    beyond: Annotated[
        bool, typer.Option("--beyond", help="Also what goes beyond the paper.")
    ] = False,
    out: Annotated[str, typer.Option(help="Folder for figures, data and report.")] = "reproduction",
    json: options.Json = False,
) -> None:
    """Regenerate the paper's figures and judge its claims; exit code 1 if one fails."""
    from flatmin.paper.claims import FAILS
    from flatmin.paper.reproduce import reproduce as run

    directory = Path(out)
    with live_bar(not json) as show:
        report = run(directory, figures or (), preset, beyond, _teller(show, quiet=json))
    written = (f"report: {directory / 'report.html'}", f"figures: {directory / 'figures'}")
    print_record(report, json, written)
    if report.count(FAILS):
        raise typer.Exit(1)


def _teller(show: Show | None, quiet: bool) -> Callable[[str, Status | None], None]:
    """What to do with a study's status: a bar at a terminal, else a line for each study."""
    said: set[str] = set()

    def say(name: str, status: Status | None) -> None:
        if show is not None:
            show(name, *((0, None) if status is None else (status.steps, status.total_steps)))
        elif not quiet and name not in said:
            print(f"flatmin: {name} ...", file=sys.stderr, flush=True)
        said.add(name)

    return say
