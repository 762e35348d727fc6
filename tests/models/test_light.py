"""The NumPy encoder gives the vectors of the one in torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.tiny import save_bert

from qontext.models.folder import read_layout
from qontext.models.light import LightRetriever, is_light
from qontext.models.retriever import Retriever
from qontext.retrieve.query_encoder import QueryEncoder

TEXTS = ["who grinds flour?", "The mill by the river " * 40, "x", "Mühlen – und Boote 水"]


def light(folder: Path, pooling: str | None = None) -> LightRetriever:
    layout = read_layout(folder)
    layout = replace(layout, pooling=pooling or layout.pooling)
    return LightRetriever(layout, json.loads((folder / "config.json").read_text()))


def test_it_agrees_with_torch_on_a_real_encoder(minilm: Path) -> None:
    theirs = Retriever(str(minilm), device="cpu", precision="fp32").encode(TEXTS, "query")
    assert np.abs(light(minilm).encode(TEXTS, "query") - theirs).max() < 2e-6


def test_no_texts_have_no_vectors(minilm: Path) -> None:
    assert light(minilm).encode([], "query").shape == (0, 384)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_it_agrees_with_torch_on_drawn_weights(tmp_path: Path, minilm: Path, pooling: str) -> None:
    save_bert(
        tmp_path,
        minilm,
        num_hidden_layers=2,
        intermediate_size=16,
        layer_norm_eps=1e-6,
        initializer_range=0.5,
    )
    theirs = Retriever(tmp_path, device="cpu", precision="fp32", pooling=pooling).encode(TEXTS, "query")
    assert np.abs(light(tmp_path, pooling).encode(TEXTS, "query") - theirs).max() < 1e-5


@pytest.mark.parametrize(
    "setting",
    [{"model_type": "roberta"}, {"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}, {"is_decoder": True}],
    ids=str,
)  # fmt: skip
def test_other_encoders_are_left_to_torch(minilm: Path, setting: dict[str, object]) -> None:
    config = json.loads((minilm / "config.json").read_text())
    assert is_light(read_layout(minilm), config)
    assert not is_light(read_layout(minilm), {**config, **setting})
    assert not is_light(replace(read_layout(minilm), pooling="max"), config)


def test_weights_in_bf16_are_left_to_torch(minilm: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    save_bert(tmp_path, minilm)
    config, file = json.loads((tmp_path / "config.json").read_text()), tmp_path / "model.safetensors"
    assert is_light(read_layout(tmp_path), config)
    save_file({n: w.to(torch.bfloat16) for n, w in load_file(file).items()}, file, {"format": "pt"})
    assert not is_light(read_layout(tmp_path), config)


def test_a_setting_that_is_not_written_has_berts_default(minilm: Path, tmp_path: Path) -> None:
    save_bert(tmp_path, minilm, layer_norm_eps=1e-12)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("layer_norm_eps")
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = Retriever(tmp_path, device="cpu", precision="fp32").encode(TEXTS, "query")
    assert np.abs(light(tmp_path).encode(TEXTS, "query") - theirs).max() < 1e-5


def test_whether_an_encoder_is_light_is_known_without_its_weights(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LightRetriever, "__init__", lambda *given, **more: pytest.fail("read the weights"))
    assert QueryEncoder(str(minilm), 64).is_light
    assert not QueryEncoder(str(minilm), 64, device="cuda").is_light
