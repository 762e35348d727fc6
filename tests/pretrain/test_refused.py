"""Invalid settings and inputs of pre-training are refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pretrain.runs import TINY, train

from qontext import api
from qontext.frame.errors import QontextError
from qontext.pretrain.batches import Layout
from qontext.pretrain.config import PretrainConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "cocondensor"},
            "unknown method 'cocondensor'.*mlm, condenser.*Did you mean 'cocondenser'",
        ),
        ({"context": "near+quer"}, "unknown context 'quer'.*Did you mean 'query'"),
        ({"encoder": "tinny"}, "tinny.*Did you mean 'tiny'|unknown.*tinny"),
        ({"queries": None, "context": "query"}, "the context 'query' needs queries.*--queries"),
        ({"batch_size": 5000}, "a batch of 5,000 is larger than the corpus.*Set --batch-size to at most"),
        ({"max_tokens": 5000}, "max_tokens = 5000, but the encoder's limit is 512"),
        ({"tokenizer": None}, "starts from scratch and needs a tokenizer. Name a trained encoder, or"),
        ({"snapshots": 2, "minutes": 1.0}, "number of steps is not known.*Remove --snapshots or --minutes"),
        (
            {"early_layer_number": 9, "method": "condenser"},
            "early_layer_number = 9, but the encoder has only 2",
        ),
        ({"decoder_init": "first"}, "neither 'random' nor layer numbers"),
        ({"sampling": "score"}, "no column 'score' to sample by"),
        ({"late_mlm_weight": 0, "head_weight": 0, "condenser_steps": 2}, "are both 0"),
        ({"head_weight": 0, "condenser_steps": 2}, "condenser_steps train a head, but head_weight is 0"),
        ({"encoder_mask": 0, "method": "condenser"}, "encoder_mask is 0, so no token is predicted"),
        (
            {"method": "cot-mae", "decoder": "autoregressive", "decoder_init": "0,1"},
            "cannot be initialized from the encoder's layers",
        ),
        (
            {"method": "cot-mae", "directions": "forward", "contrastive_weight": 0.1},
            "needs the vectors of both members.*Remove --directions",
        ),
        ({"method": "bow", "late_mlm_weight": 0, "bow_weight": 0}, "all three loss weights are 0"),
        (
            {"method": "cot-mae", "encoder_mask": 0, "head_weight": 0},
            "encoder_mask is 0, so no token is predicted, and the other losses are disabled",
        ),
        ({"encoder_mask": 0, "contrastive_weight": 0}, "encoder_mask is 0, so no token"),
        ({"encoder_mask": 0, "condenser_steps": 2}, "encoder_mask is 0, so no token"),
        ({"method": "bow", "encoder_mask": 0, "bow_weight": 0}, "encoder_mask is 0, so no token"),
        ({"leer": 1}, "unknown setting of pretrain 'leer'.*Did you mean 'lr'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_told_in_a_sentence(
    corpus: Path, tmp_path: Path, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(QontextError, match=f"(?s){message}"):
        train(corpus, tmp_path / "out", **settings)


def test_queries_of_other_passages_and_tokens_of_another_tokenizer_are_refused(
    corpus: Path, tmp_path: Path
) -> None:
    from qontext.data import records

    rows = [{"passage": f"other{n}", "query": "a question", "number": 0} for n in range(3)]
    records.write_table(tmp_path / "q.parquet", records.table_of(rows, records.QUERIES))
    with pytest.raises(QontextError, match="no query belongs to any of these passages"):
        train(corpus, tmp_path / "out", queries=str(tmp_path / "q.parquet"))
    other = api.train_tokenizer(corpus / "passages", vocabulary=200, out=tmp_path / "tokenizer")
    with pytest.raises(QontextError, match="created with a different tokenizer"):
        api.pretrain(corpus / "tokens", tokenizer=other, out=tmp_path / "o2", method="mlm", **TINY)
    with pytest.raises(QontextError, match="contains passages, expected queries"):
        train(corpus, tmp_path / "o3", queries=str(corpus / "passages"))
    with pytest.raises(QontextError, match="contains queries, expected passages"):
        api.pretrain(corpus / "query-tokens", tokenizer=corpus / "tokenizer", out=tmp_path / "o4", **TINY)


def test_a_head_that_is_none_is_told(corpus: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from qontext.models.encoder import load_encoder
    from qontext.pretrain.folder import load_head

    config = PretrainConfig.make({"passages": "p", "method": "condenser"}, where="test")
    objective = config.objective(load_encoder("tiny", tokenizer=str(corpus / "tokenizer")))
    save_file({"weight": torch.zeros(2)}, tmp_path / "head.safetensors")
    with pytest.raises(QontextError, match="is not a head written by Qontext"):
        load_head(objective, tmp_path)
    (tmp_path / "head.safetensors").write_bytes(b"junk" * 99)
    with pytest.raises(QontextError, match=r"head\.safetensors: damaged: not a safetensors file"):
        load_head(objective, tmp_path)


@pytest.mark.parametrize(
    "words", [("anchor", "context"), ("anchors", "self"), ("anchor", "self", 0.3, 0.5, "evry")]
)
def test_a_layout_of_unknown_words_is_refused(words: tuple[Any, ...]) -> None:
    with pytest.raises(QontextError, match=r"Layout: .* expected one of "):
        Layout(*(*words, 0.3) if len(words) == 2 else words)


def test_an_encoder_that_predicts_nothing_needs_a_loss_of_its_vector(corpus: Path) -> None:
    from qontext.models.encoder import Encoder, load_encoder
    from qontext.pretrain.objectives import METHODS

    class Silent(Encoder):
        predicts = "nothing"  # type: ignore[assignment]

    encoder = load_encoder("tiny", tokenizer=str(corpus / "tokenizer"))
    encoder.__class__ = Silent
    for name, options in {
        "bow": {"bow_weight": 0},
        "cocondenser": {"head_weight": 0, "contrastive_weight": 0},
        "condenser": {"head_weight": 0},
    }.items():
        method = METHODS.load(name)
        with pytest.raises(QontextError, match=f"{name} needs with these weights a language model"):
            method.check_encoder(encoder, method.Options(**options))
    for name, options in {"bow": {}, "cocondenser": {"head_weight": 0}}.items():
        method = METHODS.load(name)
        method.check_encoder(encoder, method.Options(**options))


def test_only_a_contrastive_loss_between_tokens_is_refused_with_dense_layers(
    corpus: Path, configure: Callable[..., PretrainConfig]
) -> None:
    """DupMAE has another option of the same name."""
    from qontext.models.encoder import load_encoder
    from qontext.models.pooling import DenseLayer
    from qontext.pretrain.run import _method

    encoder = load_encoder("tiny", tokenizer=str(corpus / "tokenizer"))
    encoder.dense = torch.nn.ModuleList([DenseLayer(torch.nn.Linear(128, 64), torch.nn.Tanh())])
    _method(configure(method="dupmae"), encoder)
    with pytest.raises(QontextError, match="a loss between tokens is not for an encoder with dense layers"):
        _method(configure(method="cocondenser", queries="q", token_weight=0.5), encoder)


def test_tokens_that_may_have_capital_letters_are_not_for_an_encoder_of_lower_case(
    corpus: Path, tmp_path: Path
) -> None:
    import json

    from qontext.models.encoder import load_encoder

    folder = tmp_path / "encoder"
    folder.mkdir()
    load_encoder("tiny", tokenizer=str(corpus / "tokenizer")).save(folder, max_length=40)
    for name, lowers in (("tokenizer_config.json", False), ("sentence_bert_config.json", True)):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | {"do_lower_case": lowers}))
    given = {**TINY, "encoder": str(folder), "method": "mlm", "steps": 1}
    with pytest.raises(QontextError, match="these tokens may have capital letters"):
        api.pretrain(corpus / "tokens", out=tmp_path / "refused", **given)
    api.pretrain(corpus / "passages", out=tmp_path / "out", **given)
    ids = [load_encoder(tmp_path / "out").tokenizer(text)["input_ids"] for text in ("RIVER", "river")]
    assert ids[0] == ids[1]
