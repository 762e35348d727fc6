"""Labeled sets that cells read, made of others: joined, without titles, a part, or pairs of their passages."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qontext.data.collection import load_collection, passage_row, read_passages, read_qrels, read_queries
from qontext.data.lines import write_jsonl
from qontext.models.retriever import Retriever


def joined(pool: Sequence[str], documents: Path, data: Path, out: Path) -> Path:
    """One labeled set of the passages of all sets and of the paragraphs of the documents, each text once. Ids begin with
    the set's name."""
    if (out / "corpus.jsonl").exists():
        return out
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    first_of: dict[tuple[str, str], str] = {}
    same, rows, questions = {}, [], []
    for name in (*pool, "documents"):
        for passage in read_passages(documents if name == "documents" else data / name):
            own = f"{name}/{passage.id}"
            same[own] = first_of.setdefault((passage.title, passage.text), own)
            if same[own] == own:
                rows.append(passage_row(passage._replace(id=own, doc=f"{name}/{passage.doc}")))
    for name in pool:
        texts = read_queries(data / name)
        questions += [{"_id": f"{name}/{query}", "text": text} for query, text in texts.items()]
    write_jsonl(out / "queries.jsonl", questions)
    for split in ("train", "dev", "test"):
        lines = ["query-id\tcorpus-id\tscore\n"]
        for name in (name for name in pool if (data / name / "qrels" / f"{split}.tsv").exists()):
            for query, judged in read_qrels(data / name / "qrels" / f"{split}.tsv").items():
                lines += [f"{name}/{query}\t{same[f'{name}/{p}']}\t{grade}\n" for p, grade in judged.items()]
        (out / "qrels" / f"{split}.tsv").write_text("".join(lines), "utf-8")
    write_jsonl(out / "corpus.jsonl", rows)  # last, since it says that the rest is there
    return out


def write_pairs(data: Path, judge: str, upper: Path, lower: Path) -> None:
    """For each passage, two others of its document, drawn at random: the one that a retriever finds closer, and the
    other."""
    passages = list(read_passages(data))
    vectors = Retriever(judge).encode([passage.content for passage in passages], "passage")
    members: dict[str, list[int]] = {}
    for number, passage in enumerate(passages):
        members.setdefault(passage.doc, []).append(number)
    random = np.random.default_rng(1)
    lines: tuple[list[str], list[str]] = ([], [])
    for number, passage in enumerate(passages):
        others = [other for other in members[passage.doc] if other != number]
        if len(others) > 1:
            drawn = random.choice(others, 2, replace=False)
            order = np.argsort(-(vectors[drawn] @ vectors[number]))
            for part, other in zip(lines, drawn[order], strict=True):
                part.append(f"{passage.id}\t{' '.join(passages[other].content.split())}\n")
    for file, part in zip((upper, lower), lines, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(part), "utf-8")


def write_gold(data: Path, file: Path) -> None:
    """The training questions of a set by the passage that answers them, as queries of that passage."""
    questions = read_queries(data)
    rows = [
        f"{passage}\t{' '.join(questions[query].split())}\n"
        for query, judged in read_qrels(data / "qrels" / "train.tsv").items()
        for passage, grade in judged.items()
        if grade > 0
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(rows), "utf-8")


def without_titles(data: Path, out: Path) -> Path:
    """A copy of a labeled set without the titles of its passages."""
    if not (out / "corpus.jsonl").exists():
        (out / "qrels").mkdir(parents=True, exist_ok=True)
        for file in [*data.glob("queries.jsonl*"), *data.glob("qrels/*")]:
            shutil.copyfile(file, out / file.relative_to(data))
        rows = (passage_row(passage._replace(title="")) for passage in load_collection(data).passages())
        write_jsonl(out / "corpus.jsonl", rows)
    return out


def part_of(data: Path, share: int, out: Path) -> Path:
    """A labeled set of each so-manieth document, with the questions that these answer."""
    if (out / "corpus.jsonl").exists():
        return out
    whole = load_collection(data)
    passages = list(whole.passages())
    chosen = set(sorted({passage.doc for passage in passages})[::share])
    kept = [passage for passage in passages if passage.doc in chosen]
    ids = {passage.id for passage in kept}
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    for file in data.glob("queries.jsonl*"):
        shutil.copyfile(file, out / file.name)
    for file in data.glob("qrels/*.tsv"):
        lines = ["query-id\tcorpus-id\tscore\n"]
        for query, judged in read_qrels(file).items():
            lines += [f"{query}\t{passage}\t{grade}\n" for passage, grade in judged.items() if passage in ids]
        (out / "qrels" / file.name).write_text("".join(lines), "utf-8")
    write_jsonl(out / "corpus.jsonl", map(passage_row, kept))
    return out
