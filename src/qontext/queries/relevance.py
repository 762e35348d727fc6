"""Estimate how often a context matches its passage: passages of the same document versus generated queries.

The automatic side of the annotation in Appendix A of "Query-as-context Pre-training": annotators judged 35.5
% of 200 random passage pairs and 56.5 % (table 5; the text says 56.6) of 200 passage-query pairs strongly related. Here
automatic signals judge pairs from your own corpus, with the query of another document as the control. Signals are biased
(BM25 favors contexts that repeat rare words), so compare within a column, not across.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext.frame.artifacts import Workdir
from qontext.frame.config import DeviceConfig, Input, Seed
from qontext.frame.stages import Stage
from qontext.queries.filtering.judges import index_passages, open_reranker, open_retriever

if TYPE_CHECKING:
    from qontext.data.passage import Passage
    from qontext.queries.filtering.lookup import Lookup
    from qontext.queries.filtering.searchers import TextIndex
    from qontext.queries.words import Array

KINDS = {
    "passage_passage": "passage-passage",
    "passage_query": "passage-query",
    "passage_other_query": "passage-other query",
}
"""Kinds of pairs and their names in tables and plots."""
DRAWS = 2000

RelevanceTable = dict[str, dict[str, dict[str, float]]]
"""signal → kind of pairs → share, low, high"""


class RelevanceConfig(DeviceConfig):
    queries: Annotated[str, Input(positional=True)]
    """Output of generate or filter."""
    passages: Annotated[str, Input()]
    """The passages from which the queries were generated; documents with a single passage are skipped."""
    documents: Annotated[int, Field(ge=10)] = 1000
    """Maximum number of documents; one passage is drawn from each."""
    retriever: Annotated[str | None, Input()] = None
    """Dense retriever for a round trip, in addition to BM25's."""
    reranker: Annotated[str | None, Input()] = None
    """Cross-encoder (a sequence classifier with one logit) as another signal."""
    top: Annotated[int, Field(ge=1)] = 10
    """Round trip: related if the passage is among this many top results."""
    overlap: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Overlap: related if at least this share of the context's content words is in the passage."""
    rerank: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Reranker: related if the probability is at least this."""
    seed: Seed = 42
    """Random seed for documents, passages, queries and the bootstrap."""


def run(config: RelevanceConfig, work: Workdir) -> dict[str, Any]:
    import numpy as np

    from qontext.queries.filtering.draw import draw_pairs
    from qontext.queries.filtering.lookup import Lookup, joined
    from qontext.queries.filtering.searchers import remove_vectors

    passages = Lookup(config.passages)
    pairs = draw_pairs(config.queries, config.passages, passages, config.documents, config.seed)
    anchors = np.array([pair.passage for pair in pairs])
    own = [pair.query for pair in pairs]
    contexts: dict[str, Sequence[Passage | str]] = {
        "passage_passage": [pair.other_text for pair in pairs],
        "passage_query": own,
        # The next pair's query is of another document, since every document is drawn once.
        "passage_other_query": own[1:] + own[:1],
    }
    hide = {"passage_passage": np.array([pair.other for pair in pairs])}
    searches = [_Search("bm25", None, work, passages)]
    if config.retriever is not None:
        retriever = open_retriever(config.retriever, config.device, work)
        searches.append(_Search("dense", retriever, work, passages))
    reranker = None if config.reranker is None else open_reranker(config.reranker, config.device, work)
    passages_of_pairs = [pair.own_text for pair in pairs]
    related = {
        kind: _signals(config, contexts[kind], passages_of_pairs, anchors, searches, reranker, hide.get(kind))
        for kind in KINDS
    }
    table = {
        signal: {kind: with_interval(related[kind][signal], config.seed) for kind in KINDS}
        for signal in related["passage_passage"]
    }
    remove_vectors(work)
    labels = _labels(config)
    work.write_json("relevance.json", {"pairs": len(pairs), "signals": table, "labels": labels})
    with work.write("relevance.md") as path:
        path.write_text(as_markdown(table, len(pairs), labels), encoding="utf-8")
    with work.write("relevance.png") as path:
        _plot(table, len(pairs), labels, path)
    work.write_json("pairs.json", [
        dict(zip(("passage", *KINDS), joined(row, " ")))
        for row in zip(passages_of_pairs, *(contexts[kind] for kind in KINDS))
    ])  # fmt: skip
    return {"pairs": len(pairs), **{s: {k: _share(v) for k, v in row.items()} for s, row in table.items()}}


class _Search:
    """Search in both directions: among all passages, and among a few contexts."""

    def __init__(self, name: str, retriever: Any, work: Workdir, passages: Lookup) -> None:
        self.name, self.retriever, self.work = name, retriever, work
        self.forward = index_passages(retriever, passages, work)

    def backward(self, contexts: list[str]) -> TextIndex:
        from qontext.queries.filtering.searchers import TextIndex
        from qontext.retrieve.encoded.vectors import ArrayVectors

        if self.retriever is None:
            return TextIndex.lexical(contexts, len(contexts))
        vectors = ArrayVectors([self.retriever.encode(contexts, "query")])
        return TextIndex.dense(self.retriever, vectors, "passage")


def _signals(
    config: RelevanceConfig,
    contexts: Sequence[Passage | str],
    passages: Sequence[Passage],
    anchors: Array,
    searches: list[_Search],
    reranker: Any,
    hide: Array | None,
) -> dict[str, Array]:
    """[N] of true and false for each signal."""
    import numpy as np

    from qontext.queries.filtering import signals
    from qontext.queries.filtering.lookup import joined

    shares = signals.overlap(joined(contexts, " "), joined(passages, " "))
    values = {"overlap": shares >= config.overlap}
    for search in searches:
        texts, own = (joined(some, search.forward.between) for some in (contexts, passages))
        there = signals.rank(texts, anchors, search.forward, config.top, hide=hide) > 0
        backward = search.backward(texts)
        again = signals.rank(own, np.arange(len(texts)), backward, config.top) > 0
        values[f"{search.name}_round_trip"] = there
        values[f"{search.name}_both_ways"] = there & again
    if reranker is not None:
        chance = signals.probabilities(reranker, contexts, passages)
        values["reranker"] = chance >= config.rerank
    return values


def _labels(config: RelevanceConfig) -> dict[str, str]:
    """The names of signals in tables and plots."""
    labels = {"overlap": f"overlap ≥ {config.overlap:g}", "reranker": f"reranker ≥ {config.rerank:g}"}
    for search, name in (("bm25", "BM25"), ("dense", "dense")):
        labels[f"{search}_round_trip"] = f"{name} round trip, top {config.top}"
        labels[f"{search}_both_ways"] = f"{name} both ways, top {config.top}"
    return labels


def with_interval(related: Array, seed: int) -> dict[str, float]:
    """The share, and the 95 % interval of its bootstrap over pairs."""
    import numpy as np

    from qontext.training.randomness import hashed

    N = len(related)
    rows = hashed(seed, "bootstrap", np.arange(DRAWS)[:, None], np.arange(N)[None, :]) % np.uint64(N)
    low, high = np.percentile(related[rows.astype(np.int64)].mean(axis=1), [2.5, 97.5])
    return {"share": float(related.mean()), "low": float(low), "high": float(high)}


def as_markdown(table: RelevanceTable, pairs: int, labels: dict[str, str]) -> str:
    lines = [
        f"| judged related by ({pairs} pairs) | {' | '.join(KINDS.values())} |",
        "|---|" + "---|" * len(KINDS),
    ]
    lines += [
        f"| {labels[signal]} | {' | '.join(_share(row[kind]) for kind in KINDS)} |"
        for signal, row in table.items()
    ]
    return "\n".join(lines) + "\n"


def _share(cell: dict[str, float]) -> str:
    return f"{cell['share']:.1%} [{cell['low']:.1%}, {cell['high']:.1%}]"


def _plot(table: RelevanceTable, pairs: int, labels: dict[str, str], path: Path) -> None:
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 + 1.9 * len(table), 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for k, (kind, label) in enumerate(KINDS.items()):
        cells = [row[kind] for row in table.values()]
        share = np.array([cell["share"] for cell in cells])
        spread = np.abs(np.array([[cell["low"], cell["high"]] for cell in cells]).T - share)
        axes.bar(np.arange(len(cells)) + 0.27 * (k - 1), share, 0.25, yerr=spread, capsize=3, label=label)
    axes.set_xticks(np.arange(len(table)), [labels[signal].replace(", ", ",\n") for signal in table])
    axes.set_ylim(0, 1)
    axes.set_ylabel("share judged related")
    axes.set_title(f"{pairs} documents, 95 % bootstrap intervals", fontsize=10)
    figure.legend(loc="outside lower center", ncols=len(KINDS), frameon=False)
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})


STAGE = Stage(
    "relevance",
    RelevanceConfig,
    run,
    format=3,
    examples="""
        qontext relevance queries --passages passages --out relevance
        qontext relevance queries --passages passages --retriever retriever --out relevance
    """,
)
