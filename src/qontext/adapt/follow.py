"""The index of a directory follows its documents, with the encoder that it has.

stamps of all files → hashes, if a stamp is new → the next index beside the current one → adapted.json names it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from qontext.adapt import publish, update
from qontext.adapt.config import AdaptConfig, Request
from qontext.adapt.state import STEPS, Planned, read_planned, same_sources_if_failing, sources_of
from qontext.corpus.sources import FieldNames, open_source, scheme_of, stamp
from qontext.corpus.sources.several import (
    FILE,
    SCHEME,
    Listing,
    digest_of,
    free_prefix,
    is_at,
    listed,
    parse,
    place_of,
    read_listing,
    set_read_as,
)
from qontext.frame import inputs, log, trust
from qontext.frame.artifacts import Workdir, is_artifact, open_artifact
from qontext.frame.errors import QontextError, did_you_mean
from qontext.frame.files import read_json
from qontext.frame.inputs import places
from qontext.models.hub import is_local
from qontext.models.reference import default_encoder, refer
from qontext.retrieve.directory import index_of, is_adapted, read_adapted, write_adapted
from qontext.retrieve.language import language_of_source
from qontext.retrieve.system import WEIGHTS, System

STAMPS = "stamps.json"
"""The stamps of the sources when they were read last, the hash of what was read, and the folder of the index of it."""
READ_TOKENS = 256
"""Tokens that are read of a passage without a survey."""


def has_changed(root: Path) -> bool:
    """True if the stamp of a source is not what it was when the directory was refreshed last; nothing is read."""
    recorded = _recorded(root)
    if not recorded:
        return (root / FILE).is_file() or read_planned(root) is not None
    there = dict(_places(root, recorded["documents"]))
    return not there.keys() >= recorded["stamps"].keys() or any(
        stamp(path) != recorded["stamps"].get(name) for name, path in there.items()
    )


def watched(root: Path) -> list[Path]:
    """The files and folders of the directory's sources."""
    stamps = read_json(root / STAMPS, dict[str, Any]) if (root / STAMPS).is_file() else {}
    documents = stamps.get("documents") or ""
    paths = [Path(path) for _, path in _places(root, documents)]
    return [path for path in paths if path.exists()]


def _recorded(root: Path) -> dict[str, Any]:
    """The content of that file, if the index is of what was read then: `adapt` may have built another one since."""
    if not (root / STAMPS).is_file() or not is_adapted(root):
        return {}
    recorded: dict[str, Any] = read_json(root / STAMPS, dict[str, Any])
    return recorded if recorded.get("index") == index_of(root).name else {}


def _places(root: Path, documents: str) -> list[tuple[str, str]]:
    """(name, path) of the sources, where they are now."""
    if not _is_listed(documents):
        return [("", documents)] if documents else []
    return [(name, place_of(entry, root)) for name, entry in read_listing(root / FILE).items()]


def _files(root: Path, documents: str) -> list[str]:
    """The sources that are files and folders, where they are now."""
    return [place for _, place in _places(root, documents) if scheme_of(place) is None]


class Edits(NamedTuple):
    """Changes of the sources, and which of them are looked at; see the settings of the verb."""

    source: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


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
        with same_sources_if_failing(self.root):
            return self._run()

    def _run(self) -> dict[str, Any]:
        self.documents, is_edited = self._documents()
        trust.say_elsewhere(_files(self.root, self.documents), self.root)
        there = dict(_places(self.root, self.documents))
        stamps = self._stamps(there)
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
        _edit(listing, edits, self.root, self._read_as())
        documents = f"{SCHEME}:{file.absolute()}"
        trust.give(documents)
        if listing != before:
            self.work.write_json(FILE, listing)
        return documents, _content(listing) != _content(before)

    def _planned_documents(self) -> str:
        """The documents of `adapt` where they are now."""
        assert self.before is not None
        entry = self.before.claim["inputs"]["documents"]
        there = [str(place) for place in places(entry, self.root) if place.exists()]
        return there[0] if there else str(entry["path"])

    def _stamps(self, there: Mapping[str, str]) -> dict[str, str]:
        """The stamps of the sources that are looked at."""
        for name in self.edits.only:
            _require(name, there)
        return {name: stamp(there[name]) for name in self.edits.only or there}

    def _is_indexed(self) -> bool:
        """True if the index says that it is of the documents as they are now."""
        if self.about is None or not is_artifact(passages := index_of(self.root) / "passages"):
            return False
        # Of a folder, it has the hash of files of any kind: the first time they are compared as `adapt` does.
        now = inputs.digest_of(self.documents, "documents", AdaptConfig.inputs()["documents"])
        return bool(open_artifact(passages).inputs["source"]["digest"] == now)

    def _read_as(self) -> tuple[str, ...]:
        return self.before.request.read_as if self.before is not None else ()

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
        with self._unless_failing():
            if self.before is not None:
                return self._adapted()
            return self._started()

    def _adapted(self) -> dict[str, Any]:
        """The index of a directory of `adapt`, with the encoder that it has."""
        assert self.before is not None and self.about is not None
        about, earlier = self.about, index_of(self.root)
        request = replace(self.before.request, documents=self.documents)
        model = publish.published_model(None, about, self.root)
        tokens = System.parse(about["system"]).tokens
        index, _ = publish.make_index(request, model, self.root, {}, None, "local", tokens=tokens)
        if index == earlier:  # `adapt` has indexed the same documents since
            return {"changed": False}
        share = publish.new_share(self.root, index / "passages")
        result = self._publish({**about, "index": index.name}, index, earlier)
        if share is not None and share > update.MENTION_ABOVE and (self.root / STEPS).is_dir():
            log.note(
                f"{share:.0%} of the passages are new since adapt trained: run 'qontext adapt --retrain' again."
            )
        return result

    def _started(self) -> dict[str, Any]:
        """The index of a directory that nobody adapted: words, then vectors, too."""
        about, earlier = self.about or {}, index_of(self.root) if self.about else None
        start = about.get("start") or {"language": language_of_source(self.documents)}
        has_vectors = about.get("system", "bm25") != "bm25"
        model = self._model(about) if has_vectors or not self.words else None
        request = _request(self.documents, start["language"], model)
        index, _ = publish.make_index(request, model, self.root, {}, None, "local", tokens=False)
        system = System("start" if model else None, words=True)
        about = {
            "system": system.name, "weights": [*WEIGHTS] if model else [1, 0],
            "read_tokens": READ_TOKENS, "index": index.name, "start": start,
        }  # fmt: skip
        if model is not None:
            about |= {"encoder": "start", "reference": refer(model, self.root)}
        return self._publish(about, index, earlier)

    def _model(self, about: dict[str, Any]) -> str | None:
        if "reference" in about:
            return publish.published_model(self.encoder, about, self.root)
        return self._encoder()

    def _publish(self, about: dict[str, Any], index: Path, earlier: Path | None) -> dict[str, Any]:
        """Replace `adapted.json`, from when on the index is searched; what changed, for the result."""
        both = None if earlier is None or earlier == index else (earlier / "passages", index / "passages")
        changes = None if both is None else update.changed_documents(*both)
        write_adapted(self.root, about)
        passages = open_artifact(index / "passages").summary
        left_out = {name: passages[name] for name in ("skipped", "not_read") if name in passages}
        vectors = open_artifact(index / "vectors").summary if is_artifact(index / "vectors") else {}
        encoded: dict[str, Any] = {
            name: vectors[name] for name in ("encoded_now", "reused") if name in vectors and index != earlier
        }
        return {
            "changed": True,
            "documents": changes
            or {"new": passages["documents"], "changed": 0, "unchanged": 0, "removed": 0},
            "passages": passages["passages"],
            "system": about["system"],
            **encoded,
            **left_out,
        }

    @contextlib.contextmanager
    def _unless_failing(self) -> Iterator[None]:
        try:
            with log.warnings_only() if self.about is not None else contextlib.nullcontext():
                yield
        except (QontextError, OSError) as error:
            if self.about is None:
                raise
            raise update.still_answers(error, self.root) from None


def _is_listed(documents: str) -> bool:
    return documents.startswith(f"{SCHEME}:")


def _content(listing: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The properties of the sources on which the documents depend."""
    return {name: [entry.get(key) for key in ("path", "ids", "read_as")] for name, entry in listing.items()}


def _request(documents: str, language: str, encoder: str | None) -> Request:
    """The request for documents that nobody surveyed."""
    return Request(
        documents=documents, labels=None, splits=(), labeled=0, encoder=encoder or "", generate={}, pretrain={},
        max_tokens=144, read_tokens=READ_TOKENS, budget=0, device="auto", keep=False, language=language,
        tokenizer="words",
    )  # fmt: skip


def _edit(listing: Listing, edits: Edits, root: Path, read_as: tuple[str, ...]) -> None:
    """Add, replace, describe and remove sources, whose files are read as `read_as`."""
    for name in edits.remove:
        _require(name, listing)
        del listing[name]
    was_empty = not listing
    added: Listing = {}
    for text in edits.source:
        others = {n for n, entry in listing.items() if n in added or not is_at(place_of(entry, root), text)}
        name, path = parse(text, others)
        if name in added:
            raise QontextError(f"two sources have the name {name!r}", remedy="Choose another name.")
        trust.give(path)
        # Refuses what cannot be read before anything is written.
        open_source(path, fields=FieldNames(), read_as=read_as if scheme_of(path) is None else ())
        again: dict[str, Any] = {**listing.get(name, {})}
        alone = was_empty and len(edits.source) == 1
        ids = again.get("ids", "") if again or alone else free_prefix(name, listing, root)
        listing[name] = added[name] = listed(path, root, about=again.get("about", ""), ids=ids)
    for text in edits.about:
        name, sign, sentence = text.partition("=")
        if not sign:
            raise QontextError(f"--about {text!r} names no source", remedy="Write --about NAME=SENTENCE.")
        _require(name, listing)
        listing[name]["about"] = sentence.strip()
    if not listing:
        raise QontextError(
            "the last source cannot be removed", place=root, remedy="Add another one with --source."
        )
    set_read_as(listing, read_as)
    for entry in listing.values():
        _refuse_within(root, place_of(entry, root))


def _require(name: str, listing: Mapping[str, object]) -> None:
    if name not in listing:
        raise QontextError(f"there is no source {name!r}", remedy=did_you_mean(name, listing))


def _refuse_within(root: Path, source: str) -> None:
    """Refuse a directory inside of a folder of which everything is read."""
    folder, place = Path(source).expanduser(), root.resolve()
    if not folder.is_dir() or folder.resolve() not in (place, *place.parents):
        return
    if not any(part.startswith(".") for part in place.relative_to(folder.resolve()).parts):
        raise QontextError(f"is inside the source {source}", place=root, remedy="Choose another directory.")


def with_named_sources(config: AdaptConfig, root: Path, under: Path, before: Planned | None) -> AdaptConfig:
    """The sources that the settings name, with those that a finished directory has, as one, which is written `under` a
    folder."""
    if not config.source:
        return config
    known = sources_of(root)
    if not known and before is not None:
        raise QontextError(
            "was made from documents without a name",
            place=root,
            remedy=f"Add sources with 'qontext refresh {root} --source NAME=PATH'.",
        )
    recorded = before.request.read_as if before is not None and is_adapted(root) else ()
    # Those of a plan that was not carried out were never searched: another plan is of the sources that are named now.
    listing = known if is_adapted(root) else {}
    _edit(listing, Edits(config.source, config.about), root, config.read_as or recorded)
    for name, entry in known.items():
        if name in listing and "about" in entry:
            listing[name].setdefault("about", entry["about"])
    Workdir(under).write_json(FILE, listing)
    documents = f"{SCHEME}:{(under / FILE).absolute()}"
    trust.give(documents)
    return config.model_copy(update={"documents": documents, "source": (), "about": ()})


def with_all_sources(config: AdaptConfig) -> AdaptConfig:
    """Documents that are one of several sources of the directory stand for all of them."""
    root = Path(config.out)
    if not any(is_at(place_of(entry, root), config.documents) for entry in sources_of(root).values()):
        return config
    return config.model_copy(update={"documents": f"{SCHEME}:{(root / FILE).absolute()}"})
