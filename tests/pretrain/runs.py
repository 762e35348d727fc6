"""Running `qontext pretrain` on the tiny corpus, from Python or as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import Running

from qontext import api
from qontext.frame.artifacts import Artifact

TINY = {"encoder": "tiny", "batch_size": 8, "max_tokens": 40, "log_every": 2, "device": "cpu", "workers": 1}


def train(corpus: Path, out: Path, **settings: Any) -> Artifact:
    base = {
        **TINY,
        "tokenizer": str(corpus / "tokenizer"),
        "queries": str(corpus / "queries.parquet"),
        "steps": 4,
    }
    artifact: Artifact = api.pretrain(corpus / "passages", out=out, **{**base, **settings})
    return artifact


def command(corpus: Path, out: Path, *more: str) -> list[str]:
    return [
        "pretrain", str(corpus / "passages"), "--method", "cocondenser", "--queries", str(corpus / "queries.parquet"),
        "--encoder", "tiny", "--tokenizer", str(corpus / "tokenizer"), "--steps", "12", "--batch-size", "8",
        "--max-tokens", "40", "--log-every", "2", "--checkpoint-minutes", "0", "--device", "cpu", "--workers", "1",
        "--out", str(out), *more,
    ]  # fmt: skip


def finish(running: Running) -> None:
    assert running.wait() == {0}, running.text()
