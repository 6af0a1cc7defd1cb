"""`flatmin study run`: run what is missing of a study."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.cli import options
from flatmin.cli.output import show
from flatmin.core.errors import SettingError

if TYPE_CHECKING:
    from flatmin.study.runner import StudyRun

_MOST_FAILURES = 10


def run(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="The study's file (.toml).")],
    out: Annotated[str, typer.Option(help="Folder of the results; continued if it is there.")],
    threads: Annotated[int | None, typer.Option(help="Threads. Default: one per core.")] = None,
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
    show(summary, json)
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
