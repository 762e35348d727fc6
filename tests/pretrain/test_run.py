"""`qontext pretrain` as a user runs it: every method, its inputs, and the encoder that it writes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.pretrain.runs import TINY, train

from qontext import api
from qontext.frame.errors import QontextError
from qontext.training.metrics import read


@pytest.mark.numeric
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "mlm"},
        {"method": "condenser"},
        {"method": "cocondenser", "context": "rand"},
        {"method": "cocondenser"},
        {"method": "cocondenser", "context": "mixed", "condenser_steps": 3, "anchors": "documents"},
        {"method": "cot-mae", "context": "near+olap+rand"},
        {"method": "cot-mae"},
        {"method": "cot-mae", "decoder": "autoregressive"},
        {"method": "cot-mae", "contrastive_weight": 0.1},
        {"method": "retromae"},
        {"method": "dupmae"},
        {"method": "seed"},
        {"method": "costa"},
        {"method": "simlm"},
        {"method": "bow"},
        {"method": "bow", "target": "context", "context": "query", "contrastive_weight": 0.1},
    ],
    ids=lambda settings: "-".join(str(v) for v in settings.values()),
)
def test_every_method_learns_and_leaves_an_encoder_behind(
    corpus: Path, tmp_path: Path, settings: dict[str, Any], generator: str
) -> None:
    if settings["method"] == "simlm":
        settings = {**settings, "generator": generator}
    trained = train(corpus, tmp_path / "out", steps=24, lr=2e-3, warmup=0.1, **settings)
    lines = [
        line for line in read(trained.path / "logs/metrics.jsonl") if line["phase"] == settings["method"]
    ]
    assert lines[-1]["step"] == 24
    for name in lines[0]["losses"]:
        if name != "contrastive":
            assert lines[-1]["losses"][name] < lines[0]["losses"][name], name
    names = {str(path.relative_to(trained.path)) for path in trained.parts()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modules.json",
        "README.md",
        "logs/loss.png",
    } <= names
    assert ("head.safetensors" in names) == (settings["method"] not in ("mlm", "bow"))
    assert not [name for name in names if name.startswith(("checkpoints", "cache"))]
    assert settings["method"] in (trained.path / "README.md").read_text()


def test_the_initial_weights_are_mixed_into_the_result(corpus: Path, tmp_path: Path, generator: str) -> None:
    settings: dict[str, Any] = {"encoder": generator, "tokenizer": None, "steps": 3, "lr": 1e-2}
    trained = train(corpus, tmp_path / "trained", **settings)
    mixed = train(corpus, tmp_path / "mixed", initial_share=0.25, **settings)
    folders = (generator, trained.path, mixed.path)
    before, after, found = (load_file(Path(folder) / "model.safetensors") for folder in folders)
    own = [name for name in found if name.startswith("bert.")]
    assert own
    for name in own:
        torch.testing.assert_close(found[name], 0.75 * after[name] + 0.25 * before[name])
    assert any(not torch.equal(found[name], after[name]) for name in own)


def test_both_libraries_load_it_and_agree(corpus: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from transformers import AutoModel, AutoTokenizer

    trained = train(corpus, tmp_path / "out")
    texts = [
        "rivers and mountains",
        "a much longer passage about engines, languages and the weather of planets",
        "a",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        one = sentence_transformers.SentenceTransformer(str(trained.path), device="cpu")
    theirs = one.encode(texts)
    model, tokenizer = (
        AutoModel.from_pretrained(trained.path).eval(),
        AutoTokenizer.from_pretrained(trained.path),
    )
    with torch.inference_mode():
        ours = model(**tokenizer(texts, padding=True, return_tensors="pt")).last_hidden_state[:, 0].numpy()
    assert np.abs(ours - theirs).max() < 1e-5
    assert one.similarity_fn_name == "dot"
    assert one.max_seq_length == 40


def test_a_condenser_head_is_taken_up(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(corpus, tmp_path / "condenser", method="condenser", queries=None)
    capsys.readouterr()
    train(corpus, tmp_path / "warm", method="cocondenser", encoder=str(first.path), tokenizer=None)
    assert "has no Condenser head" not in capsys.readouterr().err
    train(corpus, tmp_path / "scratch", method="cocondenser")  # where all is new, a new head is no surprise
    assert "has no Condenser head" not in capsys.readouterr().err

    from qontext.models.encoder import load_encoder
    from qontext.pretrain.config import PretrainConfig
    from qontext.pretrain.objectives.base import load_head

    def objective_of(**settings: Any) -> Any:
        config = PretrainConfig.make({"passages": "p", **settings}, where="test")
        return config.objective(load_encoder(str(first.path)))

    objective = objective_of(method="cocondenser")
    before = [p.clone() for _, p in objective.head_parameters()]
    assert load_head(objective, first.path)
    assert not all(p.equal(q) for p, (_, q) in zip(before, objective.head_parameters()))
    other = objective_of(method="cot-mae")
    assert not load_head(other, first.path), "a head of another kind is left alone"
    capsys.readouterr()
    with pytest.raises(QontextError, match="the shapes of this head differ"):
        load_head(objective_of(method="cocondenser", decoder_layers=3), first.path)


def test_a_token_store_can_be_given_in_place_of_passages(corpus: Path, tmp_path: Path) -> None:
    from_store = api.pretrain(
        corpus / "tokens", tokenizer=corpus / "tokenizer", out=tmp_path / "a", method="mlm", steps=3, **TINY
    )
    from_passages = train(corpus, tmp_path / "b", method="mlm", steps=3, queries=None, title="leave")
    assert (from_store.path / "model.safetensors").read_bytes() == (
        from_passages.path / "model.safetensors"
    ).read_bytes()


def test_means_and_cosine_are_saved_as_such(corpus: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    trained = train(corpus, tmp_path / "out", vector="mean", similarity="cosine", temperature=0.05)
    model = sentence_transformers.SentenceTransformer(str(trained.path), device="cpu")
    assert model.similarity_fn_name == "cosine"

    from qontext.models.encoder import load_encoder

    encoder = load_encoder(str(trained.path))
    ids = encoder.tokenizer("rivers and mountains", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        ours = encoder(ids, None)[0][0].mean(0).numpy()
    assert np.abs(model.encode("rivers and mountains") - ours).max() < 1e-5
