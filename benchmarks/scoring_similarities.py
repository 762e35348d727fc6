"""The similarities of the questions and passages of a set, of which the arms of `scoring.py` are made."""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import defaultdict
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
from qontext.models.batching import run_batches
from qontext.models.packed import Packed
from qontext.models.retriever import Retriever
from qontext.retrieve.bm25 import Bm25
from qontext.retrieve.encoded.packed import open_bits, open_stored
from qontext.retrieve.encoded.windows import windows_of

WINDOW = 64
Array = np.ndarray[Any, Any]


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
