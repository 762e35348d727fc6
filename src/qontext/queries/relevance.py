"""How often a context belongs to its passage: passages of the same document against generated queries.

The automatic side of the annotation in Appendix A of "Query-as-context Pre-training": people found 35.5 %
of 200 random passage pairs and 56.5 % of 200 passage-query pairs strongly related. Here each signal says
it for pairs from one's own corpus, with the query of another document as the control. A signal measures
what it measures: BM25 favours contexts that repeat rare words, so compare within a column, not across.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from qontext.artifacts import Workdir
from qontext.config import Input, Machine, StageConfig
from qontext.engine.randomness import hashed
from qontext.queries import signals
from qontext.queries.draw import draw_pairs
from qontext.queries.judges import open_reranker, open_retriever, open_searcher
from qontext.queries.lookup import Lookup
from qontext.queries.searchers import Dense, Lexical, Rows, Searcher, remove_vectors
from qontext.queries.words import Array
from qontext.stages import Stage

KINDS = ("passage-passage", "passage-query", "passage-other query")
DRAWS = 2000


class RelevanceConfig(StageConfig):
    queries: Annotated[str, Input(positional=True)]
    """What generate or filter wrote."""
    passages: Annotated[str, Input()]
    """The passages that the queries were made from; documents of one passage only are left out."""
    documents: Annotated[int, Field(ge=10)] = 1000
    """At most so many documents, one passage of each."""
    retriever: Annotated[str | None, Input()] = None
    """A dense retriever, for its round trip beside that of BM25."""
    reranker: Annotated[str | None, Input()] = None
    """A cross-encoder (a sequence classifier with one logit), for its judgement."""
    top: Annotated[int, Field(ge=1)] = 10
    """Round trip: related if the passage is among so many."""
    overlap: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Overlap: related if this share of the context's content words is in the passage."""
    rerank: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Reranker: related from this probability on."""
    seed: int = 42
    """Decides documents, passages, queries and the bootstrap."""
    device: Annotated[str, Machine()] = "auto"
    """auto, cpu, cuda or cuda:N."""


def run(config: RelevanceConfig, work: Workdir) -> dict[str, Any]:
    passages = Lookup(config.passages)
    pairs = draw_pairs(config, passages)
    anchors = np.array([pair.passage for pair in pairs])
    own = [pair.query for pair in pairs]
    contexts = {
        "passage-passage": [pair.other_content for pair in pairs],
        "passage-query": own,
        # The next pair's query: of another document, since every document is drawn once.
        "passage-other query": own[1:] + own[:1],
    }
    hide = {"passage-passage": np.array([pair.other for pair in pairs])}
    searches = [_Search("BM25", None, work, passages)]
    if config.retriever is not None:
        retriever = open_retriever(config.retriever, config.device)
        searches.append(_Search("dense", retriever, work, passages))
    reranker = None if config.reranker is None else open_reranker(config.reranker, config.device)
    contents = [pair.content for pair in pairs]
    related = {
        kind: _signals(config, contexts[kind], contents, anchors, searches, reranker, hide.get(kind))
        for kind in KINDS
    }
    table = {
        signal: {kind: with_interval(related[kind][signal], config.seed) for kind in KINDS}
        for signal in related[KINDS[0]]
    }
    remove_vectors(work)
    work.write_json("relevance.json", {"pairs": len(pairs), "signals": table})
    with work.write("relevance.md") as path:
        path.write_text(as_markdown(table, len(pairs)), encoding="utf-8")
    with work.write("relevance.png") as path:
        _plot(table, len(pairs), path)
    work.write_json("pairs.json", [
        {"passage": content, **{kind: contexts[kind][n] for kind in KINDS}} for n, content in enumerate(contents)
    ])  # fmt: skip
    return {"pairs": len(pairs), **{s: {k: _share(v) for k, v in row.items()} for s, row in table.items()}}


class _Search:
    """A way to search, both ways: among all passages, and among a few contexts."""

    def __init__(self, name: str, retriever: Any, work: Workdir, passages: Lookup) -> None:
        self.name, self.retriever, self.work = name, retriever, work
        self.forward = open_searcher(
            retriever, work, "passages", passages.contents(), passages.count, "passage", "query"
        )

    def backward(self, contexts: list[str]) -> Searcher:
        if self.retriever is None:
            return Lexical(contexts, len(contexts))
        return Dense(self.retriever, Rows([self.retriever.encode(contexts, "query")]), "passage")


def _signals(
    config: RelevanceConfig,
    contexts: list[str],
    passages: list[str],
    anchors: Array,
    searches: list[_Search],
    reranker: Any,
    hide: Array | None,
) -> dict[str, Array]:
    """[N] of true and false for each signal."""
    found = {f"overlap ≥ {config.overlap:g}": signals.overlap(contexts, passages) >= config.overlap}
    for search in searches:
        there = signals.rank(contexts, anchors, search.forward, config.top, hide=hide) > 0
        backward = search.backward(contexts)
        again = signals.rank(passages, np.arange(len(contexts)), backward, config.top) > 0
        found[f"{search.name} round trip, top {config.top}"] = there
        found[f"{search.name} both ways, top {config.top}"] = there & again
    if reranker is not None:
        chance = signals.probabilities(reranker, contexts, passages)
        found[f"reranker ≥ {config.rerank:g}"] = chance >= config.rerank
    return found


def with_interval(related: Array, seed: int) -> dict[str, float]:
    """The share, and the 95 % interval of its bootstrap over pairs."""
    N = len(related)
    rows = hashed(seed, "bootstrap", np.arange(DRAWS)[:, None], np.arange(N)[None, :]) % np.uint64(N)
    low, high = np.percentile(related[rows.astype(np.int64)].mean(axis=1), [2.5, 97.5])
    return {"share": float(related.mean()), "low": float(low), "high": float(high)}


def as_markdown(table: dict[str, dict[str, dict[str, float]]], pairs: int) -> str:
    lines = [f"| judged related by ({pairs} pairs) | {' | '.join(KINDS)} |", "|---|" + "---|" * len(KINDS)]
    lines += [
        f"| {signal} | {' | '.join(_share(row[kind]) for kind in KINDS)} |" for signal, row in table.items()
    ]
    return "\n".join(lines) + "\n"


def _share(cell: dict[str, float]) -> str:
    return f"{cell['share']:.1%} [{cell['low']:.1%}, {cell['high']:.1%}]"


def _plot(table: dict[str, dict[str, dict[str, float]]], pairs: int, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 + 1.9 * len(table), 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for k, kind in enumerate(KINDS):
        cells = [row[kind] for row in table.values()]
        share = np.array([cell["share"] for cell in cells])
        spread = np.abs(np.array([[cell["low"], cell["high"]] for cell in cells]).T - share)
        axes.bar(np.arange(len(cells)) + 0.27 * (k - 1), share, 0.25, yerr=spread, capsize=3, label=kind)
    axes.set_xticks(np.arange(len(table)), [signal.replace(", ", ",\n") for signal in table])
    axes.set_ylim(0, 1)
    axes.set_ylabel("share judged related")
    axes.set_title(f"{pairs} documents, 95 % bootstrap intervals", fontsize=10)
    figure.legend(loc="outside lower center", ncols=len(KINDS), frameon=False)
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})


STAGE = Stage(
    "relevance",
    RelevanceConfig,
    run,
    examples="""
        qontext relevance queries --passages passages --out relevance
        qontext relevance queries --passages passages --out relevance --retriever runs/retriever
    """,
)
