"""The initial encoder: the best of several that are measured, or the default for the language of the documents."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.adapt import recipes, starts
from qontext.frame.errors import QontextError
from qontext.frame.inputs import check_input
from qontext.models.reference import ENGLISH, HUB_ENCODER


@pytest.fixture
def blind(small_encoder: Path, tmp_path: Path) -> Path:
    """An encoder whose vectors say nothing of the text."""
    from safetensors.numpy import load_file, save_file

    folder = Path(shutil.copytree(small_encoder, tmp_path / "blind"))
    weights = load_file(folder / "model.safetensors")
    words = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[words][:] = weights[words][:1]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_best_encoder_is_chosen_once(
    reports: Path,
    small_encoder: Path,
    blind: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupted measurement goes on, and what is recorded is not measured again."""
    out = tmp_path / "made"
    settings: Any = {"out": out, "budget": "90s", "yes": True}
    both = [blind, small_encoder]
    made, calls = recipes.start_recipe, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return made(*arguments)

    monkeypatch.setattr(recipes, "start_recipe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        api.adapt(reports, encoder=both, dry_run=True, **settings)
    before = {file: file.read_bytes() for file in (out / "starts").rglob("meta.json")}
    assert before and not (out / "plan.json").exists()
    removed: list[str] = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, *_, **__: removed.append(Path(path).name))
    planned: Any = api.adapt(reports, encoder=both, dry_run=True, **settings)
    assert {file: file.read_bytes() for file in before} == before and "starts" in removed
    monkeypatch.undo()
    record = json.loads((out / "plan.json").read_text())["starts"]
    assert record.keys() == {str(small_encoder), str(blind)}
    best = max(record, key=record.__getitem__)
    assert planned["expected_seconds"] > 0
    monkeypatch.setattr(starts, "_measured", lambda *_: pytest.fail("measured again"))
    for again in (both, both[::-1], [best], []):
        api.adapt(reports, encoder=again, dry_run=True, **settings)
        assert json.loads((out / "plan.json").read_text())["starts"] == record


def test_a_second_encoder_that_cannot_be_used_ends_before_any_work(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    """Missing, without weights, with garbage for weights, or not a model: none is left for after the first was measured."""
    folders = {name: tmp_path / name for name in ("missing", "weightless", "garbled", "strange")}
    for name in ("weightless", "garbled"):
        shutil.copytree(small_encoder, folders[name])
    (folders["weightless"] / "model.safetensors").unlink()
    (folders["garbled"] / "model.safetensors").write_bytes(b"\x00\xff" * 500)
    folders["strange"].mkdir()
    (folders["strange"] / "config.json").write_text("{")
    for folder in folders.values():
        with pytest.raises(QontextError) as refused:
            api.adapt(reports, encoder=[small_encoder, folder], out=tmp_path / "made", budget="90s", yes=True)
        assert str(refused.value).startswith(str(folder)) and "\n" not in str(refused.value)
        assert not (tmp_path / "made").exists()


def test_real_questions_that_do_not_decide_are_asked_first() -> None:
    assert starts._split({"train": 400, "dev": 50, "test": 100}) == "train"
    assert starts._split({"train": 20, "dev": 60, "test": 100}) == "dev"
    assert starts._split({"dev": 10, "test": 100}) == "test"
    assert starts._split({}) == "generated"


def test_the_choice_stands_in_the_result_and_is_kept_by_an_update(
    write_documents: Callable[..., Path], small_encoder: Path, blind: Path, tmp_path: Path
) -> None:
    documents = [
        {"_id": f"d{n}", "title": "", "text": f"Room {n} has a lamp of {n} candles."} for n in range(5)
    ]
    out = tmp_path / "made"
    result: Any = api.adapt(
        write_documents(documents), encoder=[small_encoder, blind], out=out, budget="90s", yes=True
    )
    about = json.loads((out / "adapted.json").read_text())
    chosen = max(about["starts"], key=about["starts"].__getitem__)
    assert result.summary["model"] == chosen and not (out / "starts").exists()
    documents[0]["text"] = "Room 0 is dark."
    updated = api.adapt(write_documents(documents), out=out).summary
    assert updated["updated"] and updated["encoded_now"] == 1 and updated["model"] == chosen
    assert json.loads((out / "plan.json").read_text())["starts"] == about["starts"]


@contextmanager
def hub_with(folder: Path, name: str, revision: str) -> Iterator[str]:
    """A server that speaks the Hub's download API for one model; its address."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            prefix = f"/{name}/resolve/{revision}/"
            if self.path.startswith(f"/api/models/{name}/revision/{revision}"):
                siblings = [{"rfilename": file} for file in files]
                body = json.dumps({"id": name, "sha": revision, "siblings": siblings}).encode()
            elif self.path.startswith(f"/api/models/{name}/tree/{revision}"):
                listed = [
                    {"type": "file", "path": file, "size": len(content), "oid": f"{number:040x}"}
                    for number, (file, content) in enumerate(files.items())
                ]
                body = json.dumps(listed).encode()
            elif self.path.startswith(prefix) and self.path.removeprefix(prefix) in files:
                body = files[self.path.removeprefix(prefix)]
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hash(body) & 0xFFFFFFFF:08x}"')
            self.send_header("X-Repo-Commit", revision)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_default_comes_from_the_hub_where_it_can_be_reached(small_encoder: Path, tmp_path: Path) -> None:
    """At a revision, once, after its size was said. Elsewhere, or if that fails, it is MiniLM from its package."""
    code = (
        "import sys\n"
        "from qontext.frame import log\n"
        "from qontext.models.reference import default_encoder, encoder_for, locate\n"
        "log.show(log.NOTE)\n"
        "name = encoder_for(sys.argv[1])\n"
        "print('package' if name == default_encoder() else name)\n"
        "'@' in name and print((locate(name).root / 'config.json').read_text())\n"
    )

    def default(language: str, **environment: str) -> tuple[str, str]:
        plain = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
        plain |= {
            "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            **environment,
        }
        command = [sys.executable, "-c", code, language]
        done = subprocess.run(command, env=plain, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    assert default("en", HF_HUB_OFFLINE="1")[0] == "package\n"
    with hub_with(small_encoder, ENGLISH.name, ENGLISH.revision) as address:
        name, said = default("en", HF_ENDPOINT=address)
        assert name == f"{ENGLISH}\n{(small_encoder / 'config.json').read_text()}\n"
        assert f"The default encoder is {ENGLISH.name} (90 MB); --encoder names another one." in said
        if default_is_installed():
            other, said = default("de", HF_ENDPOINT=address)
            assert other == "package\n" and "instead" in said
    assert default("en", HF_HUB_OFFLINE="1")[0].startswith(str(ENGLISH)), "from the cache"


def default_is_installed() -> bool:
    from qontext.models.reference import default_encoder

    return default_encoder() != HUB_ENCODER


def test_the_name_of_a_model_may_end_with_a_version() -> None:
    assert check_input("BAAI/bge-small-en-v1.5", "encoder") is None
    with pytest.raises(QontextError, match="cannot read encoder"):
        check_input("models/encoder.bin", "encoder")
