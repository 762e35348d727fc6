"""Benchmarks by name, judgments from a benchmark name, a file or a folder, and published results in percent.

A benchmark is downloaded through ir_datasets. A file with exactly the judgments of a known benchmark is recognized by its
content, regardless of its name, so that the benchmark's measures, grades and published results apply.

The literature's MS MARCO "R@50" and "R@1k" are the share of queries with a relevant passage in the top k, so
they are listed there as ``Success@k``. For systems that a paper cites, the source is the citing paper. If two
papers report different results for one system, each has a row.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qontext.frame.errors import QontextError, choose, first_line, missing_extra
from qontext.frame.files import digest_of

if TYPE_CHECKING:
    from qontext.data.collection import Qrels


@dataclass(frozen=True)
class Benchmark:
    """A published test set. `relevant` is the minimum grade that counts for MRR and recall."""

    name: str
    measures: tuple[str, ...]
    queries: int
    judgments: int
    passages: int
    source: str = ""
    """Its name in ir_datasets, or a URL."""
    relevant: int = 1
    digest: str = ""
    parts: tuple[str, ...] = ()
    """The sets whose mean it is."""
    drops_self: bool = False
    """Queries are passages of the collection, and must not be their own results."""


def _read(path: Path) -> dict[str, Benchmark]:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    lists = {name: tuple(measures) for name, measures in content["measures"].items()}
    return {
        name: Benchmark(
            name,
            **{**row, "measures": lists.get(row.get("measures"), ()), "parts": tuple(row.get("parts", ()))},
        )
        for name, row in content["benchmarks"].items()
    }


BENCHMARKS = _read(Path(__file__).with_suffix(".toml"))
"""The published test sets by name; `benchmarks.toml` has them."""


@dataclass(frozen=True)
class Judged:
    """Judgments, their place, and their benchmark, if recognized."""

    qrels: Qrels
    place: str
    benchmark: Benchmark | None


def load_judgments(source: str, *, split: str = "test") -> Judged:
    """Read judgments from a qrels file, a folder in BEIR's layout (its `split`), or a benchmark's name."""
    from qontext.data.collection import load_collection, read_qrels

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
    counts = len(qrels), sum(map(len, qrels.values()))
    near = [b for b in BENCHMARKS.values() if (b.queries, b.judgments) == counts]
    digest = judgments_digest(qrels) if any(b.digest for b in near) else None
    names = (f"beir/{folder}", f"beir/cqadupstack-{folder}")
    return next((b for b in near if b.digest == digest or (not b.digest and b.name in names)), None)


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
        )
    if entry.source.startswith("https:"):
        raise QontextError(
            f"{name} is judged by answer strings",
            remedy=f"Download {entry.source} and pass the file as QRELS.",
        )
    try:
        import ir_datasets
    except ImportError:
        raise missing_extra("ir_datasets", "datasets", f"the benchmark {name}") from None
    qrels: Qrels = {}
    try:
        for row in ir_datasets.load(entry.source).qrels_iter():
            qrels.setdefault(row.query_id, {})[row.doc_id] = row.relevance
    except (OSError, RuntimeError) as error:
        raise QontextError(
            f"the judgments of {name} could not be downloaded: {first_line(error)}",
            remedy="Pass a local file or folder instead.",
        ) from None
    return Judged(qrels, name, entry)


@dataclass(frozen=True)
class Published:
    """One system's published results: benchmark → measure → percent."""

    system: str
    source: str
    figures: dict[str, dict[str, float]]


_TABLES = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
PAPERS: dict[str, str] = _TABLES["papers"]


def _rows(kind: str) -> tuple[Published, ...]:
    rows = []
    for group in _TABLES[kind]:
        source = ", ".join(filter(None, (PAPERS[group["paper"]], group.get("place"))))
        rows += [Published(row.pop("system"), source, row) for row in group["rows"]]
    return tuple(rows)


ROWS, ABLATIONS, LEADERBOARDS = map(_rows, ("main", "ablations", "leaderboards"))
"""The papers' main tables; variants of a method, not shown in reports; queries whose judgments are not public."""


def rows_for(benchmark: str) -> list[Published]:
    """The published systems with a result for this benchmark, in the papers' order."""
    return [row for row in ROWS if benchmark in row.figures]


def named(system: str) -> list[Published]:
    """The rows of a system, ablations included; each name has one."""
    return [row for row in (*ROWS, *ABLATIONS, *LEADERBOARDS) if row.system == system]
