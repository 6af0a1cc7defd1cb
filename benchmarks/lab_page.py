"""The lab's page in a Chromium: how soon it moves, and how many frames a second it draws.

A frame counts when the page has drawn its curves anew. Dragging: the learning rate moves across
its slider, and every place shows a whole run of 400 steps. Streaming: a run plays, 160 records a
second. Opening: from the first byte asked for, in a new profile, to its second record.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
AVAILABLE = importlib.util.find_spec("playwright") is not None and CHROMIUM is not None
SECONDS = 2.0
_MOVED = """
const look = () => {
  if (window.lab?.run?.count > 1 && window.lab.frames > 1) window.moved = performance.now() / 1000;
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser inside the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def seconds_to_move(browser: Any, address: str) -> float:
    """From opening the page to its first movement."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    page.add_init_script(_MOVED)
    page.goto(address)
    _wait(page, "window.moved")
    found = float(page.evaluate("window.moved"))
    context.close()
    return found


def frames(browser: Any, address: str) -> tuple[float, float]:
    """Frames a second while the rate is dragged, and while a run plays."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    page.goto(address)
    _wait(page, "window.lab?.run?.end && !window.lab.playing")
    box = page.get_by_test_id("rate").bounding_box()
    y, left, width = box["y"] + box["height"] / 2, box["x"], box["width"]
    page.mouse.move(left + 0.3 * width, y)
    page.mouse.down()
    begin, first = time.perf_counter(), page.evaluate("window.lab.frames")
    while (past := time.perf_counter() - begin) < SECONDS:
        page.mouse.move(left + (0.3 + 0.4 * (past / SECONDS)) * width, y)
    dragging = (page.evaluate("window.lab.frames") - first) / (time.perf_counter() - begin)
    page.mouse.up()
    page.get_by_test_id("scene-edge").click()
    _wait(page, "window.lab.run?.end && !window.lab.playing && !window.lab.waiting.a")
    page.evaluate("window.lab.faster(1)")
    page.get_by_test_id("run").click()
    _wait(page, "window.lab.playing && window.lab.run.count > 1 && window.lab.run.count < 50")
    begin, first = time.perf_counter(), page.evaluate("window.lab.frames")
    _wait(page, "!window.lab.playing")
    streaming = (page.evaluate("window.lab.frames") - first) / (time.perf_counter() - begin)
    context.close()
    return dragging, streaming


def _wait(page: Any, expression: str) -> None:
    deadline = time.monotonic() + 120.0
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the page did not come to {expression}")
        time.sleep(0.01)
