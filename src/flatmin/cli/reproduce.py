"""`flatmin reproduce`: the whole paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatmin.core.plain import json_text

if TYPE_CHECKING:
    from flatmin.paper.report import Report


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
    with _progress(quiet=json) as say:
        report = run(directory, figures or (), preset, beyond, say)
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


class _progress:
    """A line per study at a terminal's standard error, with its share done; else a line each."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._live, self._last = quiet, sys.stderr.isatty(), ""

    def __enter__(self) -> Any:
        return self._say

    def __exit__(self, *_: object) -> None:
        if self._live and not self._quiet and self._last:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _say(self, name: str, status: Any) -> None:
        if self._quiet:
            return
        if self._live:
            share = "" if status is None else f" {status.steps / max(status.total_steps, 1):4.0%}"
            print(f"\r\033[K{name}{share}", end="", file=sys.stderr, flush=True)
        elif name != self._last:
            print(name, file=sys.stderr, flush=True)
        self._last = name
