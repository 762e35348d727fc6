"""A folder from anyone: its recipes and indexes send nothing anywhere, and download nothing, without the user's word."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.frame import trust
from qontext.frame.artifacts import META
from qontext.frame.config import StageConfig
from qontext.queries.generate import GenerateConfig
from qontext.retrieve.index.servers.milvus import MilvusOptions
from qontext.retrieve.index.servers.postgres import PostgresOptions


class _Sink(http.server.BaseHTTPRequestHandler):
    requests: list[str]

    def do_POST(self) -> None:
        self.server.seen.append(self.headers.get("Authorization", ""))  # type: ignore[attr-defined]
        self.send_error(401)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def sink() -> Iterator[tuple[str, list[str]]]:
    """(address, Authorization headers of the requests) of a server that collects what is sent to it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    server.seen = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", server.seen  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def test_a_recipe_sends_no_secret_to_its_host(
    clone: Path, command: Callable[..., tuple[int, str]], sink: tuple[str, list[str]]
) -> None:
    address, seen = sink
    recipe = (
        f'[generate]\npassages = "p.jsonl"\ngenerator = "llm"\nchat_model = "m"\nendpoint = "{address}"\n'
    )
    (clone / "exfil.toml").write_text(recipe + 'key_variable = "AWS_SECRET_ACCESS_KEY"\n')
    (clone / "key.toml").write_text(recipe)
    (clone / "ours.toml").write_text(recipe + 'key_variable = "QONTEXT_KEY"\n')
    secrets = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "QONTEXT_KEY"), "s3cret-s3cret")
    named = ["--set", "generate.key_variable=AWS_SECRET_ACCESS_KEY"]
    assert "send the environment variable AWS_SECRET_ACCESS_KEY to" in command("recipes", "exfil.toml")[1]
    for words in (
        ["run", "exfil.toml"],
        ["run", "exfil.toml", "--trust"],
        ["run", "exfil.toml", *named],
        ["run", "key.toml"],
        ["run", "ours.toml"],
    ):
        code, said = command(*words, **secrets)
        assert code == 2 and address in said and "environment variable" in said, said
    assert seen == []
    for words in (["exfil.toml", "--trust", *named], ["ours.toml", "--trust"], ["key.toml", "--trust"]):
        command("run", *words, **secrets)
        assert seen.pop() == "Bearer s3cret-s3cret"
        seen.clear()


def asks(config: type[StageConfig], **values: Any) -> str:
    """The demands of these settings of a file."""
    return "; ".join(
        demand.does
        for demand in config.demands(values)
        if not all(trust.is_given(word) for word in demand.words)
    )


def test_what_settings_of_a_file_ask_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "MILVUS_TOKEN", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    llm = {"generator": "llm", "chat_model": "m"}
    assert asks(GenerateConfig, **llm) == ""
    assert asks(GenerateConfig, **llm, endpoint="http://localhost:11434/v1") == ""
    for address in ("http://10.0.0.7/v1", "http://localhost.evil/v1", "http://127.0.0.1.evil/v1"):
        assert asks(GenerateConfig, **llm, endpoint=address) == f"send passages to {address}"
    assert "join the cluster at ray://evil:10001" in asks(GenerateConfig, **llm, on="ray://evil:10001")
    local = ["http://localhost:19530", "http://127.0.0.1:1", "http://[::1]:1"]
    assert [asks(MilvusOptions, uri=uri) for uri in local] == [""] * 3
    for uri in (
        "http://evil:1",
        "http://localhost@evil",
        "http://localhost:1@evil",
        "../x.db",
        "x.db",
        "http://localhost\\@evil",
    ):
        assert asks(MilvusOptions, uri=uri), uri
    for uri in ("", "postgresql://me@localhost/x"):
        assert asks(PostgresOptions, uri=uri) == ""
    for uri in (
        "host=evil",
        "postgresql://localhost/x?hostaddr=6.6.6.6",
        "postgresql://localhost,evil/x",
        "service=evil",
    ):
        assert asks(PostgresOptions, uri=uri), uri
    monkeypatch.setenv("MILVUS_TOKEN", "root:s3cret")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    assert "MILVUS_TOKEN to http://localhost:19530" in asks(MilvusOptions, uri=local[0])
    assert "PGPASSWORD" in asks(PostgresOptions, uri="postgresql://me@localhost/x")
    trust.give({"uri": local[0]})
    assert asks(MilvusOptions, uri=local[0]) == "" and asks(MilvusOptions, uri="http://localhost:19531")


@pytest.mark.parametrize(
    ("backend", "uri", "secret"),
    [("milvus", "http://{}", "MILVUS_TOKEN"), ("postgres", "postgresql://me@{}/x", "PGPASSWORD")],
)
def test_an_index_sends_no_token_to_its_host(
    clone: Path, command: Callable[..., tuple[int, str]], backend: str, uri: str, secret: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sink:
        sink.setblocking(False)
        address = uri.format(f"127.0.0.1:{sink.getsockname()[1]}")
        about = json.loads((clone / "index" / META).read_text())
        about["config"] = {"backend": backend, "uri": address, "collection": "c", "table": "t"}
        about["summary"] = {"encoder": {"path": "e", "digest": "name:e"}, "dimension": 8}
        (clone / "index" / META).write_text(json.dumps(about))
        words = ["retrieve", "index", "--queries", "q.jsonl", "--k", "1", "--out", "o"]
        code, said = command(*words, **{secret: "s3cret"})
        assert code == 2 and f"in {secret} to {address}. Add --trust" in said, said
        with pytest.raises(BlockingIOError):
            sink.accept()


def test_what_a_file_sends_away_is_shown_with_what_it_reads(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (tmp_path / "private.jsonl").write_text("{}")
    (clone / "r.toml").write_text(
        f'[generate]\npassages = "{tmp_path}/private.jsonl"\ngenerator = "llm"\nchat_model = "m"\nendpoint = "http://6.6.6.6/v1"\n'
    )
    with pytest.raises(
        trust.Untrusted, match=r"send passages to http://6\.6\.6\.6/v1; read .*private\.jsonl"
    ):
        api.run(str(clone / "r.toml"))


def test_what_only_a_file_names_is_downloaded_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even with --quiet."""
    import huggingface_hub

    from qontext.frame import log
    from qontext.models import hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda **settings: "/nowhere")
    log.show(log.WARNING)
    hub.download("someone/model", [])
    assert "warning: downloading someone/model" in capfd.readouterr().err
    trust.give("someone/model")
    hub.download("someone/model", [])
    assert capfd.readouterr().err == ""
