"""The data of pre-training: token stores of passages and queries, and the anchors to visit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from qontext.contexts import Context, Ints, Sources, match_queries
from qontext.corpus import tokens
from qontext.corpus.store import TokenStore, check_ids, load_arrays
from qontext.data import records
from qontext.data.passage import TitleRule
from qontext.frame import artifacts, execution, log
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder
from qontext.models.folder import PRESETS, locate
from qontext.models.tokenizer import frame_of, settle_title
from qontext.training.distributed import RankGroup

CACHE = "cache"
WEIGHT = "score"


def open_sources(
    passages_path: str,
    queries_path: str | None,
    encoder: Encoder,
    group: RankGroup,
    work: Workdir,
    *,
    title: TitleRule,
    max_tokens: int,
    candidates: int | None = None,
    is_weighted: bool = False,
    workers: int = 0,
) -> Sources:
    """Token stores of the passages and, if any, the queries, built in the work directory's cache if needed.

    `max_tokens` includes the special tokens; `is_weighted` reads the queries' weights from a filter.
    """
    tokenizer = work.path / CACHE / "tokenizer"
    if group.is_first and not (tokenizer / "tokenizer.json").exists():
        with work.write_folder(f"{CACHE}/tokenizer") as folder:
            encoder.tokenizer.save_pretrained(str(folder))
    group.wait()

    def store(source: str, name: str) -> TokenStore:
        if (stored := stored_tokens(source)) is not None:
            if encoder.lowers:
                raise QontextError(
                    "these tokens may have capital letters, and the encoder's folder says that it has none",
                    place=source,
                    remedy="Pass the texts instead: they are tokenized in lower case.",
                )
            artifact = stored
        else:
            settings = tokens.TokensConfig(
                texts=source, tokenizer=str(tokenizer), title=title, workers=workers
            )
            artifact = execution.execute(tokens.STAGE, settings, work.path / CACHE / name)
        if artifact.summary["kind"] != name:
            raise QontextError(f"contains {artifact.summary['kind']}, expected {name}", place=source)
        _check_vocabulary(artifact.summary, encoder, source)
        artifact.parts()
        arrays = load_arrays(artifact.path)
        check_ids(arrays, encoder.vocab_size, artifact.path)
        return arrays

    passages = store(passages_path, "passages")
    limit = max_tokens - len(frame_of(encoder.tokenizer))
    if not len(passages.ids):
        raise QontextError("the passages contain no text to train on", place=passages_path)
    if queries_path is None:
        return Sources(passages, limit)
    queries = store(queries_path, "queries")
    weights = _weights(queries_path, len(queries)) if is_weighted else None
    group_of = match_queries(passages, queries)
    unused = len(queries.groups) - 1 - int((group_of >= 0).sum())
    if unused and group.is_first:
        log.warn(f"{unused:,} passages with queries are not in these passages and are ignored.")
    return Sources(passages, limit, queries, group_of, weights, candidates)


def check_max_tokens(max_tokens: int, encoder: Encoder, place: str | None = None) -> None:
    """Refuse texts that are longer than the encoder reads, with their prompts."""
    if max_tokens + encoder.longest_prompt > encoder.max_length:
        raise QontextError(
            f"max_tokens = {max_tokens}, but the encoder's limit is {encoder.max_length} tokens", place=place
        )


def stored_tokens(source: str) -> Artifact | None:
    """The token store at `source`, if it is one."""
    artifact = artifacts.open_artifact(source) if artifacts.is_artifact(source) else None
    return artifact if artifact and artifact.verb == "tokens" else None


def title_rule(chosen: TitleRule | None, passages: str, encoder: str, *, says: bool) -> TitleRule:
    """The rule for titles; of a token store, the one that was followed."""
    recorded = None if encoder in PRESETS else locate(encoder).title
    if (tokens := stored_tokens(passages)) is None:
        return settle_title(chosen, recorded, encoder, says=says)
    stored: TitleRule = tokens.config["title"]
    if chosen not in (None, stored):
        raise QontextError(
            f"these tokens were made with --title {stored}, not {chosen}",
            place=passages,
            remedy=f"Remove --title, or make them again with --title {chosen}.",
        )
    return settle_title(stored, recorded, encoder, says=says)


def choose_anchors(
    sources: Sources, context: Context | None, *, unit: str, run: int, batch_size: int
) -> tuple[Ints, Ints | None, dict[str, int]]:
    """The passages to train on, the start of each document's if `unit` is "documents", and the numbers of
    passages that are skipped or have no neighbor. An epoch visits runs of `run` passages or documents."""
    store = sources.passages
    usable = store.lengths > 0
    counts = {"passages": int(usable.sum())}
    if context is not None and context.only_queries:
        usable &= sources.query_counts > 0
        if without := counts["passages"] - int(usable.sum()):
            counts["passages_without_queries"] = without
    elif context is not None:
        alone = int((np.diff(store.groups) == 1).sum())
        if alone:
            counts["documents_of_one_passage"] = alone
    anchors, documents, size = np.flatnonzero(usable), None, int(usable.sum())
    if unit == "documents":
        documents = np.unique(np.append(np.searchsorted(anchors, store.groups), size))
        counts["documents"] = size = len(documents) - 1
    size -= size % run
    if size < batch_size:
        raise QontextError(
            f"a batch of {batch_size:,} is larger than the corpus, which has {size:,} usable {unit}",
            remedy=f"Set --batch-size to at most {size:,}." if size > 1 else "Add documents.",
        )
    return anchors, documents, counts


def _check_vocabulary(summary: dict[str, Any], encoder: Encoder, source: str) -> None:
    if summary["vocabulary_hash"] != tokens.vocabulary_hash(encoder.tokenizer.backend_tokenizer):
        raise QontextError(
            "these tokens were created with a different tokenizer than the encoder's",
            place=source,
            remedy="Pass the passages instead: they are tokenized with the encoder's tokenizer.",
        )


def _weights(queries: str, count: int) -> Any:
    """[queries] the column `score` from a filter."""
    parts = records.parquet_parts(queries)
    schema = records.open_parquet(parts[0]).schema_arrow
    if WEIGHT in schema.names and not pa.types.is_floating(schema.field(WEIGHT).type):
        raise QontextError(f"the column {WEIGHT!r} must hold one finite number ≥ 0 per query", place=queries)
    if WEIGHT not in schema.names:
        raise QontextError(
            f"the queries have no column {WEIGHT!r} to sample by",
            place=queries,
            remedy="Score them with 'qontext filter', or use --sampling uniform.",
        )
    column = pa.schema([pa.field(WEIGHT, schema.field(WEIGHT).type)])
    weights = np.concatenate([records.read_part(part, column)[WEIGHT].to_numpy() for part in parts])
    if len(weights) != count or not np.isfinite(weights).all() or (weights < 0).any():
        raise QontextError(f"the column {WEIGHT!r} must hold one finite number ≥ 0 per query", place=queries)
    return np.maximum(weights.astype(np.float64), 1e-9)


def remove_cache(work: Workdir) -> None:
    if (work.path / CACHE).exists():
        work.remove(CACHE)
