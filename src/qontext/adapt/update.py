"""A finished directory whose documents changed: its index is updated with the encoder that it has."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from qontext.adapt import publish, vector_index
from qontext.adapt.config import AdaptConfig, Request
from qontext.adapt.show import show_updated
from qontext.adapt.state import STEPS, Planned
from qontext.adapt.verdict import Verdict
from qontext.corpus.sources import FieldNames, open_source
from qontext.data.collection import read_passages
from qontext.frame import artifacts, files, log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import (
    index_of,
    is_adapted,
    read_adapted,
    reranker_of,
    verify_model,
    write_adapted,
)
from qontext.retrieve.system import System

RETRAIN_ABOVE, MENTION_ABOVE = 0.5, 0.1
"""Shares of new passages above which adapt trains again, or suggests --retrain."""


def next_action(root: Path, before: Planned, documents: str, *, is_complete: bool) -> str:
    """The action of the same request on the directory: "resume" its plan, "update" its index, or make a new "plan". It is
    `is_complete` if all inputs of the plan are still there."""
    is_finished = is_adapted(root) and not before.is_pending
    is_cleaned = is_finished and not (root / STEPS).exists()
    has_steps = not is_cleaned and (is_complete or not is_finished)
    is_updated = is_finished and _is_updated(root, documents)
    if before.documents == documents and has_steps and not is_updated:
        return "resume"
    return "update" if is_finished else "plan"


def _is_updated(root: Path, documents: str) -> bool:
    """True if the index is of other documents than the model: these were indexed since it was trained."""
    split = root / STEPS / "split"
    return (
        artifacts.is_artifact(split)
        and artifacts.open_artifact(split).inputs["source"]["digest"] != documents
    )


def _refuse_judging(config: AdaptConfig, root: Path) -> None:
    if config.judge is not None:
        raise QontextError(
            "judgments are of what was measured with the model, and the documents changed since then",
            place=root,
            remedy="Remove --judge, or measure again with --retrain.",
        )


def run(
    config: AdaptConfig,
    root: Path,
    claim: dict[str, Any],
    before: Planned,
    started: float,
    absent: list[str],
) -> dict[str, Any] | None:
    """Index the documents with the existing model; None if so many passages are new that it has to be trained again."""
    _refuse_judging(config, root)
    about, work = read_adapted(root), Workdir(root)
    earlier, request = index_of(root), replace(before.request, documents=config.documents)
    try:
        opened = open_source(config.documents, fields=FieldNames(), read_as=request.read_as)
        if request.keep and not opened.has_ids:
            raise QontextError(
                f"was made from passages, which are kept as they are, and {config.documents} has documents",
                place=root,
                remedy="Choose another --out.",
            )
        verify_model(root)
        card = publish.model_card(request, Verdict(**about["verdict"]), root)
        model, reference = publish.republish_model(config.start, about, work, card, copied=config.copy_model)
        tokens = System.parse(about["system"]).tokens
        index, _ = publish.make_index(
            request, model, root, {}, vector_index.Choice.of(config), config.on, tokens=tokens
        )
        for name in ("reference", "model_digest", "model_folder"):
            about.pop(name, None)
        about |= publish.recorded(model, reference)
        about |= publish.republish_reranker(config.reranker, about, work, copied=config.copy_model)
        pairs = (reranker_of(root, about), about["reranker"]["depth"]) if "reranker" in about else None
        asked = Verdict(**about["verdict"]).asked_split
        about["searching"] = measured(root, index, model, request, asked, pairs, is_new=True)
        changes = changed_documents(earlier / "passages", index / "passages")
    except (QontextError, OSError) as error:
        raise still_answers(error, root) from None
    write_adapted(root, {**about, "index": index.name})
    share = publish.new_share(root, index / "passages")
    sentences = about["searching"].get("sentences", ())
    for sentence in (*sentences, *about_share(share, absent, trained=before.plan.trains)):
        log.note(sentence)
    if trains_again(share, absent):
        return None
    replace(before, claim=claim).write(work)
    vectors = artifacts.open_artifact(index / "vectors").summary
    split = artifacts.open_artifact(index / "passages").summary
    row: dict[str, Any] = {
        "documents": changes,
        "passages": vectors["texts"],
        "encoded_now": vectors["encoded_now"] if index != earlier else 0,
        "reused": vectors["reused"] if index != earlier else vectors["texts"],
        **{name: split[name] for name in ("skipped", "not_read") if name in split},
        "seconds_now": round(time.monotonic() - started, 1),
    }
    show_updated(root, row)
    new_share = None if share is None else round(share, 4)
    return {"out": str(root), "updated": True, "new_share": new_share, **about, "model": model, **row}


def still_answers(error: QontextError | OSError, root: Path) -> QontextError:
    """The reason of a failed update, and that it changed nothing."""
    try:
        files.raise_disk_error(error, root, anyway=True)
    except QontextError as reason:
        unchanged = f"The index of {root} is unchanged and answers as before."
        return QontextError(
            reason.message, place=reason.place, remedy=" ".join(filter(None, (reason.remedy, unchanged)))
        )


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


def trains_again(share: float | None, absent: list[str]) -> bool:
    return not absent and share is not None and share > RETRAIN_ABOVE


def about_share(share: float | None, absent: list[str], *, trained: bool) -> list[str]:
    """Sentences about the share of new passages; if nothing was trained, only that there is a new plan."""
    if share is None:
        return []
    if not trained:
        again = ["More than half of the passages are new: making a new plan."]
        return again if trains_again(share, absent) else []
    sentences = [f"{share:.0%} of the passages are new since the model was trained."]
    if share > RETRAIN_ABOVE:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in absent)
        without = f"To train again, pass {flags}: what the plan was made with is no longer there."
        sentences.append(without if absent else "This is more than half: training again.")
    elif share > MENTION_ABOVE:
        sentences.append("Use --retrain to train on them, too.")
    return sentences


def measured(
    root: Path,
    index: Path,
    model: str,
    request: Request,
    split: str,
    reranker: tuple[str, int] | None,
    *,
    is_new: bool,
) -> dict[str, Any]:
    """Search latency and index recall, measured on the held-out questions if they still exist; those of an unchanged index
    are not measured again. `reranker` is a cross-encoder and the number of passages that it reads."""
    from qontext.data.collection import load_collection

    recorded = dict(read_adapted(root).get("searching", {})) if is_adapted(root) and not is_new else {}
    depth = reranker[1] if reranker else None
    if recorded and recorded.get("reranking", {}).get("depth") == depth:
        return recorded
    held_out = root / STEPS / "holdout" / "measured"
    if not held_out.is_dir():
        return {}
    questions = list(load_collection(held_out).queries(split).values())
    searching = vector_index.measure(index, model, questions, request.read_tokens, request.device)
    if reranker is None:
        return searching
    timed = vector_index.time_reranking(index / "passages", *reranker, questions, request.device)
    return {**searching, "reranking": timed, "sentences": [*searching["sentences"], timed.pop("sentence")]}
