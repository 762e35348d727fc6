"""The second teacher of TAS-B, which scores all passages of the batch: by hand, then in a training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.finetune.test_loss import BATCH, Bare, batch, losses, opened
from tests.finetune.test_run import apart, command
from tests.tiny import Server

from qontext.baselines.tas_b import BatchTeacher, TaughtInBatch
from qontext.finetune.batches import Padded, Texts
from qontext.models.batching import FINE, pad
from qontext.models.folder import TextKind
from qontext.models.representations.tokens import max_similarity
from qontext.models.representations.vector import Vector
from qontext.models.retriever import Retriever
from qontext.retrieve.index.exact import rectangle
from qontext.training.metrics import read
from qontext.training.texts import tokenize

Finetune = Callable[..., Any]


def taught(teacher: torch.Tensor, representation: Vector, weight: float, tau: float = 1.0) -> TaughtInBatch:
    """A student with two dimensions, whose teacher has the dot products of `teacher`."""
    second: Any = SimpleNamespace(representation=Vector())  # as if of a kind of its own
    model = TaughtInBatch(BatchTeacher(second, weight), Bare(), representation, tau, opened("margin-mse"))
    model.shapes = torch.Size([2]), teacher.shape[1:]
    return model


def test_margins_to_all_passages_of_other_queries() -> None:
    vectors, keys = batch(*BATCH)
    teacher = torch.randn(len(BATCH), 3, generator=torch.Generator().manual_seed(0))
    both = torch.cat([vectors, teacher], 1)
    value = taught(teacher, Vector(), 0.5).contrast(both, keys, slice(None))
    # Rows: query 0, its positive and a negative; query 1, its positive, a negative and a random passage.
    expected = 0.0
    for query, positive, others in ((0, 1, (4, 5, 6)), (3, 4, (1, 2))):
        errors = []
        for other in others:
            student = vectors[query] @ vectors[positive] - vectors[query] @ vectors[other]
            target = teacher[query] @ teacher[positive] - teacher[query] @ teacher[other]
            errors.append((student - target).item() ** 2)
        expected += sum(errors) / len(errors) / 2
    assert value["batch_teacher"].item() == pytest.approx(0.5 * expected, rel=1e-5)
    first = losses(opened("margin-mse"), vectors, keys)
    assert value["margin_mse"].item() == pytest.approx(first["margin_mse"], rel=1e-6)
    parts = [taught(teacher, Vector(), 0.5).contrast(both, keys, slice(a, a + 1)) for a in range(len(BATCH))]
    assert sum(part["batch_teacher"].item() for part in parts) == pytest.approx(0.5 * expected, rel=1e-5)


def test_temperature_and_short_vectors_change_the_student_alone() -> None:
    vectors, keys = batch(*BATCH)
    vectors = vectors.detach()
    agreeing = taught(vectors / 2**0.5, Vector(), 1.0, tau=2.0)
    value = agreeing.contrast(torch.cat([vectors, vectors / 2**0.5], 1), keys, slice(None))
    assert value["batch_teacher"].item() == pytest.approx(0, abs=1e-6)
    teacher = torch.ones(len(BATCH), 1)  # all margins are 0
    each = []
    for width in (1, 2):
        part = torch.cat([vectors[:, :width], torch.zeros(len(BATCH), 2 - width)], 1)
        alone = taught(teacher, Vector(), 1.0).contrast(torch.cat([part, teacher], 1), keys, slice(None))
        each.append(alone["batch_teacher"].item())
    nested = taught(teacher, Vector(dimensions=(1,)), 1.0)
    value = nested.contrast(torch.cat([vectors, teacher], 1), keys, slice(None))
    assert value["batch_teacher"].item() == pytest.approx(sum(each) / 2, rel=1e-6)


@pytest.fixture(scope="module")
def colbert(finetune: Finetune, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher") / "colbert"
    return Path(finetune(out, representation="tokens", token_dimensions=8, steps=10).path)


def test_the_teacher_scores_texts_as_its_search_does(colbert: Path) -> None:
    model = Retriever(colbert, device="cpu", precision="fp32", packed=True)
    texts: dict[TextKind, list[str]] = {
        "query": ["a river", "mill"],
        "passage": ["River stone. " * 30, "bread", "a"],
    }
    packed = {kind: rectangle(model.encode(some, kind)) for kind, some in texts.items()}
    expected = max_similarity(packed["query"], packed["passage"])
    teacher = BatchTeacher(model, 1.0)
    reader, sides = teacher.reader(), []
    for kind, some in texts.items():
        prepared = reader.prepared(enumerate(some), kind)
        tokens = tokenize(prepared, len(some), reader.tokenizer, getattr(reader.lengths, kind))
        ids, mask = tokens.pad(np.arange(len(some)), 0, FINE)
        keys = np.zeros(len(some), np.uint64)
        sides.append(teacher.represent(Texts(ids, mask, kind == "query", Padded(ids, mask), row_keys=keys)))
    assert sides[0].shape[1:] == sides[1].shape[1:]
    torch.testing.assert_close(teacher.representation.similarity(*sides), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.numeric
def test_a_student_comes_closer_to_both_teachers(
    finetune: Finetune, colbert: Path, scores: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"teacher": str(scores), "loss": "margin-mse", "temperature": 10.0}
    made = finetune(tmp_path / "out", batch_teacher=str(colbert), steps=30, **settings)
    lines = [line["losses"] for line in read(made.path / "logs/metrics.jsonl") if "losses" in line]
    for name in ("margin_mse", "batch_teacher"):
        course = [line[name] for line in lines]
        assert np.mean(course[-5:]) < np.mean(course[:3]) / 2, name
    assert not (made.path / "cache").exists()


def test_the_cache_and_two_processes_train_the_same(
    finetune: Finetune, colbert: Path, groups: Path, beir: Path, start: Path, tmp_path: Path, warm: Server
) -> None:
    settings: dict[str, Any] = {"batch_teacher": str(colbert), "batch_teacher_weight": 0.5, "lr": 1e-4}
    settings |= {"precision": "fp32", "steps": 4, "temperature": 20.0, "dropout": 0.1}
    plain = finetune(tmp_path / "plain", gradient_cache="off", **settings).path
    cached = finetune(tmp_path / "cached", gradient_cache="on", micro_tokens=60, **settings).path
    assert apart(plain, cached) < 1e-5
    more = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    warm.run(command(groups, beir, start, tmp_path / "two", *more), tmp_path / "said", ranks=2)
    assert apart(plain, tmp_path / "two") < 2e-5


def test_a_student_of_another_representation_learns_from_it_too(
    finetune: Finetune, colbert: Path, tmp_path: Path
) -> None:
    made = finetune(tmp_path / "out", batch_teacher=str(colbert), representation="sparse", steps=2)
    assert set(made.summary["losses"]) == {
        "contrastive",
        "batch_teacher",
        "query_flops",
        "passage_flops",
    }


def test_an_encoder_of_one_vector_teaches_its_similarities(
    finetune: Finetune, start: Path, colbert: Path, tmp_path: Path
) -> None:
    model = Retriever(start, device="cpu", precision="fp32")
    texts = ["a river", "the mill grinds"]
    ids, mask = (torch.from_numpy(part) for part in pad(model.tokenize(texts, "passage"), 0))
    with torch.no_grad():
        np.testing.assert_allclose(model.vectors_of(ids, mask), model.encode(texts, "passage"), atol=1e-5)
    settings: dict[str, Any] = {"steps": 1, "dropout": 0.0, "precision": "fp32", "temperature": 0.5}
    same = finetune(tmp_path / "same", batch_teacher=str(start), passage_length=100, **settings)
    assert same.summary["losses"]["batch_teacher"] == pytest.approx(0, abs=1e-5), "it is its own teacher"
    vectors, keys = batch(*BATCH)
    second: Any = SimpleNamespace(representation=None)
    student = TaughtInBatch(BatchTeacher(second, 1.0), Bare(), Vector(), 0.5, opened("margin-mse"))
    student.shapes = torch.Size([2]), torch.Size([2])
    value = student.contrast(torch.cat([vectors, vectors], 1), keys, slice(None))
    assert value["batch_teacher"].item() == pytest.approx(0, abs=1e-6), "both are divided by the temperature"


def test_an_untied_pair_teaches_with_both_halves(finetune: Finetune, tmp_path: Path) -> None:
    pair = finetune(tmp_path / "pair", untied=True, steps=3, query_length=9, precision="fp32").path
    model = Retriever(pair, device="cpu", precision="fp32")
    teacher, texts = BatchTeacher(model, 1.0), ["a river", "River stone. " * 30]
    assert teacher.reader().lengths == (9, 24)
    kinds: tuple[TextKind, ...] = ("query", "passage")
    for kind in kinds:
        ids, mask = (torch.from_numpy(part) for part in pad(model.of(kind).tokenize(texts, kind), 0))
        rows = Texts(ids, mask, kind == "query", Padded(ids, mask), row_keys=np.zeros(2, np.uint64))
        np.testing.assert_allclose(teacher.represent(rows), model.encode(texts, kind), atol=1e-5)
