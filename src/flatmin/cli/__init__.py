"""The command `flatmin`: thin modules that parse, call and print.

Here is only what must be there at once: Ctrl-C is answered in one line from the first moment on,
while the rest is still being imported. The commands are put together in `entry`.
"""

from __future__ import annotations

import signal
from typing import Any

from flatmin.cli.interrupt import leave_at_once


def main() -> None:
    """Entry point of the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_at_once)
    try:
        from flatmin.cli.entry import run

        run()
    finally:
        if signal.getsignal(signal.SIGINT) is leave_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'flatmin.cli' has no attribute {name!r}")
    from flatmin.cli.entry import app

    return app
