"""`flatmin study`: sweeps of training runs, from one file to one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatmin.cli import options
from flatmin.cli.commands import Commands
from flatmin.cli.study_run import run
from flatmin.core.errors import SettingError
from flatmin.core.plain import json_text

if TYPE_CHECKING:
    import pandas as pd

    from flatmin.study.estimate import Estimate
    from flatmin.study.summary import Mean, Point

study_app = typer.Typer(
    cls=Commands,
    help="Sweeps of training runs: one file says what to run, a table comes back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
study_app.command()(run)

_Spec = Annotated[str, typer.Argument(metavar="SPEC", help="The study's file (.toml).")]
_Directory = Annotated[str, typer.Argument(metavar="DIR", help="The folder of results.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_MOST_POINTS = 60


@study_app.command()
def new(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write (.toml).")],
) -> None:
    """Write a commented study to start from; it runs as it is in 10 to 30 seconds."""
    path = Path(file)
    if path.exists():
        raise SettingError(f"{file!r} is there already: choose another name or remove it")

    from flatmin.core.files import make_directory, writing
    from flatmin.study.spec import STARTER

    make_directory(path.parent)
    with writing(path) as temporary:
        temporary.write_text(STARTER, encoding="utf-8")
    print(f"{path}: run it with flatmin study run {path} --out {path.with_suffix('')}")


@study_app.command()
def check(
    spec: _Spec,
    threads: Annotated[str | None, typer.Option(help="Threads. Default: one per core.")] = None,
    json: _Json = False,
) -> None:
    """How many runs a study has, and the time, memory and disk it will take, without running it."""
    count = None if threads is None else options.whole("--threads", threads)

    from flatmin.study.estimate import estimate
    from flatmin.study.spec import read_spec

    study = read_spec(spec)
    found = estimate(study, count)
    if json:
        print(json_text({"name": study.name} | found.as_dict()))
    else:
        _print_estimate(study.name, found)


@study_app.command()
def show(directory: _Directory, json: _Json = False) -> None:
    """What came out so far: counts, and means with 95 % bands per point of the grid."""
    from flatmin.cli.output import learned_note, print_note
    from flatmin.study.store import Store
    from flatmin.study.summary import counts, points

    table = _read(directory)
    found, per_point = counts(table), points(table)
    learned_at = Store.open(Path(directory)).learned_at
    if json:
        rows = [point.place | {"counts": point.counts} | point.means for point in per_point]
        print(json_text({"counts": found, "points": rows, "learned_at": learned_at}))
    else:
        _print_points(found, per_point)
        print_note(learned_note(learned_at))


@study_app.command()
def export(
    directory: _Directory,
    out: Annotated[str, typer.Argument(metavar="OUT", help="A .csv or .parquet file.")],
    traces: Annotated[
        bool, typer.Option("--traces", help="The traces instead of the runs.")
    ] = False,
) -> None:
    """Write all runs of a study into one file. In CSV a list has one column per layer."""
    path = Path(out)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise SettingError(f"OUT must end in .csv or .parquet, got {out!r}")

    from flatmin.core.files import make_directory, writing
    from flatmin.study.store import Store

    store = Store.open(Path(directory))
    table = store.read_traces() if traces else store.read_rows()
    make_directory(path.parent)
    with writing(path) as temporary:
        if suffix == ".parquet":
            import pyarrow.parquet

            parquet: Any = pyarrow.parquet
            parquet.write_table(table, temporary)
        else:
            from flatmin.study.summary import flat_frame

            flat_frame(table).to_csv(temporary, index=False)
    print(f"{path}: {table.num_rows} rows")


@study_app.command()
def plot(
    directory: _Directory,
    out: Annotated[str, typer.Option(metavar="FILE", help="The figure: .png, .pdf or .svg.")],
    x: Annotated[str, typer.Option(help="Coordinate along the axis.")] = "scale",
    y: Annotated[str, typer.Option(help="Quantity to average.")] = "sharpness",
    by: Annotated[str | None, typer.Option(help="A curve per value of this coordinate.")] = None,
) -> None:
    """Draw means with 95 % bands; one more axis that varies gets a panel per value."""
    path = _figure_path(out)

    from flatmin.core.figures import save
    from flatmin.study.figures import study_figure
    from flatmin.study.summary import LOGARITHMIC, facets

    table = _read(directory)
    found = facets(table, x, y, by)
    save(study_figure(found, x, y, by, y in LOGARITHMIC), path)
    print(f"figure: {path}")
    if found.pooled:
        axes = ", ".join(f"{name} ({table[name].nunique()} values)" for name in found.pooled)
        print(f"pooled at every point: {axes}; name one with --x or --by to tell its values apart")


def _figure_path(out: str) -> Path:
    try:
        return options.figure_path(out)
    except SettingError as error:
        raise SettingError(str(error).replace("--figure", "--out", 1)) from None


def _read(directory: str) -> pd.DataFrame:
    """The rows of a study, of which there must be some."""
    from flatmin.study.store import Store
    from flatmin.study.summary import frame

    rows = Store.open(Path(directory)).read_rows()
    if not rows.num_rows:
        raise SettingError(f"{directory!r} has no finished runs yet")
    return frame(rows)


def _print_estimate(name: str, found: Estimate) -> None:
    from flatmin.cli.output import print_table

    rows = [
        ("Runs", f"{found.runs:,}"),
        ("Network steps, at most", f"{found.network_steps:,}"),
        ("Shards", f"{found.shards:,}"),
        ("Time, estimated", f"{_duration(found.seconds)} with {found.threads} threads"),
        ("Memory", _size(found.memory_bytes)),
        ("Disk", _size(found.disk_bytes)),
    ]
    print_table((f"Study {name}", ""), rows)


def _print_points(found: dict[str, int], per_point: list[Point]) -> None:
    from flatmin.cli.output import number, print_table

    print_table(("Runs", ""), [(state, str(count)) for state, count in found.items()])
    states = ("runs", "learned", "settled", "edge of stability", "diverged")
    rows = [
        [
            *map(number, point.place.values()),
            *(str(point.counts.get(state, 0)) for state in states),
            *_band(point.means["sharpness"]),
            _band(point.means["distance"])[0],
        ]
        for point in per_point[:_MOST_POINTS]
    ]
    names = [name.replace("_", " ") for name in per_point[0].place]
    heads = ("runs", "learned", "settled", "edge", "div.", "sharpness", "95 % band", "distance")
    left_out = print_table([*names, *heads], rows, spare=("95 % band", "edge", "div."))
    if left_out:
        print(f"left out for want of room: {', '.join(left_out)}; see --json")
    if len(per_point) > _MOST_POINTS:
        print(f"... and {len(per_point) - _MOST_POINTS} more points: see --json or export")


def _band(mean: Mean) -> tuple[str, str]:
    if not mean.count:
        return "-", "-"
    return f"{mean.value:.3g}", f"{mean.low:.3g} to {mean.high:.3g}"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _size(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.1f} KiB"
