"""Starting the lab for a browser, and waiting for what its page shows."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page

from processes import started

PATIENCE = 60.0


@contextmanager
def serving(port: int, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`flatmin lab` at a port, inside the block."""
    command = [sys.executable, "-c", "from flatmin.cli import main; main()", "lab"]
    command += ["--no-browser", "--port", str(port), *map(str, arguments)]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("The lab is at http://127.0.0.1:")
        yield process


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(page: Page, expression: str, why: str = "") -> Any:
    """Wait until an expression is true in the page. (The policy forbids Playwright's own way.)"""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = page.evaluate(expression)
        if value:
            return value
        assert time.monotonic() < deadline, f"waited in vain for {why or expression}"
        time.sleep(0.03)


ENDED = "document.body.dataset.ended === 'true' && !window.lab.playing && window.lab.runs.a.end"
