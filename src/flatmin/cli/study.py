"""`flatmin study`: sweeps of training runs, from one file to one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.cli import options
from flatmin.cli.commands import Commands, reading
from flatmin.cli.output import show as print_record
from flatmin.cli.study_run import run

if TYPE_CHECKING:
    from flatmin.study.results import Results

study_app = typer.Typer(
    cls=Commands,
    help="Sweeps of training runs: one file says what to run, a table comes back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Spec = Annotated[str, typer.Argument(metavar="SPEC", help="The study's file (.toml).")]
_Directory = Annotated[str, typer.Argument(metavar="DIR", help="The folder of results.")]


def new(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write (.toml).")],
) -> None:
    """Write a commented study to start from; it runs as it is in 10 to 30 seconds."""
    from flatmin.study.spec import write_starter

    path = write_starter(file)
    print(f"{path}: run it with flatmin study run {path} --out {path.with_suffix('')}")


def check(
    spec: _Spec,
    threads: Annotated[int | None, typer.Option(help="Threads. Default: one per core.")] = None,
    json: options.Json = False,
) -> None:
    """How many runs a study has, and the time, memory and disk it will take, without running it."""
    from flatmin.study.estimate import estimate
    from flatmin.study.spec import Study

    print_record(estimate(Study(spec), threads), json)


def show(directory: _Directory, json: options.Json = False) -> None:
    """What came out so far: counts, and means with 95 % bands per point of the grid."""
    print_record(_results(directory).summary(), json)


def export(
    directory: _Directory,
    out: Annotated[str, typer.Argument(metavar="OUT", help="A .csv or .parquet file.")],
    traces: Annotated[
        bool, typer.Option("--traces", help="The traces instead of the runs.")
    ] = False,
) -> None:
    """Write all runs of a study into one file. In CSV a list has one column per layer."""
    results = _results(directory)
    print(f"{out}: {results.export(out, traces)} rows")
    _say(results.missing())


def plot(
    directory: _Directory,
    out: Annotated[str, typer.Option(metavar="FILE", help="The figure: .png, .pdf or .svg.")],
    x: Annotated[
        str | None, typer.Option(help="Coordinate along the axis. Default: scale, or what varies.")
    ] = None,
    y: Annotated[str, typer.Option(help="Quantity to average.")] = "sharpness",
    by: Annotated[str | None, typer.Option(help="A curve per value of this coordinate.")] = None,
) -> None:
    """Draw means with 95 % bands; one more axis that varies gets a panel per value."""
    path = options.figure_path("--out", out)

    from flatmin.core.figures import save
    from flatmin.study.figures import study_figure

    results = _results(directory)
    found = results.facets(x, y, by)
    save(study_figure(found), path)
    print(f"figure: {path}")
    if found.pooled:
        print(found.note())
    _say(results.missing())


def verify(directory: _Directory, json: options.Json = False) -> None:
    """Read every file of a study; exit code 1 if one is damaged or strange, or runs are missing."""
    found = _results(directory).verify()
    print_record(found, json)
    if not found.whole:
        raise typer.Exit(1)


def _say(line: str) -> None:
    if line:
        print(line)


def _results(directory: str) -> Results:
    from flatmin.study.results import Results

    return Results(directory=Path(directory))


for command in (run, new, check, show, export, plot, verify):
    study_app.command()(reading(command))
