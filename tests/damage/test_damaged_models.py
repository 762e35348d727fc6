"""Model folders whose files are damaged, or say what cannot be: refused in a sentence, before anything large is built."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qontext.finetune.listwise import load_classifier
from qontext.frame.errors import QontextError
from qontext.models.cross_encoder import CrossEncoder
from qontext.models.encoder import load_encoder
from qontext.models.language import load_seq2seq, seq2seq_folder
from qontext.models.retriever import Retriever
from qontext.queries.train_generator import from_scratch


def read_seq2seq(name: str) -> None:
    load_seq2seq(seq2seq_folder(name))


LOADERS: dict[str, Callable[[str], Any]] = {
    "encoder": lambda name: load_encoder(name),
    "retriever": lambda name: Retriever(name, device="cpu", precision="fp32"),
    "cross-encoder": lambda name: CrossEncoder(name, device="cpu", precision="fp32"),
    "classifier": lambda name: load_classifier(name, 0, None),
    "generator": read_seq2seq,
}


@pytest.fixture(scope="session")
def models(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random model for every loader."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, Qwen3Config, Qwen3Model

    root = tmp_path_factory.mktemp("models")
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32}
    tokenizer = AutoTokenizer.from_pretrained(tree / "encoder")
    torch.manual_seed(0)
    pairs = BertForSequenceClassification(BertConfig(**sizes, max_position_embeddings=64, num_labels=1))
    causal = Qwen3Model(Qwen3Config(**sizes, num_key_value_heads=2, head_dim=8, vocab_size=len(tokenizer)))
    generator, words = from_scratch(1, 32, 2, ["a river runs past a mill of stone"] * 9, 60, seed=1)
    for name, model, own in (
        ("cross-encoder", pairs, tokenizer),
        ("causal", causal, tokenizer),
        ("generator", generator, words),
    ):
        model.save_pretrained(root / name)
        own.save_pretrained(root / name)
    return {
        **dict.fromkeys(LOADERS, tree / "encoder"),
        **{name: root / name for name in ("cross-encoder", "causal", "generator")},
    }


@pytest.fixture
def broken(models: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a loader's model, to be damaged."""

    def make(kind: str) -> Path:
        return Path(shutil.copytree(models[kind], tmp_path / "model"))

    return make


def refused(kind: str, folder: Path) -> str:
    with pytest.raises(QontextError) as caught:
        LOADERS[kind](str(folder))
    text = str(caught.value)
    assert str(folder) in text and len(text) < 800 and "\n" not in text, text
    return text


def test_every_loader_loads_what_is_whole(models: dict[str, Path]) -> None:
    for kind, load in LOADERS.items():
        load(str(models[kind]))
    assert Retriever(str(models["causal"]), device="cpu", pooling="lasttoken").encode(
        ["a"], "query"
    ).shape == (1, 16)


@pytest.mark.parametrize("kind", LOADERS)
def test_files_that_are_cut_or_say_nothing(broken: Callable[[str], Path], kind: str) -> None:
    folder = broken(kind)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        file = folder / name
        whole = file.read_bytes()
        for content in (b"", whole[: len(whole) // 2], b"[]", b"null", b"\x80\xff" * 50):
            file.write_bytes(content)
            refused(kind, folder)
        file.write_bytes(whole)


@pytest.mark.parametrize("kind", ["encoder", "retriever", "generator"])
def test_no_file_is_blamed_for_a_lack_of_memory(
    broken: Callable[[str], Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedModel

    def no_memory(*values: Any, **settings: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", no_memory)
    with pytest.raises(QontextError, match=r"^out of memory\."):
        LOADERS[kind](str(broken(kind)))
