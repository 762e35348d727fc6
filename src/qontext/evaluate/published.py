"""Figures as the papers print them, in percent, to stand beside ours where the benchmark is the same.

The literature's MS MARCO "R@50" and "R@1k" are the share of queries with a relevant passage in the top k, so
they stand here under their name, ``Success@k``. Systems that a paper reports from elsewhere carry the source
in which the figure was read.
"""

from __future__ import annotations

from dataclasses import dataclass

QAC = "Wu et al. 2023, Query-as-context Pre-training for Dense Passage Retrieval"
COCONDENSER = "Gao & Callan 2022, Unsupervised Corpus Aware Language Model Pre-training"
COT_MAE = "Wu et al. 2023, ConTextual Masked Auto-Encoder for Dense Passage Retrieval"


@dataclass(frozen=True)
class Row:
    """One system's published figures: benchmark → measure → percent."""

    system: str
    source: str
    figures: dict[str, dict[str, float]]


def rows_for(benchmark: str) -> list[Row]:
    """The published systems that have a figure for this benchmark, in the papers' order."""
    return [row for row in ROWS if benchmark in row.figures]


def _web(system: str, *figures: float | None) -> Row:
    """A row of table 1 of the query-as-context paper: MRR@10, R@50, R@1k, DL 19, DL 20."""
    places = (
        ("msmarco-passage/dev", "MRR@10"),
        ("msmarco-passage/dev", "Success@50"),
        ("msmarco-passage/dev", "Success@1000"),
        ("trec-dl-2019", "nDCG@10"),
        ("trec-dl-2020", "nDCG@10"),
    )
    found: dict[str, dict[str, float]] = {}
    for (benchmark, measure), figure in zip(places, figures, strict=True):
        if figure is not None:
            found.setdefault(benchmark, {})[measure] = figure
    return Row(system, f"{QAC}, table 1", found)


def _answers(
    system: str, source: str, nq: tuple[float | None, ...], trivia: tuple[float | None, ...] = ()
) -> Row:
    """Answer recall at 5, 20 and 100 on Natural Questions and TriviaQA."""
    found = {}
    for benchmark, figures in (("nq", nq), ("triviaqa", trivia)):
        known = {f"Answer@{k}": f for k, f in zip((5, 20, 100), figures) if f is not None}
        if known:
            found[benchmark] = known
    return Row(system, source, found)


_BEIR_SYSTEMS = ("coCondenser", "coCondenser + query-as-context", "CoT-MAE", "CoT-MAE + query-as-context")
_BEIR = {
    "trec-covid": (63.2, 70.3, 64.6, 66.5),
    "nfcorpus": (33.3, 33.0, 31.9, 34.0),
    "nq": (53.1, 54.8, 51.3, 54.6),
    "hotpotqa": (53.8, 58.3, 51.2, 57.2),
    "fiqa": (31.9, 32.2, 28.8, 32.6),
    "arguana": (38.9, 44.7, 31.2, 41.6),
    "webis-touche2020": (21.3, 20.4, 20.2, 21.2),
    "cqadupstack": (31.0, 34.1, 31.2, 33.7),
    "quora": (86.6, 86.4, 78.1, 85.9),
    "dbpedia-entity": (37.3, 38.6, 35.5, 40.6),
    "scidocs": (13.3, 14.5, 13.2, 15.1),
    "fever": (72.8, 66.4, 70.7, 68.8),
    "climate-fever": (20.4, 19.9, 17.3, 22.0),
    "scifact": (59.9, 64.8, 59.1, 64.2),
}
BEIR_SETS = tuple(_BEIR)
"""The 14 sets of the papers' zero-shot table, in its order."""


def _beir(number: int) -> Row:
    """A column of table 2 of the query-as-context paper: nDCG@10 of one system on every set."""
    figures = {f"beir/{name}": {"nDCG@10": row[number]} for name, row in _BEIR.items()}
    return Row(_BEIR_SYSTEMS[number], f"{QAC}, table 2", figures)


ROWS: tuple[Row, ...] = (
    _web("BM25", 18.7, 59.2, 85.7, 51.2, 47.7),
    _web("DeepCT", 24.3, 69.0, 91.0, 57.2, None),
    _web("docT5query", 21.5, 64.4, 89.1, 64.2, None),
    _web("NPRINC", 31.1, None, 97.7, None, None),
    _web("ANCE", 33.0, None, 95.9, 64.5, 64.6),
    _web("SEED", 33.9, None, 96.1, None, None),
    _web("TAS-B", 34.0, None, 97.5, 71.2, 69.3),
    _web("COIL", 35.5, None, 96.3, 70.4, None),
    _web("ColBERT", 36.0, 82.9, 96.8, None, None),
    _web("COSTA", 36.6, 84.1, 97.3, None, 67.8),
    _web("Condenser", 36.6, None, 97.4, 69.8, 66.5),
    _web("RocketQA", 37.0, 85.5, 97.9, None, None),
    _web("PAIR", 37.9, 86.4, 98.2, None, None),
    _web("SimLM", 39.1, None, 98.6, 71.4, 69.7),
    _web("RetroMAE", 39.3, None, 98.5, 68.1, 70.6),
    _web("LED", 39.6, 86.6, 98.3, 70.5, 67.9),
    _web("coCondenser", 38.2, 86.5, 98.4, 71.7, 68.4),
    _web("coCondenser (120k), retriever 1", 37.0, 86.0, 98.5, 68.2, 68.8),
    _web("coCondenser + query-as-context (120k), retriever 1", 37.4, 87.3, 98.6, 68.1, 69.2),
    _web("coCondenser (120k), retriever 2", 38.8, 87.8, 98.8, 71.1, 68.4),
    _web("coCondenser + query-as-context (120k), retriever 2", 39.4, 88.6, 99.0, 73.1, 71.8),
    _web("CoT-MAE (1200k)", 39.4, 87.0, 98.7, 70.9, 70.4),
    _web("CoT-MAE (50k), retriever 1", 37.2, 85.7, 98.2, 65.7, 66.5),
    _web("CoT-MAE + query-as-context (50k), retriever 1", 38.6, 87.7, 98.6, 67.7, 67.8),
    _web("CoT-MAE (50k), retriever 2", 38.8, 87.3, 98.6, 70.7, 69.7),
    _web("CoT-MAE + query-as-context (50k), retriever 2", 40.2, 88.8, 98.8, 71.5, 72.7),
    Row(
        "CoT-MAE, distilled from its reranker",
        f"{COT_MAE}, table 2",
        {"msmarco-passage/dev": {"MRR@10": 40.4, "Success@50": 88.5, "Success@1000": 98.7}},
    ),
    _answers("BM25", f"{COCONDENSER}, table 1", (None, 59.1, 73.7), (None, 66.9, 76.7)),
    _answers("DPR", f"{COCONDENSER}, table 1", (None, 74.4, 85.3), (None, 79.3, 84.9)),
    _answers("GAR", f"{COCONDENSER}, table 1", (60.9, 74.4, 85.3), (73.1, 80.4, 85.7)),
    _answers("ANCE", f"{COCONDENSER}, table 1", (None, 81.9, 87.5), (None, 80.3, 85.3)),
    _answers("RocketQA", f"{COCONDENSER}, table 1", (74.0, 82.7, 88.5)),
    _answers("PAIR", f"{COT_MAE}, table 1", (74.9, 83.5, 89.1)),
    _answers("Condenser", f"{COCONDENSER}, table 1", (None, 83.2, 88.4), (None, 81.9, 86.2)),
    _answers("coCondenser", f"{COCONDENSER}, table 1", (75.8, 84.3, 89.0), (76.8, 83.2, 87.3)),
    _answers("CoT-MAE", f"{COT_MAE}, table 1", (75.5, 84.3, 89.3)),
    *map(_beir, range(len(_BEIR_SYSTEMS))),
)  # fmt: skip
