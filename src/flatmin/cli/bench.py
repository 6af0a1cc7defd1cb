"""`flatmin bench`: how fast, against whom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.core.plain import json_text

if TYPE_CHECKING:
    from benchmarks.harness import Result


def bench(
    cases: Annotated[list[str] | None, typer.Argument(metavar="CASE", help="Default: all.")] = None,
    results: Annotated[str | None, typer.Option(help="Also write a table to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Compare with rivals on this machine: ratios in one run, with their spread."""
    _find_benchmarks()
    from benchmarks import run

    measured = run(cases or (), lambda case: print(f"{case} ...", file=sys.stderr, flush=True))
    if results is not None:
        from flatmin.core.files import writing

        with writing(Path(results)) as temporary:
            temporary.write_text(_markdown(measured))
    if json:
        print(json_text([result.as_dict() for result in measured]))
        return
    from flatmin.core.pages import Listing, text

    print(text([Listing(_HEADS, [_row(result) for result in measured])]))


def _find_benchmarks() -> None:
    """Benchmarks come with the sources, not with the package: make them importable."""
    import flatmin
    from flatmin.core.errors import SettingError

    root = Path(flatmin.__file__).parents[2]
    if not (root / "benchmarks" / "harness.py").is_file():
        raise SettingError(
            "the benchmarks come with flatmin's sources, not with the installed package: "
            "run make bench there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


_HEADS = ("Case", "Ours", "Ratio: median (low to high)", "Bar", "Met")


def _row(result: Result) -> tuple[str, ...]:
    ratios = "; ".join(
        f"{name} {spread.median:.3g} ({spread.low:.3g} to {spread.high:.3g})"
        for name, spread in result.ratios.items()
    )
    bar = ", ".join(f"{name} {value:g}" for name, value in result.bar.items())
    unit = "s" if result.unit.startswith("seconds") else result.unit
    return result.id, f"{result.ours.median:.3g} {unit}", ratios, bar, "yes" if result.met else "NO"


def _markdown(measured: list[Result]) -> str:
    from benchmarks import rivals
    from flatmin import __version__
    from flatmin.core.threads import thread_count

    lines = [
        "# Benchmark results",
        "",
        f"Written by `make bench` (flatmin {__version__}, {thread_count()} cores). A ratio is",
        "rival over ours in the same round; shown are the median and the range over rounds. D is",
        "the share of the machine's fused-multiply-add peak; `bare` is the time without recording",
        "over the time with it; for `scaling` the numbers are exponents. The first call,",
        "which compiles, is not counted.",
        "",
        *(rivals.__doc__ or "").strip().splitlines()[2:],
        "E: JAX, jvp of grad, in SciPy's eigsh.",
        "",
        "| case | what | ours | ratio | bar | met | first call |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in measured:
        case, ours, ratios, bar, met = _row(result)
        unit = result.unit.removeprefix("seconds") if result.unit.startswith("seconds") else ""
        lines.append(
            f"| {case} | {result.title} | {ours}{unit} | {ratios} | {bar} | {met} "
            f"| {result.compile_seconds:.2g} s |"
        )
    return "\n".join(lines) + "\n"
