"""What a record shows: tables and text, for a terminal, a file or a notebook; written once.

At a terminal that is too narrow for a table the heads are broken in two, then the columns named in
`spare` are left out, the first of them first; a table that is `cut` loses the end of its last
column. Elsewhere nothing depends on the surroundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# The width of text and of cut tables where there is no terminal, what a column takes besides its
# text, and the least number of characters for which a cut column is worth its place.
_TEXT, _WIDTH, _SPACE, _LEAST = 80, 200, 3, 15


@dataclass(frozen=True)
class Listing:
    """Heads over rows; columns of numbers to the right, of words to the left."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    spare: Sequence[str] = ()
    cut: bool = False


@dataclass(frozen=True)
class Remarks:
    """A sentence, bold at a terminal and red for an alarm, then notes."""

    sentence: str
    notes: Sequence[str] = ()
    alarm: bool = False


Page = list[Listing | Remarks]


def number(value: float) -> str:
    """Six significant digits, the same everywhere."""
    return f"{value:.6g}"


def text(page: Page) -> str:
    """The page as plain text."""
    from rich.console import Console

    out = StringIO()
    render(page, Console(file=out, width=_TEXT, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


def html(page: Page) -> str:
    """The page for a notebook."""
    return "".join(
        _html_table(one) if isinstance(one, Listing) else _html_text(one) for one in page
    )


def _html_table(table: Listing) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        style = "text-align:left;white-space:pre-wrap"
        inner = "".join(f'<{tag} style="{style}">{escape(cell)}</{tag}>' for cell in cells)
        return f"<tr>{inner}</tr>"

    body = "".join(row("td", cells) for cells in table.rows)
    return f"<table><thead>{row('th', table.heads)}</thead><tbody>{body}</tbody></table>"


def _html_text(block: Remarks) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in block.notes)
    sentence = f"<p><b>{escape(block.sentence)}</b></p>" if block.sentence else ""
    return sentence + (f"<ul>{notes}</ul>" if notes else "")


def render(page: Page, console: Console) -> None:
    """Print the page to a console, as wide as it is."""
    from rich.text import Text as Words

    for block in page:
        if isinstance(block, Listing):
            _print_table(block, console)
            continue
        if block.sentence:
            style = "bold red" if block.alarm else "bold"
            console.print(Words(block.sentence, style=style), highlight=False)
        for note in block.notes:
            console.print(Words(f"- {note}"), highlight=False)


def _print_table(block: Listing, console: Console) -> None:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text as Words

    columns = [tuple(column) for column in zip(block.heads, *block.rows, strict=True)]
    columns, left_out = _fitted(block, columns, console)
    # Remarks may be broken between words, down to its longest one; beyond that the terminal wraps.
    words = [[len(word) for cell in column for word in cell.split()] for column in columns]
    least = sum(max(lengths, default=0) + _SPACE for lengths in words)
    kept, natural = console.width, _natural(columns)
    console.width = max(kept if console.is_terminal else natural, least)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, (head, *cells) in enumerate(columns):
        left: Any = "left" if i == 0 or len(columns) == 2 or not _numeric(cells) else "right"
        whole = block.cut or not any(" " in cell for cell in cells)
        grid.add_column(Words(head), justify=left, no_wrap=whole, overflow="fold")
    for row in zip(*(cells for _, *cells in columns), strict=True):
        grid.add_row(*map(Words, row))
    console.print(grid, highlight=False)
    console.width = kept
    if left_out:
        console.print(Words(f"left out for want of room: {', '.join(left_out)}"), highlight=False)


def _fitted(
    block: Listing, columns: list[tuple[str, ...]], console: Console
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The columns that fit, and the names of those left out for it."""
    width = console.width if console.is_terminal else _WIDTH
    if block.cut:
        room = width - _natural(columns[:-1]) - _SPACE
        last = [tuple(cell[:room] for cell in columns[-1])] if room >= _LEAST else []
        return columns[:-1] + last, []
    left_out: list[str] = []
    if not console.is_terminal:
        return columns, left_out
    if len(columns) > 2 and _natural(columns) > width:
        columns = [("\n".join(head.rsplit(" ", 1)), *cells) for head, *cells in columns]
    for name in block.spare:
        if _natural(columns) > width:
            columns = [one for one in columns if one[0].replace("\n", " ") != name]
            left_out.append(name)
    return columns, left_out


def _natural(columns: Sequence[Sequence[str]]) -> int:
    """The width of a table if nothing is broken."""
    return sum(
        max(len(line) for cell in column for line in cell.split("\n")) + _SPACE
        for column in columns
    )


def _numeric(cells: Sequence[str]) -> bool:
    """Whether most of the cells begin like numbers."""
    filled = [cell for cell in cells if cell]
    return 2 * sum(cell[0] in "+-.0123456789" for cell in filled) > len(filled)
