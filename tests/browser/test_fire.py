"""The server under fire: thousands of requests that make little sense, and fifty people at once."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import schemathesis
import websockets
from hypothesis import HealthCheck, given, settings
from pages import free_port, holds, serving
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    response_schema_conformance,
    status_code_conformance,
)

from lab_settings import EDGE, PLAIN, VARIED

FIRE = 10_000
PEOPLE = 50


@pytest.fixture(scope="module")
def fire() -> Iterator[tuple[str, psutil.Process]]:
    """An own server, and its process to look into."""
    port = free_port()
    with serving(port) as process:
        yield f"127.0.0.1:{port}", psutil.Process(process.pid)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_endpoints_answer_whatever_is_asked(fire, mode):
    """What the document allows, and what it does not: never an error of the server's own."""
    document = schemathesis.openapi.from_url(f"http://{fire[0]}/openapi.json")
    asked = 0
    for found in document.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and operation.method == "get":
            continue

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=max(20, FIRE // 100),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(
                checks=[not_a_server_error, status_code_conformance, response_schema_conformance]
            )

        ask()
    assert asked > FIRE // 40


TEXTS = ("", "a", "descent", "../..", "\x00", "\u2028", "x" * 500)


def nonsense(random_: random.Random, depth: int = 0):
    """A value of any kind."""
    kinds = ["number", "text", "null", "bool", "big", "negative", "huge", "whole"]
    kind = random_.choice(kinds + (["list", "table"] if depth < 3 else []))
    return {
        "number": lambda: random_.uniform(-10, 10),
        "whole": lambda: random_.randint(0, 100),
        "text": lambda: random_.choice(TEXTS),
        "null": lambda: None,
        "bool": lambda: random_.random() < 0.5,
        "big": lambda: 10**30,
        "negative": lambda: -1,
        "huge": lambda: 1e300,
        "list": lambda: [nonsense(random_, depth + 1) for _ in range(random_.randint(0, 4))],
        "table": lambda: {
            random_.choice(["depth", "name", "n", "", "__proto__"]): nonsense(random_, depth + 1)
            for _ in range(3)
        },
    }[kind]()


def spoiled(random_: random.Random):
    """A sound message with one thing in it that is not."""
    kinds = ["run", "map", "advice", "orbits", "play", "step", "speed", "pause", "layers", "ledger"]
    content = json.loads(json.dumps(random_.choice([EDGE, PLAIN, *VARIED.values()])))
    content["method"]["steps"] = random_.randint(1, 30)
    content.pop("changes", None)
    content.pop("repetitions", None)
    place = content
    for _ in range(random_.randint(1, 2)):
        key = random_.choice(list(place))
        if not isinstance(place[key], dict):
            break
        place = place[key]
    place[random_.choice([*place, "extra"])] = nonsense(random_)
    message = {"type": random_.choice([*kinds, "cancel", "drop", "none"]), "settings": content}
    for key in ("slot", "from", "by", "value", "axis", "id", "show", "what", "until"):
        if random_.random() < 0.2:
            message[key] = nonsense(random_)
    return message


async def shoot(place: str, count: int, seed: int) -> int:
    """So many messages to one socket; how many answers came. It must stay open."""
    random_, answers = random.Random(seed), 0
    async with websockets.connect(f"ws://{place}/socket", max_size=None) as socket:
        for number in range(count):
            kind = random_.random()
            if kind < 0.1:
                await socket.send(random_.choice(["", "{", "[]", "[" * 1000, "\x00", "1e999"]))
            elif kind < 0.15:
                await socket.send(random_.randbytes(20))
            elif kind < 0.3:
                await socket.send(json.dumps(nonsense(random_)))
            else:
                await socket.send(json.dumps(spoiled(random_)))
            if number % 50 == 0:  # ask for something sound, and wait until it has come
                for what in ("map", "advice", "orbits", "ledger"):
                    await socket.send(json.dumps({"type": "cancel", "what": what}))
                await socket.send(json.dumps({"type": "run", "id": -number - 1, "settings": PLAIN}))
                while True:
                    found = json.loads(await asyncio.wait_for(socket.recv(), 120))
                    answers += 1
                    assert "went wrong" not in found.get("message", ""), found
                    if found.get("id") == -number - 1 and found.get("end"):
                        break
    return answers


def test_the_socket_survives_nonsense_without_growing(fire):
    """The same nonsense again and again: whatever it loads and compiles is there by then."""
    place, process = fire
    rounds, seeds = 4, 4
    each = FIRE // (rounds * seeds)
    memory, answers = [], 0
    for _ in range(rounds):
        answers += sum(asyncio.run(shoot(place, each, seed)) for seed in range(seeds))
        memory.append(process.memory_info().rss)
    assert answers > FIRE // 10
    # Three a core that work, eight that wait, those of asyncio.to_thread (a core and four), and a
    # few of libraries.
    holds(lambda: process.num_threads() <= 4 * (os.cpu_count() or 1) + 16, "threads to end")
    # Memory is given back in pages, so it creeps; ten kilobytes a message would be a leak.
    assert memory[-1] - memory[-2] < 10_000 * each * seeds + 2**24


async def watch(place: str) -> list[float]:
    """One person's stream of one run."""
    values: list[float] = []
    async with websockets.connect(f"ws://{place}/socket", max_size=None) as socket:
        await socket.send(json.dumps({"type": "speed", "value": 200}))
        message = {"type": "run", "id": 1, "settings": EDGE, "show": "play"}
        await socket.send(json.dumps(message))
        while True:
            found = json.loads(await asyncio.wait_for(socket.recv(), 120))
            assert found["type"] != "error", found
            if found["type"] == "frame":
                values += found["columns"]["sharpness"]
                if found["end"]:
                    return values


def test_fifty_people_each_get_their_stream(fire):
    async def all_of_them() -> list[list[float]]:
        return await asyncio.gather(*(watch(fire[0]) for _ in range(PEOPLE)))

    streams = asyncio.run(all_of_them())
    assert len(streams) == PEOPLE
    assert all(stream == streams[0] for stream in streams)
    assert len(streams[0]) == 61
