"""Two machines with a network of their own, on one: does what runs on several hosts give what one gives?

Two network namespaces stand for the machines, joined by a virtual cable; the file system is shared. In them:

    torchrun   pretrain, then finetune, with a rank on each machine: the digests of two local ranks
    ray        pretrain with a rank on each machine; then queries part by part, while the cable is cut: the part that was
               leased to the lost machine returns, and the digest is that of one process

Needs root, iproute2 and the extra `scale`. Run it from the root of the repository:

    python benchmarks/network.py
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.tiny import write_inputs

MACHINES = {"qontext-a": "10.78.0.1", "qontext-b": "10.78.0.2"}
HEAD, OTHER = MACHINES
CABLE = {"qontext-a": "qontext-va", "qontext-b": "qontext-vb"}
TRAINING = ["--batch-size", "4", "--precision", "fp32", "--device", "cpu", "--checkpoint-minutes", "0"]
PRETRAIN = [
    "pretrain", "passages", "--method", "mlm", "--encoder", "tiny", "--tokenizer", "tokenizer", "--workers", "1",
    "--steps", "6", "--max-tokens", "40", *TRAINING,
]  # fmt: skip
FINETUNE = [
    "finetune", "labeled", "--encoder", "encoder", "--steps", "4", "--passages-per-query", "2", *TRAINING,
]  # fmt: skip
GENERATE = ["generate", "passages", "--generator", "tests.cluster.slow:Slow"]


def main() -> None:
    root = Path(__file__).parents[1]
    os.environ |= {
        "PYTHONPATH": f"{root / 'src'}:{root}",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
    }
    with tempfile.TemporaryDirectory(prefix="qn-") as folder, network():
        os.chdir(folder)
        write_inputs(Path(folder), "labeled", {"train": range(20), "dev": range(20, 30)})
        qontext("split", "docs.jsonl", "--max-tokens", "40", "--workers", "1", "--out", "passages")
        qontext("train-tokenizer", "passages", "--vocabulary", "300", "--out", "tokenizer")
        with_torchrun()
        with_ray(Path(folder))


def with_torchrun() -> None:
    local = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for verb, command, out in (("pretrain", PRETRAIN, "encoder"), ("finetune", FINETUNE, "retriever")):
        check(subprocess.Popen([*local, "-m", "qontext", *command, "--out", out]))
        ranks = []
        for rank, machine in enumerate(MACHINES):
            where = ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1"]
            where += ["--master-addr", MACHINES[HEAD], "--master-port", "29500"]
            launch = [sys.executable, "-m", "torch.distributed.run", *where, "-m", "qontext"]
            ranks.append(
                start(
                    machine,
                    [*launch, *command, "--out", f"{out}-two"],
                    GLOO_SOCKET_IFNAME=CABLE[machine],  # the host's name is not that of the namespace
                )
            )
        for process in ranks:
            check(process)
        compare(f"{verb}, torchrun on two machines and with two local ranks", f"{out}-two", out)


def with_ray(folder: Path) -> None:
    where = ["--num-cpus", "1", "--object-store-memory", str(80 * 2**20), "--disable-usage-stats"]
    ray = [str(Path(sys.executable).with_name("ray")), "start"]
    head = ["--head", "--port", "6379", "--include-dashboard=false", "--temp-dir", str(folder / "ray")]
    check(start(HEAD, [*ray, *head, "--node-ip-address", MACHINES[HEAD], *where]))
    other = ["--address", f"{MACHINES[HEAD]}:6379", "--node-ip-address", MACHINES[OTHER]]
    check(start(OTHER, [*ray, *other, *where]))

    trained = [
        sys.executable,
        "-m",
        "qontext",
        *PRETRAIN,
        "--on",
        "ray",
        "--ranks",
        "2",
        "--out",
        "encoder-ray",
    ]
    check(start(HEAD, trained))
    compare("pretrain, --on ray with a rank on each machine and two local ranks", "encoder-ray", "encoder")

    qontext(*GENERATE, "--out", "queries")
    job = start(
        HEAD,
        [sys.executable, "-m", "qontext", *GENERATE, "--pause", "1.5", "--on", "ray", "-v", "--out", "far"],
    )
    while len(list(Path("far").glob("part-*"))) < 6 and job.poll() is None:
        time.sleep(0.1)
    before = len(list(Path("far").glob("part-*")))
    ip("netns", "exec", OTHER, "ip", "link", "set", CABLE[OTHER], "down")
    cut = time.monotonic()
    check(job)
    print(
        f"the cable was cut after {before} parts; the job ended {time.monotonic() - cut:.0f} s later",
        flush=True,
    )
    compare("generate, --on ray with the cable cut and one process", "far", "queries")


@contextlib.contextmanager
def network() -> Iterator[None]:
    """The namespaces and the cable; afterwards, what runs in them is ended."""
    try:
        for machine in MACHINES:
            ip("netns", "add", machine)
        ip("link", "add", CABLE[HEAD], "type", "veth", "peer", "name", CABLE[OTHER])
        for machine, address in MACHINES.items():
            ip("link", "set", CABLE[machine], "netns", machine)
            inside = ("netns", "exec", machine, "ip")
            ip(*inside, "address", "add", f"{address}/24", "dev", CABLE[machine])
            for device in (CABLE[machine], "lo"):
                ip(*inside, "link", "set", device, "up")
        yield
    finally:
        for machine in MACHINES:
            pids = subprocess.run(["ip", "netns", "pids", machine], capture_output=True, text=True).stdout
            for pid in pids.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", machine], capture_output=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def start(machine: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    """Start a command on a machine."""
    inside = ["ip", "netns", "exec", machine, *command]
    return subprocess.Popen(inside, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)


def qontext(*command: str) -> None:
    check(subprocess.Popen([sys.executable, "-m", "qontext", *command], stdout=subprocess.DEVNULL))


def check(process: subprocess.Popen[bytes]) -> None:
    if code := process.wait():
        raise SystemExit(f"{process.args} ended with {code}")


def compare(what: str, one: str, other: str) -> None:
    digests = [json.loads((Path(out) / "meta.json").read_text())["digest"] for out in (one, other)]
    print(
        f"{what}: {'the same digest' if digests[0] == digests[1] else 'DIFFERENT DIGESTS'} {digests}",
        flush=True,
    )
    if digests[0] != digests[1]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
