"""`flatmin study run`: run what is missing of a study."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatmin.cli import options
from flatmin.cli.output import Show, live_bar
from flatmin.core.errors import SettingError
from flatmin.core.plain import json_text

if TYPE_CHECKING:
    from flatmin.study.runner import Status, Summary

_MOST_FAILURES = 10


def run(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="The study's file (.toml).")],
    out: Annotated[str, typer.Option(help="Folder of the results; continued if it is there.")],
    threads: Annotated[str | None, typer.Option(help="Threads. Default: one per core.")] = None,
    workers: Annotated[
        str | None, typer.Option(help="Start so many Dask processes instead of threads.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler, such as tcp://host:8786.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Run only the shard with this id.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a study, or what is missing of it; the same command again continues."""
    given = [name for name, value in _places(threads, workers, scheduler) if value is not None]
    if len(given) > 1:
        raise SettingError(f"{given[0]} and {given[1]} exclude each other: give one of them")
    settings: dict[str, Any] = {
        "threads": None if threads is None else options.whole("--threads", threads),
        "workers": None if workers is None else options.whole("--workers", workers),
        "scheduler": scheduler,
        "only": only,
        "spec": spec,
        "note": lambda line: print(f"flatmin: {line}", file=sys.stderr, flush=True),
    }

    from flatmin.study.runner import run_study
    from flatmin.study.spec import read_spec

    study = read_spec(spec)
    try:
        with live_bar(quiet=json) as show:
            summary = run_study(study, out, progress=_told(show), **settings)
    except KeyboardInterrupt:
        _leave(out)
    if json:
        print(json_text(summary))
    else:
        _print_table(summary, study.method.learned_at)
    if summary.failures:
        _print_failures(summary, whole=only is not None)
        raise typer.Exit(1)


def _places(*values: str | None) -> list[tuple[str, str | None]]:
    return list(zip(("--threads", "--workers", "--scheduler"), values, strict=True))


def _leave(out: str) -> None:
    """End at once: threads in the middle of a shard are not waited for."""
    line = f"stopped; finished shards are in {out!r}, the same command continues"
    print(f"flatmin: {line}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(130)


def _told(show: Show | None) -> Callable[[Status], None] | None:
    """What to do with the status of a study: a bar over network steps, with counts and speed."""
    if show is None:
        return None
    begin, first = time.perf_counter(), None

    def told(status: Status) -> None:
        nonlocal first
        first = status.steps if first is None else first
        speed = (status.steps - first) / (time.perf_counter() - begin)
        note = f"{_counts(status)}, {speed / 1e6:.3g} M steps/s"
        show("", status.steps, status.total_steps, note)

    return told


def _counts(status: Status) -> str:
    from flatmin.study.shard_files import EDGE

    counts = status.counts
    words = [
        f"{counts['learned']} learned",
        f"{counts['settled']} settled",
        f"{counts[EDGE]} at the edge",
        f"{counts['diverged']} diverged",
    ]
    if status.failed:
        words.append(f"{status.failed} shards failed")
    return ", ".join(words)


def _print_table(summary: Summary, learned_at: float) -> None:
    from flatmin.cli.output import learned_note, print_note, print_table
    from flatmin.study.shard_files import EDGE, LEARNED

    counts = dict(summary.counts)
    edge, learned = counts.pop(EDGE, 0), counts.pop(LEARNED, 0)
    rows = [("Runs finished", f"{summary.runs} of {summary.total_runs}")]
    rows.append(("  learned", str(learned)))
    rows.append(("  at the edge of stability", str(edge)))
    rows.append(("How they ended", ""))
    rows.extend((f"  {state}", str(counts[state])) for state in sorted(counts))
    rows.append(("Shards finished", f"{summary.shards} of {summary.total_shards}"))
    rows.append(("  run now", str(summary.shards_run)))
    if summary.failures:
        rows.append(("  failed now", str(len(summary.failures))))
    rows.append(("Time", f"{summary.seconds:.1f} s, and {summary.other_seconds:.1f} s around it"))
    if summary.steps:
        speed = summary.steps / summary.seconds
        rows.append(("Network steps", f"{summary.steps:.3g}, {speed / 1e6:.3g} million a second"))
    rows.append(("Folder", str(summary.directory)))
    print_table(("Study", ""), rows)
    print_note(learned_note(learned_at))


def _print_failures(summary: Summary, whole: bool) -> None:
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
