"""Published results in percent, shown beside ours for the same benchmark.

The literature's MS MARCO "R@50" and "R@1k" are the share of queries with a relevant passage in the top k, so
they are listed here as ``Success@k``. For systems that a paper cites, the source is the citing paper. If two
papers report different results for one system, each has a row.
"""

from __future__ import annotations

from dataclasses import dataclass

QAC = "Wu et al. 2023, Query-as-context Pre-training for Dense Passage Retrieval"
COCONDENSER = "Gao & Callan 2022, Unsupervised Corpus Aware Language Model Pre-training"
COT_MAE = "Wu et al. 2022, ConTextual Mask Auto-Encoder for Dense Passage Retrieval"


SPLADE = "Formal et al. 2021, SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval"
COLBERT = "Khattab & Zaharia 2020, ColBERT: Efficient and Effective Passage Search"


@dataclass(frozen=True)
class Row:
    """One system's published results: benchmark → measure → percent."""

    system: str
    source: str
    figures: dict[str, dict[str, float]]


def rows_for(benchmark: str) -> list[Row]:
    """The published systems with a result for this benchmark, in the papers' order."""
    return [row for row in ROWS if benchmark in row.figures]


def named(system: str) -> list[Row]:
    """The rows of a system, ablations included; each name has one."""
    return [row for row in (*ROWS, *ABLATIONS, *LEADERBOARDS) if row.system == system]


def _dev(system: str, source: str, **figures: float) -> Row:
    """A row of MS MARCO's dev queries alone: ``mrr`` at 10, ``r50``, ``r100`` and ``r1k``."""
    names = {"mrr": "MRR@10", "r50": "Success@50", "r100": "Success@100", "r1k": "Success@1000"}
    return Row(system, source, {"msmarco-passage/dev": {names[key]: value for key, value in figures.items()}})


def _dev_and_nq(system: str, mrr: float, *nq: float) -> Row:
    """A row of table 1 of the coCondenser paper: MRR@10 of MS MARCO, answer recall of Natural Questions."""
    figures = {"msmarco-passage/dev": {"MRR@10": mrr}}
    if nq:
        figures["nq"] = {f"Answer@{k}": figure for k, figure in zip((5, 20, 100), nq, strict=True)}
    return Row(system, f"{COCONDENSER}, table 1", figures)


def _web(system: str, *figures: float | None) -> Row:
    """A row of table 1 of the query-as-context paper: MRR@10, R@50, R@1k, DL 19, DL 20."""
    places = (
        ("msmarco-passage/dev", "MRR@10"),
        ("msmarco-passage/dev", "Success@50"),
        ("msmarco-passage/dev", "Success@1000"),
        ("trec-dl-2019", "nDCG@10"),
        ("trec-dl-2020", "nDCG@10"),
    )
    figures_of: dict[str, dict[str, float]] = {}
    for (benchmark, measure), figure in zip(places, figures, strict=True):
        if figure is not None:
            figures_of.setdefault(benchmark, {})[measure] = figure
    return Row(system, f"{QAC}, table 1", figures_of)


def _answers(
    system: str, source: str, nq: tuple[float | None, ...], trivia: tuple[float | None, ...] = ()
) -> Row:
    """Answer recall at 5, 20 and 100 on Natural Questions and TriviaQA."""
    figures_of = {}
    for benchmark, figures in (("nq", nq), ("triviaqa", trivia)):
        values = {f"Answer@{k}": f for k, f in zip((5, 20, 100), figures) if f is not None}
        if values:
            figures_of[benchmark] = values
    return Row(system, source, figures_of)


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
    _dev("BERT", f"{COCONDENSER}, table 3", mrr=33.4, r100=85.1, r1k=95.4),
    _dev("DeepCT (Gao & Callan 2022)", f"{COCONDENSER}, table 1", mrr=24.3, r1k=90.9),
    _dev("docT5query (Gao & Callan 2022)", f"{COCONDENSER}, table 1", mrr=27.7, r1k=94.7),
    _dev_and_nq("ME-BERT", 33.8),
    _dev_and_nq("DPR-PAQ, BERT base", 31.4, 74.5, 83.7, 88.6),
    _dev_and_nq("DPR-PAQ, BERT large", 31.1, 75.3, 84.4, 88.9),
    _dev_and_nq("DPR-PAQ, RoBERTa base", 32.3, 74.2, 84.0, 89.2),
    _dev_and_nq("DPR-PAQ, RoBERTa large", 34.0, 76.9, 84.7, 89.2),
    _dev("SPLADE", SPLADE, mrr=32.2),
    _dev("SPLADE-max", SPLADE, mrr=34.0),
    _dev("SPLADE-max, distilled", SPLADE, mrr=36.8),
    _dev("ColBERT, reranking BM25", f"{COLBERT}, table 1", mrr=34.9),
    _dev("coCondenser, soft labels", f"{COCONDENSER}, table 3", mrr=39.1, r100=91.9, r1k=98.6),
    _dev("RetroMAE (CoT-MAE's table)", f"{COT_MAE}, table 1", mrr=35.0, r1k=97.6),
    _dev("RocketQAv2, distilled", f"{COT_MAE}, table 2", mrr=38.8, r50=86.2, r1k=98.1),
    _dev("ColBERTv2, distilled", f"{COT_MAE}, table 2", mrr=39.7, r50=86.8, r1k=98.4),
    _dev("AR2, distilled", f"{COT_MAE}, table 2", mrr=39.5, r50=87.8, r1k=98.6),
    _dev("CoT-MAE (800k)", f"{COT_MAE}, table 2", mrr=39.2, r50=87.2, r1k=98.7),
    _dev("CoT-MAE, distilled from its reranker", f"{COT_MAE}, table 2", mrr=40.4, r50=88.5, r1k=98.7),
    Row("BM25 (CoT-MAE's table)", f"{COT_MAE}, table 1", {"trec-dl-2020": {"nDCG@10": 47.9}}),
    Row("coCondenser (CoT-MAE's table)", f"{COT_MAE}, table 1", {"trec-dl-2020": {"nDCG@10": 68.0}}),
    _answers("BM25", f"{COCONDENSER}, table 1", (None, 59.1, 73.7), (None, 66.9, 76.7)),
    _answers("DPR", f"{COCONDENSER}, table 1", (None, 74.4, 85.3), (None, 79.3, 84.9)),
    _answers("GAR", f"{COCONDENSER}, table 1", (60.9, 74.4, 85.3), (73.1, 80.4, 85.7)),
    _answers("ANCE", f"{COCONDENSER}, table 1", (None, 81.9, 87.5), (None, 80.3, 85.3)),
    _answers("RocketQA", f"{COCONDENSER}, table 1", (74.0, 82.7, 88.5)),
    _answers("SEED", f"{COT_MAE}, table 1", (None, 83.1, 88.7)),
    _answers("NPRINC", f"{COT_MAE}, table 1", (73.3, 82.8, 88.4)),
    _answers("PAIR", f"{COT_MAE}, table 1", (74.9, 83.5, 89.1)),
    _answers("Condenser", f"{COCONDENSER}, table 1", (None, 83.2, 88.4), (None, 81.9, 86.2)),
    _answers("coCondenser", f"{COCONDENSER}, table 1", (75.8, 84.3, 89.0), (76.8, 83.2, 87.3)),
    _answers("CoT-MAE", f"{COT_MAE}, table 1", (75.5, 84.3, 89.3)),
    *map(_beir, range(len(_BEIR_SYSTEMS))),
)  # fmt: skip
"""The papers' main tables."""


def _numbers_of_queries() -> list[Row]:
    """Table 3 of the query-as-context paper, without the five queries of table 1."""
    figures = {
        ("coCondenser", 1): ((37.7, 87.6, 98.6), (39.3, 88.5, 98.9), (72.3, 71.1)),
        ("coCondenser", 10): ((37.6, 87.0, 98.5), (39.1, 88.5, 98.9), (71.1, 70.9)),
        ("coCondenser", 20): ((37.7, 87.2, 98.6), (39.4, 88.3, 99.0), (71.5, 70.3)),
        ("CoT-MAE", 1): ((38.3, 87.4, 98.5), (39.9, 88.7, 98.7), (71.7, 70.8)),
        ("CoT-MAE", 10): ((38.5, 87.2, 98.6), (39.7, 88.7, 98.8), (72.5, 71.7)),
        ("CoT-MAE", 20): ((38.3, 87.5, 98.6), (39.7, 88.5, 98.8), (72.2, 69.9)),
    }
    rows = []
    for (method, queries), of_kinds in figures.items():
        kind = f"{queries} {'query' if queries == 1 else 'queries'}"
        rows += _two_retrievers(f"{method} + query-as-context, {kind}", 3, of_kinds)
    return rows


def _two_retrievers(system: str, table: int, figures: tuple[tuple[float, ...], ...]) -> list[Row]:
    """The rows of retriever 1, which has no figures of TREC DL in tables 3 and 4, and of retriever 2."""
    first, second, deep = figures
    source = f"{QAC}, table {table}"
    names = ("mrr", "r50", "r1k")
    one = _dev(f"{system}, retriever 1", source, **dict(zip(names, first, strict=True)))
    two = _dev(f"{system}, retriever 2", source, **dict(zip(names, second, strict=True)))
    graded = {f"trec-dl-{year}": {"nDCG@10": figure} for year, figure in zip((2019, 2020), deep, strict=True)}
    return [one, Row(two.system, source, two.figures | graded)]


_MASKS = {
    (0, 15): 37.8, (0, 30): 38.4, (15, 15): 38.7, (15, 30): 38.8, (15, 45): 38.9,
    (45, 45): 39.0, (45, 60): 38.8, (30, 15): 38.8, (30, 30): 38.9, (30, 45): 39.2,
}  # fmt: skip
"""Mask rates of encoder and decoder → MRR@10 of CoT-MAE after 800k steps."""
_CONTEXTS = {
    "near": 38.7, "olap": 38.7, "rand": 38.8, "near+olap": 39.1, "near+rand": 38.8, "olap+rand": 39.1,
    "near+olap+rand": 39.2,
}  # fmt: skip
_LAYERS = {1: 38.6, 2: 39.2, 3: 38.8, 4: 38.9, 6: 39.0}

ABLATIONS: tuple[Row, ...] = (
    *_numbers_of_queries(),
    *_two_retrievers(
        "coCondenser + mixed contexts", 4, ((37.4, 86.7, 98.4), (39.1, 88.1, 98.8), (71.2, 71.3))
    ),
    *_two_retrievers("CoT-MAE + mixed contexts", 4, ((36.9, 85.6, 98.1), (38.4, 87.1, 98.5), (72.4, 70.0))),
    _dev("Condenser + contrastive loss alone", f"{COCONDENSER}, table 4", mrr=36.7, r100=90.3, r1k=98.0),
    _dev("RocketQA, cross-batch negatives", f"{COCONDENSER}, table 5", mrr=33.3),
    _dev("RocketQA, + hard negatives", f"{COCONDENSER}, table 5", mrr=26.0),
    _dev("RocketQA, + denoising", f"{COCONDENSER}, table 5", mrr=36.4),
    _dev("RocketQA, + data augmentation", f"{COCONDENSER}, table 5", mrr=37.0, r1k=97.9),
    _dev("Condenser without hard negatives", f"{COCONDENSER}, table 5", mrr=33.8, r1k=96.1),
    _dev("Condenser, hard negatives", f"{COCONDENSER}, tables 4 and 5", mrr=36.6, r100=89.4, r1k=97.4),
    _dev("coCondenser without hard negatives", f"{COCONDENSER}, table 5", mrr=35.7, r1k=97.8),
    _dev("coCondenser, hard negatives", f"{COCONDENSER}, tables 3 to 5", mrr=38.2, r100=91.3, r1k=98.4),
    _dev("CoT-MAE, reranker", f"{COT_MAE}, section 5.1", mrr=43.3),
    *(
        _dev(f"CoT-MAE (800k), masks {encoder} % and {decoder} %", f"{COT_MAE}, table 3", mrr=figure)
        for (encoder, decoder), figure in _MASKS.items()
    ),
    *(
        _dev(f"CoT-MAE (800k), contexts {kinds}", f"{COT_MAE}, table 4", mrr=figure)
        for kinds, figure in _CONTEXTS.items()
    ),
    *(
        _dev(f"CoT-MAE (800k), decoder layers {layers}", f"{COT_MAE}, table 5", mrr=figure)
        for layers, figure in _LAYERS.items()
    ),
)
"""Variants of a method; not shown in reports."""


def _leaderboard(system: str, benchmark: str, measure: str, figure: float) -> Row:
    return Row(system, f"{COCONDENSER}, table 2", {benchmark: {measure: figure}})


LEADERBOARDS: tuple[Row, ...] = (
    _leaderboard("Adaptive Batch Scheduling + CoCondenser, reranked", "msmarco-passage/eval", "MRR@10", 43.1),
    _leaderboard("coCondenser, reranked", "msmarco-passage/eval", "MRR@10", 42.8),
    _leaderboard("UniRetriever, reranked", "msmarco-document/eval", "MRR@100", 44.0),
    _leaderboard("coCondenser + MORES+, reranked", "msmarco-document/eval", "MRR@100", 43.6),
)
"""On queries whose judgments are not public."""
