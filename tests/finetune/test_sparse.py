"""Weights of words, as SPLADE: the equations on small cases, then from training to search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import Server

from qontext import api
from qontext.data.collection import load_collection
from qontext.data.runs import read_run
from qontext.models.encoder import load_encoder
from qontext.models.packed import Packed
from qontext.models.representations import sparse
from qontext.models.representations.sparse import Sparse, SparseOptions
from qontext.models.retriever import Retriever
from qontext.retrieve.index.sparse import SparseIndex
from qontext.retrieve.searcher import Searcher
from qontext.serve.systems import Opener
from qontext.training.metrics import read

Finetune = Callable[..., Any]
SPARSE: dict[str, Any] = {
    "representation": "sparse",
    "query_flops": 1e-3,
    "passage_flops": 1e-3,
    "precision": "fp32",
}


def test_weights_are_those_of_the_equation(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_encoder(str(start))
    monkeypatch.setattr(sparse, "LOGITS_PER_BLOCK", 1)  # one text at a time
    ids = torch.randint(5, 60, (3, 6))
    mask = torch.arange(6) < torch.tensor([[6], [4], [2]])
    weights = Sparse()(encoder, ids, mask, False)
    for row, length in enumerate((6, 4, 2)):
        (hidden,) = encoder(ids[row : row + 1, :length], None)
        expected = torch.log(1 + torch.relu(encoder.mlm_logits(hidden)[0])).max(0).values
        torch.testing.assert_close(weights[row], expected, atol=1e-5, rtol=1e-4)


def test_flops_are_squares_of_mean_weights_in_any_blocks_of_rows() -> None:
    weights = torch.tensor([[1.0, 0, 2], [0, 3, 0], [1, 1, 0], [2, 0, 1]], requires_grad=True)
    is_query = torch.tensor([True, False, True, False])
    model = Sparse(SparseOptions(query_flops=2.0, passage_flops=0.5, flops_warmup=0.5))

    def losses(rows: slice, progress: float) -> dict[str, torch.Tensor]:
        return model.regularize(weights, is_query, rows, progress)

    whole = losses(slice(None), 1.0)
    # Means (1, 0.5, 1) and (1, 1.5, 0.5).
    assert whole["query_flops"].item() == pytest.approx(2.0 * (1 + 0.25 + 1))
    assert whole["passage_flops"].item() == pytest.approx(0.5 * (1 + 2.25 + 0.25))
    (gradient,) = torch.autograd.grad(whole["query_flops"], weights)
    assert gradient[0].tolist() == pytest.approx([2.0 * 2 * mean / 2 for mean in (1, 0.5, 1)])
    parts = [losses(slice(a, b), 1.0)["passage_flops"] for a, b in ((0, 1), (1, 3), (3, 4))]
    assert sum(part.item() for part in parts) == pytest.approx(whole["passage_flops"].item())
    # A quarter of the steps is half of the warm-up: a quarter of the weight.
    assert losses(slice(None), 0.25)["query_flops"].item() == pytest.approx(2.25 * 2.0 / 4)


def test_search_finds_what_all_dot_products_find() -> None:
    rng = np.random.default_rng(0)

    def drawn(rows: int) -> tuple[np.ndarray[Any, Any], Packed]:
        dense = rng.integers(0, 4, (rows, 12)).astype(np.float32) * (rng.random((rows, 12)) < 0.2)
        return dense, Sparse().pack(torch.from_numpy(dense))

    (passages, packed), (queries, asked) = drawn(50), drawn(9)
    ids = np.array([f"p{n:02d}" for n in range(50)], object)
    whole = SparseIndex.of(ids, packed, 12)
    order = rng.permutation(50)  # parts in another order than the ids
    parts = [
        SparseIndex.of(ids[some], packed.take(some), 12).parts[0][1] for some in np.split(order, [20, 35])
    ]
    split = SparseIndex(ids, list(zip(np.split(order, [20, 35]), parts)))
    for allowed in (None, rng.random(50) < 0.5):
        scores = queries @ passages.T
        scores = scores if allowed is None else np.where(allowed, scores, 0)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :7]
        expected = np.where(np.take_along_axis(scores, best, 1) > 0, best, -1)
        for index in (whole, split):
            numbers, found = index.search(asked, 7, allowed)
            assert numbers.tolist() == expected.tolist()
            np.testing.assert_allclose(
                found[numbers >= 0], np.take_along_axis(scores, best, 1)[expected >= 0]
            )
    assert (numbers == -1).any(), "some have fewer results"


@pytest.fixture(scope="module")
def trained(finetune: Finetune, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sparse") / "retriever"
    made = finetune(out, **SPARSE, steps=30, gradient_cache="off", micro_tokens=60)
    course = [line["loss"] for line in read(out / "logs/metrics.jsonl") if "loss" in line]
    assert np.mean(course[-3:]) < np.mean(course[:3]) and made.summary["representation"] == "sparse"
    return out


def test_the_cache_and_two_processes_train_the_same(
    trained: Path, groups: Path, beir: Path, start: Path, tmp_path: Path, finetune: Finetune, warm: Server
) -> None:
    from tests.finetune.test_run import apart, command

    settings = {**SPARSE, "steps": 4, "temperature": 20.0, "lr": 1e-4}
    plain = finetune(tmp_path / "plain", gradient_cache="off", **settings).path
    cached = finetune(tmp_path / "cached", gradient_cache="on", micro_tokens=60, **settings).path
    assert apart(plain, cached) < 1e-5
    more = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    warm.run(command(groups, beir, start, tmp_path / "two", *more), tmp_path / "said", ranks=2)
    assert apart(plain, tmp_path / "two") < 2e-5


@pytest.fixture(scope="module")
def weights(trained: Path, beir: Path) -> Path:
    made = api.encode(
        beir, encoder=trained, precision="fp32", storage="fp16", device="cpu", out=trained.parent / "weights"
    )
    assert 0 < made.summary["entries_per_text"] <= made.summary["dimension"]
    return Path(made.path)


def test_from_weights_to_a_run_that_others_read(
    trained: Path, weights: Path, beir: Path, tmp_path: Path
) -> None:
    made = api.retrieve(
        weights, data=beir, split="dev", k=20, precision="fp32", device="cpu", out=tmp_path / "run"
    )
    run = read_run(tmp_path / "run")
    collection, model = load_collection(beir), Retriever(trained, device="cpu", precision="fp32", packed=True)
    passages = list(collection.passages())
    dense = [_dense(model.encode([p.content for p in passages], "passage"), model.dimension)]
    dense += [_dense(model.encode(list(collection.queries("dev").values()), "query"), model.dimension)]
    scores = dense[1] @ dense[0].T
    for row, query in enumerate(collection.queries("dev")):
        for hit in run[query]:
            expected = scores[row, [p.id for p in passages].index(hit.passage)]
            assert hit.score == pytest.approx(expected, rel=2e-3)
        assert run[query][0].score == pytest.approx(scores[row].max(), rel=2e-3)
    bm25 = api.retrieve(bm25=True, data=beir, split="dev", out=tmp_path / "bm25")
    fused = api.fuse([str(made.path), str(bm25.path)], out=tmp_path / "fused")
    assert (
        "MRR@10"
        in api.evaluate(fused.path, qrels=beir, split="dev", out=tmp_path / "scores").summary["measures"]
    )
    some = Searcher.build(passages, trained, device="cpu")
    query = next(iter(collection.queries("dev").values()))
    some.system = "start"
    expected = [hit.passage for hit in run[next(iter(run))][:3]]
    assert [hit.id for hit in some.search(query, 3)] == expected
    (served,) = Opener(device="cpu", precision="fp32").open("words", str(weights))
    assert [hit.id for hit in served.search(query, 3)] == expected


def test_sentence_transformers_gives_the_same_weights(trained: Path) -> None:
    library = pytest.importorskip("sentence_transformers", minversion="5.0")
    texts = ["river stone bridge", "the bread of the mill " * 9]
    theirs = library.SparseEncoder(str(trained), device="cpu").encode_document(texts).to_dense().numpy()
    ours = Retriever(trained, device="cpu", precision="fp32", packed=True)
    np.testing.assert_allclose(_dense(ours.encode(texts, "passage"), ours.dimension), theirs, atol=1e-5)


def _dense(packed: Packed, width: int) -> np.ndarray[Any, Any]:
    dense = np.zeros((len(packed), width), np.float32)
    assert packed.terms is not None
    dense[np.repeat(np.arange(len(packed)), packed.lengths), packed.terms] = packed.values
    return dense
