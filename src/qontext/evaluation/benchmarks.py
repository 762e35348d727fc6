"""Benchmarks by name, judgments from a benchmark name, a file or a folder, and published results in percent.

A benchmark is downloaded through ir_datasets. A file with exactly the judgments of a known benchmark is recognized by its
content, regardless of its name, so that the benchmark's measures, grades and published results apply.

The literature's MS MARCO "R@50" and "R@1k" are the share of queries with a relevant passage in the top k, so
they are listed there as ``Success@k``. For systems that a paper cites, the source is the citing paper. If two
papers report different results for one system, each has a row.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.frame.errors import QontextError, choose, missing_extra
from qontext.frame.files import digest_of
from qontext.models import hub

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
