"""The index of a directory follows its documents, with the encoder that it has; nothing is trained.

stamps of all files → hashes, if a stamp is new → the next index beside the current one → adapted.json names it

`refresh`, `adapt` again, `serve --refresh` and the first search of a folder all come here.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from qontext.adapt import publish
from qontext.adapt.config import AdaptConfig, Request
from qontext.adapt.sources import Edits, content, edit, require, sources_of
from qontext.adapt.state import read_planned
from qontext.adapt.vector_index import Choice
from qontext.corpus.sources import scheme_of, stamp
from qontext.corpus.sources.several import FILE, SCHEME, digest_of, listed, parse, place_of, read_listing
from qontext.data.collection import read_passages
from qontext.frame import files, inputs, log, trust
from qontext.frame.artifacts import Workdir, is_artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.frame.inputs import places
from qontext.models.hub import is_local
from qontext.models.reference import default_encoder, refer
from qontext.retrieve.directory import (
    MODEL,
    STEPS,
    index_of,
    is_adapted,
    read_adapted,
    write_adapted,
)
from qontext.retrieve.language import language_of_source
from qontext.retrieve.system import WEIGHTS, System

STAMPS = "stamps.json"
"""The stamps of the sources when they were read last, the hash of what was read, and the folder of the index of it."""
READ_TOKENS = 256
"""Tokens that are read of a passage without a survey."""
MENTION_ABOVE = 0.1
"""Share of new passages above which training again is suggested."""


def has_changed(root: Path) -> bool:
    """True if the stamp of a source is not what it was when the directory was refreshed last; nothing is read."""
    recorded = _recorded(root)
    if not recorded:
        return (root / FILE).is_file() or read_planned(root) is not None
    there = dict(_places(root, recorded["documents"]))
    return not there.keys() >= recorded["stamps"].keys() or any(
        stamp(path) != recorded["stamps"].get(name) for name, path in there.items()
    )


def _recorded(root: Path) -> dict[str, Any]:
    """The content of `stamps.json`, if the index is of what was read then: `adapt` may have built another one since."""
    if not (root / STAMPS).is_file() or not is_adapted(root):
        return {}
    recorded: dict[str, Any] = read_json(root / STAMPS, dict[str, Any])
    return recorded if recorded.get("index") == index_of(root).name else {}


def _places(root: Path, documents: str) -> list[tuple[str, str]]:
    """(name, path) of the sources, where they are now."""
    if not documents.startswith(f"{SCHEME}:"):
        return [("", documents)] if documents else []
    return [(name, place_of(entry, root)) for name, entry in read_listing(root / FILE).items()]


class Follower:
    """A directory and what is to become of it.

    Args:
        edits: The changes of its sources.
        root: The directory, locked.
        encoder: That of a new directory, or a copy of the one that it refers to.
        words: Whether a directory without vectors gets none.
    """

    def __init__(self, edits: Edits, root: Path, encoder: str | None, *, words: bool) -> None:
        self.edits, self.root, self.work = edits, root, Workdir(root)
        self.encoder, self.words = encoder, words
        self.before = read_planned(root) if is_adapted(root) else None
        self.about = read_adapted(root) if is_adapted(root) else None
        if self.before is not None and self.before.is_pending:
            raise QontextError(
                "has a plan that is not carried out", place=root, remedy="Run the same 'qontext adapt' again."
            )

    def run(self) -> dict[str, Any]:
        self.documents, is_edited = self._documents()
        there = dict(_places(self.root, self.documents))
        trust.say_elsewhere([path for path in there.values() if scheme_of(path) is None], self.root)
        for name in self.edits.only:
            require(name, there)
        stamps = {name: stamp(there[name]) for name in self.edits.only or there}
        recorded = _recorded(self.root)
        wants_vectors = self._wants_vectors()
        known = recorded.get("stamps", {})
        # A source that is no longer there may have been removed by a refresh that was killed.
        is_same = all(stamps.values()) and {**known, **stamps} == known and known.keys() <= there.keys()
        is_known = recorded.get("documents") == self.documents and not is_edited
        if is_same and is_known and not wants_vectors:
            return {"out": str(self.root), "changed": False}
        digest = digest_of(self.documents)
        is_same = digest == recorded["digest"] if recorded else self._is_indexed()
        if wants_vectors and self.about is not None:
            log.note("Vectors of all passages are computed; with --words, none are.")
        result = self._index() if wants_vectors or not is_same else {"changed": False}
        if self.edits.only:
            stamps = {**{name: stamp for name, stamp in known.items() if name in there}, **stamps}
        what = {"documents": self.documents, "digest": digest, "stamps": stamps}
        self.work.write_json(STAMPS, {**what, "index": index_of(self.root).name})
        return {"out": str(self.root), **result}

    def _documents(self) -> tuple[str, bool]:
        """The documents as a source, and whether what they are was edited just now."""
        file, edits = self.root / FILE, self.edits
        listing = sources_of(self.root)
        is_listed = bool(listing) or self.before is None
        if not is_listed and not (edits.source or edits.about or edits.remove):
            return self._planned_documents(), False
        if not listing and self.about is not None and self.before is None:
            raise QontextError(
                "has no documents: it was saved from memory", place=self.root, remedy="Save it again."
            )
        if self.before is not None and self.before.request.keep:
            raise QontextError(
                "was made from passages, which are kept as they are: sources of documents cannot be added",
                place=self.root,
                remedy="Begin another directory with --source.",
            )
        before = {name: dict(entry) for name, entry in listing.items()}
        # What a killed refresh removed is no longer in the list, but in the index.
        begun = _recorded(self.root).get("stamps", {}).keys() - listing.keys()
        edits = edits._replace(remove=tuple(name for name in edits.remove if name not in begun))
        if not listing and self.before is not None:
            name, path = parse(self._planned_documents(), {})
            listing[name] = listed(path, self.root)
        edit(listing, edits, self.root, self.before.request.read_as if self.before is not None else ())
        documents = f"{SCHEME}:{file.absolute()}"
        trust.give(documents)
        if listing != before:
            self.work.write_json(FILE, listing)
        return documents, content(listing) != content(before)

    def _planned_documents(self) -> str:
        """The documents of `adapt` where they are now."""
        assert self.before is not None
        entry = self.before.claim["inputs"]["documents"]
        there = [str(place) for place in places(entry, self.root) if place.exists()]
        return there[0] if there else str(entry["path"])

    def _is_indexed(self) -> bool:
        """True if the index says that it is of the documents as they are now."""
        if self.about is None or not is_artifact(passages := index_of(self.root) / "passages"):
            return False
        # Of a folder, it has the hash of files of any kind: the first time they are compared as `adapt` does.
        now = inputs.digest_of(self.documents, "documents", AdaptConfig.inputs()["documents"])
        return bool(open_artifact(passages).inputs["source"]["digest"] == now)

    def _wants_vectors(self) -> bool:
        """True if a directory that began with words gets vectors now."""
        if self.words or self.before is not None:
            return False
        return self.about is None or (self.about["system"] == "bm25" and self._encoder() is not None)

    def _encoder(self) -> str | None:
        """The encoder of a new directory; None if it is not on this machine and nobody named it."""
        if self.encoder is not None:
            return self.encoder
        name = default_encoder()
        return name if is_local(name) else None

    def _index(self) -> dict[str, Any]:
        """Build the next index, and make it the one that is searched."""
        if self.before is None or self.about is None:
            return self._started()
        request = replace(self.before.request, documents=self.documents)
        model = publish.place_of(self.about, self.root, MODEL, None)
        result = reindex(self.root, request, self.about, model)
        share = new_share(self.root)
        if result["changed"] and share is not None and share > MENTION_ABOVE:
            log.note(
                f"{share:.0%} of the passages are new since adapt trained: run 'qontext adapt --retrain' again."
            )
        return result

    def _started(self) -> dict[str, Any]:
        """The index of a directory that nobody adapted: words, then vectors, too."""
        about = self.about or {}
        start = about.get("start") or {"language": language_of_source(self.documents)}
        has_vectors = about.get("system", "bm25") != "bm25"
        model = None
        if has_vectors or not self.words:
            is_known = "reference" in about
            model = publish.place_of(about, self.root, MODEL, self.encoder) if is_known else self._encoder()
        about = {
            "system": System("start" if model else None, words=True).name,
            "weights": [*WEIGHTS] if model else [1, 0],
            "read_tokens": READ_TOKENS,
            "start": start,
        }
        if model is not None:
            about |= {"encoder": "start", "reference": refer(model, self.root)}
        request = Request(
            documents=self.documents, labels=None, splits=(), labeled=0, encoder=model or "", generate={},
            pretrain={}, max_tokens=144, read_tokens=READ_TOKENS, budget=0, device="auto", keep=False,
            language=start["language"], tokenizer="words",
        )  # fmt: skip
        return reindex(self.root, request, about, model)


def reindex(
    root: Path,
    request: Request,
    about: Mapping[str, Any],
    model: str | None,
    choice: Choice | None = None,
    on: str = "local",
) -> dict[str, Any]:
    """Build the next index of the documents of a request with this encoder, beside the one that is searched, then make the
    directory answer with it: `about` is the rest of `adapted.json`. Returns what changed."""
    earlier = index_of(root) if is_adapted(root) else None
    tokens = System.parse(about["system"]).tokens
    with _unless_failing(root):
        index, _ = publish.make_index(request, model, root, {}, choice, on, tokens=tokens)
    changes = None
    if earlier is not None and earlier != index:
        changes = changed_documents(earlier / "passages", index / "passages")
    write_adapted(root, {**about, "index": index.name})
    passages = open_artifact(index / "passages").summary
    vectors = open_artifact(index / "vectors").summary if is_artifact(index / "vectors") else {}
    names = ("encoded_now", "reused") if index != earlier else ()
    return {
        "changed": index != earlier,
        "documents": changes or {"new": passages["documents"], "changed": 0, "unchanged": 0, "removed": 0},
        "passages": passages["passages"],
        "system": about["system"],
        **{name: vectors[name] for name in names if name in vectors},
        **{name: passages[name] for name in ("skipped", "not_read") if name in passages},
    }


@contextlib.contextmanager
def _unless_failing(root: Path) -> Iterator[None]:
    """The reason of a failure also says that a finished directory answers as before."""
    if not is_adapted(root):
        yield
        return
    try:
        with log.warnings_only():
            yield
    except (QontextError, OSError) as error:
        try:
            files.raise_disk_error(error, root, anyway=True)
        except QontextError as reason:
            unchanged = f"The index of {root} is unchanged and answers as before."
            remedy = " ".join(filter(None, (reason.remedy, unchanged)))
            raise QontextError(reason.message, place=reason.place, remedy=remedy) from None


def changed_documents(before: Path, now: Path) -> dict[str, int]:
    """The number of documents by kind of change, from two folders of passages."""
    earlier, current = _contents(before), _contents(now)
    kinds = Counter(
        "new" if name not in earlier else "unchanged" if earlier[name] == content else "changed"
        for name, content in current.items()
    )
    documents = {kind: kinds[kind] for kind in ("new", "changed", "unchanged")}
    return {**documents, "removed": len(earlier.keys() - current.keys())}


def _contents(passages: Path) -> dict[str, bytes]:
    """Document → a hash of its passages."""

    def content(group: Iterator[Any]) -> bytes:
        state = hashlib.blake2b(digest_size=16)
        for passage in group:
            for text in (passage.id, passage.title, passage.text):
                state.update(text.encode() + b"\0")
        return state.digest()

    return {
        doc: content(group) for doc, group in groupby(read_passages(passages), lambda passage: passage.doc)
    }


def new_share(root: Path) -> float | None:
    """The share of passages whose text is new since training; None without its steps."""
    if not (root / STEPS / "split").is_dir():
        return None
    import numpy as np

    from qontext.retrieve.reuse import text_hashes

    def hashes(folder: Path) -> Any:
        return np.unique(text_hashes([p.content for p in read_passages(folder)]))

    now = hashes(index_of(root) / "passages")
    return float(1 - np.isin(now, hashes(root / STEPS / "split")).mean())
