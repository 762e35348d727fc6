"""Texts that are read as messages of a chat template, as in what sentence-transformers saves of a chat model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.conftest import SENTENCES
from tests.models.test_families import elsewhere, save_family

from qontext import api
from qontext.frame.errors import QontextError
from qontext.models.retriever import Retriever
from qontext.models.tokenizer import frame_of, load_tokenizer

CHAT = (
    "{% if messages[0].role != 'system' %}<|start|>system\nBe of help.<|end|>\n{% endif %}"
    "{% for one in messages %}<|start|>{{ one.role }}\n{{ CONTENT }}<|end|>\n{% endfor %}"
)
TEMPLATES = {
    "flat": CHAT.replace("CONTENT", "one.content"),
    "structured": CHAT.replace("CONTENT", "one.content[0].text"),
}
FORM: dict[str, Any] = {"device": "cpu", "precision": "fp32"}


def save_messages(
    folder: Path, format: str = "flat", *, template: str = "", prompts: dict[str, str] | None = None
) -> Path:
    """A random Qwen3 whose texts are messages."""
    from transformers import AutoTokenizer

    save_family("qwen3", folder, prompts=prompts)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|end|>"]})
    tokenizer.add_tokens(["0", "4"])  # by which sentence-transformers tells what follows a text
    tokenizer.chat_template = template or TEMPLATES[format]
    tokenizer.save_pretrained(folder)
    how = {"method": "forward", "method_output_name": "last_hidden_state"}
    limits = {
        "max_seq_length": 90,
        "transformer_task": "feature-extraction",
        "modality_config": {"text": how, "message": {**how, "format": format}},
        "module_output_name": "token_embeddings",
    }
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder


@pytest.mark.parametrize("format", TEMPLATES)
def test_vectors_are_those_of_sentence_transformers(format: str, tmp_path: Path) -> None:
    """A long text is truncated inside of its message."""
    folder = save_messages(tmp_path / "model", format)
    texts = [*SENTENCES, " ".join(SENTENCES * 5)]
    ours = Retriever(folder, **FORM).encode_passages(texts)
    np.testing.assert_allclose(ours, elsewhere(folder, texts), atol=1e-5)
    frame = frame_of(load_tokenizer(folder))
    assert len(frame.before) > 10 and len(frame.after) == 2, "<|end|> and the line's end"


def test_a_trained_folder_says_the_same_without_the_template(tmp_path: Path) -> None:
    folder = save_messages(tmp_path / "model")
    lines = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(SENTENCES * 2)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    passages = api.split(tmp_path / "docs.jsonl", out=tmp_path / "passages", keep=True, workers=1)
    settings: dict[str, Any] = {"method": "bow", "target": "both", "batch_size": 4, "max_tokens": 90}
    settings |= {"vector": "lasttoken", "similarity": "cosine", "steps": 1, "lr": 1e-9, **FORM}
    trained = api.pretrain(passages, encoder=folder, out=tmp_path / "out", workers=1, **settings)
    before, after = (Retriever(path, **FORM).encode_passages(SENTENCES) for path in (folder, trained.path))
    np.testing.assert_allclose(after, before, atol=1e-4)
    theirs = elsewhere(trained.path, SENTENCES)
    np.testing.assert_allclose(after, theirs / np.linalg.norm(theirs, axis=1, keepdims=True), atol=1e-5)
    assert "modality_config" not in (trained.path / "sentence_bert_config.json").read_text()


def test_what_a_template_may_not_do_is_refused(tmp_path: Path) -> None:
    shouting = save_messages(tmp_path / "a", template=CHAT.replace("CONTENT", "one.content | upper"))
    failing = save_messages(tmp_path / "b", template="{{ raise_exception('no') }}")
    prompted = save_messages(tmp_path / "c", prompts={"query": "find: "})
    for folder, message in (
        (shouting, "chat template changes them"),
        (failing, "chat template fails: no"),
        (prompted, "prompts as system messages"),
    ):
        with pytest.raises(QontextError, match=message):
            Retriever(folder, **FORM)
