"""`flatmin check`: every statement of the theory on your runs, or on an ensemble made here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatmin.cli import options
from flatmin.core.errors import DataError, SettingError
from flatmin.core.plain import json_text

if TYPE_CHECKING:
    from flatmin.ledger.record import Record


ALARM = "bold red"


def check(
    directory: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="What flatmin train or flatmin study run wrote."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Or an ensemble by gradient flow: small-init, residual, multivariate."),
    ] = None,
    seed: Annotated[str, typer.Option(help="Seed of the preset's data and weights.")] = "0",
    figures: Annotated[
        str | None, typer.Option(help="Write a picture of every statement here.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """Check every statement of the theory; exit code 1 if one that applies is violated."""
    if (directory is None) == (preset is None):
        raise SettingError("give either a directory or --preset")
    if directory is None:
        assert preset is not None
        cases, table = _run(preset, options.whole("--seed", seed, least=0), quiet=json)
    else:
        from flatmin.ledger.directories import read_directory

        place = Path(directory)
        if not place.is_dir():
            raise DataError(f"there is no folder {directory!r}")
        cases, table = read_directory(place), None

    from flatmin.ledger.check import check as check_all
    from flatmin.ledger.check import violated

    records = check_all(cases, [] if table is None else table.as_records())
    written = []
    if figures is not None:
        from flatmin.ledger.check import all_records
        from flatmin.ledger.figures import write_figures

        written = write_figures(all_records(cases), table, Path(figures))
    if json:
        print(json_text(records))
    else:
        _print_table(records, sum(len(runs) for runs in cases))
        for path in written:
            print(path)
    if violated(records):
        raise typer.Exit(1)


def _run(preset: str, seed: int, quiet: bool) -> tuple[list[Any], Any]:
    """A preset's runs, and Lemma 3's table where the preset is about residual networks."""
    from flatmin.cli.output import progress_bar
    from flatmin.ledger.presets import parts, run_preset

    with progress_bar(preset, len(parts(preset, seed)), quiet=quiet) as progress:
        cases = run_preset(preset, seed, progress)
    if preset != "residual":
        return cases, None
    from flatmin.ledger.lemma_3 import lemma_3, network_count

    with progress_bar("random products", network_count(), quiet=quiet) as progress:
        return cases, lemma_3(seed, progress=progress)


def _print_table(records: list[Record], networks: int) -> None:
    from flatmin.cli.output import number, print_lines, print_list
    from flatmin.ledger.check import one_line_each, violated

    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    lines = one_line_each(records)
    rows = [
        (
            record.statement,
            "flow only" if record.flow_only else record.verdict.value,
            shown(record.slack),
            shown(record.bound),
            shown(record.measured),
            f"needs {record.why}" if record.why and not record.flow_only else record.at,
        )
        for record in lines
    ]
    print_list(("Statement", "Verdict", "Slack", "Bound", "Measured", "At its tightest"), rows)
    broken = violated(records)
    applied = [record for record in lines if record.networks]
    subject = "this network" if networks == 1 else f"these {networks} networks"
    sentence = f"{len(applied)} of {len(lines)} statements apply to {subject}"
    if not broken:
        ending = "; all of them hold." if applied else "."
        print_lines(sentence + ending, _notes(records))
        return
    names = ", ".join(dict.fromkeys(record.statement for record in broken))
    print_lines(f"{sentence}. VIOLATED: {names}.", style=ALARM)
    for record in broken:
        error = "none" if record.error is None else number(record.error)
        print_lines(
            f"VIOLATED {record.statement} {record.part}",
            [
                f"hypothesis: {record.hypothesis}",
                f"bound {shown(record.bound)}, measured {shown(record.measured)} at {record.at}",
                f"room for errors {shown(record.room)}; the integrator's own error {error}",
                f"by {record.violations} of {record.networks} networks or cases",
            ],
            style=ALARM,
        )
    print_lines("Notes", _notes(records))


def _notes(records: list[Record]) -> list[str]:
    notes = ["slack is larger side / smaller side - 1: 0 is equality, 1 a factor of two to spare"]
    notes += [_within(record) for record in records if record.within_room]
    if any(record.flow_only for record in records):
        notes.append("flow only: proved for gradient flow, measured here on gradient descent")
        notes += [
            f"{record.statement} {record.part}: {record.note}".replace(" :", ":")
            for record in records
            if record.flow_only and record.note
        ]
    return notes


def _within(record: Record) -> str:
    """Why a statement with a negative slack holds."""
    assert record.measured is not None
    assert record.bound is not None
    name = f"{record.statement} {record.part}".strip()
    return (
        f"{name}: a negative slack that holds: it is beyond the bound by "
        f"{abs(record.measured - record.bound):.2g}, and rounding, the integrator or the sample "
        f"explain {record.room:.2g} (its room)"
    )
