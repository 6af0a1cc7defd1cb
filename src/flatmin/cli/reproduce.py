"""`flatmin reproduce`: the whole paper."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.cli.output import Show, live_bar
from flatmin.core.plain import json_text

if TYPE_CHECKING:
    from flatmin.paper.report import Report
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
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Regenerate the paper's figures and judge its claims; exit code 1 if one fails."""
    from flatmin.paper.claims import FAILS
    from flatmin.paper.reproduce import reproduce as run

    directory = Path(out)
    with live_bar(quiet=json) as show:
        report = run(directory, figures or (), preset, beyond, _teller(show, quiet=json))
    if json:
        print(json_text(report.as_dict()))
    else:
        _print_report(report, directory)
    if report.count(FAILS):
        raise typer.Exit(1)


def _print_report(report: Report, directory: Path) -> None:
    from flatmin.cli.output import print_lines, print_table
    from flatmin.paper.claims import FAILS

    rows = [
        (
            claim.id,
            claim.expected,
            "none" if claim.measured is None else f"{claim.measured:.4g}",
            claim.tolerance,
            claim.verdict.upper() if claim.verdict == FAILS else claim.verdict,
        )
        for claim in report.claims
    ]
    print_table(("Claim", "Expected", "Measured", "Tolerance", "Verdict"), rows)
    needs = [f"{claim.id} needs {claim.needs}" for claim in report.claims if claim.needs]
    if needs and report.preset == "quick":
        needs.append("`flatmin reproduce` without --preset quick has more runs")
    print_lines(
        f"{report.verdicts()}; {report.seconds:.0f} s.",
        [*needs, f"report: {directory / 'report.html'}", f"figures: {directory / 'figures'}"],
    )


def _teller(show: Show | None, quiet: bool) -> Callable[[str, Status | None], None]:
    """What to do with a study's status: a bar at a terminal, else a line for each study."""
    said: set[str] = set()

    def say(name: str, status: Status | None) -> None:
        if show is not None:
            show(name, *((0, None) if status is None else (status.steps, status.total_steps)))
        elif not quiet and name not in said:
            print(name, file=sys.stderr, flush=True)
        said.add(name)

    return say
