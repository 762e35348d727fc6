"""Backends of servers whose process dies in the middle of a part, once, where a file `die` beside the index says so."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.frame.artifacts import Workdir
from qontext.retrieve.index.servers import milvus, postgres
from qontext.retrieve.index.servers.base import ServerStore


def die(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class Postgres(postgres.Postgres):
    """Dies when the rows are sent and the transaction is not at its end."""

    @classmethod
    @contextlib.contextmanager
    def store(cls, source: Any, work: Workdir, options: Any) -> Iterator[ServerStore]:
        with super().store(source, work, options) as store:
            copy = store._copy  # type: ignore[attr-defined]

            def copy_and_die(rows: Any) -> None:
                copy(rows)
                die(work.path.parent)

            store._copy = copy_and_die  # type: ignore[attr-defined]
            yield store


class Milvus(milvus.Milvus):
    """Dies when the rows are there and the part is not recorded as done."""

    @classmethod
    @contextlib.contextmanager
    def store(cls, source: Any, work: Workdir, options: Any) -> Iterator[ServerStore]:
        with super().store(source, work, options) as store:
            write = store.write

            def write_and_die(*arguments: Any) -> None:
                write(*arguments)
                die(work.path.parent)

            store.write = write_and_die  # type: ignore[method-assign]
            yield store
