"""The gain of other ways of scoring passages over those of `adapt`, without any more training.

    python benchmarks/scoring.py DATA --encoder FOLDER --adapted FOLDER --cache FOLDER [--passes fairytaleqa:dev …]

`--adapted` is the folder `--work` of benchmarks/adapt.py, whose vectors, bits and generated queries are used: for each set
in it, with the original and with the adapted encoder, all similarities of the questions of its dev split and its passages
are computed once and kept in the cache. BM25, vectors of windows, and for every token of a question its best token in every
passage: every arm is then arithmetic on these arrays. The system to beat is what `adapt` recommends without labels: .7 BM25
and .3 windows, as standardized scores, and the best 100 of these with equal weights of that and of MaxSim of the bits.

The sets of `--passes` are small samples of DATA, labeled sets in BEIR's layout, one per folder, which are encoded in
several ways: windows and bits each from a forward pass of its own, as `encode` does, or both from one of them.

Writes scoring.json beside this file: nDCG@10 of each arm, and its difference from what it would replace with the p of the
paired randomization test, not corrected.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from qontext import api
from qontext.corpus.counting import Counter, counter
from qontext.data.collection import (
    Passage,
    load_collection,
    passage_row,
    read_passages,
    read_qrels,
    read_queries,
)
from qontext.data.lines import write_jsonl
from qontext.data.runs import Run
from qontext.evaluation.comparison import randomization_test
from qontext.evaluation.measures import find, ndcg
from qontext.frame import log, machine
from qontext.models.batching import run_batches
from qontext.models.packed import Packed
from qontext.models.retriever import Retriever
from qontext.retrieve.bm25 import Bm25
from qontext.retrieve.encoded.packed import open_bits, open_stored
from qontext.retrieve.encoded.windows import windows_of

OUT = Path(__file__).with_suffix(".json")
PASSES = ["fairytaleqa:dev", "cosqa:dev", "nfcorpus:dev"]
CANDIDATES, WINDOW = 100, 64
MEASURE = "nDCG@10"
DENSE, TOKENS = 0.3, 0.5
Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--adapted", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--passes", nargs="*", default=PASSES)
    parser.add_argument(
        "--keyphrases", nargs="*", default=(), help="SET-start or SET-adapted: vectors of queries, too"
    )
    parser.add_argument("--passages", type=int, default=600, help="passages of a sample of --passes")
    parser.add_argument("--questions", type=int, default=250)
    options = parser.parse_args()
    log.show(log.SILENT)
    options.cache.mkdir(parents=True, exist_ok=True)

    def measured(file: Path, compute: Any, every: Any) -> tuple[dict[str, int], dict[str, Array]]:
        if not file.exists():
            np.savez(file, **compute())
        with np.load(file) as stored:
            own = Features({key: stored[key] for key in stored.files})
        scores = {arm: own.score(scored) for arm, scored in every(own)}
        print(file.stem, {arm: round(float(v.mean()), 4) for arm, v in scores.items()}, flush=True)
        return {"questions": len(own.words), "passages": own.words.shape[1]}, scores

    done: dict[str, Any] = {"scoring": {}, "passes": {}}
    for text in options.passes:
        name, _, split = text.partition(":")
        compute = partial(by_passes, options.data / name, split, options)
        done["passes"][name] = measured(options.cache / f"passes-{name}.npz", compute, one_pass)
    for which in ("start", "adapted"):
        for steps in sorted(options.adapted.glob("*/steps")):
            if not (steps / f"score-tokens-{'start-' * (which == 'start')}real-dev" / "meta.json").exists():
                continue
            name = f"{steps.parent.name}-{which}"
            source, keyphrases = options.data / steps.parent.name, name in options.keyphrases
            compute = partial(stored, source, steps, which, keyphrases=keyphrases)
            done["scoring"][name] = measured(options.cache / f"{name}.npz", compute, arms)
    name, _, split = options.passes[0].partition(":") if options.passes else ("", "", "")
    if name:
        timed = options.cache / f"seconds-{name}.json"
        done["seconds"] = {name: processor_seconds(options.data / name, split, options, timed)}
    result: dict[str, Any] = {"encoder": Path(options.encoder).name, "window": WINDOW}
    result["processor_seconds"] = done.pop("seconds", {})
    for part, sets in done.items():
        result[part] = {"sets": {name: sizes for name, (sizes, _) in sets.items()}}
        result[part]["arms"] = table({name: scores for name, (_, scores) in sets.items()})
    OUT.write_text(dumped({**result, "machine": machine.describe()}), "utf-8")


# ---- the sample and its similarities


def sample(source: Path, split: str, options: Any) -> tuple[list[Passage], dict[str, str], Any]:
    """Some questions, their passages, the other passages of the same documents, and whole documents at random."""
    whole = load_collection(source)
    qrels, texts = whole.qrels(split), whole.queries(split)
    passages = list(whole.passages())
    known = {passage.id for passage in passages}
    dice = random.Random(1)
    judged = {q: {p: g for p, g in own.items() if p in known} for q, own in qrels.items()}
    able = sorted(q for q, own in judged.items() if q in texts and any(g > 0 for g in own.values()))
    chosen = sorted(dice.sample(able, min(options.questions, len(able))))
    relevant = {p for q in chosen for p, grade in judged[q].items() if grade > 0}
    relevant = {*dice.sample(sorted(relevant), min(len(relevant), options.passages))}
    judged = {q: {p: g for p, g in judged[q].items() if p in relevant} for q in chosen}
    chosen = [q for q in chosen if any(g > 0 for g in judged[q].values())]
    documents = defaultdict(list)
    for passage in passages:
        documents[passage.doc].append(passage.id)
    kept = set(relevant)
    of = {passage.id: passage.doc for passage in passages}
    first = sorted({of[p] for p in relevant})
    others = sorted(documents.keys() - {*first})
    for doc in [*dice.sample(first, len(first)), *dice.sample(others, len(others))]:
        if len(kept) < options.passages:
            kept.update(documents[doc])
    own = [passage for passage in passages if passage.id in kept]
    return own, {q: texts[q] for q in chosen}, {q: judged[q] for q in chosen}


def by_passes(source: Path, split: str, options: Any) -> dict[str, Any]:
    """The similarities of a sample, from passes of whole passages and from passes of windows."""
    passages, questions, qrels = sample(source, split, options)
    retriever = Retriever(options.encoder, max_length=512)
    docs = {passage.id: passage.doc for passage in passages}
    arrays, query_QD, query_ID = of_questions(retriever, passages, questions, qrels, docs)
    arrays |= full_pass(retriever, passages, query_QD, query_ID)
    return arrays | window_pass(retriever, passages, query_QD, query_ID)


def processor_seconds(source: Path, split: str, options: Any, cache: Path) -> dict[str, float]:
    """Processor time for windows and bits: from one pass of the windows, and from passes of their own, as before."""
    if not cache.exists():
        passages, *_ = sample(source, split, argparse.Namespace(passages=80, questions=20))
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "corpus.jsonl"
            write_jsonl(data, map(passage_row, passages))
            seconds: dict[str, list[float]] = defaultdict(list)
            ways: dict[str, dict[str, Any]] = {
                "windows": {"window": WINDOW},
                "bits": {"tokens": True},
                "windows and bits": {"window": WINDOW, "tokens": True},
            }
            for turn in range(2):
                for name, settings in ways.items():
                    began = time.process_time()
                    api.encode(data, encoder=options.encoder, out=Path(folder) / f"{name}-{turn}", **settings)
                    seconds[name].append(time.process_time() - began)
        best = {name: round(min(values), 1) for name, values in seconds.items()}
        cache.write_text(json.dumps({"passages": len(passages), "load": os.getloadavg()[0], **best}))
    result: dict[str, float] = json.loads(cache.read_text())
    return result


def stored(source: Path, steps: Path, which: str, *, keyphrases: bool) -> dict[str, Any]:
    """The similarities of a set that was adapted, from what is stored of it."""
    vectors, apart = open_stored(steps / f"{which}-vectors"), steps / f"{which}-tokens"
    bits = open_bits(apart if apart.is_dir() else steps / f"{which}-vectors")
    ids = np.concatenate([part.to_pylist() for part in vectors.part_ids])
    found = {passage.id: passage for passage in read_passages(steps / "holdout" / "measured")}
    passages = [found[id] for id in ids]
    real = steps.parent / "real"
    qrels, questions = read_qrels(real / "qrels" / "dev.tsv"), read_queries(real)
    retriever = Retriever(vectors.encoder["path"], max_length=vectors.artifact.summary["max_length"])
    docs = {passage.id: passage.doc for passage in read_passages(source)}
    asked = {q: questions[q] for q in qrels}
    arrays, query_QD, query_ID = of_questions(retriever, passages, asked, qrels, docs)
    windows = [part if isinstance(part, Packed) else packed_rows(part) for part in vectors.parts]
    arrays |= of_windows(query_QD, Packed.join(windows))
    assert ids.tolist() == [id for part in bits.part_ids for id in part.to_pylist()]
    arrays["max_bits"] = np.concatenate([best_tokens(query_ID, part) for part in bits.parts], 1)
    tokens = retriever.tokenize([p.joined(" ") for p in passages], "passage")
    arrays["df"] = frequencies(retriever, tokens)
    if keyphrases:
        arrays["keyphrases"] = generated(retriever, ids, steps / "generate", query_QD)
    for name in ("embeddings", "random"):
        arrays[f"static_{name}"] = static(retriever, tokens, list(asked.values()), name)
    return arrays


def packed_rows(vectors: Array) -> Packed:
    """One vector for each passage."""
    return Packed(np.arange(len(vectors) + 1), np.asarray(vectors))


def frequencies(retriever: Retriever, tokens: list[Array]) -> Array:
    """[V] the number of passages with each token."""
    seen = np.concatenate([np.unique(ids) for ids in tokens])
    return np.bincount(seen, minlength=retriever.model.get_input_embeddings().num_embeddings)


def best_tokens(query_ID: Array, packed: Packed) -> Array:
    """[I, P] the best product of each token of the questions with the signs of a passage's tokens."""
    best = np.zeros((len(query_ID), len(packed)), np.float16)
    for first in range(0, len(packed), 64):
        last = min(first + 64, len(packed))
        starts = packed.starts[first : last + 1]
        bits = np.unpackbits(packed.values[starts[0] : starts[-1]], axis=1, count=query_ID.shape[1])
        products = query_ID @ (2 * bits.astype(np.float32) - 1).T / np.float32(np.sqrt(query_ID.shape[1]))
        best[:, first:last] = np.maximum.reduceat(products, starts[:-1] - starts[0], axis=1)
    return best


def of_questions(
    retriever: Retriever, passages: list[Passage], questions: dict[str, str], qrels: Any, docs: dict[str, str]
) -> tuple[dict[str, Any], Array, Array]:
    """The values that depend on questions and words alone; and the vectors of the questions, and of all their tokens."""
    texts = list(questions.values())
    query_QD = retriever.encode_queries(texts)
    token_ids = retriever.tokenize(texts, "query")
    packed = retriever.encode_each_token(token_ids)
    bm25 = Bm25.build(passages)
    words = np.zeros((len(texts), len(passages)), np.float32)
    for row, numbers, scores in zip(words, *bm25.top(texts, len(passages))):
        row[numbers[scores > 0]] = scores[scores > 0]
    arrays: dict[str, Any] = {"words": words, "query_starts": packed.starts}
    special = retriever.tokenizer.all_special_ids
    arrays["query_ids"] = np.concatenate([ids[~np.isin(ids, special)] for ids in token_ids])
    names = [docs[p.id] for p in passages]
    arrays["docs"] = np.unique(names, return_inverse=True)[1]
    arrays["rarity"] = np.array([_rarities(bm25, text) for text in texts])
    arrays["qrels"] = np.frombuffer(json.dumps(qrels).encode(), np.uint8)
    arrays["ids"] = np.array([p.id for p in passages])
    return arrays, query_QD, packed.values


def _rarities(bm25: Bm25, text: str) -> tuple[float, float]:
    """The mean and the greatest IDF of the question's words that occur."""
    from qontext.retrieve.analyzer import Analyzer

    vocabulary = bm25._postings.vocabulary
    terms = {number: term for term, number in vocabulary.items()}
    found = Analyzer(bm25.analyzer, vocabulary, grow=False)(text)
    idf = [bm25.rarity(terms[number]) for number in found] or [0.0]
    return float(np.mean(idf)), float(np.max(idf))


def _each(retriever: Retriever, tokens: list[Array], use: Any) -> None:
    """``use(row, hidden [T, H])`` for every text."""

    def compute(rows: Array) -> list[Array]:
        hidden, _mask = retriever._hidden([tokens[row] for row in rows])
        return [h[: len(tokens[row])].numpy() for row, h in zip(rows, hidden)]

    def store(rows: Array, parts: list[Array]) -> None:
        for row, part in zip(rows, parts):
            use(int(row), part)

    run_batches(
        compute,
        store,
        np.array([len(ids) for ids in tokens]),
        tokens=retriever.batch_tokens,
        device=retriever.device,
        grid=retriever.grid,
        config=retriever.config,
    )


def _unit(vectors: Array) -> Array:
    unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    return unit


def _maxsim(query_ID: Array, vectors_JD: Array) -> Array:
    """[I] the best product of each token of the questions, with the signs of these vectors."""
    best: Array = (query_ID @ np.where(vectors_JD > 0, np.float32(1), np.float32(-1)).T).max(1)
    return best / np.float32(np.sqrt(query_ID.shape[1]))


def full_pass(
    retriever: Retriever, passages: list[Passage], query_QD: Array, query_ID: Array
) -> dict[str, Array]:
    """From one forward pass of each whole passage: its vector, those of its windows (late chunking), and MaxSim of bits
    and of centered bits."""
    backend = retriever.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(retriever.max_length)
    texts = [p.joined(" ").strip() for p in passages]
    encodings = backend.encode_batch(texts)
    tokens = [np.array(e.ids, np.int32) for e in encodings]
    special = retriever.tokenizer.all_special_ids
    mean_D = _mean_token(retriever, list(tokens[:: max(1, len(tokens) // 128)]))
    whole = np.zeros((len(passages), query_QD.shape[1]), np.float32)
    late: list[Any] = [None] * len(passages)
    late_all: list[Any] = [None] * len(passages)
    shape = len(query_ID), len(passages)
    best = {name: np.zeros(shape, np.float16) for name in ("bits", "centered")}
    count = counter(str(retriever.layout.transformer))
    centered_ID = _unit(query_ID - mean_D)

    def use(row: int, hidden: Array) -> None:
        own = ~np.isin(tokens[row], special)
        own = own if own.any() else ~own
        whole[row] = hidden.mean(0)
        groups = _window_of(passages[row], texts[row], encodings[row].offsets, own, count)
        shared = groups == -1  # title and special tokens
        names = sorted({*groups[groups >= 0].tolist()}) or [-1]
        late[row] = np.stack([hidden[groups == n].mean(0) for n in names])
        late_all[row] = np.stack([hidden[(groups == n) | shared].mean(0) for n in names])
        vectors = _unit(hidden[own])
        best["bits"][:, row] = _maxsim(query_ID, vectors)
        best["centered"][:, row] = _maxsim(centered_ID, vectors - mean_D)

    _each(retriever, tokens, use)
    arrays = {"whole": query_QD @ _unit(whole).T, "df": frequencies(retriever, tokens)}
    arrays |= {f"max_{name}": products for name, products in best.items()}
    arrays["late"] = _best_window(query_QD, late)
    arrays["late_all"] = _best_window(query_QD, late_all)
    return arrays


def _mean_token(retriever: Retriever, tokens: list[Array]) -> Array:
    packed = retriever.encode_each_token(tokens)
    mean: Array = packed.values.mean(0)
    return mean


def _window_of(
    passage: Passage, text: str, offsets: list[tuple[int, int]], own: Array, count: Counter
) -> Array:
    """[T] the window of each token; -1 for the title and special tokens."""
    windows = windows_of(passage.text, WINDOW, count)
    place, starts = len(text) - len(passage.text.strip()), []
    for window in windows:
        found = text.find(window, place)
        place = found if found >= 0 else place
        starts.append(place)
    first = np.array([a for a, _ in offsets])
    groups = np.searchsorted(np.array(starts), first, side="right") - 1
    groups[~own] = -1
    result: Array = groups
    return result


def _best_window(query_QD: Array, windows: list[Array]) -> Array:
    starts = np.cumsum([0, *map(len, windows)])[:-1]
    best: Array = np.maximum.reduceat(query_QD @ _unit(np.concatenate(windows)).T, starts, axis=1)
    return best


def window_pass(
    retriever: Retriever, passages: list[Passage], query_QD: Array, query_ID: Array
) -> dict[str, Array]:
    """From a forward pass of each window, with the title before it: its vector, and MaxSim of its bits. Also centered and
    whitened vectors."""
    count = counter(str(retriever.layout.transformer))
    cut = [windows_of(p.text, WINDOW, count) for p in passages]
    texts = [p._replace(text=w).joined(" ") for p, own in zip(passages, cut) for w in own]
    starts = np.cumsum([0, *map(len, cut)])
    tokens = retriever.tokenize(texts, "passage")
    special = retriever.tokenizer.all_special_ids
    vectors = np.zeros((len(texts), query_QD.shape[1]), np.float32)
    best = np.zeros((len(query_ID), len(texts)), np.float16)

    def use(row: int, hidden: Array) -> None:
        own = ~np.isin(tokens[row], special)
        vectors[row] = hidden.mean(0)
        best[:, row] = _maxsim(query_ID, _unit(hidden[own if own.any() else ~own]))

    _each(retriever, tokens, use)
    best_windows = np.maximum.reduceat(best, starts[:-1], 1)
    return {"max_windows": best_windows, **of_windows(query_QD, Packed(starts, _unit(vectors)))}


def of_windows(query_QD: Array, windows: Packed) -> dict[str, Array]:
    """The best window, the mean over windows, neighbors of passages, and centered and whitened vectors."""
    starts, vectors = windows.starts, np.asarray(windows.values, np.float32)

    def compared(queries: Array, windows: Array) -> Array:
        result: Array = np.maximum.reduceat(queries @ windows.T, starts[:-1], axis=1)
        return result

    whole = _unit(np.add.reduceat(vectors, starts[:-1], 0))
    arrays = {"dense": compared(query_QD, vectors), "dense_mean": query_QD @ whole.T}
    arrays["near"] = np.argsort(-whole @ whole.T, 1)[:, 1:17].astype(np.int32)
    mean_D = vectors.mean(0)
    arrays["centered"] = compared(_unit(query_QD - mean_D), _unit(vectors - mean_D))
    values, basis = np.linalg.eigh(np.cov((vectors - mean_D).T))
    for name, power in (("half_white", 0.25), ("white", 0.5)):
        turn = basis / np.maximum(values, 1e-4 * values.max()) ** power
        arrays[name] = compared(_unit((query_QD - mean_D) @ turn), _unit((vectors - mean_D) @ turn))
    return arrays


def static(
    retriever: Retriever, passages: list[Array], questions: list[str], name: str, size: int = 512
) -> Array:
    """Cosines of whitened sums of the vectors of words, weighted by their IDF: the encoder's input embeddings, or random."""
    tokens = [passages, retriever.tokenize(questions, "query")]
    embeddings = retriever.model.get_input_embeddings().weight.detach().numpy()
    if name == "random":
        embeddings = np.random.default_rng(1).standard_normal((len(embeddings), size), np.float32)
    df = frequencies(retriever, passages)
    idf = np.log(1 + (len(passages) - df + 0.5) / (df + 0.5)).astype(np.float32)
    embeddings = _unit(embeddings) * idf[:, None]
    passage_PD, query_QD = (
        _unit(np.stack([embeddings[np.unique(ids)].sum(0) for ids in texts])) for texts in tokens
    )
    mean_D = passage_PD.mean(0)
    values, basis = np.linalg.eigh(np.cov((passage_PD - mean_D).T))
    turn = basis / np.sqrt(np.maximum(values, 1e-3 * values.max()))
    similarity: Array = _unit((query_QD - mean_D) @ turn) @ _unit((passage_PD - mean_D) @ turn).T
    return similarity


def generated(retriever: Retriever, ids: Array, queries: Path, query_QD: Array) -> Array:
    """[Q, P] the best of the vectors of each passage's generated queries; -1 without any."""
    place = {id: n for n, id in enumerate(ids)}
    rows = [row for file in sorted(queries.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    products = query_QD @ retriever.encode_queries([row["query"] for row in rows]).T
    best = np.full((len(query_QD), len(ids)), -1, np.float32)
    np.maximum.at(best.T, [place[row["passage"]] for row in rows], products.T)
    return best


# ---- the arms


class Features:
    """The similarities of a set."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.__dict__.update(arrays)
        self.qrels = json.loads(bytes(arrays["qrels"]).decode())
        self.starts = arrays["query_starts"]
        n = len(arrays["ids"])
        self.idf = np.log(1 + (n - self.df + 0.5) / (self.df + 0.5))[self.query_ids].astype(np.float32)
        order = np.argsort(self.ids)
        self.sorted_ids, self.place = self.ids[order].astype(object), np.argsort(order)

    words: Array
    dense: Array
    df: Array
    ids: Array
    docs: Array
    query_ids: Array
    rarity: Array
    near: Array

    def maxsim(self, name: str, weights: Array | None = None) -> Array:
        """[Q, P] the weighted mean over the question's tokens of their best product."""
        weights = np.ones(len(self.query_ids), np.float32) if weights is None else weights
        best = getattr(self, f"max_{name}").astype(np.float32) * weights[:, None]
        total = np.add.reduceat(weights, self.starts[:-1])
        similarity: Array = np.add.reduceat(best, self.starts[:-1], 0) / np.maximum(total, 1e-9)[:, None]
        return similarity

    def score(self, scores: Array) -> Array:
        """[Q] nDCG@10 of scores that are -inf at what is not found."""
        rows, columns = np.nonzero(np.isfinite(scores))
        run = Run.from_codes(
            rows, list(self.qrels), self.place[columns], self.sorted_ids, scores[rows, columns].astype(float)
        )
        return ndcg(find(run.top(CANDIDATES), self.qrels), 10, 1)


def found(scores: Array, k: int = CANDIDATES) -> Array:
    """The best k of each row; the others, and those without any word, are -inf."""
    least = -np.partition(-scores, min(k, scores.shape[1]) - 1, 1)[:, min(k, scores.shape[1]) - 1 : k]
    return np.where((scores >= least) & (scores != 0), scores, -np.inf)


def standardized(scores: Array) -> Array:
    """(s - min) / std over what is found, 0 elsewhere."""
    is_found = np.isfinite(scores)
    values = np.where(is_found, scores, np.nan)
    with np.errstate(all="ignore"):
        scaled = (values - np.nanmin(values, 1, keepdims=True)) / np.nanstd(values, 1, keepdims=True)
    return np.where(is_found, np.nan_to_num(scaled), 0)


def fused(parts: list[Array], weights: list[Any]) -> Array:
    """The weighted sum of the standardized scores of all that any part found."""
    total = sum(w * standardized(part) for part, w in zip(parts, weights))
    is_found = np.logical_or.reduce([np.isfinite(part) for part in parts])
    return np.where(is_found, total, -np.inf)


def both(own: Features, dense: Array | None = None, weight: Any = DENSE) -> Array:
    """BM25 and vectors."""
    dense = own.dense if dense is None else dense
    return fused([found(own.words), found(dense)], [1 - weight, weight])


def reranked(first: Array, tokens: Array, weight: Any = TOKENS, k: int = CANDIDATES) -> Array:
    """The best of a first stage, and their MaxSim."""
    first = found(first, k)
    return fused([first, np.where(np.isfinite(first), tokens, -np.inf)], [1 - weight, weight])


def arms(own: Features) -> Iterator[tuple[str, Array]]:
    """The scores of every arm, by name; the part before a colon is the name of what it is compared with."""
    bits = own.maxsim("bits")
    hybrid = both(own)
    full = reranked(hybrid, bits)
    yield "BM25", found(own.words)
    yield "vectors", found(own.dense)
    yield "both", hybrid
    yield "all", full
    yield from weighted(own, hybrid, bits)
    yield from wider(own, hybrid, bits)
    yield from third(own, hybrid, bits)
    yield from turned(own, bits)
    yield from neighborhoods(own, full)


def one_pass(own: Any) -> Iterator[tuple[str, Array]]:
    """Windows and bits from the same forward pass: of the whole passage, or of each window."""
    bits = own.maxsim("bits")
    yield "vectors", found(own.dense)
    yield "both", both(own)
    yield "all", reranked(both(own), bits)
    for name in ("late", "late_all", "whole"):
        yield f"vectors:{name}", found(getattr(own, name))
        yield f"both:{name}", both(own, getattr(own, name))
        yield f"all:{name}", reranked(both(own, getattr(own, name)), bits)
    yield "all:bits of the windows' passes", reranked(both(own), own.maxsim("windows"))
    yield "all:centered bits", reranked(both(own), own.maxsim("centered"))


def weighted(own: Features, hybrid: Array, bits: Array) -> Iterator[tuple[str, Array]]:
    for name, weights in {"idf": own.idf, "sqrt(idf)": np.sqrt(own.idf), "1 + idf": 1 + own.idf}.items():
        yield f"all:MaxSim by {name}", reranked(hybrid, own.maxsim("bits", weights))
    for weight in (0.1, 0.2, 0.4, 0.5, 0.6):
        yield f"both:weight of vectors {weight}", both(own, weight=weight)
        yield f"all:weight of vectors {weight}", reranked(both(own, weight=weight), bits)
    for weight in (0.4, 0.5):
        for share in (0.6, 0.7):
            name = f"all:weight of vectors {weight}, of tokens {share}"
            yield name, reranked(both(own, weight=weight), bits, share)
    for weight in (0.3, 0.4, 0.6, 0.7):
        yield f"all:weight of tokens {weight}", reranked(hybrid, bits, weight)
    for which, name in enumerate(("mean", "greatest")):
        z = own.rarity[:, which]
        z = ((z - z.mean()) / max(float(z.std()), 1e-9))[:, None]
        for step in (-0.1, 0.1):
            weight = np.clip(DENSE + step * z, 0, 1)
            yield f"both:weight of vectors {step:+} per std of the {name} idf", both(own, weight=weight)
            yield (
                f"all:weight of vectors {step:+} per std of the {name} idf",
                reranked(both(own, weight=weight), bits),
            )


def wider(own: Features, hybrid: Array, bits: Array) -> Iterator[tuple[str, Array]]:
    """More candidates: of each list, of tokens, of neighbors; and every candidate with all its scores."""
    for k in (200, 500):
        first = fused([found(own.words, k), found(own.dense, k)], [1 - DENSE, DENSE])
        yield f"all:{k} candidates", reranked(first, bits, k=k)
    candidates = np.isfinite(found(own.words)) | np.isfinite(found(own.dense))
    complete = [np.where(candidates, own.words, -np.inf), np.where(candidates, own.dense, -np.inf)]
    first = fused(complete, [1 - DENSE, DENSE])
    yield "both:all scores of every candidate", first
    yield "all:all scores of every candidate", reranked(first, bits)
    three = [found(own.words), found(own.dense), found(bits)]
    shares = [(1 - DENSE) * (1 - TOKENS), DENSE * (1 - TOKENS), TOKENS]
    yield "all:tokens search all passages", fused(three, shares)
    best = np.argsort(-hybrid, 1)[:, :10]
    more = np.zeros(hybrid.shape, bool)
    for q, passages in enumerate(own.near[best][:, :, :8]):
        more[q, passages.ravel()] = True
    more |= np.isfinite(found(hybrid))
    scores = [np.where(more, part, -np.inf) for part in (own.words, own.dense, bits)]
    yield "all:neighbors of the best ten (corpus graph)", fused(scores, shares)


def third(own: Any, hybrid: Array, bits: Array) -> Iterator[tuple[str, Array]]:
    """Another list beside BM25 and vectors."""
    lists = {
        "input embeddings": own.static_embeddings,
        "random word vectors": own.static_random,
        "keyphrases": getattr(own, "keyphrases", None),
        "mean over windows": own.dense_mean,
    }
    for name, scores in lists.items():
        for weight in (0.1, 0.2) if scores is not None else ():
            lists_three = [found(own.words), found(own.dense), found(scores)]
            first = fused(lists_three, [0.7 * (1 - weight), 0.3 * (1 - weight), weight])
            yield f"both:{name} as a third list, {weight}", first
            yield f"all:{name} as a third list, {weight}", reranked(first, bits)
    if not hasattr(own, "keyphrases"):
        return
    best = np.maximum(own.dense, own.keyphrases)
    yield "vectors:or those of keyphrases", found(best)
    yield "both:or those of keyphrases", both(own, best)
    yield "all:or those of keyphrases", reranked(both(own, best), bits)


def turned(own: Any, bits: Array) -> Iterator[tuple[str, Array]]:
    for name in ("centered", "half_white", "white"):
        yield f"vectors:{name}", found(getattr(own, name))
        yield f"both:{name}", both(own, getattr(own, name))
        yield f"all:{name}", reranked(both(own, getattr(own, name)), bits)


def neighborhoods(own: Features, full: Array) -> Iterator[tuple[str, Array]]:
    """The scores of the passages before and after, and of the best passage of the document, added."""
    scores = np.where(np.isfinite(full), full, 0)
    same = own.docs[1:] == own.docs[:-1]
    beside = np.zeros_like(scores)
    beside[:, 1:] = np.where(same, scores[:, :-1], 0)
    beside[:, :-1] = np.maximum(beside[:, :-1], np.where(same, scores[:, 1:], 0))
    document = np.zeros((len(scores), int(own.docs.max()) + 1))
    np.maximum.at(document.T, own.docs, scores.T)
    for weight in (0.1, 0.2):
        yield f"all:+ {weight} of the better neighbor", full + weight * beside
    for weight in (0.1, 0.3):
        yield f"all:+ {weight} of the document's best", full + weight * document[:, own.docs]


def table(values: dict[str, dict[str, Array]]) -> list[dict[str, Any]]:
    """A row for each arm: its means, its differences, and where it is significantly worse."""
    rows = []
    for arm in dict.fromkeys(arm for scores in values.values() for arm in scores):
        of = {name: scores[arm] for name, scores in values.items() if arm in scores}
        row: dict[str, Any] = {"arm": arm, MEASURE: {n: round(float(v.mean()), 4) for n, v in of.items()}}
        row["mean"] = round(float(np.mean([v.mean() for v in of.values()])), 4)
        if ":" in arm:
            deltas = {n: v - values[n][arm.partition(":")[0]] for n, v in of.items()}
            row["difference"] = {n: round(float(d.mean()), 4) for n, d in deltas.items()}
            row["p"] = {n: round(randomization_test(d), 4) for n, d in deltas.items()}
            row["mean_difference"] = round(float(np.mean([d.mean() for d in deltas.values()])), 4)
            row["worse"] = [n for n, d in deltas.items() if d.mean() < 0 and row["p"][n] < 0.05]
        rows.append(row)
    return rows


def dumped(result: dict[str, Any]) -> str:
    """As JSON, with a line for each arm."""
    rows = {
        json.dumps(f"{part} {n}"): json.dumps(row)
        for part in ("scoring", "passes")
        for n, row in enumerate(result[part]["arms"])
    }
    for part in ("scoring", "passes"):
        result[part]["arms"] = [f"{part} {n}" for n in range(len(result[part]["arms"]))]
    text = json.dumps(result, indent=1)
    for name, row in rows.items():
        text = text.replace(name, row, 1)
    return text + "\n"


if __name__ == "__main__":
    main()
