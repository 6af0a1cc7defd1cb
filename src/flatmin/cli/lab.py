"""`flatmin lab`: runs in the browser, as they happen."""

from __future__ import annotations

import os
import sys
from typing import Annotated

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
        str | None, typer.Option(help="With --replay: write its entries here.", metavar="FILE")
    ] = None,
) -> None:
    """Watch runs in the browser, with the lines they keep to: sliders, a map, scenes, own data."""
    if out is not None and replay is None:
        raise SettingError("--out is for --replay")
    from flatmin.lab.tables import Tables

    tables = Tables()
    problem = table.read(tables.keep)
    if replay is not None:
        from flatmin.core.files import writing
        from flatmin.lab.entries import replay as again

        entries = again(replay, tables)
        if out is None:
            print(entries, end="")
            return
        with writing(options.file_path("--out", out)) as temporary:
            temporary.write_text(entries)
        print(out)
        return
    number = None if port is None else whole("--port", port, least=0)
    try:
        from flatmin.lab.serve import serve
        from flatmin.lab.server import Lab
    except ModuleNotFoundError as error:
        raise SettingError(
            f"the lab needs {error.name}, which is not installed: pip install 'flatmin[lab]'"
        ) from None
    try:
        serve(
            Lab(tables, problem),
            host,
            number,
            browser=not no_browser,
            say=lambda text: print(text, flush=True),
        )
    except KeyboardInterrupt:
        # Threads may be compiling, which nothing interrupts, and leaving in order takes a second.
        print("flatmin: stopped", file=sys.stderr, flush=True)
        os._exit(130)
