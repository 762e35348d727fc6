"""Votes in SQLite, written to disk before they are acknowledged; one per annotator and pair."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from qontext.frame.errors import first_line
from qontext.serve.errors import Failed

Relatedness = Literal["high", "low"]
VERDICTS: tuple[Relatedness, ...] = ("high", "low")
FILE = "votes.sqlite"
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS votes (
        annotator TEXT NOT NULL,
        pair INTEGER NOT NULL,
        verdict TEXT NOT NULL CHECK (verdict IN ('high', 'low')),
        time REAL NOT NULL,
        PRIMARY KEY (annotator, pair)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS history (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        annotator TEXT NOT NULL,
        pair INTEGER NOT NULL,
        verdict TEXT NOT NULL,
        time REAL NOT NULL
    );
"""


class Vote(NamedTuple):
    annotator: str
    pair: int
    verdict: Relatedness
    time: float


class Store:
    """The votes of a study. A new vote replaces the earlier one, which is kept in `history`."""

    def __init__(self, root: Path) -> None:
        self.path, self._lock = root / FILE, threading.Lock()
        with self._explained():
            self._connection = sqlite3.connect(
                self.path, check_same_thread=False, isolation_level=None, timeout=30
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk
            self._connection.executescript(_SCHEMA)

    def vote(self, annotator: str, pair: int, verdict: Relatedness) -> None:
        """Store the vote durably: it survives a killed process and a power failure."""
        now = time.time()
        with self._lock, self._explained(), self._transaction() as connection:
            row = connection.execute(
                "SELECT verdict FROM votes WHERE annotator = ? AND pair = ?", (annotator, pair)
            ).fetchone()
            if row is not None and row[0] == verdict:  # a form that was submitted twice
                return
            connection.execute(
                "INSERT INTO votes VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET verdict = ?3, time = ?4",
                (annotator, pair, verdict, now),
            )
            connection.execute(
                "INSERT INTO history (annotator, pair, verdict, time) VALUES (?, ?, ?, ?)",
                (annotator, pair, verdict, now),
            )

    def votes(self, annotator: str | None = None) -> list[Vote]:
        """All votes, or those of one annotator, in the order of pairs."""
        where, values = ("WHERE annotator = ?", (annotator,)) if annotator else ("", ())
        with self._lock, self._explained():
            rows = self._connection.execute(
                f"SELECT annotator, pair, verdict, time FROM votes {where} ORDER BY pair, annotator", values
            )
            return [Vote(*row) for row in rows]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:  # an interrupt, too, must not leave the connection in a transaction
            # SQLite ends the transaction itself after some errors, such as a full disk.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Failed(
                f"the votes cannot be written or read: {first_line(error)}", place=self.path
            ) from None
