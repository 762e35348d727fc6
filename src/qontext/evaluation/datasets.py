"""Benchmarks by name, and judgments from a benchmark name, a file or a folder. A benchmark is downloaded
through ir_datasets. A file with exactly the judgments of a known benchmark is recognized by its content,
regardless of its name, so that the benchmark's measures, grades and published results apply.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qontext.data.collection import Qrels, load_collection, read_qrels
from qontext.frame.errors import QontextError, choose, missing_extra
from qontext.frame.hashes import digest_of
from qontext.models import hub

WEB = ("MRR@10", "Success@50", "R@50", "Success@1000", "R@1000", "nDCG@10")
GRADED = ("nDCG@10", "MRR@10", "R@100", "R@1000", "MAP", "Judged@10")
DOCUMENTS = ("MRR@100", "Success@100", "R@100", "nDCG@10")
ZERO_SHOT = ("nDCG@10", "R@100", "Judged@10")


@dataclass(frozen=True)
class Benchmark:
    """A published test set. `relevant` is the minimum grade that counts for MRR and recall."""

    name: str
    source: str
    measures: tuple[str, ...]
    queries: int
    judgments: int
    passages: int
    relevant: int = 1
    digest: str = ""
    parts: tuple[str, ...] = ()  # sets whose mean it is
    drops_self: bool = False  # queries are passages of the collection, and must not be their own results


FORUMS = {
    "android": (699, 1_696, 22_998), "english": (1_570, 3_765, 40_221), "gaming": (1_595, 2_263, 45_301),
    "gis": (885, 1_114, 37_637), "mathematica": (804, 1_358, 16_705), "physics": (1_039, 1_933, 38_316),
    "programmers": (876, 1_675, 32_176), "stats": (652, 913, 42_269), "tex": (2_906, 5_154, 68_184),
    "unix": (1_072, 1_693, 47_382), "webmasters": (506, 1_395, 17_405), "wordpress": (541, 744, 48_605),
}  # fmt: skip
"""The twelve parts of CQADupStack with queries, judgments, passages; its result is the mean of theirs."""


def _beir(
    name: str,
    source: str,
    queries: int,
    judgments: int,
    passages: int,
    *,
    digest: str = "",
    parts: tuple[str, ...] = (),
) -> Benchmark:
    drops_self = name in ("arguana", "quora")
    return Benchmark(
        f"beir/{name}", source, ZERO_SHOT, queries, judgments, passages, 1, digest, parts, drops_self
    )


_MS, _WEB, _DOC = "msmarco-passage", 8_841_823, "msmarco-document/dev"
_WIKIPEDIA = 21_015_324
_DPR = "https://dl.fbaipublicfiles.com/dpr/data/retriever"
_ALL = (
    Benchmark("msmarco-passage/dev", f"{_MS}/dev/small", WEB, 6_980, 7_437, _WEB, 1, "69001bc4dabaae9a"),
    Benchmark("trec-dl-2019", f"{_MS}/trec-dl-2019/judged", GRADED, 43, 9_260, _WEB, 2, "cb2d3776c4450089"),
    Benchmark("trec-dl-2020", f"{_MS}/trec-dl-2020/judged", GRADED, 54, 11_386, _WEB, 2, "757ca92044ddd9c6"),
    Benchmark("msmarco-document/dev", _DOC, DOCUMENTS, 5_193, 5_193, 3_213_835, digest="eefb3f98ee39fcfe"),
    Benchmark("nq", f"{_DPR}/nq-test.qa.csv", (), 3_610, 0, _WIKIPEDIA),
    Benchmark("triviaqa", f"{_DPR}/trivia-test.qa.csv.gz", (), 11_313, 0, _WIKIPEDIA),
    _beir("trec-covid", "beir/trec-covid", 50, 66_336, 171_332),
    _beir("nfcorpus", "beir/nfcorpus/test", 323, 12_334, 3_633, digest="6f10c28ee7df9546"),
    _beir("nq", "beir/nq", 3_452, 4_201, 2_681_468, digest="8eae1686d9dbf5ae"),
    _beir("hotpotqa", "beir/hotpotqa/test", 7_405, 14_810, 5_233_329),
    _beir("fiqa", "beir/fiqa/test", 648, 1_706, 57_638, digest="6d6681dc0aa13f4f"),
    _beir("arguana", "beir/arguana", 1_406, 1_406, 8_674, digest="e92ad15ccdf4275d"),
    _beir("webis-touche2020", "beir/webis-touche2020/v2", 49, 2_214, 382_545),
    _beir("cqadupstack", "", 13_145, 23_703, 457_199, parts=tuple(f"beir/cqadupstack-{f}" for f in FORUMS)),
    _beir("quora", "beir/quora/test", 10_000, 15_675, 522_931),
    _beir("dbpedia-entity", "beir/dbpedia-entity/test", 400, 43_515, 4_635_922),
    _beir("scidocs", "beir/scidocs", 1_000, 29_928, 25_657),
    _beir("fever", "beir/fever/test", 6_666, 7_937, 5_416_568),
    _beir("climate-fever", "beir/climate-fever", 1_535, 4_681, 5_416_593),
    _beir("scifact", "beir/scifact/test", 300, 339, 5_183, digest="9b5447d96a1f6b35"),
    *(_beir(f"cqadupstack-{f}", f"beir/cqadupstack/{f}", *counts) for f, counts in FORUMS.items()),
)  # fmt: skip

BENCHMARKS: dict[str, Benchmark] = {entry.name: entry for entry in _ALL}


class Unavailable(QontextError):
    """A data set that is neither local nor available for download."""


@dataclass(frozen=True)
class Judged:
    """Judgments, their place, and their benchmark, if recognized."""

    qrels: Qrels
    place: str
    benchmark: Benchmark | None


def load_judgments(source: str, *, split: str = "test") -> Judged:
    """Read judgments from a qrels file, a folder in BEIR's layout (its `split`), or a benchmark's name."""
    path = Path(source).expanduser()
    if path.is_dir():
        qrels = load_collection(path).qrels(split)
        return Judged(qrels, f"{path} ({split})", recognize(qrels, path.name))
    if path.exists():
        qrels = read_qrels(path)
        return Judged(qrels, str(path), recognize(qrels))
    return _remote(source)


def recognize(qrels: Qrels, folder: str = "") -> Benchmark | None:
    """The benchmark with exactly these judgments, or with the same counts in a folder of its name."""
    near = _as_large(qrels)
    digest = judgments_digest(qrels) if any(b.digest for b in near) else None
    names = (f"beir/{folder}", f"beir/cqadupstack-{folder}")
    return next((b for b in near if b.digest == digest or (not b.digest and b.name in names)), None)


def altered(qrels: Qrels) -> Benchmark | None:
    """The benchmark with the same counts but different content (changed grades)."""
    return next((b for b in _as_large(qrels) if b.digest and b.digest != judgments_digest(qrels)), None)


def _as_large(qrels: Qrels) -> list[Benchmark]:
    counts = len(qrels), sum(map(len, qrels.values()))
    return [b for b in BENCHMARKS.values() if (b.queries, b.judgments) == counts]


def judgments_digest(qrels: Qrels) -> str:
    """A hash of the judgments that does not depend on their order or file format."""
    lines = sorted(
        f"{query} {passage} {grade}" for query, judged in qrels.items() for passage, grade in judged.items()
    )
    return digest_of("\n".join(lines), 8).hex()


def _remote(name: str) -> Judged:
    if name.startswith((".", "/", "~")) or Path(name).suffix:
        raise QontextError("no such judgments file or folder", place=name)
    entry = BENCHMARKS[choose(name, BENCHMARKS, "benchmark")]
    if entry.parts:
        raise QontextError(
            f"{name} is the mean of {len(entry.parts)} sets: evaluate each of them",
            remedy="Or: qontext beir.",
        )
    if entry.source.startswith("https:"):
        raise QontextError(
            f"{name} is judged by answer strings",
            remedy=f"Download {entry.source} and pass the file as QRELS.",
        )
    qrels: Qrels = {}
    with remote_dataset(entry.source) as dataset:
        for row in dataset.qrels_iter():
            qrels.setdefault(row.query_id, {})[row.doc_id] = row.relevance
    return Judged(qrels, name, entry)


@contextlib.contextmanager
def remote_dataset(name: str) -> Iterator[Any]:
    """A dataset of ir_datasets, from its cache or the network; without either, an error at once."""
    try:
        import ir_datasets
    except ImportError:
        raise missing_extra("ir_datasets", "datasets", f"the benchmark {name}") from None
    online = hub.online()
    # Offline: fail fast for files that are not cached.
    logging.getLogger("ir_datasets").setLevel(logging.ERROR)
    settings = {} if online else {"IR_DATASETS_DL_TRIES": "1", "IR_DATASETS_DL_TIMEOUT": "2"}
    before = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    try:
        with contextlib.nullcontext() if online else contextlib.redirect_stderr(io.StringIO()):
            yield ir_datasets.load(name)
    except KeyError:
        raise QontextError(f"ir_datasets has no dataset named {name!r}") from None
    except (OSError, RuntimeError) as error:
        why = (
            f"could not be downloaded: {error}"
            if online
            else "is not in the cache of ir_datasets and there is no network"
        )
        raise Unavailable(
            f"the data set {name} {why}",
            remedy="Pass a local file or folder instead, or run the command once with a network.",
        ) from None
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
