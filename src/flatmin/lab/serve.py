"""Starting and ending the server."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from flatmin.core.errors import SettingError
from flatmin.core.memory import one_heap
from flatmin.lab.guard import LOOPBACK
from flatmin.lab.server import Lab, application

PORT = 8765
_ANY = ("0.0.0.0", "::", "")
_LONGEST_MESSAGE = 200_000


def serve(
    lab: Lab,
    host: str | None = None,
    port: int | None = None,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until Ctrl-C; then end within a second.

    On this machine only, unless a host is given, and then with a token.
    """
    one_heap()
    token = None if host is None else secrets.token_urlsafe(18)
    listening = _listen("127.0.0.1" if host is None else host, port)
    name = "127.0.0.1" if host is None else (socket.gethostname() if host in _ANY else host)
    address = f"http://{name}:{listening.getsockname()[1]}/"
    address += "" if token is None else f"?token={token}"
    hosts = (*LOOPBACK, *(() if host is None else (host.lower(),)))
    app = application(lab, None if host in _ANY else hosts, token)
    config = uvicorn.Config(
        app,
        log_level="warning",
        ws="websockets-sansio",
        ws_max_size=_LONGEST_MESSAGE,
        ws_max_queue=16,
        ws_per_message_deflate=False,
        server_header=False,
    )
    say(f"The lab is at {address}")
    say("Ctrl-C ends it.")
    if browser:
        threading.Timer(0.3, webbrowser.open, [address]).start()
    try:
        _Server(config).run(sockets=[listening])
    finally:
        listening.close()
        lab.close()


class _Server(uvicorn.Server):
    """Ctrl-C closes connections and waits for none of them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0.05)
        await self.lifespan.shutdown()


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket: at the port given, or at the usual one, or at any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason: Exception | None = None
    for wanted in (port,) if port is not None else (PORT, 0):
        # Its protocol is named so that asyncio sends small messages at once (TCP_NODELAY).
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, wanted))
        except (OSError, OverflowError, TypeError, ValueError) as error:  # some are the codec's
            found.close()
            reason = error
            continue
        found.listen(128)
        return found
    which = "any port" if port is None else f"port {port}"
    raise SettingError(f"{which} at {host!r} cannot be used: {reason}")
