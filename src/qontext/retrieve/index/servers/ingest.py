"""Encoded → the rows of a collection on a server, part by part, by one process or many.

    claim   make the collection this build's own, and plan the key of each passage: once, whoever comes first
    read    the rows of one part that are new or changed
    write   these, and record that the part is done: on the server, or right after it in the output directory
    finish  delete the rows of passages that are gone, create the index, count the rows: once, in the end

A killed build resumes after its last part. It touches no collection but its own: that which it created, or that of the
index which it replaces. The collection says which build it belongs to; the directory says so in `OWNED`, which is written
first.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import TypedDict

from qontext.frame import artifacts
from qontext.frame.artifacts import CLAIM, Artifact, Workdir, is_artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import digest_of, read_array, read_json
from qontext.retrieve.index import PARTIAL, Array, Backend
from qontext.retrieve.index.servers.base import KEYS, RowKeys, ServerStore, StoredRows, read_keys
from qontext.retrieve.index.servers.passage_texts import PassageTexts, TextRow
from qontext.retrieve.stored import Encoded, read_ids
from qontext.retrieve.where import passages_of

OWNED = "logs/collection.json"
_PLANNED, _EARLIER, _GONE = (f"{PARTIAL}/{name}.npy" for name in ("keys", "earlier", "gone"))
_DELETED = 10_000
"""Rows that are deleted at once."""


class ServerBackend(Backend):
    """A backend whose index is a collection on a server, or in a local database with the same client."""

    @classmethod
    @abstractmethod
    def store(
        cls, source: Encoded, work: Workdir, options: Any
    ) -> contextlib.AbstractContextManager[ServerStore]:
        """The collection, over a connection of its own."""

    @classmethod
    def build(cls, source: Encoded, work: Workdir, options: Any, advance: Callable[[int], None]) -> int:
        """All parts over one connection."""
        with cls.store(source, work, options) as store:
            rows = Ingest(source, work, options)
            rows.claim(store)
            for part, numbers in enumerate(source.part_numbers):
                if not work.has(marker(part)):
                    rows.write(store, part, rows.read(part))
                advance(len(numbers))
            return rows.finish(store)


def marker(part: int) -> str:
    """The file that stands for a part that the server has: the hashes of its rows."""
    return f"{PARTIAL}/{part:05d}.npy"


class Content(NamedTuple):
    """A part: the rows to write, and the hashes of all."""

    rows: StoredRows
    hashes: Array


class Ingest:
    """The rows of one build."""

    def __init__(self, source: Encoded, work: Workdir, options: Any) -> None:
        self.source, self.work, self.options = source, work, options

    @cached_property
    def build(self) -> str:
        """The key of the build."""
        return str(artifacts.read_description(self.work.path / CLAIM)["key"])

    @cached_property
    def _texts(self) -> PassageTexts | None:
        if not self.options.with_text:
            return None
        return PassageTexts(self.source, self.options.texts or passages_of(self.source.artifact))

    @cached_property
    def _keys(self) -> Array | None:
        """[P] by number, each passage's key; None where it is the number."""
        return (
            read_array(self.work.path / _PLANNED, "i", shape=(len(self.source),)) if self._is_kept else None
        )

    @cached_property
    def _is_kept(self) -> bool:
        """True if rows of an earlier build stay."""
        return bool(read_json(self.work.path / OWNED, _Owned)["is_kept"])

    @cached_property
    def _earlier(self) -> Array:
        """[P] by number, the hash of each passage's earlier row; 0 if there is none."""
        return read_array(self.work.path / _EARLIER, "u", shape=(len(self.source),))

    def claim(self, store: ServerStore) -> None:
        """Make the collection this build's own, or resume in it."""
        encoder, owner = str(self.source.encoder["digest"]), store.builds()
        if owner is not None and owner[0] == self.build and self.work.has(OWNED):
            if self._is_kept and not self.work.has(_GONE):
                self._plan(self._replaced()[1])
            return
        key, earlier = self._replaced()
        is_ours = owner is not None and self.options.replace is not None and owner[0] == key
        if owner is not None and not is_ours:
            other = owner[1] not in ("", encoder)
            raise QontextError(
                f"{store.place} already exists" + (", with vectors of another encoder" if other else ""),
                remedy="Choose another name, drop it on the server, or name the directory of the index that wrote it, "
                "finished or not, with --replace.",
            )
        is_kept = is_ours and earlier is not None and self._is_like(earlier, encoder)
        self.work.remove(PARTIAL)
        if is_kept:
            self._plan(earlier)
        self.work.write_json(OWNED, {"build": self.build, "is_kept": is_kept})
        if is_kept:
            store.take_over(self.build)
            return
        if is_ours:
            store.drop()
        try:
            store.create(self.build, encoder)
        except Exception:  # whatever a client library raises: it is raised again
            self.work.remove(OWNED)  # nothing is claimed: a corrected command starts afresh
            raise

    def _is_like(self, earlier: Artifact, encoder: str) -> bool:
        """True if an earlier index has these settings and this encoder."""
        config = artifacts.read_description(self.work.path / CLAIM)["config"]
        return bool(earlier.config == config and earlier.summary["encoder"]["digest"] == encoder)

    def _replaced(self) -> tuple[str, Artifact | None]:
        """The key of the build that is replaced, and its index, if it was finished."""
        if self.options.replace is None:
            return "", None
        folder = Path(self.options.replace)
        if not is_artifact(folder) and (folder / CLAIM).is_file():
            claim = artifacts.read_description(folder / CLAIM)
            if claim["verb"] == "index":
                return str(claim["key"]), None
        earlier = open_artifact(folder, verb="index")
        return str(earlier.meta["key"]), earlier

    def _plan(self, earlier: Artifact | None) -> None:
        """Write the keys of passages and the hashes of their earlier rows; then the keys of passages that are gone."""
        if earlier is None:
            raise QontextError(
                "this build replaces an earlier index, whose directory is needed to resume",
                place=self.work.path,
                remedy="Name it with --replace.",
            )
        old_ids = pa.array(read_ids(earlier.path), pa.string())
        old = read_keys(earlier.path, len(old_ids))
        place = pc.index_in(pa.array(self.source.ids, pa.string()), old_ids).fill_null(-1).to_numpy()
        stays = place >= 0
        keys = np.where(stays, old.keys[place], 0)
        next_key = int(old.keys.max(initial=-1)) + 1
        keys[~stays] = next_key + np.arange(int((~stays).sum()))
        self._save(_PLANNED, keys)
        self._save(_EARLIER, np.where(stays, old.hashes[place], np.uint64(0)))
        self._save(_GONE, np.sort(np.delete(old.keys, place[stays])))

    def _save(self, name: str, array: Array) -> None:
        with self.work.write(name) as path, path.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    def _saved(self, name: str, kinds: str, rows: int | None = None) -> Array:
        return read_array(self.work.path / name, kinds, shape=(rows,), mapped=False)

    def read(self, part: int) -> Content:
        numbers, vectors_ND = self.source.part_numbers[part], self.source.parts[part]
        texts = None if self._texts is None else self._texts.read(part)
        hashes, keys, changed = _hashes(vectors_ND, texts), numbers, np.ones(len(numbers), bool)
        if self._keys is not None:
            earlier = self._earlier[numbers]
            keys, changed = self._keys[numbers], (earlier == 0) | (earlier != hashes)
        ids = self.source.ids_of(part).filter(pa.array(changed)).to_pylist()
        some = None if texts is None else [row for row, is_changed in zip(texts, changed) if is_changed]
        return Content(StoredRows(np.asarray(keys)[changed], ids, vectors_ND[changed], some), hashes)

    def write(self, store: ServerStore, part: int, content: Content) -> None:
        store.write(self.build, part, content.rows)
        self._save(marker(part), content.hashes)

    def finish(self, store: ServerStore) -> int:
        """Returns the number of rows. All parts are there."""
        keys = np.arange(len(self.source)) if self._keys is None else self._keys
        hashes = np.empty(len(self.source), np.uint64)
        for part, numbers in enumerate(self.source.part_numbers):
            hashes[numbers] = self._saved(marker(part), "u", len(numbers))
        gone = self._saved(_GONE, "i") if self._is_kept else keys[:0]
        for start in range(0, len(gone), _DELETED):
            store.delete(gone[start : start + _DELETED])
        store.finish()
        if (count := store.count()) not in (None, len(keys)):
            raise QontextError(
                f"{store.place} has {count:,} rows, expected {len(keys):,}",
                remedy="Something else wrote into it: build it again in another directory, with --replace "
                f"{self.work.path}.",
            )
        with self.work.write(KEYS) as path:
            RowKeys(keys, hashes).write(path)
        return len(keys)


class _Owned(TypedDict):
    """The build that claimed the collection, and whether it keeps rows of an earlier one."""

    build: str
    is_kept: bool


def _hashes(vectors_ND: Array, texts: list[TextRow] | None) -> Array:
    """[N] a hash of what each row holds."""
    rows = (row.tobytes() for row in vectors_ND)
    if texts is not None:
        rows = (row + "\0".join(text).encode() for row, text in zip(rows, texts))
    return np.frombuffer(b"".join(digest_of(row, 8) for row in rows), np.uint64)
