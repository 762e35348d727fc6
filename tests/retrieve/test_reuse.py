"""Vectors are taken over for texts that did not change, and only from the same encoder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny import save_sentence_bert

from qontext import api
from qontext.frame import log
from qontext.retrieve.stored import open_vectors


def corpus(path: Path, texts: dict[str, str]) -> Path:
    path.write_text(
        "".join(json.dumps({"_id": id, "title": "", "text": text}) + "\n" for id, text in texts.items())
    )
    return path


def by_id(artifact: Any) -> dict[str, Any]:
    vectors = open_vectors(artifact.path)
    return {
        id: row
        for ids, part in zip(vectors.part_ids, vectors.parts)
        for id, row in zip(ids.to_pylist(), part)
    }


def test_only_what_changed_is_encoded(tmp_path: Path, tiny_encoder: Path) -> None:
    before = {f"p{n}": f"text number {n} about ships and harbours" for n in range(20)}
    old = api.encode(corpus(tmp_path / "a.jsonl", before), encoder=tiny_encoder, out=tmp_path / "a")
    after = {id: text for id, text in before.items() if id != "p3"} | {"p4": "changed", "new": "an added one"}
    again = api.encode(
        corpus(tmp_path / "b.jsonl", after), encoder=tiny_encoder, reuse=old.path, out=tmp_path / "b"
    )
    fresh = api.encode(tmp_path / "b.jsonl", encoder=tiny_encoder, out=tmp_path / "c")
    assert again.summary["encoded_now"] == 2
    assert again.summary["reused"] == 18
    first, second, alone = by_id(old), by_id(again), by_id(fresh)
    assert second.keys() == after.keys()
    assert np.array_equal(second["p7"], first["p7"])
    for id in after:
        np.testing.assert_allclose(second[id], alone[id], atol=1e-5)


def test_progress_counts_what_is_encoded(
    tmp_path: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = corpus(tmp_path / "a.jsonl", {f"p{n}": f"text number {n}" for n in range(20)})
    old = api.encode(file, encoder=tiny_encoder, out=tmp_path / "old")
    corpus(file, {f"p{n}": f"text number {n}" for n in range(23)})
    advanced: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def progress(*args: Any, **settings: Any) -> Iterator[Any]:
        yield lambda amount, skipped=0: advanced.append((amount, skipped))

    monkeypatch.setattr(log, "progress", progress)
    api.encode(file, encoder=tiny_encoder, reuse=old.path, out=tmp_path / "new")
    assert advanced[0] == (0, 20) and sum(amount for amount, _ in advanced) == 3
    assert sum(skipped for _, skipped in advanced) == 20


@pytest.mark.parametrize("file", ["tokenizer_config.json", "sentence_bert_config.json"])
def test_nothing_is_taken_from_vectors_of_other_tokens(tmp_path: Path, minilm: Path, file: str) -> None:
    encoder = save_sentence_bert(tmp_path / "encoder", minilm)
    texts = corpus(tmp_path / "a.jsonl", {"a": "One Two", "b": "one two"})
    old = api.encode(texts, encoder=encoder, out=tmp_path / "old")
    same = api.encode(texts, encoder=encoder, reuse=old.path, out=tmp_path / "same")
    assert same.summary["reused"] == 2
    settings = json.loads((encoder / file).read_text("utf-8"))
    settings["do_lower_case"] = not settings.get("do_lower_case", False)
    (encoder / file).write_text(json.dumps(settings), "utf-8")
    new = api.encode(texts, encoder=encoder, reuse=old.path, out=tmp_path / "new")
    assert new.summary["encoded_now"] == 2


def test_windows_that_repeat_a_title_are_those_of_that_title(tmp_path: Path, tiny_encoder: Path) -> None:
    file = tmp_path / "a.jsonl"
    sentences = " ".join(f"The mill of lot {n} grinds flour for bread at dusk." for n in range(6))
    settings: dict[str, Any] = {"encoder": tiny_encoder, "window": 16}
    file.write_text(json.dumps({"_id": "a", "title": "Mill", "text": sentences}) + "\n")
    old = api.encode(file, **settings, out=tmp_path / "old")
    file.write_text(json.dumps({"_id": "a", "title": "", "text": f"Mill {sentences}"}) + "\n")
    new = api.encode(file, **settings, reuse=old.path, out=tmp_path / "new")
    assert new.summary["reused"] == 0


@pytest.mark.parametrize("changed", [{"max_length": 5}, {"storage": "fp16"}, {"pooling": "max"}])
def test_nothing_is_taken_from_vectors_made_otherwise(
    tmp_path: Path, tiny_encoder: Path, changed: dict[str, Any]
) -> None:
    file = corpus(tmp_path / "a.jsonl", {"a": "one two three four five six", "b": "seven"})
    old = api.encode(file, encoder=tiny_encoder, out=tmp_path / "old")
    new = api.encode(file, encoder=tiny_encoder, reuse=old.path, out=tmp_path / "new", **changed)
    assert new.summary["encoded_now"] == 2


def test_vectors_of_queries_are_taken_only_with_the_same_prompt(tmp_path: Path, tiny_encoder: Path) -> None:
    (tmp_path / "q.tsv").write_text("q\tone two three\n")
    form: dict[str, Any] = {"encoder": tiny_encoder, "kind": "query"}
    old = api.encode(tmp_path / "q.tsv", **form, query_prompt="ask: ", out=tmp_path / "old")
    for prompt, reused in (("ask: ", 1), ("find: ", 0)):
        out = tmp_path / f"new-{reused}"
        new = api.encode(tmp_path / "q.tsv", **form, query_prompt=prompt, reuse=old.path, out=out)
        assert new.summary["reused"] == reused
