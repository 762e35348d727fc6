"""Training on two hosts: torchrun is started on each of them, with an address of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tiny import free_port, write_inputs

from qontext import api
from qontext.frame import artifacts


def test_two_torchruns_train_together_and_encode_what_one_process_encodes(
    minilm: Path, tmp_path: Path
) -> None:
    write_inputs(tmp_path, "labeled", {"dev": range(3)})
    api.split(tmp_path / "docs.jsonl", max_tokens=40, workers=1, out=tmp_path / "passages")
    recipe = f"""
        [recipe]
        title = "On two hosts"
        [pretrain]
        passages = "passages"
        method = "mlm"
        encoder = "tiny"
        tokenizer = "{minilm}"
        steps = 2
        batch_size = 4
        max_tokens = 40
        precision = "fp32"
        device = "cpu"
        [encode]
        texts = "passages"
        encoder = "@pretrain"
        precision = "fp32"
        device = "cpu"
    """
    (tmp_path / "recipe.toml").write_text(recipe)
    port = str(free_port())
    hosts = []
    for number, address in enumerate(("127.0.0.1", "127.0.0.2")):
        launch = [
            "--nnodes",
            "2",
            "--node-rank",
            str(number),
            "--nproc-per-node",
            "1",
            "--local-addr",
            address,
        ]
        meet = ["--master-addr", "127.0.0.1", "--master-port", port]
        command = [
            "-m",
            "torch.distributed.run",
            *launch,
            *meet,
            "-m",
            "qontext",
            "run",
            "recipe.toml",
            "--out",
            "two",
        ]
        with (tmp_path / f"said-{number}").open("w") as output:
            hosts.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    cwd=tmp_path,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )
    codes = [host.wait() for host in hosts]
    assert codes == [0, 0], "".join((tmp_path / f"said-{number}").read_text() for number in range(2))
    trained = artifacts.open_artifact(tmp_path / "two" / "pretrain")
    assert trained.summary["steps"] == 2
    alone = api.encode(
        tmp_path / "passages", encoder=trained, precision="fp32", device="cpu", out=tmp_path / "alone"
    )
    assert artifacts.open_artifact(tmp_path / "two" / "encode").digest == alone.digest
