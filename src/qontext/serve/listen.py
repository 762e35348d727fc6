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
CONNECTIONS = 1_000
"""Connections at a time, where the system allows so many open files."""
HEADER_SECONDS, HEADER_LIMIT = 30, 64 * 1024
"""Seconds and bytes within which the address and the headers of a request are sent."""


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


def most_connections() -> int:
    """The number of connections at a time: a sixth of the open files that are allowed (``ulimit -n``), since as many may
    be accepted before others are closed, and everything else needs some."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if limit < 0 else max(4, min(CONNECTIONS, limit // 6))


def _connections(most: int) -> Any:
    """The class of connections, of which there are at most so many."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[Any, None] = {}  # the connections, from the one that has been quiet for longest

    class Connection(H11Protocol):
        """Closed if no request begins in time, or if others need its place, so that clients that are idle, or slow to send
        or to read, cannot hold all connections."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.limit = self.loop.call_later(HEADER_SECONDS, self.give_up)
            waiting[self] = None
            self.unread = 0
            if len(waiting) > most:
                slow = next((other for other in waiting if other.makes_room()), self)
                del waiting[slow]
                slow.end()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.unread = 0
            self.limit.cancel()
            self.limit = self.loop.call_later(HEADER_SECONDS, self.give_up)
            if waiting.pop(self, self) is None:
                waiting[self] = None

        def connection_lost(self, exc: Exception | None) -> None:
            self.limit.cancel()
            waiting.pop(self, None)
            super().connection_lost(exc)

        def makes_room(self) -> bool:
            """True if nothing is computed for it: it is quiet, or the client is slow to send or to read."""
            return self.is_quiet() or bool(self.cycle.more_body or self.flow.write_paused)

        def is_quiet(self) -> bool:
            """True if no request is being answered."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def give_up(self) -> None:
            """Close, unless a request is being answered, or the client reads the last answer."""
            if not self.is_quiet():
                return
            unread = self.transport.get_write_buffer_size()
            if unread in (0, self.unread):
                self.end()
            else:
                self.unread = unread
                self.limit = self.loop.call_later(HEADER_SECONDS, self.give_up)

        def end(self) -> None:
            """Close. What the client has not read is dropped: it may never read it."""
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self.transport.close()

    return Connection


def make_server(app: Any, announce: Callable[[], None] = lambda: None) -> Any:
    """A server for the application; `announce` is called when it answers. Setting `should_exit` ends it."""
    import uvicorn

    most = most_connections()

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
            http=_connections(most),
            h11_max_incomplete_event_size=HEADER_LIMIT,
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            backlog=most,  # as many are accepted at a time
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
