"""`qontext docset`: documentation → a labeled set with human-written queries.

The first sentence of a docstring summarizes the rest. For some docstrings it is removed from the passage and
becomes a query whose relevant passage is the rest:

    query    "Return the running sum of the values seen so far."
    passage the rest of the docstring
    qrels    query → that passage, grade 1

The result has BEIR's layout: corpus.jsonl.gz, queries.jsonl.gz, qrels/dev.tsv, qrels/test.tsv.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext.corpus.sources import FieldNames, demands, fingerprint, open_source
from qontext.data.lines import write_jsonl
from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Asks, Input, Seed, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.data.records import Document

FEWEST_WORDS, MOST_WORDS = 4, 25


class DocsetConfig(StageConfig):
    source: Annotated[str, Input(positional=True, fingerprint=fingerprint), Asks(demands)] = "pydocs:"
    """pydocs: for all installed Python packages (the default), or pydocs:NAME,NAME for some."""

    passages: int | None = Field(None, ge=10)
    """Approximate number of passages, in whole modules drawn from all over the source. Default: all."""

    queries: int = Field(500, ge=1)
    """Approximate number of summaries that become queries: one third for development, the rest for testing."""

    seed: Seed = 42
    """Random seed."""


def is_documentation(source: str) -> bool:
    """True if the source has docstrings, from which a labeled set can be built."""
    return source.startswith("pydocs:")


def run(config: DocsetConfig, work: Workdir) -> dict[str, Any]:
    import numpy as np

    from qontext.corpus.sources.pydocs import split_summary
    from qontext.data.collection import write_qrels
    from qontext.data.records import Document
    from qontext.training.randomness import uniform

    source = open_source(config.source, fields=FieldNames())
    log.note(f"Reading the documentation in {(source.bytes_total or 0) / 2**20:,.1f} MiB of source code …")
    documents = _sample([item for item in source.documents() if isinstance(item, Document)], config)
    rows = [(d, id, text, *split_summary(text)) for d in documents for id, text in d.passages]
    asks = np.array([_asks(summary, rest) for *_, summary, rest in rows])
    if not asks.any():
        raise QontextError("no docstring has a summary and enough text after it", place=config.source)
    dice = uniform(config.seed, "docset query", np.arange(len(rows)))
    share = min(1.0, config.queries / asks.sum())
    is_query = asks & (dice < share)
    texts = [rest if chosen else text for (_, _, text, _, rest), chosen in zip(rows, is_query)]
    corpus = (
        {"_id": id, "title": d.title, "text": text, "doc_id": d.id} for (d, id, *_), text in zip(rows, texts)
    )
    chosen = [rows[n] for n in np.flatnonzero(is_query)]
    queries = ({"_id": f"q-{id}", "text": summary} for _, id, _, summary, _ in chosen)
    for name, lines in {"corpus": corpus, "queries": queries}.items():
        with work.write(f"{name}.jsonl.gz") as path:
            write_jsonl(path, lines)
    is_dev = dice[is_query] < share / 3
    for split, part in (("dev", is_dev), ("test", ~is_dev)):
        with work.write(f"qrels/{split}.tsv") as path:
            write_qrels(path, ((f"q-{id}", id, 1) for (_, id, *_), mine in zip(chosen, part) if mine))
    return {
        "modules": len(documents),
        "passages": len(rows),
        "dev_queries": int(is_dev.sum()),
        "test_queries": int((~is_dev).sum()),
    }


def _sample(documents: list[Document], config: DocsetConfig) -> list[Document]:
    """Complete modules, drawn until there are enough passages, in source order."""
    import numpy as np

    from qontext.training.randomness import uniform

    if config.passages is None:
        return documents
    order = np.argsort(uniform(config.seed, "docset module", np.arange(len(documents))))
    sizes = np.array([len(d.passages) for d in documents])[order]
    count = int(np.searchsorted(np.cumsum(sizes), config.passages)) + 1
    return [documents[n] for n in np.sort(order[:count])]


def _asks(summary: str, rest: str) -> bool:
    """True if the summary can be a query, and the rest is long enough to be a passage."""
    return FEWEST_WORDS <= len(summary.split()) <= MOST_WORDS and len(rest.split()) >= 20


STAGE = Stage(
    verb="docset",
    config=DocsetConfig,
    run=run,
    examples="""
        qontext docset pydocs: --out docset
        qontext docset pydocs:numpy,torch --queries 300 --out docset
    """,
)
