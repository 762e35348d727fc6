"""The sources of a directory, as `sources.json` lists them: named, added, replaced, described and removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qontext.adapt.config import AdaptConfig
from qontext.adapt.state import Planned
from qontext.corpus.sources import FieldNames, open_source, scheme_of
from qontext.corpus.sources.several import (
    FILE,
    SCHEME,
    Listing,
    free_prefix,
    is_at,
    listed,
    parse,
    place_of,
    read_listing,
    set_read_as,
)
from qontext.frame import artifacts, trust
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError, did_you_mean
from qontext.frame.inputs import places
from qontext.retrieve.directory import ADAPTED, PLAN, index_of, is_adapted


class Edits(NamedTuple):
    """Changes of the sources, and which of them are looked at; see the settings of `qontext refresh`."""

    source: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def sources_of(root: Path) -> Listing:
    """The sources of the directory; none if the index that it answers with is of other documents."""
    if not (root / FILE).is_file():
        return {}
    listing = read_listing(root / FILE)
    if is_adapted(root) and artifacts.is_artifact(passages := index_of(root) / "passages"):
        indexed = artifacts.open_artifact(passages).inputs.get("source")
        if indexed is not None and not indexed["path"].startswith(f"{SCHEME}:"):
            # A killed edit listed them with others; else the list is of documents before them.
            own = [place_of(entry, root) for entry in listing.values()]
            there = [str(place) for place in places(indexed, passages)]
            return listing if any(is_at(path, place) for path in own for place in there) else {}
    return listing


def edit(listing: Listing, edits: Edits, root: Path, read_as: tuple[str, ...]) -> None:
    """Add, replace, describe and remove sources, whose files are read as `read_as`."""
    for name in edits.remove:
        require(name, listing)
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
        require(name, listing)
        listing[name]["about"] = sentence.strip()
    if not listing:
        raise QontextError(
            "the last source cannot be removed", place=root, remedy="Add another one with --source."
        )
    set_read_as(listing, read_as)
    for entry in listing.values():
        _refuse_within(root, place_of(entry, root))


def require(name: str, listing: Mapping[str, object]) -> None:
    """Refuse a name that no source has."""
    if name not in listing:
        raise QontextError(f"there is no source {name!r}", remedy=did_you_mean(name, listing))


def _refuse_within(root: Path, source: str) -> None:
    """Refuse a directory inside of a folder of which everything is read."""
    folder, place = Path(source).expanduser(), root.resolve()
    if not folder.is_dir() or folder.resolve() not in (place, *place.parents):
        return
    if not any(part.startswith(".") for part in place.relative_to(folder.resolve()).parts):
        raise QontextError(f"is inside the source {source}", place=root, remedy="Choose another directory.")


def content(listing: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The properties of the sources on which the documents depend."""
    return {name: [entry.get(key) for key in ("path", "ids", "read_as")] for name, entry in listing.items()}


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
    edit(listing, Edits(config.source, config.about), root, config.read_as or recorded)
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


@contextlib.contextmanager
def same_sources_if_failing(root: Path) -> Iterator[None]:
    """If what follows fails, the directory has the sources that it had, unless something was planned or published with
    others."""
    file = root / FILE
    before, was_adapted = file.read_text(encoding="utf-8") if file.is_file() else None, is_adapted(root)
    made = [_bytes(root / name) for name in (ADAPTED, PLAN)]
    try:
        yield
    except (QontextError, OSError):
        is_begun = made != [_bytes(root / name) for name in (ADAPTED, PLAN)]
        if not was_adapted:
            is_begun |= any(child != file and not child.name.startswith(".") for child in root.iterdir())
        if before is None and not is_begun:
            file.unlink(missing_ok=True)
        elif before is not None and not is_begun:
            Workdir(root).write_text(FILE, before)
        raise


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
