"""The server: a page, a few JSON endpoints and one WebSocket, on this machine.

`ENDPOINTS` lists what there is; `openapi` describes it. Nothing of a request ever becomes a path:
static files are read once, at the start, and are served by name.
"""

from __future__ import annotations

import asyncio
import html
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.resources import files
from inspect import cleandoc, getdoc
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from flatmin import __version__
from flatmin.core.errors import FlatminError
from flatmin.core.plain import plain
from flatmin.dynamics import methods
from flatmin.lab import code, maps, openapi
from flatmin.lab.engine import Ground, Piece, facts, ground_of
from flatmin.lab.entries import csv_text
from flatmin.lab.guard import Guard
from flatmin.lab.scenes import SCENES
from flatmin.lab.session import Session
from flatmin.lab.settings import LARGEST, METHODS, setting_of
from flatmin.lab.shown import Pieces
from flatmin.lab.tables import MOST_BYTES, Stored, Tables
from flatmin.lab.workers import Stopped, Workers
from flatmin.ledger.statement import Statement
from flatmin.ledger.statements import STATEMENTS
from flatmin.network.activations import ACTIVATIONS
from flatmin.network.initialisation import INITIALISATIONS

MOST_SESSIONS = 100
MOST_BODY = 100_000
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class Lab:
    """What endpoints share; `problem` is that of the table that the page opens with."""

    workers: Workers

    def __init__(self, tables: Tables, problem: dict[str, Any] | None = None) -> None:
        self.tables, self.problem = tables, problem
        self.sessions = 0
        self.static = _static()

    def close(self) -> None:
        """End all work and remove what was dropped."""
        if hasattr(self, "workers"):
            self.workers.close()
        self.tables.close()

    # Pages.

    async def page(self, request: Request) -> Response:
        """The page itself."""
        return self._file("index.html")

    async def file(self, request: Request) -> Response:
        """A static file by its name."""
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self.static:
            raise HTTPException(404, "no such file")
        keep = "public, max-age=86400" if name == "plotly.js" else "no-cache"
        return Response(
            self.static[name],
            media_type=_TYPES[name.rpartition(".")[2]],
            headers={"cache-control": keep},
        )

    async def statement(self, request: Request) -> Response:
        """What a statement of the ledger says, in the words of its check."""
        for one in STATEMENTS:
            if one.id == request.path_params["id"]:
                return HTMLResponse(_statement_page(one))
        raise HTTPException(404, "no such statement")

    # JSON.

    async def openapi(self, request: Request) -> Response:
        """The document that describes this server."""
        return JSONResponse(openapi.document(__version__))

    async def start(self, request: Request) -> Response:
        """What the page offers: scenes, names of things, limits, and the opening table."""
        opening = None
        if self.problem is not None:
            table = self.tables.find(self.problem["file"])
            opening = {"table": _table(table, self.tables), "problem": self.problem}
        return JSONResponse(
            {
                "version": __version__,
                "scenes": plain(SCENES),
                "initialisations": list(INITIALISATIONS),
                "activations": list(ACTIVATIONS),
                "methods": {name: methods.METHODS[name].title for name in METHODS},
                "own": {name: _fields(methods.METHODS[name].own) for name in METHODS},
                "limits": LARGEST | {"bytes": MOST_BYTES},
                "opening": opening,
            }
        )

    async def check(self, request: Request) -> Response:
        """Whether settings are sound, and what is known of them before any step."""
        ground = await self._ground(request)
        return JSONResponse(plain(await self.workers.quick(lambda stop: facts(ground))))

    async def code(self, request: Request) -> Response:
        """A run as Python and as a command."""
        ground = await self._ground(request)
        python, command = code.as_python(ground, self.tables), code.as_command(ground, self.tables)
        return JSONResponse({"python": python, "command": command})

    async def csv(self, request: Request) -> Response:
        """The entries of a run as a table."""
        job = Pieces(await self._ground(request))
        pieces: list[Piece] = []
        while not pieces or pieces[-1].end is None:
            if await request.is_disconnected():
                return Response(status_code=499)
            pieces.append(await self.workers.quick(job))
        return Response(
            csv_text(pieces),
            media_type="text/csv",
            headers={"content-disposition": 'attachment; filename="run.csv"'},
        )

    async def _ground(self, request: Request) -> Ground:
        """What the run of the settings in a request stands on."""
        settings = await _settings(request)
        return await self.workers.quick(lambda stop: ground_of(setting_of(settings), self.tables))

    async def table(self, request: Request) -> Response:
        """Take a table that was dropped on the page."""
        content = await _body(request, MOST_BYTES)
        name = request.query_params.get("name", "table.csv")[:200]
        stored = await asyncio.to_thread(self.tables.add, name, content)
        return JSONResponse(await asyncio.to_thread(_table, stored, self.tables))

    # Streams.

    async def socket(self, socket: WebSocket) -> None:
        """One person's session."""
        if self.sessions >= MOST_SESSIONS:
            await socket.close(1013, f"the lab serves {MOST_SESSIONS} pages at a time")
            return
        await socket.accept()
        self.sessions += 1

        async def send(text: str) -> None:
            try:
                await socket.send_text(text)
            except (WebSocketDisconnect, RuntimeError, OSError) as error:
                raise Stopped from error

        session = Session(send, self.workers, self.tables)
        try:
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                await session.receive(message.get("text") or "")
        except Stopped:
            pass
        finally:
            self.sessions -= 1
            with suppress(asyncio.CancelledError):  # the server itself is ending
                await session.close()


def application(lab: Lab, hosts: tuple[str, ...] | None, token: str | None = None) -> Any:
    """The server as an ASGI application, behind its guard."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        lab.workers = Workers()
        warm = asyncio.create_task(_warm(lab))
        try:
            yield
        finally:
            warm.cancel()
            lab.workers.close()

    routes = [
        Route("/", lab.page),
        Route("/static/{name}", lab.file),
        Route("/statements/{id}", lab.statement),
        Route("/openapi.json", lab.openapi),
        Route("/api/start", lab.start),
        Route("/api/check", lab.check, methods=["POST"]),
        Route("/api/code", lab.code, methods=["POST"]),
        Route("/api/csv", lab.csv, methods=["POST"]),
        Route("/api/table", lab.table, methods=["POST"]),
        WebSocketRoute("/socket", lab.socket),
    ]
    app = Starlette(
        routes=routes,
        lifespan=life,
        exception_handlers={FlatminError: _complaint, HTTPException: _complaint},
    )
    return Guard(app, hosts, token)


async def _warm(lab: Lab) -> None:
    """Have the kernels of the first scene and its map loaded, or compiled, before somebody asks."""
    setting = setting_of(SCENES[0].settings)
    await lab.workers.slow(Pieces(ground_of(setting, lab.tables)))
    made = maps.plan(setting, SCENES[0].axis, lab.tables)
    for batch in maps.batches(made, 0):
        await lab.workers.slow(partial(maps.run, batch, made.steps))


async def _complaint(request: Request, error: Exception) -> Response:
    """What the person asking did wrong, in one line."""
    if isinstance(error, HTTPException):
        return JSONResponse({"message": error.detail}, error.status_code, headers=error.headers)
    return JSONResponse({"message": str(error)}, 422)


async def _body(request: Request, most: int) -> bytes:
    """The body of a request, if it is not too large."""
    content = io.BytesIO()
    async for part in request.stream():
        content.write(part)
        if content.tell() > most:
            raise HTTPException(413, f"at most {most} bytes are taken here")
    return content.getvalue()


async def _settings(request: Request) -> Any:
    """The settings in the body of a request."""
    body = await _body(request, MOST_BODY)
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body must be JSON") from None
    if not isinstance(content, dict) or "settings" not in content:
        raise HTTPException(400, "the body must be an object with settings")
    return content["settings"]


def _fields(own: dict[str, Any]) -> dict[str, Any]:
    """The fields of the page for what a method has of its own."""
    shown = {name: one for name, one in own.items() if one.label}
    return {name: {"label": one.label, "usual": one.usual} for name, one in shown.items()}


def _table(stored: Stored, tables: Tables) -> dict[str, Any]:
    return {"key": stored.key, "name": stored.shown, "columns": tables.columns(stored.key)}


def _static() -> dict[str, bytes]:
    """Every static file by name, and Plotly's own JavaScript from its package."""
    folder = files("flatmin.lab") / "static"
    found = {
        one.name: one.read_bytes()
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in _TYPES
    }
    found["plotly.js"] = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return found


def _statement_page(one: Statement) -> str:
    # What needs more than a run is explained by its module.
    own = f"flatmin.ledger.{one.id.replace('-', '_')}"
    text = getdoc(one.judge) or import_module(own).__doc__ or ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(one.title)}</title>"
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/static/style.css">'
        '<script type="module" src="/static/statement.js"></script>'
        f'<main class="statement"><h1>{html.escape(one.title)}</h1>'
        f"<p><code>{html.escape(one.id)}</code></p>"
        f"<pre>{html.escape(cleandoc(text))}</pre></main></html>"
    )
