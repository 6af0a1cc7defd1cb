"""Printing a record: its page at a terminal as wide as that is, elsewhere as `str` has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatmin.core.shown import Shown


def show(record: Shown, json: bool = False, written: Iterable[object] = ()) -> None:
    """Print a record, as JSON if that was asked for; else followed by the files written."""
    if json:
        from flatmin.core.plain import json_text

        print(json_text(record))
        return
    from rich.console import Console

    from flatmin.core.pages import render

    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        render(record.page(), console)
    else:
        print(record)
    for path in written:
        print(path)
