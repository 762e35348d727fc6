"""Vectors → the rows of a collection on a server, part by part.

    plan    which rows are new or changed, and the key of each
    part    those of one part of the vectors; recorded as done with its rows, or right after them
    finish  delete the rows of passages that are gone, create the index

A killed build resumes after its last part. It touches no collection but its own: that which it created, or that of the
index which it replaces. The collection says which build it belongs to; the directory says so in `OWNED`, which is written
first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import TypedDict

from qontext.frame import artifacts
from qontext.frame.artifacts import CLAIM, Artifact, Workdir, is_artifact, open_artifact
from qontext.frame.damage import read_json
from qontext.frame.errors import QontextError
from qontext.retrieve.index import Array
from qontext.retrieve.index.servers import KEYS, Keys, Rows, Store, read_keys
from qontext.retrieve.rows import Row, rows_of
from qontext.retrieve.vectors import Vectors, read_ids
from qontext.retrieve.where import passages_of

OWNED = "logs/collection.json"
_DELETED = 10_000
"""Rows that are deleted at once."""


def ingest(store: Store, source: Vectors, work: Workdir, options: Any, advance: Callable[[int], None]) -> int:
    """Write all vectors into the collection; returns their number."""
    earlier = _claim(store, source, work, options.replace)
    passages = (options.texts or passages_of(source.artifact)) if options.with_text else None
    hashes = _hashes(source, passages)
    plan = _Plan(source, hashes, earlier)
    for part, (numbers, vectors_ND, texts) in enumerate(_parts(source, passages)):
        if not store.is_done(part):
            chosen = plan.changed[numbers]
            some = None if texts is None else [row for row, is_chosen in zip(texts, chosen) if is_chosen]
            ids = source.part_ids[part].filter(pa.array(chosen)).to_pylist()
            store.write(part, Rows(plan.keys[numbers[chosen]], ids, vectors_ND[chosen], some))
        advance(len(numbers))
    for start in range(0, len(plan.deleted), _DELETED):
        store.delete(plan.deleted[start : start + _DELETED])
    store.finish()
    with work.write(KEYS) as path:
        Keys(plan.keys, hashes).write(path)
    return len(source)


class _Owned(TypedDict):
    """The build that claimed the collection, and whether it keeps rows of an earlier one."""

    build: str
    is_kept: bool


class _Plan:
    """By number: each passage's key, and whether its row has to be written; and which keys are deleted."""

    def __init__(self, source: Vectors, hashes: Array, earlier: Artifact | None) -> None:
        self.keys = np.arange(len(source))
        self.changed = np.ones(len(source), bool)
        self.deleted = np.empty(0, np.int64)
        if earlier is None:
            return
        old_ids = pa.array(read_ids(earlier.path), pa.string())
        old = read_keys(earlier.path, len(old_ids))
        new_ids = pa.array(source.ids, pa.string())
        place = pc.index_in(new_ids, old_ids).fill_null(-1).to_numpy()
        stays = place >= 0
        self.keys = np.where(stays, old.keys[place], 0)
        next_key = int(old.keys.max(initial=-1)) + 1
        self.keys[~stays] = next_key + np.arange(int((~stays).sum()))
        self.changed = ~stays | (old.hashes[place] != hashes)
        self.deleted = np.sort(np.delete(old.keys, place[stays]))


def _claim(store: Store, source: Vectors, work: Workdir, replace: str | None) -> Artifact | None:
    """Make the collection this build's own, or resume in it. Returns the earlier index of which rows stay."""
    claim = artifacts.read_description(work.path / CLAIM)
    build, encoder, owner = str(claim["key"]), str(source.encoder["digest"]), store.builds()
    key, earlier = _replaced(Path(replace)) if replace is not None else ("", None)
    if owner is not None and owner[0] == build and work.has(OWNED):
        is_kept = read_json(work.path / OWNED, _Owned)["is_kept"]
        return earlier if is_kept else None
    is_ours = owner is not None and replace is not None and owner[0] == key
    if owner is not None and not is_ours:
        other = owner[1] not in ("", encoder)
        raise QontextError(
            f"{store.place} already exists" + (", with vectors of another encoder" if other else ""),
            remedy="Choose another name, drop it on the server, or name the directory of the index that wrote it, finished "
            "or not, with --replace.",
        )
    is_same = earlier is not None and (
        earlier.config == claim["config"] and earlier.summary["encoder"]["digest"] == encoder
    )
    is_kept = is_ours and is_same
    work.write_json(OWNED, {"build": build, "is_kept": is_kept})
    if is_kept:
        store.take_over(build)
        return earlier
    if is_ours:
        store.drop()
    try:
        store.create(build, encoder)
    except Exception:
        work.remove(OWNED)  # nothing is claimed: a corrected command starts afresh
        raise
    return None


def _replaced(folder: Path) -> tuple[str, Artifact | None]:
    """The key of the build in this directory, and its index, if the build was finished."""
    if not is_artifact(folder) and (folder / CLAIM).is_file():
        claim = artifacts.read_description(folder / CLAIM)
        if claim["verb"] == "index":
            return str(claim["key"]), None
    earlier = open_artifact(folder, verb="index")
    return str(earlier.meta["key"]), earlier


def _parts(source: Vectors, passages: str | None) -> Iterator[tuple[Array, Array, list[Row] | None]]:
    """(numbers, vectors, texts) of each part."""
    texts = rows_of(source, passages) if passages is not None else None
    for numbers, vectors_ND in source.blocks():
        yield numbers, vectors_ND, None if texts is None else next(texts)


def _hashes(source: Vectors, passages: str | None) -> Array:
    """[P] by number, a hash of what each row holds."""
    hashes = np.empty(len(source), np.uint64)
    for numbers, vectors_ND, texts in _parts(source, passages):
        rows = (row.tobytes() for row in vectors_ND)
        if texts is not None:
            rows = (row + "\0".join(text).encode() for row, text in zip(rows, texts))
        digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows)
        hashes[numbers] = np.frombuffer(digests, np.uint64)
    return hashes
