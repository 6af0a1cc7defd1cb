"""Starting the lab for a browser, and waiting for what its page shows."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Locator, Page

from processes import started

PATIENCE = 180.0
ENDED = (
    "document.body.dataset.ended === 'true' && !window.lab.playing && !window.lab.waiting.a"
    " && window.lab.runs.a.end"
)
MAPPED = "document.querySelector('#map').dataset.complete === String(window.lab.mapId)"
CURVES = "JSON.stringify(window.lab.runs.a.columns)"


@contextmanager
def serving(port: int, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`flatmin lab` at a port, inside the block."""
    command = [sys.executable, "-c", "from flatmin.cli import main; main()", "lab"]
    command += ["--no-browser", "--port", str(port), *map(str, arguments)]
    with started(command, stdout=subprocess.PIPE, stderr=None) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("The lab is at http://127.0.0.1:")
        yield process


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def holds(condition: Callable[[], Any], why: str) -> Any:
    """Wait until a condition holds, and return what it gives."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        time.sleep(0.02)


def until(page: Page, expression: str, why: str = "") -> Any:
    """Wait until an expression is true in the page. (The policy forbids Playwright's own way.)"""
    return holds(lambda: page.evaluate(expression), why or expression)


def hooked(page: Page, name: str) -> Locator:
    """The element of a `data-testid`."""
    return page.get_by_test_id(name)


def typed(page: Page, name: str, text: str) -> None:
    """Type into a field, and leave it with Enter."""
    hooked(page, name).fill(text)
    hooked(page, name).press("Enter")


def heard(page: Page) -> None:
    """Wait until the server has answered everything that was sent to it so far."""
    page.evaluate(
        "new Promise((done) => { const lab = window.lab, before = lab.on_error;"
        "lab.on_error = (word) => {"
        " if (word.id === 31415) { delete lab.on_error; done(); } else before.call(lab, word); };"
        "lab.socket.send({ type: 'hello?', id: 31415 }); })"
    )


def go(page: Page, address: str) -> None:
    """Open another address of the page, as somebody does who pastes it; it is asked for now."""
    page.evaluate(
        "(text) => new Promise((done) => { if (location.hash === text) { done(); return; }"
        "addEventListener('hashchange', () => done(), { once: true }); location.hash = text; })",
        f"#{address}",
    )
