"""The lab's server: endpoints, streams, and who may ask."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from commands import call
from flatmin.lab import server as server_module
from flatmin.lab import session
from flatmin.lab.engine import follow, ground_of
from flatmin.lab.guard import LOOPBACK
from flatmin.lab.scenes import SCENES
from flatmin.lab.server import Lab, application
from flatmin.lab.settings import setting_of
from flatmin.lab.tables import MOST_BYTES, Tables
from flatmin.lab.workers import Workers
from flatmin.ledger.statements import STATEMENTS
from lab_settings import EDGE, PLAIN, like
from processes import started

TABLE = Path(__file__).parent.parent / "examples" / "gaussian.csv"
OURS, SOCKET = "http://127.0.0.1", "ws://127.0.0.1/socket"


@pytest.fixture
def client():
    lab = Lab(Tables())
    with TestClient(application(lab, LOOPBACK), base_url=OURS) as found:
        found.lab = lab
        yield found
    lab.close()


def stream(socket, message, last):
    """Messages up to the one for which `last` holds."""
    socket.send_text(json.dumps(message))
    found = []
    while not found or not last(found[-1]):
        found.append(json.loads(socket.receive_text()))
    return found


def ended(message):
    return message["type"] == "error" or bool(message.get("end"))


def test_the_page_and_its_files_are_there(client):
    page = client.get("/")
    assert page.status_code == 200
    for name in ("main.js", "style.css", "plotly.js"):
        assert client.get(f"/static/{name}").status_code == 200
    assert b"<script>" not in page.content
    assert "unsafe-eval" not in page.headers["content-security-policy"]
    assert "script-src 'self';" in page.headers["content-security-policy"]


@pytest.mark.parametrize("name", ["..%2f..%2fserver.py", "%2fetc%2fpasswd", "nothing.js", "."])
def test_no_name_reaches_the_file_system(client, name):
    assert client.get(f"/static/{name}").status_code == 404


def test_the_page_offers_scenes_and_names(client):
    found = client.get("/api/start").json()
    assert [scene["name"] for scene in found["scenes"]] == [scene.name for scene in SCENES]
    assert "pytorch" in found["initialisations"]
    assert found["opening"] is None


def test_every_statement_has_a_page(client):
    for statement in STATEMENTS:
        page = client.get(f"/statements/{statement.id}")
        assert page.status_code == 200
        said = page.text.partition("<pre>")[2].partition("</pre>")[0]
        assert len(said) > 60, statement.id
    assert client.get("/statements/nothing").status_code == 404


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_every_scene_is_a_sound_setting(client, scene):
    answer = client.post("/api/check", json={"settings": scene.settings})
    assert answer.status_code == 200, answer.text
    assert answer.json()["ceiling"] > 0


def test_mistakes_are_answered_with_words(client):
    wrong = like(method__learning_rate=-1)
    answer = client.post("/api/check", json={"settings": wrong})
    assert answer.status_code == 422
    words = "the page: method.learning_rate must be a positive number, got -1"
    assert answer.json() == {"message": words}
    assert client.post("/api/check", content=b"{").status_code == 400
    assert client.post("/api/check", json=[]).status_code == 400
    assert client.post("/api/check", content=b" " * 200_000).status_code == 413
    with client.websocket_connect(SOCKET) as socket:
        (answer,) = stream(socket, {"type": "run", "id": 3, "settings": wrong}, ended)
        assert answer == {"type": "error", "about": "run", "id": 3, "message": words}


def test_a_stream_is_the_run_whatever_its_pace(client):
    lab = client.lab
    expected = next(follow(ground_of(setting_of(EDGE), lab.tables))).columns
    with client.websocket_connect(SOCKET) as socket:
        at_once = stream(socket, {"type": "run", "id": 1, "settings": EDGE}, ended)
        socket.send_text(json.dumps({"type": "speed", "value": 300}))
        played = stream(socket, {"type": "run", "id": 2, "settings": EDGE, "show": "play"}, ended)
    assert len(at_once) == 2
    assert len(played) > 3
    for messages in (at_once, played):
        frames = [message for message in messages if message["type"] == "frame"]
        values = [v for frame in frames for v in frame["columns"]["sharpness"]]
        assert values == expected["sharpness"].tolist()  # to the bit
        assert all(frame["sentence"] for frame in frames)


def test_pause_step_and_go_on(client):
    content = like(method__steps=200)
    with client.websocket_connect(SOCKET) as socket:
        first = stream(
            socket,
            {"type": "run", "id": 1, "settings": content, "show": "hold"},
            lambda message: message["type"] == "run",
        )
        assert first[-1]["facts"]["steps"] == 200
        for place in range(3):
            step = {"type": "step", "from": place, "by": 1}
            (frame,) = stream(socket, step, lambda message: message["type"] == "frame")
            assert (frame["first"], frame["columns"]["step"]) == (place, [place])
        socket.send_text(json.dumps({"type": "speed", "value": 20_000}))
        rest = stream(socket, {"type": "play", "from": 3}, ended)
        assert rest[0]["first"] == 3
        assert rest[-1]["columns"]["step"][-1] == 200


def test_a_rate_changed_on_the_way_keeps_what_was_before(client):
    with client.websocket_connect(SOCKET) as socket:
        before = stream(socket, {"type": "run", "id": 1, "settings": EDGE}, ended)[-1]
        content = like(changes=[[30, 0.1]])
        message = {"type": "run", "id": 2, "settings": content, "from": 31}
        after = stream(socket, message, ended)
        frames = [one for one in after if one["type"] == "frame"]
        assert frames[0]["first"] == 31
        assert frames[-1]["columns"]["step"][-1] == 60
        edges = [v for frame in frames for v in frame["columns"]["edge"]]
        assert edges == pytest.approx([20.0] * 30)
        whole = stream(socket, {"type": "run", "id": 3, "settings": content}, ended)
        values = [v for f in whole if f["type"] == "frame" for v in f["columns"]["excess_risk"]]
        assert values[:31] == before["columns"]["excess_risk"][:31]


def test_a_map_comes_in_passes_and_says_how_far_it_is(client, monkeypatch):
    monkeypatch.setattr(session, "PATIENCE", 0.0)
    message = {"type": "map", "id": 9, "settings": PLAIN, "axis": "scale"}
    with client.websocket_connect(SOCKET) as socket:
        found = stream(socket, message, lambda one: bool(one.get("last")))
    shares = [one["share"] for one in found if one["type"] == "progress"]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    found = [one for one in found if one["type"] != "progress"]
    assert [one["type"] for one in found] == ["map"] + ["map-pass"] * 4
    assert [one["stride"] for one in found[1:]] == [8, 4, 2, 1]
    assert np.min(found[-1]["state"]) >= 0


def test_panels_answer(client):
    with client.websocket_connect(SOCKET) as socket:
        stream(socket, {"type": "run", "id": 1, "settings": EDGE}, ended)
        for kind in ("layers", "ledger", "advice", "orbits"):
            message = {"type": kind, "id": 5, "settings": EDGE, "until": 60}
            *before, _ = stream(socket, message, lambda one, kind=kind: one["type"] == kind)
            assert all((one["type"], one["about"]) == ("progress", kind) for one in before)


def test_what_takes_long_says_how_far_it_is(client, monkeypatch):
    monkeypatch.setattr(session, "PATIENCE", 0.001)
    with client.websocket_connect(SOCKET) as socket:
        stream(socket, {"type": "run", "id": 1, "settings": EDGE}, ended)
        for kind in ("layers", "ledger", "orbits"):
            message = {"type": kind, "id": 5, "settings": EDGE, "until": 60}
            *before, _ = stream(socket, message, lambda one, kind=kind: one["type"] == kind)
            shares = [one["share"] for one in before if one["share"] is not None]
            assert shares
            assert shares == sorted(shares)
            assert 0.0 <= shares[0] <= shares[-1] <= 1.0


def test_a_short_job_does_not_wait_for_long_ones():
    """Two that take as long as they are allowed to, and one core: a third gets its turn."""

    async def scene() -> list[str]:
        workers, told, enough = Workers(1), [], threading.Event()

        def long(stop):
            while not enough.is_set():
                stop()
                time.sleep(0.001)
            told.append("long")

        def short(stop):
            told.append("short")
            enough.set()

        jobs = [asyncio.create_task(workers.slow(job)) for job in (long, long, short)]
        await asyncio.gather(*jobs)
        workers.close()
        return told

    assert asyncio.run(scene()) == ["short", "long", "long"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("ledger", "takes too long for the lab"),
        ("map", "the map is for networks of at most 62500 weights, got 190100"),
        ("orbits", "is for networks of at most 16666 weights, got 190100"),
    ],
)
def test_what_would_take_too_much_of_a_large_network_is_refused(client, kind, words):
    large = like(
        problem={"generator": "gaussian", "n": 120, "d": 100},
        architecture={"kind": "mlp", "depth": 20}, initialisation={"name": "pytorch", "scale": 1},
        method__steps=2,
    )  # fmt: skip
    with client.websocket_connect(SOCKET) as socket:
        stream(socket, {"type": "run", "id": 1, "settings": large}, ended)
        (answer,) = stream(socket, {"type": kind, "until": 2, "settings": large}, ended)
    assert words in answer["message"]


def test_messages_that_make_no_sense_are_answered(client):
    with client.websocket_connect(SOCKET) as socket:
        for text in ("", "{", "[]", "null", '{"type": 3}', '{"type": "rum"}', "[" * 100_000):
            socket.send_text(text)
            assert json.loads(socket.receive_text())["type"] == "error"
        for message in (
            {"type": "run", "settings": None},
            {"type": "run", "settings": EDGE, "slot": "c"},
            {"type": "run", "settings": EDGE, "from": -1},
            {"type": "speed", "value": "fast"},
            {"type": "step", "from": 1.5},
            {"type": "map", "settings": EDGE, "axis": "seed"},
            {"type": "cancel", "what": "everything"},
        ):
            (answer,) = stream(socket, message, ended)
            assert answer["type"] == "error"
        assert stream(socket, {"type": "run", "id": 1, "settings": PLAIN}, ended)[-1]["end"]


def test_a_mistake_of_our_own_is_told_in_the_terminal(client, monkeypatch, capsys):
    monkeypatch.setattr("flatmin.lab.session.facts", lambda ground: 1 / 0)
    with client.websocket_connect(SOCKET) as socket:
        (answer,) = stream(socket, {"type": "run", "settings": EDGE}, ended)
    assert "the terminal has the details" in answer["message"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_closing_the_page_stops_its_work(client):
    long = like(method__steps=100_000, method__learning_rate=1e-6, repetitions=200)
    with client.websocket_connect(SOCKET) as socket:
        socket.send_text(json.dumps({"type": "run", "id": 1, "settings": long}))
        assert json.loads(socket.receive_text())["type"] in ("run", "progress")
    deadline = time.monotonic() + 30.0
    while client.lab.sessions and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.lab.sessions == 0
    # The threads are free again: another's run gets through.
    with client.websocket_connect(SOCKET) as socket:
        assert stream(socket, {"type": "run", "id": 1, "settings": PLAIN}, ended)[-1]["end"]


def test_no_thread_outlives_the_server():
    before = {thread.ident for thread in threading.enumerate()}
    lab = Lab(Tables())
    with (
        TestClient(application(lab, LOOPBACK), base_url=OURS) as client,
        client.websocket_connect(SOCKET) as socket,
    ):
        stream(socket, {"type": "run", "id": 1, "settings": EDGE}, ended)
    lab.close()
    deadline = time.monotonic() + 30.0
    alive = [1]
    while alive and time.monotonic() < deadline:
        alive = [one for one in threading.enumerate() if one.ident not in before]
        time.sleep(0.05)
    assert not alive


def test_pages_beyond_the_limit_are_turned_away(client, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_SESSIONS", 1)
    with client.websocket_connect(SOCKET):
        with pytest.raises(WebSocketDisconnect) as turned, client.websocket_connect(SOCKET):
            pass
        assert turned.value.code == 1013


def test_a_dropped_table_is_read_by_the_table_reader(client):
    content = TABLE.read_bytes()
    table = client.post("/api/table?name=my%20data.csv", content=content).json()
    assert table["columns"][-1] == "y"
    problem = {"file": table["key"], "target": "y"}
    settings = like(PLAIN, problem=problem)
    facts = client.post("/api/check", json={"settings": settings}).json()
    assert (facts["n"], facts["d"]) == (50, 5)
    problem = {"file": table["key"], "target": "z"}
    answer = client.post("/api/check", json={"settings": like(PLAIN, problem=problem)})
    assert answer.status_code == 422
    assert answer.json()["message"].startswith("my data.csv: ")
    assert "flatmin-lab-" not in answer.text  # where it is kept is nobody's business


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.exe", b"x,y\n1,2\n", "unsupported suffix '.exe'"),
        ("a.npz", b"PK", "unsupported suffix '.npz'"),
        ("a.csv", b"", "the file is empty"),
        ("../../etc/passwd", b"x", "unsupported suffix"),
    ],
)
def test_bad_tables_are_refused(client, name, content, words):
    answer = client.post("/api/table", params={"name": name}, content=content)
    assert answer.status_code == 422
    assert words in answer.json()["message"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\x01\x02\xff", "not a text table"),
        (b"x;y\n1;2\n", "separated by ';'"),
        (b"x,y\n1,dog\n2,cat\n", "cat"),
        (b"x,y\n", "no rows"),
    ],
)
def test_what_is_wrong_inside_a_table_is_said(client, content, words):
    table = client.post("/api/table?name=a.csv", content=content).json()
    settings = like(PLAIN, problem={"file": table["key"], "target": "y"})
    answer = client.post("/api/check", json={"settings": settings})
    assert answer.status_code == 422
    assert "a.csv" in answer.json()["message"]
    if words != "cat":
        assert words in answer.json()["message"]


def test_a_table_that_is_too_large_is_refused(client):
    answer = client.post("/api/table?name=a.csv", content=b"1" * (MOST_BYTES + 1))
    assert answer.status_code == 413


def test_a_table_that_is_not_here_is_asked_for(client):
    settings = like(PLAIN, problem={"file": "0123456789ab-mine.csv", "target": "y"})
    answer = client.post("/api/check", json={"settings": settings})
    assert answer.json()["message"] == "the table 'mine.csv' is not here: drop it on the page"


def test_csv_and_code_of_a_run(client):
    text = client.post("/api/csv", json={"settings": EDGE}).text
    assert text.splitlines()[0].startswith("step,excess_risk,")
    assert len(text.splitlines()) == 62
    code = client.post("/api/code", json={"settings": EDGE}).json()
    assert code["command"].startswith("flatmin train ")
    assert code["python"].startswith("import flatmin\n")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8765"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://127.0.0.1@evil.example"},
        {"origin": "http://127.0.0.1:9999"},
    ],
)
def test_other_hosts_and_origins_are_refused(client, headers):
    assert client.get("/", headers=headers).status_code == 403
    assert client.post("/api/check", json={}, headers=headers).status_code == 403
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect(SOCKET, headers=headers),
    ):
        pass


def test_own_origin_is_welcome(client):
    assert client.get("/", headers={"origin": "http://127.0.0.1"}).status_code == 200


def test_beyond_this_machine_a_token_is_asked_for():
    lab = Lab(Tables())
    with TestClient(application(lab, None, "secret"), base_url="http://lab.example") as client:
        assert client.get("/").status_code == 401
        assert client.get("/?token=wrong").status_code == 401
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect("ws://lab.example/socket"),
        ):
            pass
        bearer = {"authorization": "Bearer secret"}
        assert client.get("/api/start", headers=bearer).status_code == 200
        first = client.get("/?token=secret")
        assert first.status_code == 200
        assert "HttpOnly" in first.headers["set-cookie"]
        assert client.get("/api/start").status_code == 200  # by the cookie
        with client.websocket_connect("ws://lab.example/socket") as socket:
            assert stream(socket, {"type": "run", "id": 1, "settings": PLAIN}, ended)
    lab.close()


def test_the_document_describes_every_route(client):
    document = client.get("/openapi.json").json()
    described = set(document["paths"])
    there = {"/", "/static/{name}", "/statements/{id}", "/openapi.json"}
    there |= {f"/api/{name}" for name in ("start", "check", "code", "csv", "table")}
    assert described == there
    assert "Setting" in document["components"]["schemas"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "x.csv"], "--out is for --replay"),
        (["--target", "y"], "need a FILE"),
        (["nothing.csv", "--target", "y"], "nothing.csv: no such file"),
        ([TABLE], "--target is missing"),
        ([TABLE, "--target", "z"], "no column 'z'"),
        (["--port", "x"], "--port must be a number"),
        (["--port", "99999999"], "--port 99999999 at '127.0.0.1' cannot be used"),
        (["--replay", "method.name=desent"], "the page: "),
    ],
)
def test_wrong_words_on_the_command_line(monkeypatch, capsys, arguments, words):
    code, _, err = call(monkeypatch, capsys, "lab", *arguments)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_port_that_is_taken_is_named(monkeypatch, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = call(monkeypatch, capsys, "lab", "--no-browser", "--port", port)
    assert code == 2
    assert f"--port {port} at '127.0.0.1' cannot be used" in err


def test_without_its_packages_the_lab_says_what_to_install(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("flatmin.lab.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = call(monkeypatch, capsys, "lab", "--no-browser")
    assert code == 2
    assert "pip install 'flatmin[lab]'" in err


def test_ctrl_c_ends_the_server_and_removes_what_was_dropped(tmp_path):
    command = [sys.executable, "-c", "from flatmin.cli import main; main()", "lab"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with started([*command, "--no-browser", "--port", "0"], env=environment, **options) as process:
        address = process.stdout.readline().split()[-1]
        with httpx.Client(base_url=address) as client:
            content = TABLE.read_bytes()
            assert client.post("api/table?name=a.csv", content=content).status_code == 200
            assert list(tmp_path.glob("flatmin-lab-*/*.csv"))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "flatmin: stopped\n"
    assert not list(tmp_path.glob("flatmin-lab-*"))
