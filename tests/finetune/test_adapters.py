"""Training adapters and recomputing layers: merged on save, resumed, cached, and equal to what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.finetune.test_run import losses

from qontext import Retriever, api
from qontext.training import adapters, checkpoint

Finetune = Callable[..., Any]
LORA: dict[str, Any] = {"lora_rank": 3, "precision": "fp32", "steps": 4}
TEXTS = ["river stone bridge", "Chapter 3 the bread of the mill and a much longer oven", "a"]


@pytest.fixture(scope="module")
def adapted(finetune: Finetune, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("peft", reason="peft is not installed")
    out = tmp_path_factory.mktemp("adapted") / "out"
    return finetune(out, dropout=0.1, micro_tokens=60, gradient_cache="off", **LORA)


def test_linear_layers_change_by_a_matrix_of_the_rank_and_nothing_else_does(
    adapted: Any, start: Path
) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (start, adapted.path))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {n for n in before if ".layer." in n and n.endswith("weight") and "LayerNorm" not in n}
    ranks = {int(torch.linalg.matrix_rank(after[n] - before[n], rtol=1e-3)) for n in changed}
    assert ranks == {3}, "all of them are used"


def test_the_adapter_alone_is_the_merged_model_in_peft(adapted: Any, start: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModel, AutoTokenizer

    folder = adapted.path / "adapter"
    small, whole = (
        path.stat().st_size
        for path in (folder / "adapter_model.safetensors", adapted.path / "model.safetensors")
    )
    assert small < whole / 2 and str(start) not in (folder / "adapter_config.json").read_text()
    model = PeftModel.from_pretrained(AutoModel.from_pretrained(start), str(folder)).eval()
    inputs = AutoTokenizer.from_pretrained(adapted.path)(
        TEXTS, padding=True, truncation=True, return_tensors="pt"
    )
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        theirs = model(**inputs).last_hidden_state[:, 0].numpy()
    ours = Retriever(adapted, device="cpu", precision="fp32").encode(TEXTS, "passage")
    assert np.abs(theirs - ours).max() < 1e-5


def test_a_resumed_training_of_adapters_ends_in_the_same_bits_and_saves_little(
    finetune: Finetune, adapted: Any, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, sizes = checkpoint.save, list[int]()

    def dying(work: Any, name: str, *rest: Any) -> None:
        save(work, name, *rest)
        sizes.append(max(path.stat().st_size for path in work.path.rglob("weights.safetensors")))
        raise RuntimeError("killed")

    settings = {"dropout": 0.1, "micro_tokens": 60, "gradient_cache": "off", **LORA}
    monkeypatch.setattr(checkpoint, "save", dying)
    with pytest.raises(RuntimeError):
        finetune(tmp_path / "out", checkpoint_minutes=0, **settings)
    monkeypatch.setattr(checkpoint, "save", save)
    assert finetune(tmp_path / "out", **settings).digest == adapted.digest
    assert sizes[0] < (start / "model.safetensors").stat().st_size / 2, (
        "frozen weights are not in a checkpoint"
    )


def test_recomputed_layers_train_in_the_same_bits_with_dropout_on(finetune: Finetune, tmp_path: Path) -> None:
    settings = {"dropout": 0.1, "steps": 3, "precision": "fp32", "pooling": "mean"}
    plain = finetune(tmp_path / "plain", **settings)
    again = finetune(tmp_path / "again", activation_checkpointing=True, **settings)
    assert losses(again.path) == losses(plain.path) and again.digest == plain.digest


def test_rerankers_and_pretraining_train_adapters_and_heads(
    beir: Path, groups: Path, start: Path, adapted: Any, tmp_path: Path
) -> None:
    common = {"batch_size": 4, "steps": 2, "device": "cpu", "lora_rank": 2, "lr": 1e-3, "precision": "fp32"}
    reranker = api.train_reranker(
        groups, passages=beir, encoder=start, candidates=3, max_length=40, out=tmp_path / "reranker", **common
    )
    before, after = load_file(start / "model.safetensors"), load_file(reranker.path / "model.safetensors")
    assert not [name for name in after if "lora" in name or "base_layer" in name]
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(before[name], after[f"bert.{name}"]) and after["classifier.bias"].abs().sum() > 0
    assert after["bert.pooler.dense.bias"].abs().sum() > 0, (
        "it starts with zeros, and is trained with the classifier"
    )
    encoder = api.pretrain(
        beir.parent / "passages", method="cot-mae", encoder=start, max_tokens=24, workers=1, snapshots=2,
        decoder_init="1", decoder_layers=1, out=tmp_path / "encoder", **common,
    )  # fmt: skip
    weights = [
        load_file(encoder.path / at / "model.safetensors") for at in ("snapshots/1", "snapshots/2", ".")
    ]
    assert not [name for name in weights[2] if "lora" in name or "base_layer" in name]
    assert all(torch.equal(weights[1][name], weights[2][name]) for name in weights[2])
    assert (encoder.path / "adapter" / "adapter_model.safetensors").exists()
    head = load_file(encoder.path / "head.safetensors")
    assert head and not [name for name in head if "lora" in name or "base_layer" in name]


def test_linear_layers_have_adapters_and_the_pooler_is_trained() -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 2}
    model = BertModel(BertConfig(vocab_size=20, **sizes))
    adapters.add(model, 2, 42)
    names = set(adapters.trained(model))
    pooler = {"pooler.dense.weight", "pooler.dense.bias"}
    assert pooler < names and all(name.startswith("encoder.layer.") for name in names - pooler)
    assert len(list(adapters.adapted(model))) == 12
