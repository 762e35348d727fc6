"""Qontext turns a pile of documents into a dense retriever.

The names below are the public API; each is imported on first use, so that ``import qontext`` is fast.
`qontext.api` has every command as a function.

    >>> from qontext import Searcher
    >>> search = Searcher.build(["The mill grinds flour.", "The boat crosses the river."])
    >>> search("who grinds flour?", k=1)[0].text
    'The mill grinds flour.'
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# A thread of GNU's OpenMP that waits for the others spins, and keeps the processor from the one that it waits for if
# other programs compute as well: training was 20 times slower beside one busy process
# (benchmarks/busy.json). Read when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from qontext.adapt.result import Adapted
    from qontext.data.collection import Passage
    from qontext.data.load import load_passages, load_qrels, load_queries
    from qontext.data.records import Hit
    from qontext.data.runs import Run
    from qontext.evaluation.compare import compare
    from qontext.evaluation.evaluate import evaluate
    from qontext.finetune.negatives.selection import mine
    from qontext.frame.errors import QontextError
    from qontext.models.cross_encoder import CrossEncoder
    from qontext.models.encoder import load_encoder
    from qontext.models.retriever import Retriever
    from qontext.retrieve.bm25 import Bm25
    from qontext.retrieve.fuse import fuse
    from qontext.retrieve.rerank import rerank
    from qontext.retrieve.searcher import Answer, Searcher

__version__ = "0.1.0"

__all__ = [
    "Adapted",
    "Answer",
    "Bm25",
    "CrossEncoder",
    "Hit",
    "Passage",
    "QontextError",
    "Retriever",
    "Run",
    "Searcher",
    "compare",
    "evaluate",
    "fuse",
    "load_encoder",
    "load_passages",
    "load_qrels",
    "load_queries",
    "mine",
    "rerank",
]

_MODULES = {
    "Adapted": "adapt.result",
    "Answer": "retrieve.searcher",
    "Bm25": "retrieve.bm25",
    "CrossEncoder": "models.cross_encoder",
    "Hit": "data.records",
    "Passage": "data.collection",
    "QontextError": "frame.errors",
    "Retriever": "models.retriever",
    "Run": "data.runs",
    "Searcher": "retrieve.searcher",
    "compare": "evaluation.compare",
    "evaluate": "evaluation.evaluate",
    "fuse": "retrieve.fuse",
    "load_encoder": "models.encoder",
    "load_passages": "data.load",
    "load_qrels": "data.load",
    "load_queries": "data.load",
    "mine": "finetune.negatives.selection",
    "rerank": "retrieve.rerank",
}
"""Public name → the module that defines it."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "api":
        return import_module("qontext.api")
    if name not in _MODULES:
        raise AttributeError(f"module 'qontext' has no attribute {name!r}")
    value = getattr(import_module(f"qontext.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "api"])
