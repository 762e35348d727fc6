from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qontext.frame.errors import QontextError
from qontext.models.batching import batches_by_length
from qontext.models.folder import read_layout
from qontext.models.retriever import Retriever
from qontext.retrieve.query_encoder import QueryEncoder

TEXTS = [
    "",
    "a",
    "The mill stands by the river.",
    "stone " * 400,
    "Bread and flour, " * 9,
    "näive Ünïcode 中文",
]


def sentence_transformer(directory: Path) -> Any:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    return library.SentenceTransformer(str(directory), device="cpu")


def assert_same(directory: Path, **settings: Any) -> None:
    ours = Retriever(str(directory), device="cpu", precision="fp32", batch_tokens=300, **settings)
    theirs = sentence_transformer(directory)
    np.testing.assert_allclose(ours.encode(TEXTS, "passage"), theirs.encode_document(TEXTS), atol=2e-5)
    np.testing.assert_allclose(ours.encode(TEXTS, "query"), theirs.encode_query(TEXTS), atol=2e-5)


def test_a_real_model_gives_the_vectors_of_sentence_transformers(minilm: Path) -> None:
    assert_same(minilm)
    layout = read_layout(minilm)
    assert (layout.pooling, layout.normalize, layout.similarity) == ("mean", True, "cosine")


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "lasttoken"])
def test_pooling_dense_prompts_and_normalization_are_respected(
    tiny_encoder: Path, tmp_path: Path, pooling: str
) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    import torch

    try:
        from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
    except ImportError:  # where older versions have them
        from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(1)
    transformer = Transformer(str(tiny_encoder))
    transformer.max_seq_length = 20
    modules = [transformer, Pooling(16, pooling), Dense(16, 8), Normalize()]
    prompts = {"query": "question: ", "document": "text: "}
    library.SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(tmp_path / "model"))
    assert_same(tmp_path / "model")


def test_a_dense_layer_computes_in_fp32(tiny_encoder: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    model = shutil.copytree(tiny_encoder, tmp_path / "model")
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
    described = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules]
    (model / "modules.json").write_text(json.dumps(described))
    (model / "2_Dense").mkdir()
    shape = {"in_features": 16, "out_features": 8, "bias": False}
    (model / "2_Dense" / "config.json").write_text(json.dumps(shape))
    torch.manual_seed(2)
    save_file({"linear.weight": torch.randn(8, 16)}, model / "2_Dense" / "model.safetensors")
    exact, computed = (
        Retriever(str(model), device="cpu", precision=precision).encode(TEXTS, "passage")
        for precision in ("fp32", "bf16")
    )
    assert 0 < np.abs(computed - exact).max() < 0.05
    assert (torch.from_numpy(computed).bfloat16().float().numpy() != computed).any(), "not rounded to 8 bits"


def test_a_dense_layer_without_readable_weights_is_told(tiny_encoder: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_encoder, tmp_path / "model")
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "2_Dense").mkdir()
    (model / "2_Dense/config.json").write_text('{"in_features": 16, "out_features": 8}')
    with pytest.raises(QontextError, match=r"dense layer are missing.*model\.safetensors"):
        Retriever(str(model))
    (model / "2_Dense/pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(QontextError, match="dense layer are pickled"):
        Retriever(str(model))
    (model / "2_Dense/model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(QontextError, match="damaged: not the weights of the encoder's dense layer"):
        Retriever(str(model))


def test_what_is_fetched_from_the_hub_holds_dense_layers() -> None:
    from huggingface_hub.utils import filter_repo_objects

    from qontext.models.hub import _MODEL_FILES

    needed = [
        "model.safetensors",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "1_Pooling/config.json",
    ]
    others = ["pytorch_model.bin", "2_Dense/pytorch_model.bin", "onnx/model.onnx"]
    assert list(filter_repo_objects(needed + others, allow_patterns=_MODEL_FILES)) == needed


def test_a_bare_transformers_directory_pools_as_asked(tiny_encoder: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(tiny_encoder)(["the river mill"], return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(tiny_encoder)(**tokens).last_hidden_state[0]
    cls = Retriever(str(tiny_encoder), device="cpu", precision="fp32").encode(["the river mill"], "query")
    mean = Retriever(str(tiny_encoder), device="cpu", precision="fp32", pooling="mean")
    np.testing.assert_allclose(cls[0], hidden[0], atol=1e-5)
    np.testing.assert_allclose(mean.encode(["the river mill"], "query")[0], hidden.mean(0), atol=1e-5)


def test_batches_hold_every_row_once_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 3_000)
    batches = list(batches_by_length(lengths, 1_000))
    assert sorted(np.concatenate(batches).tolist()) == list(range(3_000))
    padded = [int(lengths[rows].max()) * len(rows) for rows in batches]
    assert max(padded) <= 1_000
    assert sum(padded) < 1.02 * lengths.sum(), "hardly any padding"
    assert [rows.tolist() for rows in batches_by_length(np.array([5_000, 2]), 100)] == [[0], [1]], (
        "longer than the budget: alone"
    )


def test_what_is_not_supported_is_told(minilm: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    odd = shutil.copytree(minilm, tmp_path / "odd", ignore=shutil.ignore_patterns("*.safetensors"))
    modules = json.loads((odd / "modules.json").read_text())
    (odd / "modules.json").write_text(json.dumps([*modules, {"path": "3_LSTM", "type": "x.LSTM"}]))
    with pytest.raises(QontextError, match="a module of type LSTM"):
        Retriever(str(odd))
    (odd / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(QontextError, match="cannot load the encoder"):
        Retriever(str(odd))
    with pytest.raises(QontextError, match="limit is 64 tokens, got 65"):
        Retriever(str(tiny_encoder), max_length=65)


def test_a_length_of_one_call_is_not_that_of_another(minilm: Path) -> None:
    """The encoder of a server, which truncates passages as the index does, and queries elsewhere."""
    form: dict[str, Any] = {"device": "cpu", "precision": "fp32", "is_resident": True}
    encoder = QueryEncoder(str(minilm), 5, passage_length=9, **form)
    kinds: list[Any] = ["query", "passage"] * 2
    counts = [encoder.retriever.tokenize(TEXTS, kind, encoder.lengths[kind]) for kind in kinds]
    assert [max(map(len, tokens)) for tokens in counts] == [5, 9] * 2
    assert encoder.embed(TEXTS[3:4], "query")[1] == [5] and encoder.embed(TEXTS[3:4], "passage")[1] == [9]
