"""Vectors are taken over for texts that did not change, and only from the same encoder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qontext import api
from qontext.frame import log
from qontext.retrieve.encoded.vectors import open_vectors


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


@pytest.mark.parametrize("changed", [{"max_length": 5}, {"storage": "fp16"}, {"pooling": "max"}])
def test_nothing_is_taken_from_vectors_made_otherwise(
    tmp_path: Path, tiny_encoder: Path, changed: dict[str, Any]
) -> None:
    file = corpus(tmp_path / "a.jsonl", {"a": "one two three four five six", "b": "seven"})
    old = api.encode(file, encoder=tiny_encoder, out=tmp_path / "old")
    new = api.encode(file, encoder=tiny_encoder, reuse=old.path, out=tmp_path / "new", **changed)
    assert new.summary["encoded_now"] == 2
