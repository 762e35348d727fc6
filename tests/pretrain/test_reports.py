"""The probe, the trackers and the digest of pre-training, and independence from processes and micro-batches."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.pretrain.runs import finish, train
from tests.tiny import Running, write_collection

from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.training.metrics import read


def test_the_digest_depends_on_neither_paths_nor_reports(
    corpus: Path, tmp_path: Path, start: Callable[..., Running]
) -> None:
    """Nor do the reported losses depend on a kill between two reports."""
    moved = tmp_path / "moved"
    shutil.copytree(corpus, moved)
    whole, again, killed = (tmp_path / name for name in ("whole", "again", "killed"))
    phases = ("--condenser-steps", "3", "--log-every")
    finish(start(whole, *phases, "100"))
    finish(start(again, *phases, "4", source=moved))
    folder = killed / "checkpoints" / "cocondenser"
    start(killed, *phases, "100").kill_when(lambda: any(folder.glob("step-*")))
    finish(start(killed, *phases, "100"))
    artifacts = [open_artifact(path) for path in (whole, again, killed)]
    assert len({artifact.digest for artifact in artifacts}) == 1
    cards = [(artifact.path / "README.md").read_text() for artifact in artifacts]
    assert cards[0] == cards[2] != cards[1]
    assert artifacts[0].summary["cocondenser"]["losses"] == artifacts[2].summary["cocondenser"]["losses"]


def test_two_processes_and_any_micro_batches_train_one_encoder(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    from safetensors.torch import load_file

    settings = ("--steps", "4", "--dropout", "0.1", "--precision", "fp32")
    alone = tmp_path / "alone"
    finish(start(alone, *settings))
    one = load_file(alone / "model.safetensors")
    for micro_tokens in ("0", "100"):
        together = tmp_path / f"together-{micro_tokens}"
        finish(start(together, *settings, "--micro-tokens", micro_tokens, ranks=2))
        two = load_file(together / "model.safetensors")
        assert max((one[name] - two[name]).abs().max().item() for name in one) < 2e-5
        for a, b in zip(
            read(alone / "logs/metrics.jsonl"), read(together / "logs/metrics.jsonl"), strict=True
        ):
            assert a["losses"] == pytest.approx(b["losses"], abs=4e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "cocondenser", "gradient_cache": "on"},
        {"method": "cot-mae", "decoder": "autoregressive"},
        {"method": "retromae"},
    ],
    ids=lambda settings: settings["method"],
)
def test_dropout_does_not_depend_on_the_micro_batches(
    corpus: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    from safetensors.torch import load_file

    shared = {**settings, "dropout": 0.1, "precision": "fp32", "log_every": 1}
    whole, cut = (train(corpus, tmp_path / str(n), micro_tokens=n, **shared).path for n in (0, 80))
    one, two = load_file(whole / "model.safetensors"), load_file(cut / "model.safetensors")
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 4e-5
    for a, b in zip(read(whole / "logs/metrics.jsonl"), read(cut / "logs/metrics.jsonl"), strict=True):
        assert a["losses"] == pytest.approx(b["losses"], abs=4e-5)


def test_the_probe_reports_as_training_goes_on(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "labeled"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "\n".join(
            json.dumps({"_id": f"p{n}", "title": "", "text": f"rivers of planet {n}"}) for n in range(30)
        )
    )
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": f"q{n}", "text": f"planet {n}"}) for n in range(9))
    )
    (folder / "qrels/dev.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\tp{n}\t1\n" for n in range(9))
    )
    trained = train(corpus, tmp_path / "out", method="mlm", probe=str(folder), probe_every=2)
    probes = [line["dev"] for line in read(trained.path / "logs/metrics.jsonl") if "dev" in line]
    assert len(probes) == 2
    assert all(0 <= p["MRR@10"] <= p["R@100"] == 1.0 for p in probes)
    assert trained.summary["mlm"]["dev"].items() >= {"kept": "last", **probes[-1]}.items()


def test_the_probe_keeps_of_a_large_collection_what_it_measures(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    from qontext.training import evaluation

    monkeypatch.setattr(evaluation, "OTHERS", 10)
    count, size = 1_000, 5_000
    passages = [{"_id": f"p{n}", "title": "", "text": f"planet {n} " + "x" * size} for n in range(count)]
    queries = [{"_id": "q", "text": "planet 7"}]
    folder = write_collection(tmp_path / "labeled", passages, queries, {"dev": {"q": "p7"}})
    tokenizer = AutoTokenizer.from_pretrained(corpus / "tokenizer")
    tracemalloc.start()
    probe = evaluation.Probe(folder, "dev", tokenizer, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert probe.passages == [
        tokenizer(passages[n]["text"], truncation=True, max_length=8)["input_ids"]
        for n in (0, 7, *range(100, count, 100))
    ]
    assert peak < count * size / 2


def test_tensorboard_gets_the_losses(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'track' is not installed")
    trained = train(corpus, tmp_path / "out", method="mlm", track="tensorboard")
    (events,) = (trained.path / "logs/tensorboard").iterdir()
    assert b"mlm/losses/mlm" in events.read_bytes()


def test_trackio_gets_the_losses(tmp_path: Path, start: Callable[..., Running]) -> None:
    """In a process of its own: trackio reads where to write when it is imported."""
    pytest.importorskip("trackio", reason="the extra 'track' is not installed")
    more = ("--steps", "2", "--checkpoint-minutes", "60", "--track", "trackio")
    finish(start(tmp_path / "out", *more, TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1"))
    assert any((tmp_path / "trackio").rglob("*.db"))


def test_the_weights_with_the_best_probe_are_kept(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.training.evaluation import Probe

    folder, course = tmp_path / "labeled", iter([0.1, 0.5, 0.3, 0.4, 0.2])
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "p", "title": "", "text": "rivers of a planet"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "planet"}\n')
    (folder / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp\t1\n")
    monkeypatch.setattr(Probe, "measure", lambda *_: {"MRR@10": next(course), "R@100": 1.0})
    settings = {"method": "mlm", "schedule": "constant", "warmup": 0.0}
    probe = {"probe": str(folder), "probe_every": 1, "keep": "best", "patience": 2}
    trained = train(corpus, tmp_path / "best", steps=9, **settings, **probe)
    assert trained.summary["mlm"]["dev"].items() >= {"step": 2, "MRR@10": 0.5, "stopped_at": 4}.items()
    two = train(corpus, tmp_path / "two", steps=2, **settings)
    weights, theirs = (load_file(path / "model.safetensors") for path in (trained.path, two.path))
    assert all(torch.equal(weights[name], theirs[name]) for name in theirs)
    with pytest.raises(QontextError, match="patience and keep = best need --probe"):
        train(corpus, tmp_path / "none", patience=2)
