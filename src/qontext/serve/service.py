"""The services of a server, independent of protocol: search, embeddings, reranking and reading, through one batcher."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from qontext.data.collection import Qrels
from qontext.data.places import Found
from qontext.data.records import Hit
from qontext.frame import log
from qontext.frame.errors import QontextError, did_you_mean
from qontext.models.folder import TextKind
from qontext.retrieve.ask.evidence import Evidence
from qontext.retrieve.ask.questions import GroupBy
from qontext.retrieve.query_encoder import QueryEncoder
from qontext.retrieve.searcher import Where
from qontext.serve.batching import Batcher
from qontext.serve.errors import Unknown, answering
from qontext.serve.metrics import ServerMetrics
from qontext.serve.systems import Opener, ServedSystem

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MarkedQueries:
    """Queries with judgments, so that relevant passages can be marked."""

    queries: dict[str, str] = field(default_factory=dict)
    qrels: Qrels = field(default_factory=dict)

    def relevant(self, query: str) -> set[str]:
        """The ids of the passages that are judged relevant to the query."""
        return {passage for passage, grade in self.qrels.get(query, {}).items() if grade > 0}


class TimedHits(NamedTuple):
    """The hits of each query, and the duration of the search."""

    hits: list[list[Hit]]
    seconds: float


class Service:
    """The open systems and models. All computation goes through the batcher."""

    def __init__(
        self,
        systems: Sequence[ServedSystem],
        rerankers: Mapping[str, Any] | None = None,
        *,
        labels: MarkedQueries | None = None,
        about: str = "",
        capacity: int = 64,
        seconds: float = 30,
        log_queries: bool = False,
    ) -> None:
        self.rerankers = dict(rerankers or {})
        self.replace(systems)
        if clash := self.rerankers.keys() & self.encoders.keys():
            raise QontextError(
                f"a reranker and a directory have the name {min(clash)!r}", remedy="Rename one."
            )
        self.labels, self.about, self.log_queries = labels or MarkedQueries(), about, log_queries
        self.metrics, self.started = ServerMetrics(), int(time.time())
        self.batcher = Batcher(capacity, seconds, self.metrics.batch)
        self.opener: Opener = Opener()
        """The opener of the systems, which opens them again when they changed."""

    def replace(self, systems: Sequence[ServedSystem]) -> None:
        """Answer with these systems from now on. A request that has begun keeps those that it began with."""
        self.encoders = {s.name: s.encoder for s in systems if s.encoder is not None and "/" not in s.name}
        self.systems = {system.name: system for system in [*systems, *_reranked(systems, self.rerankers)]}

    @property
    def default(self) -> ServedSystem:
        """The first system."""
        return next(iter(self.systems.values()))

    def system(self, name: str | None) -> ServedSystem:
        return self.default if name is None else _get(self.systems, name, "system")

    def warm_up(self) -> None:
        """Use every system and model once, so that the first request is fast."""
        for system in self.systems.values():
            system.search(system.passages.sample(1)[0].content[:200] or "a")
        for encoder in self.encoders.values():
            encoder.embed(["a"], "passage")
        for reranker in self.rerankers.values():
            reranker.score([("a", "a")])

    async def search(
        self,
        system: ServedSystem,
        texts: list[str],
        k: int,
        where: Where = (),
        kind: TextKind = "query",
        *,
        group: GroupBy = "passage",
        min_score: float | None = None,
    ) -> TimedHits:
        """The best k passages for each text, or of k documents; see `Searcher.search`."""
        started = time.perf_counter()
        if self.log_queries:
            for text in texts:  # quoted, so that each is one line of the log, whatever is in it
                log.note(f"{system.name}: {text!r}")

        def search(items: list[str]) -> list[list[Hit]]:
            queries = {str(number): text for number, text in enumerate(items)}
            with answering():
                run = system.run(queries, k, where, group=group, kind=kind)
            return [run.get(query, []) for query in queries]

        # Not its name, which another one has after a refresh.
        hits = await self.batcher.run(("search", id(system), k, where, kind, group), search, texts)
        if min_score is not None:
            hits = [[hit for hit in ranking if round(hit.score, 6) >= min_score] for ranking in hits]
        return TimedHits(hits, time.perf_counter() - started)

    async def explain(
        self, system: ServedSystem, text: str, hits: list[Hit], where: Where = ()
    ) -> list[Evidence]:
        """The evidence for the hits of a text, in a search of the passages that meet the conditions."""

        def explain(pairs: list[tuple[str, Hit]]) -> list[Evidence]:
            found = []
            with answering():
                for question, own in groupby(pairs, key=lambda pair: pair[0]):
                    found += system.evidence(question, [hit for _, hit in own], where)
            return found

        return await self.batcher.run(("explain", id(system), where), explain, [(text, hit) for hit in hits])

    async def embed(self, encoder: QueryEncoder, texts: list[str], kind: TextKind) -> tuple[Array, int]:
        """([N, D] vectors, tokens read)."""

        def encode(items: list[str]) -> list[tuple[Array, int]]:
            vectors, lengths = encoder.embed(items, kind)
            return list(zip(vectors, lengths))

        rows = await self.batcher.run(("embed", id(encoder), kind), encode, texts)
        return np.stack([vector for vector, _ in rows]), sum(length for _, length in rows)

    async def rerank(self, model: str | None, query: str, texts: list[str]) -> tuple[str, list[float]]:
        """(the model's name, a score per text): of a cross-encoder between 0 and 1, else the similarity of vectors."""
        if model is None:
            model = next(iter([*self.rerankers, *self.encoders]), None)
        if model in self.rerankers:
            reranker = self.rerankers[model]
            pairs = [(query, text) for text in texts]
            scores = await self.batcher.run(
                ("rerank", model), lambda items: _chances(reranker.score(items)), pairs
            )
            return model, scores
        if model is None:
            raise Unknown("no model of this server can rerank", remedy="Give --reranker.")
        encoder = _get(self.encoders, model, "model")
        query_D = (await self.embed(encoder, [query], "query"))[0][0]
        texts_ND = (await self.embed(encoder, texts, "passage"))[0]
        return model, (texts_ND @ query_D).tolist()

    def document(self, id: str, system: str | None = None) -> list[Found]:
        """The passages of a document, in order."""
        systems = [self.system(system)] if system else list(self.systems.values())
        for one in systems:
            if passages := one.passages.document(id):
                return passages
        near = [name for one in systems for name in one.passages.similar_documents(id)]
        raise Unknown(f"there is no document {id!r}", remedy=did_you_mean(id, dict.fromkeys(near)))

    def close(self) -> None:
        self.batcher.close()


def _chances(logits: Array) -> list[float]:
    """The logistic function of a cross-encoder's logits."""
    chances: list[float] = (0.5 + 0.5 * np.tanh(logits / 2)).tolist()
    return chances


def _reranked(systems: Sequence[ServedSystem], rerankers: Mapping[str, Any]) -> Iterable[ServedSystem]:
    """Each directory's first system, reranked by each reranker."""
    for system in systems:
        if "/" not in system.name:
            for own in rerankers.items():
                name = "reranked" if len(rerankers) == 1 else f"reranked-{own[0]}"
                yield system.reranked(f"{system.name}/{name}", own)


def _get(table: dict[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise Unknown(f"unknown {what} {name!r}", remedy=f"Choose from: {', '.join(table) or 'none'}.")
    return table[name]
