"""`qontext docset`: documentation → a labelled set, with questions that people wrote.

The first sentence of a docstring says in its author's words what the rest describes. For some docstrings it is
taken out of the passage and becomes a query whose relevant passage is the rest:

    query    "Return the running sum of the values seen so far."
    passage  what the docstring says after that
    qrels    query → that passage, grade 1

The result has BEIR's layout: corpus.jsonl.gz, queries.jsonl.gz, qrels/dev.tsv, qrels/test.tsv.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from qontext.artifacts import Workdir
from qontext.collection import write_jsonl
from qontext.config import Input, StageConfig
from qontext.corpus.docstrings import split_summary
from qontext.corpus.sources import FieldNames, open_source
from qontext.engine.randomness import uniform
from qontext.errors import QontextError
from qontext.records import Document
from qontext.stages import Stage

FEWEST_WORDS, MOST_WORDS = 4, 25


class DocsetConfig(StageConfig):
    source: Annotated[str, Input(positional=True)] = "pydocs:"
    """pydocs: for all installed Python packages, or pydocs:NAME,NAME for some."""

    passages: int | None = Field(None, ge=10)
    """Stop at whole modules after about so many passages, drawn from all over the source. Default: all."""

    queries: int = Field(500, ge=1)
    """About how many summaries become queries; a third of them is for development, the rest for testing."""

    seed: int = Field(42, ge=0, lt=2**63)
    """Seed of what is drawn."""


def run(config: DocsetConfig, work: Workdir) -> dict[str, Any]:
    if not config.source.startswith("pydocs:"):
        raise QontextError(
            "a labelled set is made from docstrings", place=config.source, remedy="Give pydocs:"
        )
    documents = [
        d for d in open_source(config.source, fields=FieldNames()).documents() if isinstance(d, Document)
    ]
    documents = _sample(documents, config)
    found = [(d, id, text, *split_summary(text)) for d in documents for id, text in d.passages]
    asks = np.array([_asks(summary, rest) for *_, summary, rest in found])
    if not asks.any():
        raise QontextError("no docstring has a summary and enough text after it", place=config.source)
    dice = uniform(config.seed, "docset query", np.arange(len(found)))
    share = min(1.0, config.queries / asks.sum())
    is_query = asks & (dice < share)
    texts = [rest if chosen else text for (_, _, text, _, rest), chosen in zip(found, is_query)]
    corpus = (
        {"_id": id, "title": d.title, "text": text, "doc_id": d.id} for (d, id, *_), text in zip(found, texts)
    )
    chosen = [found[n] for n in np.flatnonzero(is_query)]
    queries = ({"_id": f"q-{id}", "text": summary} for _, id, _, summary, _ in chosen)
    for name, lines in {"corpus": corpus, "queries": queries}.items():
        with work.write(f"{name}.jsonl.gz") as path:
            write_jsonl(path, lines)
    is_dev = dice[is_query] < share / 3
    for split, part in (("dev", is_dev), ("test", ~is_dev)):
        rows = [f"q-{id}\t{id}\t1\n" for (_, id, *_), mine in zip(chosen, part) if mine]
        with work.write(f"qrels/{split}.tsv") as path:
            path.write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), encoding="utf-8")
    return {
        "modules": len(documents),
        "passages": len(found),
        "dev queries": int(is_dev.sum()),
        "test queries": int((~is_dev).sum()),
    }


def _sample(documents: list[Document], config: DocsetConfig) -> list[Document]:
    """Whole modules, drawn until there are enough passages, in the source's order."""
    if config.passages is None:
        return documents
    order = np.argsort(uniform(config.seed, "docset module", np.arange(len(documents))))
    sizes = np.array([len(d.passages) for d in documents])[order]
    count = int(np.searchsorted(np.cumsum(sizes), config.passages)) + 1
    return [documents[n] for n in np.sort(order[:count])]


def _asks(summary: str, rest: str) -> bool:
    """Whether the summary reads as a query, and enough is left to find."""
    return FEWEST_WORDS <= len(summary.split()) <= MOST_WORDS and len(rest.split()) >= 20


STAGE = Stage(
    verb="docset",
    config=DocsetConfig,
    run=run,
    examples="""
        qontext docset pydocs: --out docset
        qontext docset pydocs:numpy,pandas --queries 300 --out docset
    """,
)
