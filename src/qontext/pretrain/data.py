"""The data of pre-training: token stores of passages and queries, and the anchors to visit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from qontext.contexts import Context, Ints, Sources, match_queries
from qontext.corpus import tokens
from qontext.corpus.store import TokenStore, check_ids, load_arrays
from qontext.data import records
from qontext.data.passage import TitleRule
from qontext.frame import artifacts, execution
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.errors import QontextError
from qontext.models.encoder import Encoder
from qontext.models.folder import PRESETS, locate
from qontext.models.tokenizer import frame_of, settle_title
from qontext.training.distributed import RankGroup

if TYPE_CHECKING:
    from qontext.pretrain.config import PretrainConfig

CACHE = "cache"
WEIGHT = "score"


def open_sources(
    config: PretrainConfig, encoder: Encoder, title: TitleRule, group: RankGroup, work: Workdir
) -> Sources:
    """Token stores of the passages and, if the context reads them, the queries, built in the work directory's cache if
    needed."""
    tokenizer = work.path / CACHE / "tokenizer"
    if group.is_first and not (tokenizer / "tokenizer.json").exists():
        with work.write_folder(f"{CACHE}/tokenizer") as folder:
            encoder.tokenizer.save_pretrained(str(folder))
    group.wait()

    def store(source: str, kind: str) -> TokenStore:
        if (artifact := stored_tokens(source)) is None:
            settings = tokens.TokensConfig(
                texts=source, tokenizer=str(tokenizer), title=title, workers=config.workers
            )
            artifact = execution.execute(tokens.STAGE, settings, work.path / CACHE / kind)
        elif encoder.lowers:
            raise QontextError(
                "these tokens may have capital letters, and the encoder's folder says that it has none",
                place=source,
                remedy="Pass the texts instead: they are tokenized in lower case.",
            )
        if artifact.summary["kind"] != kind:
            raise QontextError(f"contains {artifact.summary['kind']}, expected {kind}", place=source)
        if artifact.summary["vocabulary_hash"] != tokens.vocabulary_hash(encoder.tokenizer.backend_tokenizer):
            raise QontextError(
                "these tokens were created with a different tokenizer than the encoder's",
                place=source,
                remedy="Pass the passages instead: they are tokenized with the encoder's tokenizer.",
            )
        arrays = load_arrays(artifact.path)
        check_ids(arrays, encoder.vocab_size, artifact.path)
        return arrays

    passages = store(config.passages, "passages")
    limit = config.max_tokens - len(frame_of(encoder.tokenizer))
    if not config.queries or not config.reads_queries:
        return Sources(passages, limit)
    queries = store(config.queries, "queries")
    weights = _weights(config.queries) if config.sampling == "score" else None
    return Sources(passages, limit, queries, match_queries(passages, queries), weights, config.candidates)


def stored_tokens(source: str) -> Artifact | None:
    """The token store at `source`, if it is one."""
    artifact = artifacts.open_artifact(source) if artifacts.is_artifact(source) else None
    return artifact if artifact and artifact.verb == "tokens" else None


def title_rule(config: PretrainConfig, *, says: bool) -> TitleRule:
    """The rule for titles; of a token store, the one that was followed."""
    recorded = None if config.encoder in PRESETS else locate(config.encoder).title
    chosen, tokens = config.title, stored_tokens(config.passages)
    if tokens is not None:
        chosen = tokens.config["title"]
        if config.title not in (None, chosen):
            raise QontextError(
                f"these tokens were made with --title {chosen}, not {config.title}", place=config.passages
            )
    return settle_title(chosen, recorded, config.encoder, says=says)


def choose_anchors(
    sources: Sources, context: Context | None, *, unit: str, batch_size: int
) -> tuple[Ints, Ints | None, dict[str, int]]:
    """The passages to train on, the start of each document's if `unit` is "documents", and the numbers of
    passages that are skipped or have no neighbor."""
    store = sources.passages
    usable = store.lengths > 0
    counts = {"passages": int(usable.sum())}
    if context is not None and context.only_queries:
        usable &= sources.query_counts > 0
        if without := counts["passages"] - int(usable.sum()):
            counts["passages_without_queries"] = without
    elif context is not None and (alone := int((np.diff(store.groups) == 1).sum())):
        counts["documents_of_one_passage"] = alone
    anchors, documents, size = np.flatnonzero(usable), None, int(usable.sum())
    if unit == "documents":
        documents = np.unique(np.append(np.searchsorted(anchors, store.groups), size))
        counts["documents"] = size = len(documents) - 1
    if size < batch_size:
        raise QontextError(
            f"a batch of {batch_size:,} is larger than the corpus, which has {size:,} usable {unit}",
            remedy=f"Set --batch-size to at most {size:,}." if size > 1 else "Add documents.",
        )
    return anchors, documents, counts


def _weights(queries: str) -> Any:
    """[queries] the column `score` from a filter."""
    parts = records.parquet_parts(queries)
    schema = records.open_parquet(parts[0]).schema_arrow
    if WEIGHT not in schema.names:
        raise QontextError(
            f"the queries have no column {WEIGHT!r} to sample by",
            place=queries,
            remedy="Score them with 'qontext filter', or use --sampling uniform.",
        )
    column = pa.schema([pa.field(WEIGHT, schema.field(WEIGHT).type)])
    weights = np.concatenate([records.read_part(part, column)[WEIGHT].to_numpy() for part in parts])
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise QontextError(f"the column {WEIGHT!r} must hold one finite number ≥ 0 per query", place=queries)
    return np.maximum(weights.astype(np.float64), 1e-9)
