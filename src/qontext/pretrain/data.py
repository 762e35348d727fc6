"""What pre-training reads, made ready: token stores of passages and queries, and the anchors to go through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qontext import artifacts, log, records, stages
from qontext.artifacts import Workdir
from qontext.contexts import Context
from qontext.contexts.base import Ints, Sources, match_queries
from qontext.corpus import tokens
from qontext.corpus.store import TokenStore, load_arrays
from qontext.engine.distributed import Group
from qontext.engine.encoder import Encoder
from qontext.errors import QontextError
from qontext.pretrain.config import PretrainConfig

CACHE = "cache"
WEIGHT = "score"


def open_sources(config: PretrainConfig, encoder: Encoder, group: Group, work: Workdir) -> Sources:
    """Token stores of the passages and the queries; made in the work directory's cache unless given as such."""
    tokenizer = work.path / CACHE / "tokenizer"
    if group.is_first and not (tokenizer / "tokenizer.json").exists():
        with work.write_folder(f"{CACHE}/tokenizer") as folder:
            encoder.tokenizer.save_pretrained(str(folder))
    group.wait()

    def store(source: str, name: str) -> TokenStore:
        if artifacts.is_artifact(source) and artifacts.open_artifact(source).verb == "tokens":
            artifact = artifacts.open_artifact(source)
        else:
            settings = tokens.TokensConfig(texts=source, tokenizer=str(tokenizer), workers=config.workers)
            artifact = stages.execute(tokens.STAGE, settings, work.path / CACHE / name)
        if artifact.summary["kind"] != name:
            raise QontextError(f"holds {artifact.summary['kind']}, expected {name}", place=source)
        _check_vocabulary(artifact.summary, encoder, source)
        return load_arrays(artifact.path)

    passages = store(config.passages, "passages")
    limit = config.max_tokens - 2
    if not len(passages.ids):
        raise QontextError("the passages hold no text to train on", place=config.passages)
    if config.queries is None or ("query" not in config.context_name() and config.context_name() != "mixed"):
        return Sources(passages, limit)
    queries = store(config.queries, "queries")
    weights = _weights(config.queries, len(queries)) if config.sampling == "score" else None
    group_of = match_queries(passages, queries)
    unused = len(queries.groups) - 1 - int((group_of >= 0).sum())
    if unused and group.is_first:
        log.warn(f"{unused:,} of the passages that have queries are not among these passages.")
    return Sources(passages, limit, queries, group_of, weights, config.candidates)


def choose_anchors(
    config: PretrainConfig, sources: Sources, context: Context | None
) -> tuple[Ints, Ints | None, dict[str, int]]:
    """The passages to train on, where each document's begin if an epoch goes through documents, and how many
    passages are left out or have no neighbour."""
    store = sources.passages
    usable = store.lengths > 0
    told = {"passages": int(usable.sum())}
    if context is not None and context.only_queries:
        usable &= sources.query_counts > 0
        if left := told["passages"] - int(usable.sum()):
            told["passages without queries, left out"] = left
    elif context is not None:
        alone = int((np.diff(store.groups) == 1).sum())
        if alone:
            told["documents of one passage, paired with itself"] = alone
    anchors, documents, size = np.flatnonzero(usable), None, int(usable.sum())
    if config.anchors == "documents":
        documents = np.unique(np.append(np.searchsorted(anchors, store.groups), size))
        told["documents"] = size = len(documents) - 1
    size -= size % config.neighbours
    if size < config.batch_size:
        raise QontextError(
            f"a batch of {config.batch_size:,} is larger than the corpus, "
            f"which has {size:,} {config.anchors} to use",
            remedy=f"Set --batch-size to at most {size:,}." if size > 1 else "Give more documents.",
        )
    return anchors, documents, told


def _check_vocabulary(summary: dict[str, Any], encoder: Encoder, source: str) -> None:
    if summary["vocabulary hash"] != tokens.vocabulary_hash(encoder.tokenizer.backend_tokenizer):
        raise QontextError(
            "these tokens were made with another tokenizer than the encoder's",
            place=source,
            remedy="Give the passages themselves: they are tokenised as the encoder wants them.",
        )


def _weights(queries: str, count: int) -> Any:
    """[queries] the column `score` that a filter wrote."""
    parts = records.parquet_parts(queries)
    schema = pq.read_schema(parts[0])
    if WEIGHT in schema.names and not pa.types.is_floating(schema.field(WEIGHT).type):
        raise QontextError(f"the column {WEIGHT!r} must hold one finite number ≥ 0 per query", place=queries)
    if WEIGHT not in schema.names:
        raise QontextError(
            f"the queries have no column {WEIGHT!r} to sample by",
            place=queries,
            remedy="Score them with 'qontext filter', or use --sampling uniform.",
        )
    weights = np.concatenate([pq.read_table(part, columns=[WEIGHT])[WEIGHT].to_numpy() for part in parts])
    if len(weights) != count or not np.isfinite(weights).all() or (weights < 0).any():
        raise QontextError(f"the column {WEIGHT!r} must hold one finite number ≥ 0 per query", place=queries)
    return np.maximum(weights.astype(np.float64), 1e-9)


def remove_cache(work: Workdir) -> None:
    if (work.path / CACHE).exists():
        work.remove(CACHE)
