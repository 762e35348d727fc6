from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qontext import api
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.retrieve import encode
from qontext.retrieve.stored import open_vectors

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "BLOCK", 25)


def test_parts_ids_and_vectors_belong_together(beir: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    artifact = api.encode(beir, encoder=tiny_encoder, precision="fp32", out=tmp_path / "vectors")
    assert artifact.meta["computed"] == "fp32"
    vectors = open_vectors(artifact.path)
    assert [part.shape for part in vectors.parts] == [(25, 16), (25, 16), (10, 16)] and len(vectors) == 60
    assert list(vectors.ids) == [f"p{i:02d}" for i in range(60)]
    from qontext.data.collection import read_passages
    from qontext.models.retriever import Retriever

    texts = [passage.content for passage in read_passages(beir)]
    expected = Retriever(str(tiny_encoder), precision="fp32").encode(texts, "passage")
    np.testing.assert_allclose(np.concatenate(vectors.parts), expected, atol=1e-5)


def test_half_precision_storage_is_close(beir: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    whole = open_vectors(api.encode(beir, encoder=tiny_encoder, out=tmp_path / "a").path)
    half = open_vectors(api.encode(beir, encoder=tiny_encoder, storage="fp16", out=tmp_path / "b").path)
    assert half.parts[0].dtype == np.float16
    np.testing.assert_allclose(half.parts[0], whole.parts[0], rtol=1e-3, atol=1e-4)


def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(
    beir: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    with (beir / "corpus.jsonl").open("a") as file:
        file.writelines(f'{{"_id": "x{i}", "title": "", "text": "stone {i} river"}}\n' for i in range(2000))
    settings = {"encoder": str(tiny_encoder), "precision": "fp32"}
    killed = tmp_path / "killed"
    program = "import sys, qontext.retrieve.encode as e; e.BLOCK = 25; from qontext.cli import main; main()"
    arguments = [
        "encode",
        str(beir),
        "--encoder",
        str(tiny_encoder),
        "--precision",
        "fp32",
        "--out",
        str(killed),
    ]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.DEVNULL)
    while not (killed / "vectors-00002.npy").exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "meta.json").exists()
    first = (killed / "vectors-00000.npy").stat().st_mtime_ns
    resumed = api.encode(beir, out=killed, **settings)
    assert (killed / "vectors-00000.npy").stat().st_mtime_ns == first, "finished parts are not made again"
    assert resumed.summary["encoded_now"] < resumed.summary["texts"] == 2060
    assert resumed.digest == api.encode(beir, out=tmp_path / "whole", **settings).digest


def test_ids_that_occur_twice_are_told(beir: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    with (beir / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "p03", "text": "again"}\n')
    with pytest.raises(QontextError, match="the id 'p03' occurs twice"):
        api.encode(beir, encoder=tiny_encoder, out=tmp_path / "vectors")


def test_damaged_vectors_are_told(make_vectors: Callable[..., Artifact]) -> None:
    good = np.ones((4, 8), np.float32)
    ids = ["a", "b", "c", "d"]
    cut = make_vectors("cut", [(ids, good)])
    file = cut.path / "vectors-00000.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(QontextError, match=r"vectors-00000\.npy: damaged: it has 248 bytes, expected 256"):
        open_vectors(cut.path)
    with pytest.raises(QontextError, match=r"its shape is \(1, 9\), expected 1 × 8"):
        open_vectors(make_vectors("mixed", [(ids, good), (["e"], np.ones((1, 9), np.float32))]).path)
    with pytest.raises(QontextError, match=r"its shape is \(4, 8\), expected 3 × any"):
        open_vectors(make_vectors("short", [(ids[:3], good)]).path)
    with pytest.raises(QontextError, match="its type is int64"):
        open_vectors(make_vectors("type", [(ids, np.ones((4, 8), np.int64))]).path)
