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

from pages import free_port, serving, until


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


@pytest.fixture
def opened(chromium: Browser, lab: str) -> Iterator[Callable[..., Page]]:
    """Opens pages; whatever the browser complains about fails the test."""
    complaints: list[str] = []
    with ExitStack() as stack:

        def new(address: str = lab, errors: bool = True, fast: bool = True, **options: Any) -> Page:
            size = options.pop("viewport", {"width": 1280, "height": 720})
            context = chromium.new_context(
                viewport=size, permissions=["clipboard-read", "clipboard-write"], **options
            )
            stack.callback(context.close)
            page = context.new_page()
            if errors:
                page.on("pageerror", lambda error: complaints.append(str(error)))
                page.on(
                    "console",
                    lambda word: (
                        complaints.append(word.text)
                        if word.type == "error" and "status of 422" not in word.text
                        else None
                    ),
                )
            page.goto(address)
            until(page, "window.lab && document.body.dataset.frames > 0", "the first frame")
            if fast:  # records a second
                page.evaluate("window.lab.faster(4)")
            return page

        yield new
    assert not complaints
