"""The annotation of "Query-as-context Pre-training", appendix A: do contexts match their passages?

Three annotators judged 200 random pairs of passages of one document, and 200 pairs of a passage and a query generated from
it: 35.5 % and 56.5 % (table 5; the text says 56.6) were strongly related by the majority. Here, each drawn document has one
pair, of either kind, and everyone judges all of them in an order of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from qontext.data import records
from qontext.data.collection import Passage, read_passages
from qontext.frame import config, log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, Seed
from qontext.frame.errors import QontextError
from qontext.serve.judge import VERDICTS, Grade, JudgedPair, Pairs, Votes
from qontext.training.randomness import hashed

PAPER = {"passage_passage": 0.355, "passage_query": 0.565}
"""Kind of pairs → the share of strongly related ones in table 5."""


class ContextsOptions(config.Options):
    queries: Annotated[str, Input()]
    """Queries of the passages, from generate or filter."""

    documents: int = Field(200, ge=1, le=10_000)
    """Number of documents to draw for each kind of pairs."""

    seed: Seed = 42
    """Random seed for documents, passages and queries."""


class Contexts(Pairs):
    Options = ContextsOptions

    @classmethod
    def draw(cls, source: str, options: Any, earlier: Sequence[JudgedPair]) -> list[JudgedPair]:
        queries: dict[str, list[str]] = defaultdict(list)
        for batch in records.read_table(options.queries, records.QUERIES, columns=["passage", "query"]):
            for id, query in zip(batch["passage"].to_pylist(), batch["query"].to_pylist()):
                queries[id].append(query)
        documents: dict[str, list[Passage]] = defaultdict(list)
        for passage in read_passages(source):
            documents[passage.doc].append(passage)
        usable = [own for own in documents.values() if len(own) > 1 and any(p.id in queries for p in own)]
        if len(usable) < 2:
            raise QontextError("fewer than two documents have two passages and a query", place=source)
        chance = hashed(options.seed, "annotators", np.arange(len(usable))[:, None], np.arange(3)[None, :])
        pairs = []
        for n, place in enumerate(np.argsort(chance[:, 0], kind="stable")[: 2 * options.documents].tolist()):
            passage = _drawn([p for p in usable[place] if p.id in queries], chance[place, 1])
            if n % 2:
                query = _drawn(queries[passage.id], chance[place, 2])
                pairs.append(JudgedPair("passage_query", query, passage.content, ("", passage.id)))
            else:
                other = _drawn([p for p in usable[place] if p.id != passage.id], chance[place, 2])
                pairs.append(
                    JudgedPair("passage_passage", other.content, passage.content, (other.id, passage.id))
                )
        return pairs

    @classmethod
    def order(cls, pairs: Sequence[JudgedPair], person: str) -> list[JudgedPair]:
        chance = hashed(0, f"order {person}", np.arange(len(pairs)))
        return [pairs[n] for n in np.argsort(chance, kind="stable")]

    @classmethod
    def results(cls, pairs: Sequence[JudgedPair], votes: Votes, work: Workdir) -> dict[str, Any]:
        of_pair = {pair.key: [own[pair.key] for own in votes.values() if pair.key in own] for pair in pairs}
        summary: dict[str, Any] = {"annotators": {person: len(own) for person, own in votes.items()}}
        for kind, published in PAPER.items():
            judged = [of_pair[pair.key] for pair in pairs if pair.kind == kind]
            decided = [verdict for verdict in map(majority, judged) if verdict]
            high = sum(verdict == "high" for verdict in decided)
            summary[kind] = {
                "pairs": len(judged),
                "decided": len(decided),
                "rate": high / len(decided) if decided else None,
                "interval": wilson(high, len(decided)),
                "kappa": fleiss_kappa(judged, len(votes)),
                "published": published,
            }
        work.write_json("results.json", summary)
        log.show_rows("Strongly related", [{"kind": kind, **summary[kind]} for kind in PAPER])
        return summary


def _drawn(items: Sequence[Any], chance: Any) -> Any:
    return items[int(chance % np.uint64(len(items)))]


def majority(verdicts: Sequence[Grade]) -> Grade | None:
    """The verdict of more than half of those who judged a pair, if any."""
    return next((v for v in VERDICTS if 2 * sum(x == v for x in verdicts) > len(verdicts)), None)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share, by Wilson's score.

    (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n)
    """
    if not trials:
        return 0.0, 1.0
    z = 1.959964
    p, z2 = successes / trials, z**2 / trials
    middle, spread = p + z2 / 2, z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials))
    return (middle - spread) / (1 + z2), (middle + spread) / (1 + z2)


def fleiss_kappa(verdicts: Sequence[Sequence[Grade]], annotators: int) -> float | None:
    """Agreement beyond chance on the pairs that everyone has judged; None if it is not defined.

    κ = (P - Pₑ) / (1 - Pₑ), P the mean over pairs of Σⱼ nⱼ(nⱼ - 1) / n(n - 1), Pₑ = Σⱼ pⱼ² (Fleiss, 1971)
    """
    n = annotators
    counts = [[list(own).count(v) for v in VERDICTS] for own in verdicts if len(own) == n]
    if not counts or n < 2:
        return None
    agreement = sum(sum(x * (x - 1) for x in row) / (n * (n - 1)) for row in counts) / len(counts)
    chance = sum((sum(row[j] for row in counts) / (n * len(counts))) ** 2 for j in range(len(VERDICTS)))
    return None if chance == 1 else (agreement - chance) / (1 - chance)
