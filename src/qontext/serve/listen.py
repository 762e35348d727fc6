"""Binding a port and answering on it until a signal ends the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket as sockets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.frame.trust import is_this_machine
from qontext.serve.security import LOOPBACK, TOKEN, Policy

GRACE_SECONDS = 10
"""Seconds for running requests to finish after a signal."""
CONNECTIONS = 500
"""Connections at a time; more are refused with status 503. Slow clients are for a proxy to hold."""


def policy_of(host: str, allowed: Sequence[str], environment: Mapping[str, str]) -> Policy:
    """The access policy of a server on this address; without a token, only this machine has access."""
    token = environment.get(TOKEN, "").strip() or None
    if token is not None and len(token) < 16:
        raise QontextError(
            f"the token in {TOKEN} is shorter than 16 characters", remedy="Choose a longer one."
        )
    if token is not None and not (token.isascii() and token.isprintable()):
        raise QontextError(
            f"the token in {TOKEN} contains characters that headers cannot hold",
            remedy="Choose one of ASCII letters, digits and punctuation.",
        )
    if not is_this_machine(host) and token is None:
        raise QontextError(
            f"listening on {host}, which is reachable from other machines, needs a token",
            remedy=f"Set {TOKEN} to a secret of at least 16 characters, which clients send as a bearer token.",
        )
    names = {name.lower() for name in allowed}
    if is_this_machine(host):
        return Policy(frozenset({*LOOPBACK, host.lower(), *names}), token)
    return Policy(frozenset({*LOOPBACK, host.lower(), *names}) if names else None, token)


@contextlib.contextmanager
def bind(host: str, port: int) -> Iterator[sockets.socket]:
    """A socket on the address, which accepts connections only once `listen` is called."""
    name = host.strip("[]")
    try:
        family, kind, _, _, address = sockets.getaddrinfo(name, port, type=sockets.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise QontextError(f"unknown address {host!r}", remedy="Choose another --host.") from None
    socket = sockets.socket(family, kind)
    try:
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            socket.bind(address)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise QontextError(
                f"cannot listen on {host}:{port}: {reason}",
                remedy="Choose another --port, or 0 for a free one.",
            ) from None
        yield socket
    finally:
        socket.close()


LAST_SECONDS = 1.0
"""Time for the parts of the last page."""


def make_server(app: Any, announce: Callable[[], None] = lambda: None) -> Any:
    """A server for the application; `announce` is called when it answers. Setting `should_exit` ends it."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                announce()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Signals stop the server; unlike in the library, they are not raised again afterwards."""
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            numbers = (signal.SIGINT, signal.SIGTERM)
            before = {number: signal.signal(number, self.handle_exit) for number in numbers}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    return Server(
        uvicorn.Config(
            app,
            http="h11",
            limit_concurrency=CONNECTIONS,
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_keep_alive=15,
            ws="none",
        )
    )


def address(socket: sockets.socket) -> str:
    """The address of a server on this socket."""
    host, port = socket.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Ending:
    """Ends a server from within a request: a moment later, so that what its last page needs is sent."""

    def __init__(self) -> None:
        self.server: Any = None

    def __call__(self) -> None:
        asyncio.get_running_loop().call_later(LAST_SECONDS, setattr, self.server, "should_exit", True)


def listen(app: Any, socket: sockets.socket, title: str, ending: Ending | None = None) -> None:
    """Answer requests until SIGINT, SIGTERM or the `ending`; running requests are finished first."""
    place = address(socket)
    server = make_server(app, lambda: log.note(f"{title} at {place} (press Ctrl-C to stop)."))
    if ending is not None:
        ending.server = server
    try:
        server.run(sockets=[socket])
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise QontextError(f"cannot listen at {place}: {reason}", remedy="Choose another --port.") from None
    log.note("Stopped.")
