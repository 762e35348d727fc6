"""What is no encoder, or does not fit together, is refused with a sentence."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.conftest import BERT_STYLE, save_checkpoint, wordpiece
from tests.tiny import write_collection

from qontext import api
from qontext.frame.errors import QontextError
from qontext.models.encoder import load_encoder


def refused(name: str, **options: Any) -> str:
    with pytest.raises(QontextError) as error:
        load_encoder(name, **options)
    return str(error.value)


@pytest.fixture
def broken(bert: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a good checkpoint without one of its files."""

    def copy(without: str | None = None) -> Path:
        shutil.copytree(bert, tmp_path / "broken")
        if without:
            (tmp_path / "broken" / without).unlink()
        return tmp_path / "broken"

    return copy


def test_an_architecture_that_only_remote_code_knows_runs_none(tmp_path: Path) -> None:
    (tmp_path / "configuration_x.py").write_text("raise SystemExit('remote code ran')")
    settings = {"model_type": "unheard-of", "auto_map": {"AutoConfig": "configuration_x.X"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert "needs code from its folder, which is never executed" in refused(str(tmp_path))


def test_a_name_is_looked_for_and_offline_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qontext.models.hub.online", lambda: False)
    started = time.monotonic()
    message = refused("somebody/some-encoder")
    assert "Hub is unreachable" in message and "path" in message
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no readable tokenizer"),
    ],
)
def test_an_incomplete_directory_says_what_it_lacks(
    broken: Callable[..., Path], missing: str, message: str
) -> None:
    assert message in refused(str(broken(missing)))


def test_an_unfinished_artifact_is_no_encoder(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "unfinished")
    claim = {"verb": "pretrain", "key": "k", "config": {}, "inputs": {}}
    (folder / "claim.json").write_text(json.dumps(claim))
    assert "not finished" in refused(str(folder))


def test_pickled_weights_are_not_read(broken: Callable[..., Path]) -> None:
    folder = broken("model.safetensors")
    torch.save({}, folder / "pytorch_model.bin")
    assert "pickle" in refused(str(folder))


def test_weights_of_another_model(broken: Callable[..., Path]) -> None:
    folder = broken()
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "layer.3." not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert "do not belong" in refused(str(folder))
    wide = weights | {
        "bert.embeddings.word_embeddings.weight": torch.zeros(160, 48),
    }
    save_file(wide, folder / "model.safetensors", {"format": "pt"})
    assert "cannot load" in refused(str(folder))


def test_a_tokenizer_with_more_ids_than_the_encoder(tmp_path: Path) -> None:
    tokenizer = wordpiece(BERT_STYLE)
    tokenizer.add_tokens([f"word{i}" for i in range(100)])
    save_checkpoint("bert", tmp_path, tokenizer=tokenizer)
    assert "does not fit the encoder" in refused(str(tmp_path))


def test_a_padding_id_that_would_shift_the_positions(tmp_path: Path) -> None:
    save_checkpoint("roberta", tmp_path, tokenizer=wordpiece(BERT_STYLE))
    assert "its padding id is 0" in refused(str(tmp_path))


def test_a_tokenizer_without_a_mask_token(tmp_path: Path) -> None:
    style = {name: token for name, token in BERT_STYLE.items() if name != "mask"}
    save_checkpoint("bert", tmp_path, tokenizer=wordpiece(style))
    assert "no mask token" in refused(str(tmp_path))


def test_a_tokenizer_that_adds_no_cls(tmp_path: Path) -> None:
    tokenizer = wordpiece(BERT_STYLE)
    from tokenizers import processors

    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    save_checkpoint("bert", tmp_path, tokenizer=tokenizer)
    assert "does not put [CLS]" in refused(str(tmp_path))


@pytest.mark.parametrize("verb", ["encode", "pretrain", "finetune", "train_reranker", "adapt"])
def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_by_every_command(
    verb: str, bert: Path, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "qontext.adapt.prepare.survey", lambda *given, **settings: pytest.fail("it is surveyed")
    )
    folder = shutil.copytree(bert, tmp_path / "encoder")
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(minilm / file, folder / file)
    data = write_collection(
        tmp_path / "data",
        [{"_id": "p", "title": "", "text": "a mill"}],
        [{"_id": "q", "text": "mill"}],
        {"train": {"q": "p"}},
    )
    inputs: dict[str, Any] = {"train_reranker": {"passages": data}}.get(verb, {})
    with pytest.raises(
        QontextError, match="the tokenizer does not fit the encoder: its token ids go up to 30,521"
    ):
        getattr(api, verb)(data, encoder=folder, out=tmp_path / "out", **inputs)
