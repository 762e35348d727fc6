"""Invalid settings and inputs of pre-training are refused with one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pretrain.runs import TINY, train

from qontext import api
from qontext.frame.errors import QontextError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "cocondensor"},
            "unknown method 'cocondensor'.*mlm, condenser.*Did you mean 'cocondenser'",
        ),
        ({"context": "near+quer"}, "unknown context 'quer'.*Did you mean 'query'"),
        ({"queries": None, "context": "query"}, "the context 'query' needs queries.*--queries"),
        ({"batch_size": 5000}, "a batch of 5,000 is larger than the corpus.*Set --batch-size to at most"),
        ({"max_tokens": 5000}, "max_tokens = 5000, but the encoder's limit is 512"),
        ({"tokenizer": None}, "starts from scratch and needs a tokenizer. Name a trained encoder, or"),
        ({"snapshots": 2, "minutes": 1.0}, "number of steps is not known.*Remove --snapshots or --minutes"),
        ({"sampling": "score"}, "no column 'score' to sample by"),
        (
            {"method": "cot-mae", "directions": "forward", "contrastive_weight": 0.1},
            "needs the vectors of both members.*Remove --directions",
        ),
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
