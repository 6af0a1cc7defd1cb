"""Who may ask, and what a browser may do with the answers.

A page of another site can send requests to a server on this machine (and with a name of its own
that leads here, DNS rebinding, even read the answers). So the Host of a request must be one of
ours, its Origin, where a browser says one, must be that Host, and beyond this machine a token is
asked for.
"""

from __future__ import annotations

import json
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

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
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        given = self._given(scope)
        if refusal is not None:
            await _refuse(scope, receive, send, *refusal)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = dict(HEADERS)
                if self._token is not None and given is not None:
                    cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    extra["set-cookie"] = cookie
                pairs = [(k.encode(), v.encode("latin-1")) for k, v in extra.items()]
                message = message | {"headers": [*message.get("headers", ()), *pairs]}
            await send(message)

        await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Any, headers: dict[str, bytes]) -> tuple[int, str] | None:
        host = headers.get("host", b"").decode("latin-1").lower()
        if self._hosts is not None and _name(host) not in self._hosts:
            return 403, "this server does not answer to that host"
        origin = headers.get("origin", b"http://" + host.encode("latin-1")).decode("latin-1")
        if origin.lower() not in (f"http://{host}", f"https://{host}"):
            return 403, "requests from other sites are refused"
        if self._token is not None and not self._known(scope, headers):
            return 401, "open the address with the token that the terminal shows"
        return None

    def _known(self, scope: Any, headers: dict[str, bytes]) -> bool:
        assert self._token is not None
        shown = [self._given(scope)]
        bearer = headers.get("authorization", b"").decode("latin-1")
        shown.append(bearer.removeprefix("Bearer ") if bearer.startswith("Bearer ") else None)
        try:
            cookies = SimpleCookie(headers.get("cookie", b"").decode("latin-1"))
            shown.append(cookies[COOKIE].value if COOKIE in cookies else None)
        except CookieError:
            pass
        return any(
            one is not None and secrets.compare_digest(one.encode(), self._token.encode())
            for one in shown
        )

    def _given(self, scope: Any) -> str | None:
        """The token in the address, if there is one."""
        try:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=20)
        except ValueError:
            return None
        found: list[str] = query.get("token", [])
        return found[0] if found else None


def _name(host: str) -> str:
    """A Host without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


async def _refuse(scope: Any, receive: Any, send: Any, status: int, words: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": words})
        return
    body = json.dumps({"message": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(k.encode(), v.encode("latin-1")) for k, v in HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
