"""Fine-tuning a decoder-only model: its loss by hand, it learns, it resumes in the same bits, and generate reads it."""

import json

import pytest
import torch

from qontext import api

pytestmark = pytest.mark.numeric

SMALL = {"batch_size": 8, "dev_every": 10, "max_passage_tokens": 32, "lr": 1e-2, "device": "cpu"}


def test_it_learns_and_generate_reads_it(labeled, tmp_path, tiny_llama, rows_of):
    trained = api.train_generator(
        labeled, out=tmp_path / "g", model=tiny_llama, steps=60, prefix="ask: ", **SMALL
    )
    losses = [row["loss"] for row in trained.summary["history"]]
    assert losses[-1] < 0.3 * losses[0] and trained.summary["steps"] == 60
    settings = json.loads((trained.path / "generator.json").read_text())
    assert settings == {"prefix": "ask: ", "with_title": True, "tail": "\n\nQuestion:"}
    same = {"generator": "causal", "model": trained, "temperature": 0.2, "max_new_tokens": 12}
    generated = api.generate(labeled, out=tmp_path / "q", **same)
    rows = rows_of(generated.path)
    assert len(rows) > 10 and sum(query.startswith("what is") for _, query, _ in rows) > 0.8 * len(rows)


@pytest.fixture
def trainable(tiny_llama):
    """The model with pairs of many lengths, and a plan by token budget and rank."""
    from pathlib import Path

    from qontext.models.language import load_causal
    from qontext.queries.generators.t5 import SourceText
    from qontext.queries.training import Shape, TrainableCausal, TrainingPair
    from qontext.training.randomness import EpochSampler

    model, tokenizer = load_causal(Path(tiny_llama))
    generator = TrainableCausal(model, tokenizer, Shape(SourceText("", True), 30, 12))
    pairs = [
        TrainingPair("Bees" * (n % 2), "bees dance " * (1 + 3 * n % 7), "where do bees dance " * (1 + n % 3))
        for n in range(12)
    ]

    def plan(micro_tokens, rank=0, world=1):
        return generator.plan(pairs, EpochSampler(12, 8, 42, rank, world, "pairs"), micro_tokens)

    return generator, pairs, plan


def gradients(generator, batches):
    """Losses and gradients, as the step adds them up over micro-batches."""
    objective = generator.loss(generator.model).train()
    objective.zero_grad()
    total = 0.0
    for batch, share in batches:
        for rows in batch.micro:
            loss = objective(rows.scaled(torch.tensor([share]))).losses["query"]
            loss.backward()
            total += loss.item()
    return total, torch.cat([p.grad.flatten() for p in generator.model.parameters()])


def test_the_loss_is_that_of_the_query_tokens_alone(trainable):
    """Against the model's plain output for each pair alone; the prompt's tokens are not predicted."""
    generator, pairs, plan = trainable
    tokenizer = generator.tokenizer
    total, count = 0.0, 0
    for n in plan(1).sampler(0)[0].tolist():
        text = f"{pairs[n].title}: {pairs[n].text}" if pairs[n].title else pairs[n].text
        prompt = tokenizer(text)["input_ids"][:30] + tokenizer("\n\nQuestion:")["input_ids"]
        query = [*tokenizer(" " + pairs[n].query.strip())["input_ids"][:11], tokenizer.eos_token_id]
        with torch.inference_mode():
            logits = generator.model(input_ids=torch.tensor([prompt + query])).logits[0].log_softmax(-1)
        total -= sum(logits[len(prompt) - 1 + t, token].item() for t, token in enumerate(query))
        count += len(query)
    loss, _ = gradients(generator, [(plan(100)(0), 1.0)])
    assert loss == pytest.approx(total / count, rel=1e-5)


def test_killed_and_resumed_is_the_same(labeled, tmp_path, tiny_llama, warm):
    settings = {**SMALL, "model": tiny_llama, "steps": 12, "dev_every": 4, "precision": "fp32"}
    whole = api.train_generator(labeled, out=tmp_path / "whole", **settings)
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["train-generator", labeled, *flags, "--checkpoint-minutes", "0", "--out", str(tmp_path / "g")]
    running = warm.launch({"argv": command}, tmp_path / "said")
    running.kill_when(lambda: list((tmp_path / "g").glob("checkpoints/generator/*")))
    resumed = api.train_generator(labeled, out=tmp_path / "g", **settings)
    assert resumed.digest == whole.digest
    assert not (tmp_path / "g" / "checkpoints").exists()
