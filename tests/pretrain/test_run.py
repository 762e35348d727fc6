"""`qontext pretrain` as a user runs it: every method, killed and resumed, interrupted, misused, and what it leaves."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qontext import api
from qontext.artifacts import Artifact, Workdir, open_artifact
from qontext.engine import checkpoint
from qontext.engine.metrics import read
from qontext.errors import QontextError

TINY = {"encoder": "tiny", "batch_size": 8, "max_tokens": 40, "log_every": 2, "device": "cpu", "workers": 1}


def train(corpus: Path, out: Path, **settings: Any) -> Artifact:
    base = {
        **TINY,
        "tokenizer": str(corpus / "tokenizer"),
        "queries": str(corpus / "queries.parquet"),
        "steps": 4,
    }
    found: Artifact = api.pretrain(corpus / "passages", out=out, **{**base, **settings})
    return found


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
        {"method": "retromae"},
    ],
    ids=lambda settings: "-".join(str(v) for v in settings.values()),
)
def test_every_method_learns_and_leaves_an_encoder_behind(
    corpus: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    made = train(corpus, tmp_path / "out", steps=24, lr=2e-3, warmup=0.1, **settings)
    lines = [line for line in read(made.path / "logs/metrics.jsonl") if line["phase"] == settings["method"]]
    assert lines[-1]["step"] == 24
    for name in lines[0]["losses"]:
        if name != "contrastive":
            assert lines[-1]["losses"][name] < lines[0]["losses"][name], name
    names = {str(path.relative_to(made.path)) for path in made.parts()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modules.json",
        "README.md",
        "logs/loss.png",
    } <= names
    assert ("head.safetensors" in names) == (settings["method"] != "mlm")
    assert not [name for name in names if name.startswith(("checkpoints", "cache"))]
    assert settings["method"] in (made.path / "README.md").read_text()


def test_both_libraries_load_it_and_agree(corpus: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from transformers import AutoModel, AutoTokenizer

    made = train(corpus, tmp_path / "out")
    texts = [
        "rivers and mountains",
        "a much longer passage about engines, languages and the weather of planets",
        "a",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        one = sentence_transformers.SentenceTransformer(str(made.path), device="cpu")
    theirs = one.encode(texts)
    model, tokenizer = AutoModel.from_pretrained(made.path).eval(), AutoTokenizer.from_pretrained(made.path)
    with torch.inference_mode():
        ours = model(**tokenizer(texts, padding=True, return_tensors="pt")).last_hidden_state[:, 0].numpy()
    assert np.abs(ours - theirs).max() < 1e-5
    assert one.similarity_fn_name == "dot"
    assert one.max_seq_length == 40


def weights(made: Path) -> dict[str, bytes]:
    return {name: (made / name).read_bytes() for name in ("model.safetensors", "head.safetensors")}


def command(corpus: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "qontext", "pretrain", str(corpus / "passages"), "--method", "cocondenser",
        "--queries", str(corpus / "queries.parquet"), "--encoder", "tiny", "--tokenizer", str(corpus / "tokenizer"),
        "--steps", "30", "--batch-size", "8", "--max-tokens", "40", "--log-every", "2", "--checkpoint-minutes", "0",
        "--device", "cpu", "--workers", "1", "--condenser-steps", "5", "--out", str(out), *more,
    ]  # fmt: skip


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def test_killed_at_random_steps_it_ends_in_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(corpus, whole, "-q"), env=ENVIRONMENT, check=True)
    dice, kills = random.Random(7), 0
    for after in (1, dice.randint(2, 9), dice.randint(10, 18)):
        child = subprocess.Popen(command(corpus, out, "-q"), env=ENVIRONMENT)
        folder = out / "checkpoints" / "cocondenser"
        while child.poll() is None and not any(int(p.name[5:]) >= after for p in folder.glob("step-*")):
            time.sleep(0.01)
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            kills += 1
        child.wait()
        if (out / "meta.json").exists():
            break
    assert kills >= 2, "the child was killed while it trained"
    subprocess.run(command(corpus, out, "-q"), env=ENVIRONMENT, check=True)
    assert weights(out) == weights(whole)
    assert open_artifact(out).digest == open_artifact(whole).digest

    def losses(made: Path) -> list[Any]:
        return [(line["phase"], line["step"], line["losses"]) for line in read(made / "logs/metrics.jsonl")]

    assert [line[:2] for line in losses(out)] == [line[:2] for line in losses(whole)], (
        "no line is missing or twice"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_command_goes_on(corpus: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    arguments = command(
        corpus, out, "--checkpoint-minutes", "60", "--steps", "2000", "--condenser-steps", "0"
    )
    child = subprocess.Popen(arguments, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    while child.poll() is None and not (read(out / "logs/metrics.jsonl") if out.exists() else []):
        time.sleep(0.02)
    child.send_signal(number)
    said = child.communicate()[1]
    assert child.returncode == 130, said
    saved = re.search(r"saved at step ([\d,]+)", said)
    assert saved and "the same command" in said and "Traceback" not in said
    (folder,) = (out / "checkpoints" / "cocondenser").glob("step-*")
    assert int(folder.name[5:]) == int(saved[1].replace(",", ""))


def test_two_processes_train_one_encoder(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    arguments = [
        *launch,
        *command(corpus, out, "--steps", "3", "--condenser-steps", "0", "--dropout", "0")[2:],
    ]
    subprocess.run(arguments, env=ENVIRONMENT, check=True, capture_output=True)
    alone = tmp_path / "alone"
    subprocess.run(
        command(corpus, alone, "--steps", "3", "--condenser-steps", "0", "--dropout", "0", "-q"),
        env=ENVIRONMENT,
        check=True,
    )
    from safetensors.torch import load_file

    one, two = load_file(alone / "model.safetensors"), load_file(out / "model.safetensors")
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 2e-5


def test_a_condenser_head_is_taken_up(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(corpus, tmp_path / "condenser", method="condenser", queries=None)
    capsys.readouterr()
    train(corpus, tmp_path / "warm", method="cocondenser", encoder=str(first.path), tokenizer=None)
    assert "brings no condenser head" not in capsys.readouterr().err
    train(corpus, tmp_path / "cold", method="cocondenser")
    assert "brings no condenser head" in capsys.readouterr().err

    from safetensors.torch import load_file, save_file

    from qontext.engine.encoder import load_encoder
    from qontext.pretrain.config import PretrainConfig
    from qontext.pretrain.head import load_head
    from qontext.pretrain.objectives import method

    config = PretrainConfig(passages="p", method="cocondenser")
    objective = method("cocondenser")(load_encoder(str(first.path)), config)
    before = [p.clone() for _, p in objective.head_parameters()]
    assert load_head(objective, first.path)
    assert not all(p.equal(q) for p, (_, q) in zip(before, objective.head_parameters()))
    other = method("cot-mae")(load_encoder(str(first.path)), config)
    assert not load_head(other, first.path), "a head of another kind is left alone"
    capsys.readouterr()
    last = PretrainConfig(passages="p", method="cocondenser", early_layer_number=2)
    assert load_head(method("cocondenser")(load_encoder(str(first.path)), last), first.path)
    assert "trained on layer 1 and goes on with layer 2" in " ".join(capsys.readouterr().err.split())
    # A head that does not say what it was trained on is taken as it is.
    weights = load_file(first.path / "head.safetensors")
    save_file(weights, tmp_path / "head.safetensors", {"kind": "condenser"})
    assert load_head(objective, tmp_path)
    assert "trained on" not in capsys.readouterr().err
    with pytest.raises(QontextError, match="other shapes"):
        three = PretrainConfig(passages="p", method="cocondenser", decoder_layers=3)
        load_head(method("cocondenser")(load_encoder(str(first.path)), three), first.path)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, True),
        ({"condenser_steps": 2}, False),
        ({"head_weight": 0}, False),
        ({"method": "condenser"}, False),
    ],
    ids=lambda value: "-".join(value) or "plain" if isinstance(value, dict) else "",
)
def test_cocondenser_without_a_trained_head_is_warned_of(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], warned: bool
) -> None:
    train(corpus, tmp_path / "out", steps=2, **{"method": "cocondenser", "context": "rand", **settings})
    assert ("brings no condenser head" in capsys.readouterr().err) == warned


def test_a_step_that_is_not_finite_is_left_out_and_many_in_a_row_stop_the_run(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.pretrain.objectives.base import Objective

    plain, calls = Objective.predict, {"n": 0}

    def sometimes(self: Any, hidden: Any, text: Any) -> Any:
        calls["n"] += 1
        return plain(self, hidden, text) * (float("nan") if calls["n"] in bad else 1.0)

    monkeypatch.setattr(Objective, "predict", sometimes)
    bad: Any = {3}
    made = train(corpus, tmp_path / "once", method="mlm", steps=6)
    assert made.summary["mlm"]["steps skipped"] == 1
    from safetensors.torch import load_file

    assert all(torch.isfinite(p).all() for p in load_file(made.path / "model.safetensors").values())
    bad, calls["n"] = range(3, 1000), 0
    with pytest.raises(QontextError, match=r"not a finite number for 1[0-9] steps in a row.*Lower --lr"):
        train(corpus, tmp_path / "always", method="mlm", steps=40)


def test_a_disk_that_fills_up_mid_checkpoint_loses_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real, saved = tmp_path / "out", checkpoint.save_file, {"n": 0}

    def full(*arguments: Any, **more: Any) -> None:
        saved["n"] += 1
        if saved["n"] == 6:  # the third checkpoint's optimiser state
            raise OSError(28, "No space left on device")
        real(*arguments, **more)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(QontextError, match=r"the disk is full.*run the same command again"):
        train(corpus, out, method="mlm", steps=8, checkpoint_minutes=0)
    folders = sorted(p.name for p in (out / "checkpoints" / "mlm").iterdir())
    assert folders == ["step-00000001", "step-00000002"]
    made = train(corpus, out, method="mlm", steps=8, checkpoint_minutes=0)
    whole = train(corpus, tmp_path / "whole", method="mlm", steps=8)
    assert (made.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_checkpoints_are_rotated_and_broken_ones_named(corpus: Path, tmp_path: Path) -> None:
    work = Workdir(tmp_path)
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    for step in (1, 2, 3):
        checkpoint.save(work, "c", module, optimizer, {"step": step})
    assert [p.name for p in sorted((tmp_path / "c").iterdir())] == ["step-00000002", "step-00000003"]
    (tmp_path / "c/step-00000003/weights.safetensors").write_bytes(b"garbage")
    with pytest.raises(
        QontextError, match=r"step-00000003: the checkpoint cannot be read.*Remove this folder"
    ):
        checkpoint.load(work, "c", module, optimizer)


def test_the_probe_reports_as_training_goes_on(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "labelled"
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
    made = train(corpus, tmp_path / "out", method="mlm", probe=str(folder), probe_every=2)
    probes = [line["probe"] for line in read(made.path / "logs/metrics.jsonl") if "probe" in line]
    assert len(probes) == 3
    assert all(0 <= p["MRR@10"] <= p["R@100"] == 1.0 for p in probes)
    assert made.summary["probe after"] == probes[-1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"method": "cocondensor"},
            "unknown method 'cocondensor'.*mlm, condenser.*Did you mean 'cocondenser'",
        ),
        ({"context": "near+quer"}, "unknown context 'quer'.*Did you mean 'query'"),
        ({"encoder": "tinny"}, "tinny.*Did you mean 'tiny'|unknown.*tinny"),
        ({"queries": None, "context": "query"}, "the context 'query' needs queries.*--queries"),
        ({"batch_size": 5000}, "a batch of 5,000 is larger than the corpus.*Set --batch-size to at most"),
        ({"max_tokens": 5000}, "max_tokens = 5000, but the encoder reads 512"),
        ({"tokenizer": None}, "starts from scratch and needs a tokenizer"),
        ({"device": "cuda"}, "no CUDA GPU|cuda"),
        (
            {"early_layer_number": 9, "method": "condenser"},
            "early_layer_number = 9, but the encoder has only 2",
        ),
        ({"decoder_init": "first"}, "neither 'random' nor layer numbers"),
        ({"lr": -1}, "lr = -1: input should be greater than 0"),
        ({"sampling": "score"}, "no column 'score' to sample by"),
        ({"probe": "nowhere"}, "nowhere"),
        ({"late_mlm_weight": 0, "head_weight": 0, "condenser_steps": 2}, "nothing to train on"),
        ({"encoder_mask": 0, "method": "condenser"}, "encoder_mask is 0, so there is nothing to predict"),
        (
            {"method": "cot-mae", "decoder": "autoregressive", "decoder_init": "0,1"},
            "cannot start from the encoder's layers",
        ),
        ({"seed": 2**70}, "seed = .*: input should be less than"),
        ({"method": "mlm", "window": 5}, "window is not read by the method 'mlm', only by cot-mae"),
        ({"leer": 1}, "unknown setting of pretrain 'leer'.*Did you mean 'lr'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_is_told_in_a_sentence(
    corpus: Path, tmp_path: Path, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(QontextError, match=f"(?s){said}"):
        train(corpus, tmp_path / "out", **settings)


def test_queries_of_other_passages_and_tokens_of_another_tokenizer_are_refused(
    corpus: Path, tmp_path: Path
) -> None:
    from qontext import records

    rows = [{"passage": f"other{n}", "query": "a question", "number": 0} for n in range(3)]
    records.write_table(tmp_path / "q.parquet", records.table_of(rows, records.QUERIES))
    with pytest.raises(QontextError, match="no query belongs to any of these passages"):
        train(corpus, tmp_path / "out", queries=str(tmp_path / "q.parquet"))
    other = api.train_tokenizer(corpus / "passages", vocabulary=200, out=tmp_path / "tokenizer")
    with pytest.raises(QontextError, match="made with another tokenizer"):
        api.pretrain(corpus / "tokens", tokenizer=other, out=tmp_path / "o2", method="mlm", **TINY)
    with pytest.raises(QontextError, match="holds passages, expected queries"):
        train(corpus, tmp_path / "o3", queries=str(corpus / "passages"))
    with pytest.raises(QontextError, match="holds queries, expected passages"):
        api.pretrain(corpus / "query-tokens", tokenizer=corpus / "tokenizer", out=tmp_path / "o4", **TINY)


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:200], lambda b: b"junk" * 99], ids=["empty", "cut", "junk"]
)
def test_a_damaged_token_store_is_told(corpus: Path, tmp_path: Path, damage: Any) -> None:
    import shutil

    from qontext.corpus.store import open_store

    shutil.copytree(corpus / "tokens", tmp_path / "tokens")
    for name in ("ids.npy", "offsets.npy", "names.parquet"):
        whole = (tmp_path / "tokens" / name).read_bytes()
        (tmp_path / "tokens" / name).write_bytes(damage(whole))
        with pytest.raises(QontextError, match=f"{name}: not a readable"):
            open_store(tmp_path / "tokens")
        (tmp_path / "tokens" / name).write_bytes(whole)
    shutil.copy(tmp_path / "tokens" / "offsets.npy", tmp_path / "tokens" / "groups.npy")
    with pytest.raises(QontextError, match="its arrays do not belong together"):
        open_store(tmp_path / "tokens")


def test_a_head_that_is_none_is_told(corpus: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from qontext.engine.encoder import load_encoder
    from qontext.pretrain.config import PretrainConfig
    from qontext.pretrain.head import load_head
    from qontext.pretrain.objectives import method

    config = PretrainConfig(passages="p", method="condenser")
    objective = method("condenser")(load_encoder("tiny", tokenizer=str(corpus / "tokenizer")), config)
    save_file({"weight": torch.zeros(2)}, tmp_path / "head.safetensors")
    with pytest.raises(QontextError, match="is no head that qontext wrote"):
        load_head(objective, tmp_path)
    (tmp_path / "head.safetensors").write_bytes(b"junk" * 99)
    with pytest.raises(QontextError, match="cannot read the head"):
        load_head(objective, tmp_path)


def test_a_token_store_can_be_given_in_place_of_passages(corpus: Path, tmp_path: Path) -> None:
    from_store = api.pretrain(
        corpus / "tokens", tokenizer=corpus / "tokenizer", out=tmp_path / "a", method="mlm", steps=3, **TINY
    )
    from_passages = train(corpus, tmp_path / "b", method="mlm", steps=3, queries=None)
    assert (from_store.path / "model.safetensors").read_bytes() == (
        from_passages.path / "model.safetensors"
    ).read_bytes()


def test_passages_without_queries_are_left_out_and_counted(corpus: Path, tmp_path: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(corpus / "queries.parquet")
    names = table["passage"].unique()[:12]
    pq.write_table(table.filter(pc.is_in(table["passage"], value_set=names)), tmp_path / "few.parquet")
    made = train(corpus, tmp_path / "out", method="cocondenser", queries=str(tmp_path / "few.parquet"))
    assert made.summary["passages without queries, left out"] == made.summary["passages"] - 12


def test_running_out_of_memory_names_the_settings_to_lower(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.engine.encoder import Encoder

    def greedy(self: Any, *inputs: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Encoder, "forward", greedy)
    with pytest.raises(QontextError, match=r"out of memory at step 1.*--micro-tokens"):
        train(corpus, tmp_path / "out", method="mlm")


def test_tensorboard_gets_the_losses(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'track' is not installed")
    made = train(corpus, tmp_path / "out", method="mlm", track="tensorboard")
    (events,) = (made.path / "logs/tensorboard").iterdir()
    assert b"mlm/losses/mlm" in events.read_bytes()


def test_trackio_gets_the_losses(corpus: Path, tmp_path: Path) -> None:
    """In a process of its own: trackio reads where to write when it is imported."""
    pytest.importorskip("trackio", reason="the extra 'track' is not installed")
    environment = {**ENVIRONMENT, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    arguments = command(
        corpus, tmp_path / "out", "--steps", "4", "--condenser-steps", "0", "--track", "trackio", "-q"
    )
    subprocess.run(arguments, env=environment, check=True, capture_output=True)
    assert any((tmp_path / "trackio").rglob("*.db"))


def test_means_and_cosine_are_saved_as_such(corpus: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    made = train(corpus, tmp_path / "out", vector="mean", similarity="cosine", temperature=0.05)
    model = sentence_transformers.SentenceTransformer(str(made.path), device="cpu")
    assert model.similarity_fn_name == "cosine"

    from qontext.engine.encoder import load_encoder

    encoder = load_encoder(str(made.path))
    ids = encoder.tokenizer("rivers and mountains", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        ours = encoder(ids, None)[0][0].mean(0).numpy()
    assert np.abs(model.encode("rivers and mountains") - ours).max() < 1e-5


def test_the_query_half_of_an_untied_pair_is_not_lost_in_silence(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = train(corpus, tmp_path / "pair", method="mlm", steps=1).path
    (pair / "query").mkdir()
    (pair / "query" / "config.json").write_text((pair / "config.json").read_text())
    train(corpus, tmp_path / "out", method="mlm", steps=1, encoder=pair, tokenizer=None)
    assert "an encoder of its own for queries, which is left aside" in " ".join(
        capsys.readouterr().err.split()
    )
