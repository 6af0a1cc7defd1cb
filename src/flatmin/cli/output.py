"""Printing for people: tables, numbers, sentences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

# Of a list: its width where there is no terminal, what a column takes besides its text, and the
# least number of characters for which the last column is worth its place.
_WIDTH, _SPACE, _LEAST = 200, 3, 15
# Characters of a progress bar besides its label and its note.
_BAR = 37

Show = Callable[..., None]


def number(value: float) -> str:
    """Six significant digits, the same everywhere."""
    return f"{value:.6g}"


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], spare: Sequence[str] = ()
) -> list[str]:
    """A table with the first column to the left and the others to the right; nothing is cut.

    At a terminal that is too narrow the heads are broken in two, then columns named in `spare` are
    left out, the first of them first. The names of those left out are returned.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    columns = [(head, *cells) for head, *cells in zip(heads, *rows, strict=True)]
    left_out: list[str] = []
    if console.is_terminal:
        if len(columns) > 2 and _natural(columns) > console.width:
            columns = [("\n".join(head.rsplit(" ", 1)), *cells) for head, *cells in columns]
        for name in spare:
            if _natural(columns) > console.width:
                columns = [one for one in columns if one[0].replace("\n", " ") != name]
                left_out.append(name)
    # Text may be broken between words, down to its longest one; beyond that the terminal wraps.
    least = sum(max(map(_longest_word, column)) + _SPACE for column in columns)
    console.width = max(console.width if console.is_terminal else _natural(columns), least)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, (head, *cells) in enumerate(columns):
        justify: Literal["left", "right"] = "left" if i == 0 or len(columns) == 2 else "right"
        whole = not any(" " in cell for cell in cells)
        table.add_column(head, justify=justify, no_wrap=whole, overflow="fold")
    for row in zip(*(cells for _, *cells in columns), strict=True):
        table.add_row(*row)
    console.print(table)
    return left_out


def _natural(columns: Sequence[Sequence[str]]) -> int:
    """The width of a table if nothing is broken."""
    return sum(
        max(len(line) for cell in column for line in cell.split("\n")) + _SPACE
        for column in columns
    )


def _longest_word(cell: str) -> int:
    return max(map(len, cell.split()), default=0)


def print_list(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with one line a row: its last column is cut to the terminal, or left out."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    widest = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    room = console.width - sum(widest[:-1]) - _SPACE * len(heads)
    shown = len(heads) if room >= _LEAST else len(heads) - 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(heads[:shown]):
        table.add_column(
            head, justify="left" if i in (0, 1, len(heads) - 1) else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*(*row[:-1], row[-1][:room])[:shown])
    console.print(table)


def learned_note(share: float) -> str:
    """What learned means, wherever it is printed."""
    return f"learned: the excess risk is at most {share:g} of that of w = 0"


def print_note(note: str) -> None:
    """A note below a table, wrapped to the terminal."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(f"- {note}"))


def print_lines(sentence: str, notes: Iterable[str] = (), style: str = "bold") -> None:
    """A sentence, then notes, wrapped to the terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(sentence, style=style))
    for note in notes:
        print_note(note)


@contextmanager
def live_bar(quiet: bool = False) -> Iterator[Show | None]:
    """A bar on standard error with share and time left; nothing if quiet or not at a terminal.

    It is told a label, how much is done, of how much (None if not known), and a note to show.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, note="")

        def show(label: str, done: int, total: int | None, note: str = "") -> None:
            now = bar.tasks[0]
            if (now.description, now.total) != (label, total):
                # What was done before is not counted as speed.
                bar.reset(task, total=total, completed=done, description=label)
            room = max(0, bar.console.width - len(label) - _BAR)
            bar.update(task, completed=done, note=note[:room])

        yield show


@contextmanager
def progress_bar(
    label: str, total: int, quiet: bool = False
) -> Iterator[Callable[[int], None] | None]:
    """`live_bar` for work that is reported in amounts just done."""
    with live_bar(quiet) as show:
        if show is None:
            yield None
            return
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            show(label, done, total)

        advance(0)
        yield advance
