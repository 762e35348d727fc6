"""The errors of requests, by HTTP status. All other errors are mistakes of the client (400)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qontext.frame.errors import QontextError, Unanswerable


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


@contextmanager
def answering() -> Iterator[None]:
    """Errors in a valid request are failures of the server, except for a part or a field that is not there. Clients do not
    learn where files are."""
    try:
        yield
    except Unanswerable as error:
        raise Unanswerable(error.message, remedy=error.remedy) from None
    except QontextError as error:
        raise Failed(error.message, place=error.place, remedy=error.remedy) from error
