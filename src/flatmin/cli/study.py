"""`flatmin study`: sweeps of training runs, from one file to one table."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.cli import options
from flatmin.cli.commands import Commands, reading
from flatmin.cli.output import show as print_record
from flatmin.core.errors import SettingError

if TYPE_CHECKING:
    from flatmin.study.results import Results
    from flatmin.study.runner import StudyRun

_MOST_FAILURES = 10  # that are told one by one

study_app = typer.Typer(
    cls=Commands,
    help="Sweeps of training runs: one file says what to run, a table comes back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Spec = Annotated[str, typer.Argument(metavar="SPEC", help="The study's file (.toml).")]
_Threads = Annotated[int | None, typer.Option(help="Threads. Default: one per core.")]
_Directory = Annotated[str, typer.Argument(metavar="DIR", help="The folder of results.")]


def run(
    spec: _Spec,
    out: Annotated[str, typer.Option(help="Folder of the results; continued if it is there.")],
    threads: _Threads = None,
    workers: Annotated[
        int | None, typer.Option(help="Start so many Dask processes instead of threads.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler, such as tcp://host:8786.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Run only the shard with this id.")] = None,
    json: options.Json = False,
) -> None:
    """Run a study, or what is missing of it; the same command again continues."""
    from flatmin.study.runner import run_study
    from flatmin.study.spec import Study

    study = Study(spec)
    try:
        summary = run_study(
            study,
            out,
            threads=threads,
            workers=workers,
            scheduler=scheduler,
            only=only,
            spec=spec,
            progress=not json,
            note=lambda line: print(f"flatmin: {line}", file=sys.stderr, flush=True),
        )
    except KeyboardInterrupt:
        _leave(out)
    mistakes = [failure.error for failure in summary.failures if failure.mistake]
    if mistakes and len(mistakes) == len(summary.failures):
        share = f"{len(mistakes)} of {summary.total_shards} shards of this study"
        raise SettingError(f"{share} cannot be run: {mistakes[0]}")
    print_record(summary, json)
    if summary.failures:
        _print_failures(summary, whole=only is not None)
        raise typer.Exit(1)


def _leave(out: str) -> None:
    """End at once: threads in the middle of a shard are not waited for."""
    line = f"stopped; finished shards are in {out!r}, the same command continues"
    print(f"flatmin: {line}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(130)


def _print_failures(summary: StudyRun, whole: bool) -> None:
    """One line for each failed shard; its traceback too if it was run alone."""
    for failure in summary.failures[:_MOST_FAILURES]:
        if whole:
            print(failure.traceback, file=sys.stderr)
        print(
            f"flatmin: shard {failure.shard_id} failed: {failure.error}; "
            f"to run it alone: {failure.command}",
            file=sys.stderr,
        )
    more = len(summary.failures) - _MOST_FAILURES
    if more > 0:
        folder = summary.directory / "failures"
        print(f"flatmin: and {more} more shards failed, see {str(folder)!r}", file=sys.stderr)


def new(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write (.toml).")],
) -> None:
    """Write a commented study to start from; it runs as it is in 10 to 30 seconds."""
    from flatmin.study.spec import write_starter

    path = write_starter(file)
    print(f"{path}: run it with flatmin study run {path} --out {path.with_suffix('')}")


def check(
    spec: _Spec,
    threads: _Threads = None,
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
