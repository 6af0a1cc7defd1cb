"""`flatmin check`: every statement of the theory on your runs, or on an ensemble made here."""

from __future__ import annotations

from typing import Annotated

import typer

from flatmin.cli.output import show


def check(
    directory: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="What flatmin train or flatmin study run wrote."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Or an ensemble by gradient flow: small-init, residual, multivariate."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the preset's data and weights.")] = 0,
    figures: Annotated[
        str | None, typer.Option(help="Write a picture of every statement here.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """Check every statement of the theory; exit code 1 if one that applies is violated."""
    from flatmin.ledger.check import check as check_runs

    ledger = check_runs(directory, preset=preset, seed=seed, progress=not json)
    written = [] if figures is None else ledger.write_figures(figures)
    if json:
        from flatmin.core.plain import json_text

        print(json_text(ledger.records))
    else:
        show(ledger, written=written)
    if ledger.violated:
        raise typer.Exit(1)
