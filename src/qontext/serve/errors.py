"""The errors of requests, by HTTP status. All other errors are mistakes of the client (400)."""

from __future__ import annotations

from qontext.frame.errors import QontextError


class ServeError(QontextError):
    status: int


class Unknown(ServeError):
    """There is no system, model, document or passage with that name."""

    status = 404


class Overloaded(ServeError):
    """The queue is full."""

    status = 429


class Failed(ServeError):
    """A system, or what it reads and writes, does not work."""

    status = 500


class TimedOut(ServeError):
    """The answer was not ready in time."""

    status = 503
