"""`flatmin lab`: runs in the browser, as they happen."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flatmin.cli import options
from flatmin.cli.commands import whole
from flatmin.core.errors import SettingError


def lab(
    table: options.Table = options.NO_TABLE,
    port: Annotated[
        str | None, typer.Option(help="Default: 8765, or any that is free.", metavar="N")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Serve to others, with a token. Default: this machine.", metavar="NAME"),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
    replay: Annotated[
        str | None,
        typer.Option(help="No server: the run of an address of the page.", metavar="ADDRESS"),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="With --replay: write the records here.", metavar="FILE")
    ] = None,
) -> None:
    """Watch runs in the browser, with the lines they keep to: sliders, a map, scenes, own data."""
    if out is not None and replay is None:
        raise SettingError("--out is for --replay")
    from flatmin.lab.tables import Tables

    tables = Tables()
    problem = _problem(tables, table) if table.given() else None
    if replay is not None:
        _replay(replay, out, tables)
        return
    number = None if port is None else whole("--port", port, least=0)
    try:
        from flatmin.lab.serve import serve
        from flatmin.lab.server import Lab, Opening
    except ModuleNotFoundError as error:
        raise SettingError(
            f"the lab needs {error.name}, which is not installed: pip install 'flatmin[lab]'"
        ) from None
    opening = None
    if problem is not None:
        opening = Opening(tables.find(problem["file"]), problem)
    try:
        serve(
            Lab(tables, opening),
            host,
            number,
            browser=not no_browser,
            say=lambda text: print(text, flush=True),
        )
    except KeyboardInterrupt:
        # Threads may be compiling, which nothing interrupts, and leaving in order takes a second.
        print("flatmin: stopped", file=sys.stderr, flush=True)
        os._exit(130)


def _problem(tables: Any, table: options.Table) -> dict[str, Any]:
    """The table as a study's [problem]; it is read once here, so that mistakes show at once."""
    if table.file == "-":
        raise SettingError("the lab reads a table more than once: give a file instead of -")
    from flatmin.data.tables import open_table
    from flatmin.data.tables.table import Reading

    assert table.file is not None
    assert table.target is not None
    open_table(table.file, Reading(table.target))
    stored = tables.keep(Path(table.file))
    said = {name: value for name, value in vars(table).items() if value}
    problem: dict[str, Any] = said | {"file": stored.key, "target": table.target[0]}
    if table.target[1:]:
        problem["more_targets"] = table.target[1:]
    features = tuple(table.features) if table.features else None
    tables.samples(stored.key, tuple(table.target), features, table.preparation())
    return problem


def _replay(text: str, out: str | None, tables: Any) -> None:
    """The records of the run of an address, to a file or to standard output."""
    from flatmin.core.files import writing
    from flatmin.lab.engine import follow, ground_of
    from flatmin.lab.records import csv_text
    from flatmin.lab.settings import from_address, setting_of

    content = from_address(text.rpartition("#")[2])
    own = {key: value for key, value in content.items() if key not in ("b", "view")}
    pieces = list(follow(ground_of(setting_of(own), tables)))
    records = csv_text(pieces)
    if out is None:
        print(records, end="")
        return
    with writing(options.file_path("--out", out)) as temporary:
        temporary.write_text(records)
    print(out)
