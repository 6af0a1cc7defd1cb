"""Progress: told to a function, shown as a bar, or neither.

Whatever takes long has `progress`: True for a bar on standard error (where there is a terminal or a
notebook), a function that is told what was just done, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flatmin.core.checks import shown
from flatmin.core.errors import SettingError

Advance = Callable[[int], None]
Progress = bool | Advance | None
Show = Callable[..., None]

# Characters of a bar besides its label and its note.
_BAR = 37


@contextmanager
def live_bar(wanted: bool = True) -> Iterator[Show | None]:
    """A bar with share and time left, or None if there is no place for one.

    It is told a label, how much is done, of how much (None if not known), and a note to show.
    """
    if wanted:
        from rich.console import Console

        console = Console(stderr=True)
        # Colours may be forced on a file (FORCE_COLOR); a bar that moves has no place there.
        wanted = console.file.isatty() or console.is_jupyter
    if not wanted:
        yield None
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bar(*columns, console=console, transient=True) as bar:
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
def advancing(progress: Progress, label: str, total: int) -> Iterator[Advance | None]:
    """What to tell amounts just done: the function given, a bar with this label, or None."""
    if callable(progress):
        yield progress
        return
    if not isinstance(progress, bool | None):
        raise SettingError(f"progress must be True, False or a function, got {shown(progress)}")
    with live_bar(bool(progress)) as show:
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
