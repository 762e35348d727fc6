"""adapt with models of other families: a decoder is trained; what cannot be trained is measured as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapt.calls import adapt
from tests.models.test_families import save_family

from qontext.frame import artifacts
from qontext.frame.errors import QontextError
from qontext.models.retriever import Retriever
from qontext.retrieve.open import AdaptedFolder
from qontext.retrieve.query_encoder import Opening


def test_what_cannot_be_trained_is_planned_as_it_is_beside_bm25_and_its_tokens(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    encoder = shutil.copytree(small_encoder, tmp_path / "encoder")
    pooling = {"word_embedding_dimension": 16, "pooling_mode_max_tokens": True}
    (encoder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    plan = adapt(reports, tmp_path / "out", encoder, generator="keyphrase", dry_run=True)
    assert "cannot be trained: training with the pooling 'max' is not supported" in json.dumps(plan["notes"])
    recipe = (tmp_path / "out" / "recipe.toml").read_text()
    steps = [line[1:-1] for line in recipe.splitlines() if line.startswith("[")]
    assert {"start-vectors", "bm25-generated"} <= {*steps}
    assert not {"pretrain", "finetune"} & {*steps}


def test_a_decoder_is_planned_with_its_last_token_and_without_a_head(reports: Path, tmp_path: Path) -> None:
    encoder = save_family("qwen3", tmp_path / "encoder")
    adapt(reports, tmp_path / "out", encoder, generator="keyphrase", dry_run=True)
    recipe = (tmp_path / "out" / "recipe.toml").read_text()
    assert 'vector = "lasttoken"' in recipe and "head_weight = 0.0" in recipe


def test_a_model_that_needs_code_is_refused_before_the_survey(
    reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = save_family("bert", tmp_path / "encoder")
    about = json.loads((encoder / "config.json").read_text())
    about |= {"model_type": "new", "auto_map": {"AutoModel": "modeling.New"}}
    (encoder / "config.json").write_text(json.dumps(about))
    monkeypatch.setattr("qontext.adapt.prepare.survey", lambda *_, **__: pytest.fail("surveyed"))
    with pytest.raises(QontextError, match="needs code from its folder, which is never executed"):
        adapt(reports, tmp_path / "out", encoder, dry_run=True)


def test_prompts_are_those_of_training_measuring_and_search(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    """A prompt is a text, or the name of one of the encoder's; what is recommended reads questions with it."""
    encoder = Path(shutil.copytree(small_encoder, tmp_path / "encoder"))
    (encoder / "config_sentence_transformers.json").write_text('{"prompts": {"web": "lamp "}}')
    given: dict[str, Any] = {"query_prompt": "web", "passage_prompt": "passage: "}
    out = tmp_path / "made"
    result = adapt(reports, out, encoder, **given)
    resolved = {"query": "lamp ", "passage": "passage: "}
    steps = out / "steps"
    for name in ("start-vectors", "adapted-vectors"):
        assert artifacts.open_artifact(steps / name).summary["prompts"] == resolved
    trained = Retriever(steps / "pretrain", device="cpu", precision="fp32")
    assert {kind: trained.layout.prompt(kind) for kind in resolved} == resolved
    folder = AdaptedFolder(out, Opening())
    expected = Retriever(result["model"], device="cpu", precision="fp32", prompts=resolved)
    question = ["the keeper of the northern harbour"]
    vectors = folder.encoder.encode(question, "query")
    np.testing.assert_allclose(vectors, expected.encode_queries(question), atol=1e-5)
    again = adapt(reports, out, encoder)
    assert again["model"] == result["model"], "the recorded prompts hold where none are given"
