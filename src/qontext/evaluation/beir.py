"""`qontext beir`: zero-shot evaluation of a retriever on many sets, with published results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from qontext.evaluation.published import BEIR_SETS, ROWS
from qontext.evaluation.tables import Cell, Row, Table, to_csv, to_latex, to_markdown
from qontext.frame import artifacts, execution, log, stages
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import DeviceConfig, Input, existing
from qontext.frame.disk import require_no_file
from qontext.frame.errors import QontextError, choose
from qontext.frame.inputs import digest_of
from qontext.frame.stages import Pipeline

if TYPE_CHECKING:
    from qontext.evaluation.datasets import Benchmark, Unavailable

MEASURE = "nDCG@10"


class BeirConfig(DeviceConfig):
    retriever: Annotated[str, Input(positional=True)]
    """Retriever: a directory or Hub name as for `encode`, or "bm25"."""

    out: str
    """Output directory for vectors, runs and scores of every set, and for the table."""

    sets: tuple[str, ...] = BEIR_SETS
    """Sets to evaluate on. Default: the 14 of the published table. cqadupstack is the mean of its 12 forums.
    With --data-root, any folder in it. The path of a folder in BEIR's layout is a set, too."""

    data_root: str | None = None
    """A folder with one folder in BEIR's layout per set. Missing sets are downloaded."""

    split: str = "test"
    """Split of the judgments."""

    k: int = Field(1_000, ge=1)
    """Passages per query."""

    max_length: int | None = Field(None, ge=3, le=100_000)
    """Maximum length of a text in tokens; longer texts are truncated. Default: the encoder's limit."""

    storage: Literal["fp16", "fp32"] = "fp16"
    """Number format of the vectors on disk."""


def run(settings: BeirConfig) -> dict[str, Any]:
    from qontext.evaluation.datasets import Unavailable

    root = Path(settings.out)
    if not settings.sets:
        raise QontextError("no set is specified", remedy="Name one with --sets.")
    require_no_file(root)
    folders = folders_of(settings)
    if settings.retriever != "bm25":
        digest_of(settings.retriever, "retriever")
    work = artifacts.open_root(root)
    scores: dict[str, float] = {}
    missing: dict[str, Unavailable] = {}
    for number, (name, parts) in enumerate(folders.items(), 1):
        log.note(f"[{number}/{len(folders)}] {name}")
        try:
            of_parts = {part: _score(settings, part, folder, root) for part, folder in parts.items()}
        except Unavailable as error:
            log.warn(f"{name} is skipped: {error.message}.")
            missing[name] = error
            continue
        scores[name] = sum(of_parts.values()) / len(of_parts)
    if not scores:
        first = next(iter(missing.values()))
        raise QontextError(
            f"none of the data sets could be downloaded: {', '.join(missing)}", remedy=first.remedy
        )
    table = beir_table(scores, tuple(missing))
    work.write_text("beir.md", to_markdown(table))
    work.write_text("beir.tex", to_latex(table))
    work.write_text("beir.csv", to_csv(["set", MEASURE], [[n, s] for n, s in scores.items()]))
    log.show_rows(
        f"{MEASURE}, × 100",
        [dict(zip(table.columns, (cell.text for cell in row.cells))) for row in table.rows],
    )
    return {
        "out": str(root),
        "measure": MEASURE,
        "sets": scores,
        "average": sum(scores.values()) / len(scores),
        "missing": list(missing),
    }


def folders_of(settings: BeirConfig) -> dict[str, dict[str, Path | Benchmark]]:
    """The parts of each set. All folders are checked before the first search, so that a misspelled name is an error at
    once.
    """
    from qontext.data.collection import load_collection

    names: dict[str, str] = {}
    for name in settings.sets:
        other = names.setdefault(Path(name).resolve().name, name)
        if other != name:
            raise QontextError(
                f"two sets have the same name: {other} and {name}", remedy="Rename one of the folders."
            )
    folders = {name: dict(_folders(settings, source)) for name, source in names.items()}
    for parts in folders.values():
        for folder in (source for source in parts.values() if isinstance(source, Path)):
            choose(settings.split, load_collection(folder).splits, f"split of {folder}")
    return folders


def _folders(settings: BeirConfig, name: str) -> Iterator[tuple[str, Path | Benchmark]]:
    """The parts of a set, each with its folder, or with the benchmark to download."""
    from qontext.evaluation.datasets import BENCHMARKS

    sets = [n.removeprefix("beir/") for n in BENCHMARKS if n.startswith("beir/")]
    if name not in sets and (Path(name).name != name or not settings.data_root) and Path(name).is_dir():
        yield Path(name).resolve().name, Path(name)
        return
    local = Path(settings.data_root).expanduser() / name if settings.data_root else None
    if settings.data_root:
        existing(settings.data_root, "the folder of the sets")
    parts = BENCHMARKS["beir/cqadupstack"].parts
    names = [part.removeprefix("beir/cqadupstack-") for part in parts]
    forums = [local / forum for forum in names if (local / forum).is_dir()] if local else []
    if forums and local:  # the layout of the official archive
        yield from ((f"{name}-{folder.name}", folder) for folder in forums)
    elif local and local.is_dir():
        yield name, local
    else:
        entry = BENCHMARKS[f"beir/{choose(name, sets, 'set')}"]
        for part in entry.parts or (entry.name,):
            here = (
                Path(settings.data_root).expanduser() / part.removeprefix("beir/")
                if settings.data_root
                else None
            )
            yield part.removeprefix("beir/"), here if here and here.is_dir() else BENCHMARKS[part]


def _score(settings: BeirConfig, name: str, source: Path | Benchmark, root: Path) -> float:
    """Encode, search and evaluate one set; finished stages are skipped."""
    folder = source if isinstance(source, Path) else fetch(source, root / "data" / name)
    place = root / name
    search: dict[str, Any] = {"data": str(folder), "split": settings.split, "k": settings.k}
    if settings.retriever == "bm25":
        search["bm25"] = True
    else:
        encode = {"texts": str(folder), "encoder": settings.retriever, "storage": settings.storage}
        vectors = _do("encode", place, encode | _length(settings))
        search |= {"index": str(vectors.path)} | _length(settings)
    results = _do("search", place, search)
    evaluation = _do(
        "evaluate", place, {"run": str(results.path), "qrels": str(folder), "split": settings.split}
    )
    return float(evaluation.summary.take("measures", dict[str, float])[MEASURE])


def _length(settings: BeirConfig) -> dict[str, Any]:
    return {"device": settings.device} | ({"max_length": settings.max_length} if settings.max_length else {})


def _do(verb: str, place: Path, settings: dict[str, Any]) -> Artifact:
    stage = stages.load(verb)
    assert isinstance(stage, stages.Stage)
    return execution.execute(stage, stage.config.make(settings, where=verb), place / verb, overwrite=True)


def fetch(benchmark: Benchmark, folder: Path) -> Path:
    """Write a set of ir_datasets as a folder in BEIR's layout; finished parts are not downloaded again."""
    from qontext.data.collection import write_qrels
    from qontext.evaluation.datasets import remote_dataset

    work = Workdir(folder)
    if all(work.has(name) for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")):
        return folder
    with remote_dataset(benchmark.source) as dataset:
        log.note(f"Downloading {benchmark.name} ({benchmark.passages:,} passages) to {folder}.")
        passages = (
            {"_id": d.doc_id, "title": getattr(d, "title", ""), "text": d.text} for d in dataset.docs_iter()
        )
        queries = ({"_id": q.query_id, "text": q.text} for q in dataset.queries_iter())
        for name, rows in (("corpus.jsonl", passages), ("queries.jsonl", queries)):
            with work.write(name) as path, path.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with work.write("qrels/test.tsv") as path:
            write_qrels(path, ((j.query_id, j.doc_id, j.relevance) for j in dataset.qrels_iter()))
    return folder


def beir_table(scores: dict[str, float], missing: tuple[str, ...] = ()) -> Table:
    """Our results and those of published systems by set, and the means over common sets."""
    systems = [row for row in ROWS if any(f"beir/{name}" in row.figures for name in BEIR_SETS)]
    published = [name for name in scores if name in BEIR_SETS]
    columns = ["Set", "ours", *((row.system for row in systems) if published else ())]
    table = Table(columns, caption=f"{MEASURE} without training on the sets, × 100")
    for name, score in scores.items():
        figures = [row.figures.get(f"beir/{name}", {}).get(MEASURE) for row in systems] if published else []
        table.rows.append(_row(name, 100 * score, figures))
    table.rows.append(
        _row("mean", 100 * sum(scores.values()) / len(scores), [])
        if not published
        else _mean(scores, published, systems)
    )
    if published:
        table.notes.append(f"Published: {systems[0].source}. The mean is over its {len(published)} sets.")
    if missing:
        table.notes.append(f"Not downloaded, and not included in means: {', '.join(missing)}.")
    return table


def _mean(scores: dict[str, float], sets: list[str], systems: list[Any]) -> Row:
    means = [sum(row.figures[f"beir/{name}"][MEASURE] for name in sets) / len(sets) for row in systems]
    return _row("mean", 100 * sum(scores[name] for name in sets) / len(sets), means)


def _row(name: str, ours: float, others: list[float | None] | list[float]) -> Row:
    best = max([ours, *(figure for figure in others if figure is not None)])
    figures = [ours, *others]
    cells = (Cell("–" if f is None else f"{f:.1f}", is_best=bool(others) and f == best) for f in figures)
    return Row((Cell(name, is_text=True), *cells))


BEIR = Pipeline(
    verb="beir",
    config=BeirConfig,
    run=run,
    examples="""
        qontext beir retriever --out beir
        qontext beir bm25 --sets scifact --sets nfcorpus --data-root beir-data --out beir
    """,
)
