"""Training a generator: it learns, it stops, it resumes in the same bits, and generate reads it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import free_port

from qontext import api
from qontext.frame.artifacts import open_artifact

pytestmark = pytest.mark.numeric

SMALL = {
    "preset": "tiny",
    "vocabulary": 90,
    "batch_size": 8,
    "dev_every": 10,
    "max_passage_tokens": 24,
    "lr": 5e-3,
}


def test_it_learns_and_generate_reads_it(labeled, tmp_path, rows_of):
    trained = api.train_generator(labeled, out=tmp_path / "g", steps=50, prefix="ask: ", **SMALL)
    losses = [row["loss"] for row in trained.summary["history"]]
    assert trained.meta["computed"] in ("fp32", "bf16")
    assert losses[-1] < 0.6 * losses[0] and trained.summary["steps"] == 50
    assert json.loads((trained.path / "generator.json").read_text()) == {
        "prefix": "ask: ",
        "with_title": True,
    }
    assert not (trained.path / "checkpoints").exists()
    generated = api.generate(labeled, out=tmp_path / "q", model=trained, temperature=0.2, max_new_tokens=12)
    assert (
        sum(query.startswith("what is") for _, query, _ in rows_of(generated.path))
        > 0.8 * generated.summary["queries"]
    )


def test_it_stops_when_the_dev_loss_no_longer_falls(labeled, tmp_path):
    hopeless = {**SMALL, "lr": 5.0, "patience": 2, "dev_every": 4}
    stopped = api.train_generator(labeled, out=tmp_path / "g", steps=200, **hopeless)
    dev = stopped.summary["dev"]
    assert dev["stopped_at"] < 200 and dev["stopped_at"] == dev["step"] + 8


@pytest.fixture
def tiny_generator():
    """A T5 with drawn weights, and a plan of 12 pairs of many lengths."""
    from transformers import T5Config, T5ForConditionalGeneration

    from qontext.queries.training import PairPlan
    from qontext.training.randomness import EpochSampler
    from qontext.training.texts import TokenizedTexts

    torch.manual_seed(0)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
    model = T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=0, dropout_rate=0.1))
    dice = np.random.default_rng(0)

    def texts(shortest, longest):
        lengths = dice.integers(shortest, longest, 12)
        ids = dice.integers(3, 40, lengths.sum()).astype(np.int32)
        return TokenizedTexts(ids, lengths.cumsum() - lengths, lengths, np.arange(12))

    def plan(micro_tokens, rank=0, world=1):
        return PairPlan(
            passages, queries, EpochSampler(12, 8, 42, rank, world, "pairs"), micro_tokens, pad_id=0
        )

    passages, queries = texts(3, 30), texts(2, 9)
    return model, plan


def gradients(model, batches):
    """Losses and gradients, as the step adds them up over micro-batches."""
    from qontext.queries.training import QueryGeneration
    from qontext.training.dropout import drawn_for, use_cheap_dropout

    objective = QueryGeneration(model).train()
    use_cheap_dropout(objective)
    objective.zero_grad()
    total = 0.0
    for batch, share in batches:
        for rows in batch.micro:
            with drawn_for(rows.row_keys):
                loss = objective(rows.scaled(torch.tensor([share]))).losses["query"]
            loss.backward()
            total += loss.item()
    return total, torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_loss_is_the_mean_over_all_query_tokens(tiny_generator):
    from qontext.queries.train_generator import set_dropout

    model, plan = tiny_generator
    set_dropout(model, 0.0)
    total, count = 0.0, 0
    passages, queries = plan(1).passages, plan(1).queries
    for n in plan(1).sampler(0)[0].tolist():
        ids = torch.tensor(passages.ids[passages.begin[n] :][: passages.length[n]])[None].long()
        query = queries.ids[queries.begin[n] :][: queries.length[n]].tolist()
        decoder_ids = torch.tensor([[0, *query[:-1]]])  # the decoder reads what stands before each token
        log_probabilities = model(input_ids=ids, decoder_input_ids=decoder_ids).logits[0].log_softmax(-1)
        total -= sum(log_probabilities[place, token].item() for place, token in enumerate(query))
        count += len(query)
    loss, _ = gradients(model, [(plan(100)(0), 1.0)])
    assert loss == pytest.approx(total / count, rel=1e-5)


def test_micro_batches_and_processes_change_nothing_with_dropout(tiny_generator):
    model, plan = tiny_generator
    whole = gradients(model, [(plan(10_000)(0), 1.0)])
    many = gradients(model, [(plan(40)(0), 1.0)])
    assert len(plan(10_000)(0).micro) < len(plan(40)(0).micro)
    ranks = [plan(10_000, rank, 2)(0) for rank in range(2)]
    tokens = sum(batch.predictions[0] for batch in ranks)
    halves = gradients(model, [(batch, batch.predictions[0] / tokens) for batch in ranks])
    for loss, gradient in (many, halves):
        assert loss == pytest.approx(whole[0], rel=1e-5)
        assert (gradient - whole[1]).abs().max() < 1e-5 * whole[1].abs().max().clamp(min=1)


def test_two_processes_train_one_generator(labeled, tmp_path):
    settings = {**SMALL, "steps": 6, "precision": "fp32", "dropout": 0.0}
    one = api.train_generator(labeled, out=tmp_path / "one", **settings)
    command = ["train-generator", labeled, "--out", str(tmp_path / "two")]
    command += [
        word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()),
         "-m", "qontext", *command],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    weights, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    # AdamW turns the sign of a gradient near zero into a whole step, so single weights may differ by one; a step is 5e-3.
    differences = torch.cat([(weights[name] - theirs[name]).abs().flatten() for name in weights])
    assert differences.mean() < 1e-5 and differences.max() < 5e-3
    assert one.summary["parameters"] == open_artifact(tmp_path / "two").summary["parameters"]
