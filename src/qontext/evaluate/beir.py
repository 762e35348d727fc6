"""`qontext beir`: one retriever on many sets without training on them, beside the published table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from qontext import log, stages
from qontext.artifacts import Artifact, Workdir
from qontext.config import Input, Machine, StageConfig, existing
from qontext.errors import QontextError, choose
from qontext.evaluate.datasets import BENCHMARKS, FORUMS, Benchmark, Unavailable, remote_dataset
from qontext.evaluate.published import BEIR_SETS, ROWS
from qontext.evaluate.tables import Cell, Row, Table, to_csv, to_latex, to_markdown
from qontext.stages import Command

MEASURE = "nDCG@10"


class BeirConfig(StageConfig):
    retriever: Annotated[str, Input(positional=True)]
    """The retriever: a directory or hub name as for `encode`, or "bm25"."""

    out: str
    """The directory for vectors, runs and scores of every set, and for the table."""

    sets: tuple[str, ...] = BEIR_SETS
    """Which sets; by default the 14 of the published table. cqadupstack is the mean of its 12 forums. With
    --data-root, any folder in it."""

    data_root: str | None = None
    """A folder with one folder in BEIR's layout per set. Sets that are not there are fetched."""

    split: str = "test"
    """Which judgements of the folders."""

    k: int = Field(1_000, ge=1)
    """Passages per query."""

    max_length: int | None = Field(None, ge=3)
    """Tokens after which a text is cut; by default the encoder's own limit."""

    storage: Literal["fp16", "fp32"] = "fp16"
    """Number format of the vectors on disk."""

    device: Annotated[str, Machine()] = "auto"
    """Where to compute: auto, cpu, cuda, cuda:N or mps."""


def run(settings: BeirConfig) -> dict[str, Any]:
    root = Path(settings.out)
    if not settings.sets:
        raise QontextError("no set was asked for", remedy="Name one with --sets.")
    root.mkdir(parents=True, exist_ok=True)
    # All folders are found before the first is searched: a misspelt name is told at once.
    folders = {name: dict(_folders(settings, name)) for name in settings.sets}
    scores: dict[str, float] = {}
    missing: dict[str, Unavailable] = {}
    for number, (name, parts) in enumerate(folders.items(), 1):
        log.note(f"[{number}/{len(folders)}] {name}")
        try:
            found = {part: _score(settings, part, folder, root) for part, folder in parts.items()}
        except Unavailable as error:
            log.warn(f"{name} is left out: {error.message}.")
            missing[name] = error
            continue
        scores[name] = sum(found.values()) / len(found)
    if not scores:
        first = next(iter(missing.values()))
        raise QontextError(f"none of the sets could be had: {', '.join(missing)}", remedy=first.remedy)
    table = beir_table(scores, tuple(missing))
    work = Workdir(root)
    for file, text in {"beir.md": to_markdown(table), "beir.tex": to_latex(table)}.items():
        with work.write(file) as path:
            path.write_text(text, encoding="utf-8")
    with work.write("beir.csv") as path:
        path.write_text(to_csv(["set", MEASURE], [[n, s] for n, s in scores.items()]), encoding="utf-8")
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


def _folders(settings: BeirConfig, name: str) -> Iterator[tuple[str, Path | Benchmark]]:
    """The parts of a set, each with its folder, or with the benchmark that has to be fetched."""
    local = Path(settings.data_root).expanduser() / name if settings.data_root else None
    if settings.data_root:
        existing(settings.data_root, "the folder of the sets")
    forums = [local / forum for forum in FORUMS if (local / forum).is_dir()] if local else []
    if forums and local:  # the layout of the official archive
        yield from ((f"{name}-{folder.name}", folder) for folder in forums)
    elif local and local.is_dir():
        yield name, local
    else:
        known = [n.removeprefix("beir/") for n in BENCHMARKS if n.startswith("beir/")]
        entry = BENCHMARKS[f"beir/{choose(name, known, 'set')}"]
        for part in entry.parts or (entry.name,):
            here = (
                Path(settings.data_root).expanduser() / part.removeprefix("beir/")
                if settings.data_root
                else None
            )
            yield part.removeprefix("beir/"), here if here and here.is_dir() else BENCHMARKS[part]


def _score(settings: BeirConfig, name: str, source: Path | Benchmark, root: Path) -> float:
    """Encode, search and evaluate one set; what is done already is not done again."""
    folder = source if isinstance(source, Path) else fetch(source, root / "data" / name)
    place = root / name
    search: dict[str, Any] = {"data": str(folder), "split": settings.split, "k": settings.k}
    if settings.retriever == "bm25":
        search["bm25"] = True
    else:
        encode = {"texts": str(folder), "encoder": settings.retriever, "storage": settings.storage}
        vectors = _do("encode", place, encode | _length(settings))
        search |= {"index": str(vectors.path)} | _length(settings)
    found = _do("search", place, search)
    made = _do("evaluate", place, {"run": str(found.path), "qrels": str(folder), "split": settings.split})
    return float(made.summary["measures"][MEASURE])


def _length(settings: BeirConfig) -> dict[str, Any]:
    return {"device": settings.device} | ({"max_length": settings.max_length} if settings.max_length else {})


def _do(verb: str, place: Path, settings: dict[str, Any]) -> Artifact:
    stage = stages.load(verb)
    assert isinstance(stage, stages.Stage)
    return stages.execute(stage, stage.config.make(settings, where=verb), place / verb, overwrite=True)


def fetch(benchmark: Benchmark, folder: Path) -> Path:
    """Write a set of ir_datasets as a folder in BEIR's layout; a finished part is not fetched again."""
    work = Workdir(folder)
    if all(work.has(name) for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")):
        return folder
    with remote_dataset(benchmark.source) as dataset:
        log.note(f"Fetching {benchmark.name} ({benchmark.passages:,} passages) into {folder}.")
        passages = (
            {"_id": d.doc_id, "title": getattr(d, "title", ""), "text": d.text} for d in dataset.docs_iter()
        )
        queries = ({"_id": q.query_id, "text": q.text} for q in dataset.queries_iter())
        for name, rows in (("corpus.jsonl", passages), ("queries.jsonl", queries)):
            with work.write(name) as path, path.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with work.write("qrels/test.tsv") as path, path.open("w", encoding="utf-8") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            file.writelines(f"{j.query_id}\t{j.doc_id}\t{j.relevance}\n" for j in dataset.qrels_iter())
    return folder


def beir_table(scores: dict[str, float], missing: tuple[str, ...] = ()) -> Table:
    """Ours beside the published systems, set by set, and the means over the sets that both have."""
    systems = [row for row in ROWS if any(f"beir/{name}" in row.figures for name in BEIR_SETS)]
    known = [name for name in scores if name in BEIR_SETS]
    columns = ["Set", "ours", *((row.system for row in systems) if known else ())]
    table = Table(columns, caption=f"{MEASURE} without training on the sets, × 100")
    for name, score in scores.items():
        figures = [row.figures.get(f"beir/{name}", {}).get(MEASURE) for row in systems] if known else []
        table.rows.append(_row(name, 100 * score, figures))
    table.rows.append(
        _row("mean", 100 * sum(scores.values()) / len(scores), [])
        if not known
        else _mean(scores, known, systems)
    )
    if known:
        table.notes.append(
            f"Published: {systems[0].source}. The mean is over the {len(known)} sets that it has."
        )
    if missing:
        table.notes.append(f"Could not be had, and counts in no mean: {', '.join(missing)}.")
    return table


def _mean(scores: dict[str, float], known: list[str], systems: list[Any]) -> Row:
    means = [sum(row.figures[f"beir/{name}"][MEASURE] for name in known) / len(known) for row in systems]
    return _row("mean", 100 * sum(scores[name] for name in known) / len(known), means)


def _row(name: str, ours: float, others: list[float | None] | list[float]) -> Row:
    best = max([ours, *(figure for figure in others if figure is not None)])
    figures = [ours, *others]
    cells = (Cell("–" if f is None else f"{f:.1f}", is_best=bool(others) and f == best) for f in figures)
    return Row((Cell(name, is_text=True), *cells))


BEIR = Command(
    verb="beir",
    config=BeirConfig,
    run=run,
    examples="""
        qontext beir runs/retriever --out runs/beir
        qontext beir bm25 --sets scifact --sets nfcorpus --data-root data --out runs/beir-bm25
    """,
)
