"""What the environment says of processes, proxies and the hub: used where it makes sense, else one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from qontext.frame import process
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


@pytest.fixture
def environment(monkeypatch):
    """Set variables of a launch; those that are not named are not set."""

    def set_all(**values):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


READS = re.compile(r"os\.(environ|getenv)[^\n]*(RANK|WORLD_SIZE|MASTER_)")


def test_the_environment_of_a_launch_is_read_in_one_place_and_nobody_polls_but_there():
    root = Path(process.__file__).parents[1]
    sources = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}
    assert {name for name, text in sources.items() if READS.search(text)} - {"frame/process.py"} == set()
    assert {name for name, text in sources.items() if "time.sleep(" in text} == {
        "frame/process.py",
        "corpus/sources/web.py",  # the pause between requests
        "queries/generators/llm.py",  # the pause before another attempt
        "retrieve/index/servers/milvus.py",  # until the server has built its index
    }
    assert not [name for name, text in sources.items() if name.startswith("frame/") and "pydocs" in text]


def test_a_part_of_another_process_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "PAUSE", 0.01)
    other = Workdir(tmp_path, "1", 1, 2)
    threading.Timer(0.2, lambda: other.write_text("b", "text")).start()
    work = Workdir(tmp_path, "0", 0, 2)
    work.write_text("a", "text")
    work.wait_for(["a", "b"])
    assert work.has("b")


def test_a_single_process_is_the_first_of_one(environment):
    environment()
    assert (process.rank(), process.world(), process.local_rank(), process.speaks()) == (0, 1, None, True)
    environment(RANK="", WORLD_SIZE="", LOCAL_RANK="")
    assert (process.rank(), process.world(), process.local_rank(), process.speaks()) == (0, 1, None, True)


def test_one_of_several(environment):
    environment(RANK="2", WORLD_SIZE="3", LOCAL_RANK="0")
    assert (process.rank(), process.world(), process.local_rank(), process.speaks()) == (2, 3, 0, False)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "MASTER_ADDR is not set"),
        ({"MASTER_ADDR": "localhost"}, "MASTER_PORT is not set"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "abc"}, "MASTER_PORT is 'abc'"),
    ],
)
def test_a_group_without_a_meeting_point_is_refused(environment, values, says):
    from qontext.training import distributed

    environment(RANK="0", WORLD_SIZE="2", **values)
    with pytest.raises(QontextError, match=says):
        distributed.join("cpu")


@pytest.mark.parametrize(
    "values",
    [{"RANK": "abc"}, {"WORLD_SIZE": "0"}, {"WORLD_SIZE": "-1"}, {"RANK": "1"}],
    ids=str,
)  # fmt: skip
def test_a_command_refuses_a_broken_environment(tmp_path, values):
    command = [sys.executable, "-m", "qontext", "split", "no.jsonl", "--out", str(tmp_path / "made")]
    done = subprocess.run(command, env={**os.environ, **values}, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: the environment variable")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "made").exists()


def test_a_hub_that_does_not_speak_http_is_one_sentence(tmp_path):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.wfile.write(b"\x00\xff nonsense\r\n\r\n")

        do_GET = do_HEAD

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}", "HF_HOME": str(tmp_path)}
    environment |= {"HF_HUB_OFFLINE": "0"}
    code = "from qontext.models import hub; hub.locate('nobody/nothing', 'model')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    server.shutdown()
    assert "QontextError: could not download 'nobody/nothing' from the Hugging Face Hub" in done.stderr
