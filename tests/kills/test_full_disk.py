"""On a disk that is full, every command says so in one sentence, exits with 2, leaves nothing half written, and resumes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ADAPTS, COMMANDS, KILLS, Server, World, files, results

RESUMED = ("split", "pretrain", "index-bm25", "encode") if KILLS < 3 else set(COMMANDS) - {*ADAPTS}
MOUNT = ("unshare", "--map-root-user", "--mount")


@pytest.fixture(scope="module")
def small(world: World) -> Iterator[tuple[Server, Path]]:
    """A server that alone sees a disk of 64 MiB at `folder`/disk, and where this process sees it."""
    if not shutil.which("unshare") or subprocess.run([*MOUNT, "true"], capture_output=True).returncode:
        pytest.skip("this system lets users mount nothing")
    disk = world.folder / "disk"
    disk.mkdir(exist_ok=True)
    mounted = f'mount -t tmpfs -o size=64m tmpfs "{disk}" && exec "$@"'
    server = Server(world.folder, 3, (*MOUNT, "sh", "-c", mounted, "sh"))
    as_seen_inside = Path(f"/proc/{server.process.pid}/root{disk}")
    for _ in range(600):  # until the shell has mounted it
        if shutil.disk_usage(as_seen_inside).total <= 64 << 20:
            break
        time.sleep(0.1)
    yield server, as_seen_inside
    server.close()


def leave_free(disk: Path, size: int) -> None:
    """Fill the disk but for `size` bytes, in whole pages."""
    with (disk / "filler").open("wb") as filler:
        stand = shutil.disk_usage(disk)
        filler.write(bytes(max(0, stand.free - size)))


# Of several processes, torchrun ends the others.
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "pretrain-2"])
def test_a_full_disk(world: World, small: tuple[Server, Path], name: str) -> None:
    whole, (server, disk) = world.whole(name), small
    size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    leave_free(disk, int(0.6 * size))
    running = server.start(name, world.folder / "disk" / name)
    assert running.wait() == {2}, running.text()
    (message,) = [
        line for line in running.text().splitlines() if line.startswith(("error:", "internal error:"))
    ]
    assert "the disk is full. Free some space and run the same command again" in message
    assert not list(disk.rglob(".tmp-*")) and not list(disk.rglob(".scratch-*"))
    (disk / "filler").unlink()
    if name in RESUMED:
        again = server.start(name, world.folder / "disk" / name)
        assert again.wait() == {0}, again.text()
        assert results(disk / name) == results(whole)
        assert files(disk / name) == files(whole)
    shutil.rmtree(disk / name, ignore_errors=True)


def test_a_disk_that_fills_up_while_adapt_hands_over(world: World, tmp_path: Path) -> None:
    """The model is copied by the standard library, which has an error of its own for that."""
    world.whole("pretrain")
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        + textwrap.dedent("""
        import errno, sys
        from pathlib import Path
        from qontext.adapt import publish, run
        from qontext.frame.artifacts import Workdir
        from qontext.frame.errors import QontextError
        run._run = lambda config, root: publish.publish_copy("pretrain", Workdir(root), "model", "card", copied=True)
        try:
            run.run(run.AdaptConfig(documents="docs.jsonl", out=sys.argv[1]))
        except QontextError as error:
            print(error)
    """)
    )
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        cwd=world.folder,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{tmp_path / 'out' / 'model'}: cannot write here: file too large\n", done.stderr
