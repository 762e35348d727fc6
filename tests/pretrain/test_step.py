"""A loop of one's own: the loss of a batch is that of `qontext pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pretrain.runs import train

from qontext import QontextError
from qontext.data import records
from qontext.models.encoder import Encoder, load_encoder
from qontext.pretrain.batches import Keys
from qontext.pretrain.objectives.bow import Bow
from qontext.pretrain.step import _batch, load_method, training_step
from qontext.training.metrics import read


@pytest.fixture
def encoder(corpus: Path) -> Encoder:
    return load_encoder("tiny", tokenizer=str(corpus / "tokenizer"), dropout=0.0)


@pytest.fixture(scope="module")
def pairs(corpus: Path) -> tuple[list[str], list[str]]:
    """All passages, each with its first query."""
    texts = {
        id: text
        for part in records.parquet_parts(corpus / "passages")
        for id, text in zip(
            *(records.read_part(part, records.PASSAGES)[name].to_pylist() for name in ("id", "text"))
        )
    }
    queries = records.read_part(corpus / "queries.parquet", records.QUERIES)
    first: dict[str, str] = {}
    for passage, query in zip(queries["passage"].to_pylist(), queries["query"].to_pylist()):
        first.setdefault(passage, query)
    assert texts.keys() == first.keys()
    return list(texts.values()), [first[id] for id in texts]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "mlm"},
        {"method": "cocondenser"},
        {"method": "cot-mae", "contrastive_weight": 0.5},
        {"method": "retromae"},
    ],
    ids=lambda settings: settings["method"],
)
def test_the_loss_is_that_of_the_training(
    corpus: Path,
    tmp_path: Path,
    encoder: Encoder,
    pairs: tuple[list[str], list[str]],
    settings: dict[str, Any],
) -> None:
    texts, contexts = pairs
    common = {"precision": "fp32", "dropout": 0.0, "steps": 2, "log_every": 1, "lr": 1e-9, "warmup": 0.0}
    reads_contexts = settings["method"] in ("cocondenser", "cot-mae")
    common |= {"batch_size": len(texts), "candidates": 1 if reads_contexts else None, "title": "leave"}
    trained = train(corpus, tmp_path / "out", **common, **settings)
    lines = [line for line in read(trained.path / "logs/metrics.jsonl") if "loss" in line]
    name, options = settings["method"], {key: value for key, value in settings.items() if key != "method"}
    method = load_method(name, encoder, has_queries=True, **options)
    for step, line in enumerate(lines):
        loss = training_step(
            method, encoder, texts, contexts if reads_contexts else None, step=step, max_tokens=40
        )
        assert loss.item() == pytest.approx(line["loss"], abs=3e-5)
    assert len(lines) == 2 and lines[0]["loss"] != lines[1]["loss"]


def test_it_trains_the_encoder_and_the_head(encoder: Encoder) -> None:
    texts, contexts = ["The mill grinds flour.", "A boat on the river."], ["flour", "boats and rivers"]
    method = load_method("cot-mae", encoder, decoder_layers=1)
    optimizer = torch.optim.AdamW(method.parameters(), lr=1e-3)
    losses = []
    for step in range(12):
        loss = training_step(method, encoder, texts, contexts, step=step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert all(parameter.grad is not None for _, parameter in method.head_parameters())


def test_a_name_or_a_class_is_enough_without_a_head(encoder: Encoder) -> None:
    texts = ["The mill grinds flour.", "A boat on the river."]
    by_name = training_step("bow", encoder, texts)
    assert by_name.item() == training_step(Bow, encoder, texts).item() and by_name.requires_grad


@pytest.mark.parametrize("has_queries", [True, False])
def test_contexts_have_the_prompt_of_what_they_are(encoder: Encoder, has_queries: bool) -> None:
    encoder.prompts.update(query="weather ", passage="rivers and mountains ")
    method = load_method("cocondenser", encoder, has_queries=has_queries, encoder_mask=0.0)
    given = ["music", "bridges and engines"], ["machines under gardens", "paintings"]
    batch = _batch(method, *given, step=0, max_tokens=40)
    (rows,), keys = batch.micro, batch.keys
    assert isinstance(keys, Keys)
    read = [encoder.tokenizer.decode(ids[mask]) for ids, mask in zip(rows.encoder.ids, rows.encoder.mask)]  # type: ignore[attr-defined]
    prompts = encoder.prompts["passage"], encoder.prompts["query" if has_queries else "passage"]
    expected = [
        encoder.tokenizer.decode(encoder.tokenizer(prompts[column] + given[column][pair])["input_ids"])
        for pair, column in zip(keys.pair.tolist(), keys.is_context.int().tolist())
    ]
    assert read == expected
    assert keys.document.tolist() == keys.pair.tolist()


def test_a_step_leaves_the_random_state_and_follows_the_progress(encoder: Encoder) -> None:
    texts = ["The mill grinds flour.", "A boat on the river."]
    before = torch.get_rng_state()
    whole, half, none = (
        training_step(
            load_method("bow", encoder, encoder_mask=0.0, bow_weight_end=0.0), encoder, texts, progress=share
        )
        for share in (0.0, 0.5, 1.0)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert half.item() == pytest.approx(whole.item() / 2, rel=1e-5) and none.item() == pytest.approx(
        0.0, abs=1e-6
    )


def test_what_does_not_fit_is_refused(encoder: Encoder, corpus: Path) -> None:
    texts = ["a river", "a mill"]
    for message, call in {
        "'cot-mae' trains a head.*Load it once": lambda: training_step("cot-mae", encoder, texts, texts),
        "reads a context of each text": lambda: training_step(
            load_method("cot-mae", encoder), encoder, texts
        ),
        "reads no contexts": lambda: training_step("mlm", encoder, texts, texts),
        r"2 texts, but 1 contexts": lambda: training_step(
            load_method("cot-mae", encoder), encoder, texts, texts[:1]
        ),
        r"contexts\[0\] has no token": lambda: training_step(
            load_method("cot-mae", encoder), encoder, texts, [" ", "a"]
        ),
        r"texts\[1\] has no token": lambda: training_step("mlm", encoder, ["a", " "]),
        "texts is not a list": lambda: training_step("mlm", encoder, "a river"),
        "another encoder": lambda: training_step(
            load_method("mlm", encoder), load_encoder("tiny", tokenizer=str(corpus / "tokenizer")), texts
        ),
        "max_tokens = 600, but the encoder's limit is 512": lambda: training_step(
            "mlm", encoder, texts, max_tokens=600
        ),
        "windows": lambda: load_method("cot-mae", encoder, windows=3),
    }.items():
        with pytest.raises(QontextError, match=message):
            call()
