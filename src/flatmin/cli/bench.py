"""`flatmin bench`: how fast, against whom."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatmin.core.plain import json_text


def bench(
    cases: Annotated[list[str] | None, typer.Argument(metavar="CASE", help="Default: all.")] = None,
    results: Annotated[
        str | None, typer.Option(help="Also write a table to this file, or its rows there.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Compare with rivals on this machine: ratios in one run, with their spread."""
    _find_benchmarks()
    from benchmarks import HEADS, markdown, row, run

    measured = run(cases or (), _tell)
    if results is not None:
        from flatmin.core.files import writing

        path = Path(results)
        earlier = path.read_text() if path.is_file() else ""
        with writing(path) as temporary:
            temporary.write_text(markdown(measured, earlier))
    if json:
        print(json_text([result.as_dict() for result in measured]))
        return
    from flatmin.core.pages import Listing, text

    print(text([Listing(HEADS, [row(result) for result in measured])]))


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


def _tell(case: str) -> None:
    print(f"flatmin: {case} ...", file=sys.stderr, flush=True)
