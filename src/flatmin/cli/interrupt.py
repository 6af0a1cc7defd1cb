"""Ctrl-C, also in the middle of a compilation.

A KeyboardInterrupt raised inside a callback of the compiler is printed and forgotten there, or
comes out as another error. So it is remembered, and raised again every few seconds until the
command has ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

AGAIN_SECONDS = 5.0


def leave_at_once(number: int, frame: Any) -> None:
    """What Ctrl-C does before there is anything to stop: imports may swallow an exception."""
    with suppress(OSError):
        os.write(2, b"flatmin: stopped\n")
    os._exit(130)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C raises KeyboardInterrupt until the end; yields whether it was pressed.

    Where interrupts are ignored or handled by someone else, nothing changes.
    """
    pressed = False
    if signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, leave_at_once):
        yield lambda: False
        return

    def interrupt(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        if repeated:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        raise KeyboardInterrupt

    repeated = hasattr(signal, "setitimer")
    previous = signal.signal(signal.SIGALRM, interrupt) if repeated else None
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: pressed
    finally:
        if repeated:
            if pressed:  # else the timer may be someone else's
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)
        signal.signal(signal.SIGINT, signal.default_int_handler)
