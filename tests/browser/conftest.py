"""A server, a Chromium, and pages that complain about every error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))

from pages import ENDED, MAPPED, free_port, go, serving, until

from flatmin.lab.settings import address
from lab_settings import EDGE

VIEW = "view.axis=scale&view.colour=state&view.tab=layers&view.log=true&view.distance=false"


@pytest.fixture(scope="session")
def lab() -> Iterator[str]:
    """The address of a server that all tests share."""
    port = free_port()
    with serving(port):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"]
        )
        yield browser
        browser.close()


class Pages:
    """Opens pages, and keeps what the browser complains about."""

    def __init__(self, chromium: Browser, lab: str, stack: ExitStack) -> None:
        self.chromium, self.lab, self.stack = chromium, lab, stack
        self.complaints: list[str] = []

    def __call__(self, address: str = "", errors: bool = True, **options: Any) -> Page:
        size = options.pop("viewport", {"width": 1280, "height": 720})
        context = self.chromium.new_context(
            viewport=size, permissions=["clipboard-read", "clipboard-write"], **options
        )
        self.stack.callback(context.close)
        page = context.new_page()
        page.set_default_timeout(180_000)
        if errors:
            page.on("pageerror", lambda error: self.complaints.append(str(error)))
            page.on("console", self._heard)
        page.goto(address or self.lab, timeout=180_000)
        until(page, "window.lab && document.body.dataset.frames > 0", "the first frame")
        page.evaluate("window.lab.faster(9)")  # records a second
        return page

    def _heard(self, word: Any) -> None:
        if word.type == "error" and "status of 422" not in word.text:
            self.complaints.append(word.text)


@pytest.fixture
def opened(chromium: Browser, lab: str) -> Iterator[Callable[..., Page]]:
    """Opens pages of a test's own; whatever the browser complains about fails the test."""
    with ExitStack() as stack:
        pages = Pages(chromium, lab, stack)
        yield pages
    assert not pages.complaints


@pytest.fixture(scope="session")
def tab(chromium: Browser, lab: str) -> Iterator[tuple[Page, Pages]]:
    with ExitStack() as stack:
        pages = Pages(chromium, lab, stack)
        yield pages(f"{lab}#{address(EDGE)}"), pages


@pytest.fixture
def page(tab: tuple[Page, Pages]) -> Iterator[Page]:
    """One page for many tests: each begins with a short run, whole, and its map."""
    found, pages = tab
    found.evaluate("window.lab.faster(9)")
    go(found, f"{address(EDGE)}&{VIEW}")
    until(found, f"{ENDED} && {MAPPED}")
    yield found
    found.mouse.move(1, 1)
    complaints, pages.complaints = pages.complaints, []
    assert not complaints
