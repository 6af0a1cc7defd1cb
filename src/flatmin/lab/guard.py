"""Who may ask, and what a browser may do with the answers.

A page of another site can send requests to a server on this machine (and with a name of its own
that leads here, DNS rebinding, even read the answers). So the Host of a request must be one of
ours, its Origin, where a browser says one, must be that Host, and beyond this machine a token is
asked for.
"""

from __future__ import annotations

import secrets
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.websockets import WebSocketClose

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
COOKIE = "flatmin-lab"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI application in front of another."""

    def __init__(self, app: Any, hosts: tuple[str, ...] | None, token: str | None) -> None:
        self._app, self._hosts, self._token = app, hosts, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        refusal = self._refusal(asked)
        if refusal is not None and scope["type"] == "websocket":
            await receive()
            await WebSocketClose(1008, refusal[1])(scope, receive, send)
            return
        if refusal is not None:
            status, words = refusal
            await JSONResponse({"message": words}, status, HEADERS)(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if self._token is not None and "token" in asked.query_params:
                    cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    headers["set-cookie"] = cookie
            await send(message)

        await self._app(scope, receive, with_headers)

    def _refusal(self, asked: HTTPConnection) -> tuple[int, str] | None:
        host = asked.headers.get("host", "").lower()
        if self._hosts is not None and _name(host) not in self._hosts:
            return 403, "this server does not answer to that host"
        origin = asked.headers.get("origin", f"http://{host}")
        if origin.lower() not in (f"http://{host}", f"https://{host}"):
            return 403, "requests from other sites are refused"
        if self._token is not None and not self._known(asked, self._token):
            return 401, "open the address with the token that the terminal shows"
        return None

    def _known(self, asked: HTTPConnection, token: str) -> bool:
        """Whether the token is in the address, in a header or in a cookie."""
        shown = [asked.query_params.get("token"), asked.cookies.get(COOKIE)]
        bearer = asked.headers.get("authorization", "")
        shown.append(bearer.removeprefix("Bearer ") if bearer.startswith("Bearer ") else None)
        return any(
            one is not None and secrets.compare_digest(one.encode(), token.encode())
            for one in shown
        )


def _name(host: str) -> str:
    """A Host without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
