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

from qontext import records
from qontext.artifacts import Workdir
from qontext.config import Input, Machine, StageConfig
from qontext.engine.randomness import hashed
from qontext.errors import QontextError
from qontext.queries.filter import Array, open_searcher, read_texts
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
    """A cross-encoder, for its judgement."""
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
    ids, texts = read_texts(config.passages)
    pairs = draw_pairs(config, ids)
    anchors = np.array([pair["passage"] for pair in pairs])
    contexts = {
        "passage-passage": [texts[pair["other"]] for pair in pairs],
        "passage-query": [pair["query"] for pair in pairs],
        # The next pair's query: of another document, since every document is drawn once.
        "passage-other query": [pair["query"] for pair in pairs[1:] + pairs[:1]],
    }
    hide = {"passage-passage": np.array([pair["other"] for pair in pairs])}
    forward = {"BM25": open_searcher(None, config.device, texts, "passage", "query")}
    if config.retriever is not None:
        forward["dense"] = open_searcher(config.retriever, config.device, texts, "passage", "query")
    passages = [texts[n] for n in anchors.tolist()]
    related = {
        kind: _signals(config, contexts[kind], passages, anchors, forward, hide.get(kind)) for kind in KINDS
    }
    table = {
        signal: {kind: with_interval(related[kind][signal], config.seed) for kind in KINDS}
        for signal in related[KINDS[0]]
    }
    work.write_json("relevance.json", {"pairs": len(pairs), "signals": table})
    with work.write("relevance.md") as path:
        path.write_text(as_markdown(table, len(pairs)), encoding="utf-8")
    with work.write("relevance.png") as path:
        _plot(table, len(pairs), path)
    work.write_json("pairs.json", [
        {"passage": texts[p], **{kind: contexts[kind][n] for kind in KINDS}} for n, p in enumerate(anchors.tolist())
    ])  # fmt: skip
    return {"pairs": len(pairs), **{s: {k: _share(v) for k, v in row.items()} for s, row in table.items()}}


def draw_pairs(config: RelevanceConfig, ids: list[str]) -> list[dict[str, Any]]:
    """One passage of each drawn document, another of the same document, and one of the passage's queries."""
    from qontext.collection import read_passages

    number = {id: n for n, id in enumerate(ids)}
    members: dict[str, list[int]] = {}
    for n, passage in enumerate(read_passages(config.passages)):
        members.setdefault(passage.doc, []).append(n)
    queries: dict[int, list[str]] = {}
    for batch in records.read_table(config.queries, records.QUERIES, columns=["passage", "query"]):
        for id, query in zip(batch["passage"].to_pylist(), batch["query"].to_pylist()):
            if id in number:
                queries.setdefault(number[id], []).append(query)
    possible = [[n for n in doc if n in queries] for doc in members.values() if len(doc) > 1]
    documents = [
        (doc, asked) for doc, asked in zip((d for d in members.values() if len(d) > 1), possible) if asked
    ]
    if len(documents) < 10:
        raise QontextError(
            f"only {len(documents)} documents have two passages and a query", place=config.queries,
            remedy="Check that queries and passages belong together; the passages' column doc says the document.",
        )  # fmt: skip
    chance = hashed(config.seed, "relevance", np.arange(len(documents))[:, None], np.arange(4)[None, :])
    pairs = []
    for n in np.argsort(chance[:, 0], kind="stable")[: config.documents].tolist():
        doc, asked = documents[n]
        passage = asked[int(chance[n, 1] % np.uint64(len(asked)))]
        rest = [other for other in doc if other != passage]
        own = queries[passage]
        pairs.append({
            "passage": passage,
            "other": rest[int(chance[n, 2] % np.uint64(len(rest)))],
            "query": own[int(chance[n, 3] % np.uint64(len(own)))],
        })  # fmt: skip
    return pairs


def _signals(
    config: RelevanceConfig,
    contexts: list[str],
    passages: list[str],
    anchors: Array,
    forward: dict[str, Any],
    hide: Array | None,
) -> dict[str, Array]:
    """[N] of true and false for each signal."""
    from qontext.queries import signals

    found = {f"overlap ≥ {config.overlap:g}": signals.overlap(contexts, passages) >= config.overlap}
    for name, searcher in forward.items():
        there = signals.rank(contexts, anchors, searcher, config.top, hide=hide) > 0
        retriever = config.retriever if name == "dense" else None
        backward = open_searcher(retriever, config.device, contexts, "query", "passage")
        again = signals.rank(passages, np.arange(len(contexts)), backward, config.top) > 0
        found[f"{name} round trip, top {config.top}"] = there
        found[f"{name} both ways, top {config.top}"] = there & again
    if config.reranker is not None:
        chance = signals.Reranker(config.reranker, config.device).probabilities(contexts, passages)
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
