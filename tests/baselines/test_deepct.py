"""DeepCT: targets, loss and term frequencies by hand; it learns the share of queries, and BM25 counts what it estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import save_bert, write_collection

from qontext import api
from qontext.baselines.deepct import TrainableTerms, frequencies, load_terms, targets, words_in_tokens
from qontext.data.collection import read_passages
from qontext.frame.errors import QontextError

pytestmark = pytest.mark.numeric


@pytest.fixture
def encoder(tmp_path: Path, minilm: str) -> str:
    return str(save_bert(tmp_path / "encoder", minilm, num_hidden_layers=1, intermediate_size=16))


@pytest.fixture
def tokenizer(minilm: str) -> Any:
    from qontext.models.tokenizer import load_tokenizer

    return load_tokenizer(Path(minilm))


def test_targets_by_hand(tokenizer: Any) -> None:
    (read,) = words_in_tokens(tokenizer, ["text: The Grasslandses, miller's mill"], len("text: "), 32)
    tokens = tokenizer.convert_ids_to_tokens(read.ids)
    assert read.words == ["the", "grasslandses", "miller's", "mill"]
    firsts = [tokens[place] for place in read.places]
    assert firsts[0] == "the" and firsts[1] == "grasslands" and firsts[2].startswith("mill")
    labels = targets(read, "the mills of a miller")
    assert [labels[place] for place in read.places] == [0, 0, 1, 1], "a stop word; a stem"
    assert {label for n, label in enumerate(labels) if n not in read.places} == {-100}
    (cut,) = words_in_tokens(tokenizer, ["one two three four"], 0, 4)
    assert cut.words == ["one", "two"], "what is truncated has no words"


def test_term_frequencies_by_hand() -> None:
    counted = frequencies(["mill", "of", "mill", "wind", "a"], [0.02, -0.3, 0.05, 0.014, 0.004])
    assert counted == {"mill": 5, "wind": 1}


def test_weights_that_the_backbone_lacks_are_not_initialized(encoder: str) -> None:
    from safetensors.torch import load_file, save_file

    file = next(Path(encoder).glob("*.safetensors"))
    tensors = load_file(file)
    gone = next(name for name in tensors if name.endswith("attention.self.query.weight"))
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, file)
    with pytest.raises(QontextError, match=r"1 are missing, such as .*query\.weight"):
        load_terms(encoder, 0)


def test_the_loss_is_the_mean_over_words_of_the_squared_error(encoder: str) -> None:
    from qontext.queries.generators.t5 import SourceText
    from qontext.queries.training import Shape, TrainingPair
    from qontext.training.randomness import EpochSampler

    model, tokenizer, _, longest = load_terms(encoder, 0)
    assert longest == 512
    trained = TrainableTerms(model.eval(), tokenizer, Shape(SourceText("", False), 16, 8))
    pairs = [TrainingPair("", "the mill grinds flour", "who grinds"), TrainingPair("", "a boat", "a mill")]
    plan = trained.plan(pairs, EpochSampler(2, 2, 0, 0, 1, "pairs"), 1_000)
    expected, words = 0.0, 0
    for pair in pairs:
        (read,) = words_in_tokens(tokenizer, [pair.text], 0, 16)
        states = model.bert(torch.tensor([read.ids])).last_hidden_state[0]
        estimates = states @ model.classifier.weight[0] + model.classifier.bias
        for place, wanted in zip(read.places, {"who grinds": [0, 0, 1, 0], "a mill": [0, 0]}[pair.query]):
            expected, words = expected + float((wanted - estimates[place].detach()) ** 2), words + 1
    objective = trained.loss(trained.model).eval().requires_grad_(False)
    batch = plan(0)
    assert batch.predictions == (6.0,) and words == 6
    total = sum(float(objective(rows).losses["terms"]) for rows in batch.micro)
    assert total == pytest.approx(expected / words, rel=1e-5)
    assert objective.loss(plan, torch.device("cpu"), torch.float32) == pytest.approx(total, rel=1e-5)


NAMES = ["moss", "fern", "birch", "pine", "oak", "elm", "ash", "yew", "rose", "lily", "iris", "daisy"]


@pytest.fixture
def labeled(tmp_path: Path) -> str:
    """Of two queries about each plant, both name it, and one of them its garden."""
    passages = [{"_id": f"p{n}", "title": "Plants", "text": f"{a} in a garden"} for n, a in enumerate(NAMES)]
    passages += [{"_id": "one", "title": "", "text": "Rivers"}]
    texts = [text for name in NAMES for text in (f"where is {name}", f"{name} in which garden")]
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(texts)]
    qrels = {split: {f"q{n}": f"p{n // 2}" for n in range(len(texts))} for split in ("train", "dev")}
    return str(write_collection(tmp_path / "labeled", passages, queries, qrels))


def test_it_learns_the_share_of_queries_and_bm25_counts_it(
    labeled: str, encoder: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"learns": "terms", "model": encoder, "with_title": False, "lr": 5e-3}
    settings |= {"steps": 70, "batch_size": 12, "dev_every": 70, "max_passage_tokens": 16, "dropout": 0.0}
    trained = api.train_generator(labeled, out=tmp_path / "weights", **settings)
    assert json.loads((trained.path / "generator.json").read_text())["with_title"] is False
    generated = api.generate(labeled, generator="terms", model=trained, per_passage=1, out=tmp_path / "q")
    alone = api.expand(generated, passages=labeled, words="alone", out=tmp_path / "alone")
    read = {passage.id: passage for passage in read_passages(str(alone.path))}
    assert read.keys() == {*(f"p{n}" for n in range(len(NAMES))), "one"}
    assert all(not passage.title for passage in read.values())
    for n, name in enumerate(NAMES):
        counts = [read[f"p{n}"].text.split().count(word) for word in (name, "garden", "in")]
        assert counts[0] > 80 and 35 < counts[1] < 65 and counts[2] < 15
    from qontext.retrieve.bm25 import Bm25

    index = Bm25.build(read.values(), k1=10, b=0.9)
    frequency = read["p3"].text.split().count("pine")
    lengths = [sum(index_terms(passage.text)) for passage in read.values()]
    saturation = 10 * (0.1 + 0.9 * lengths[3] / (sum(lengths) / len(lengths)))
    expected = index.rarity("pine") * frequency / (saturation + frequency)
    assert index.weight("pine", index.number("p3")) == pytest.approx(expected, rel=1e-4)


def index_terms(text: str) -> list[int]:
    """1 for each word that is no stop word."""
    from qontext.retrieve.analyzer import term_of

    return [1 for word in text.split() if term_of("english")(word)]


def test_what_is_refused(labeled: str, encoder: str, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match=r"learns terms needs an encoder\. Name it with --model"):
        api.train_generator(labeled, learns="terms", out=tmp_path / "w")
    with pytest.raises(QontextError, match=r"is no model of the weights of words: .* Train one"):
        api.generate(labeled, generator="terms", model=encoder, out=tmp_path / "q")
    with pytest.raises(
        QontextError, match=r"max_passage_tokens = 600, but the encoder's limit is 512 tokens"
    ):
        api.train_generator(
            labeled, learns="terms", model=encoder, max_passage_tokens=600, out=tmp_path / "w"
        )
