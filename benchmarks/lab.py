"""How the lab feels: a map of 64 x 64 runs at depth 10 over 500 steps, and a slider being dragged.

Measured from outside, over the lab's own WebSocket, with its server in a process of its own and the
kernels compiled. The ratios are what was promised over what was measured: a first coarse map
within 0.2 s, the whole map within 1 s, and twenty whole runs of 400 steps a second while a slider
moves (asked for one after the other, as the page does). Where there is Playwright and a Chromium,
also the page itself: moving within a second of opening, and twenty frames a second (`lab_page`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import lab_page
from benchmarks.harness import Result, Spread
from flatmin.lab.scenes import SCENES

ROUNDS = 7
FIRST_MAP, WHOLE_MAP, OPENING, FRAMES = 0.2, 1.0, 1.0, 20.0
SLIDES, OPENINGS, DRAGS = 40, 5, 3

MAPPED = {
    "seed": 0,
    "problem": {"paper": "linear"},
    "architecture": {"kind": "mlp", "depth": 10},
    "initialisation": {"name": "gaussian", "scale": 0.4},
    "method": {"name": "descent", "learning_rate": 0.05, "steps": 500},
}


def lab() -> Result:
    """The figures of the lab."""
    from websockets.sync.client import connect

    command = [sys.executable, "-c", "from flatmin.cli import main; main()", "lab"]
    command += ["--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            place = address.replace("http://", "ws://") + "socket"
            with connect(place, max_size=None, compression=None) as socket:
                return _measured(
                    lambda text: socket.send(text), lambda: str(socket.recv()), address
                )
        finally:
            server.terminate()


def _page(address: str) -> dict[str, Spread]:
    """What was promised of the page, over what is measured in a browser, if there is one."""
    if not lab_page.AVAILABLE:
        return {}
    with lab_page.chromium() as browser:
        lab_page.seconds_to_move(browser, address)
        opening = [lab_page.seconds_to_move(browser, address) for _ in range(OPENINGS)]
        drawn = [lab_page.frames(browser, address) for _ in range(DRAGS)]
    return {
        "moving within 1 s": Spread.of([OPENING / one for one in opening]),
        "20 frames a second, dragged": Spread.of([dragged / FRAMES for dragged, _ in drawn]),
        "20 frames a second, played": Spread.of([played / FRAMES for _, played in drawn]),
    }


def _measured(send: Callable[[str], None], receive: Callable[[], str], address: str) -> Result:
    def ask(message: dict[str, Any], last: Callable[[dict[str, Any]], bool]) -> list[float]:
        """Seconds until each answer, up to the last."""
        begin, times = time.perf_counter(), []
        send(json.dumps(message))
        while True:
            found = json.loads(receive())
            times.append(time.perf_counter() - begin)
            if last(found):
                return times

    def maps() -> list[float]:
        return ask(
            {"type": "map", "id": 1, "settings": MAPPED, "axis": "scale"},
            lambda found: bool(found.get("last")),
        )[1:]

    def slide() -> float:
        begin = time.perf_counter()
        for number in range(SLIDES):
            settings = json.loads(json.dumps(SCENES[0].settings))
            settings["method"]["learning_rate"] = 0.02 + 0.001 * number
            ask(
                {"type": "run", "id": number, "settings": settings},
                lambda found: bool(found.get("end")),
            )
        return SLIDES / (time.perf_counter() - begin)

    begin = time.perf_counter()
    maps()
    slide()
    compiled = time.perf_counter() - begin
    first, whole, frames = [], [], []
    for _ in range(ROUNDS):
        times = maps()
        first.append(times[0])
        whole.append(times[-1])
        frames.append(slide())
    ratios = {
        "first map within 0.2 s": Spread.of([FIRST_MAP / one for one in first]),
        "whole map within 1 s": Spread.of([WHOLE_MAP / one for one in whole]),
        "20 runs a second": Spread.of([one / FRAMES for one in frames]),
        **_page(address),
    }
    return Result(
        "lab",
        "a map of 64 x 64 runs at depth 10, 500 steps; a slider dragged",
        "seconds a whole map",
        Spread.of(whole),
        {},
        ratios,
        dict.fromkeys(ratios, 1.0),
        all(one.median >= 1.0 for one in ratios.values()),
        compiled,
        "" if lab_page.AVAILABLE else "without Playwright and Chromium the page is not measured",
    )
