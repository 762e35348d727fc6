"""adapt with a model that writes the queries: a T5 model on disk, a chat model behind a real server of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.tiny import save_llama

from qontext import api
from qontext.data import records
from qontext.data.collection import load_collection
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """A chat server that asks after every passage, and what it was sent."""
    prompts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompts.append(body["messages"][-1]["content"])
            questions = json.dumps(
                [f"what happened to the {part} of it?" for part in ("lamp", "bell", "stair")]
            )
            answer = json.dumps({"choices": [{"message": {"content": questions}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1", prompts
    server.shutdown()


def test_a_chat_model_writes_the_queries(
    reports: Path, small_encoder: Path, endpoint: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, prompts = endpoint
    api.adapt(
        reports, out=tmp_path / "made", encoder=small_encoder, budget="60s", generator="llm",
        generator_model="some-model", endpoint=address, dry_run=True,
    )  # fmt: skip
    api.run(tmp_path / "made/recipe.toml", out=tmp_path / "made/steps", until="pretrain")
    assert any("Lighthouse" in text for text in prompts)
    rows = list(records.read_table(tmp_path / "made/steps/generate", records.QUERIES))
    assert {query for batch in rows for query in batch.column("query").to_pylist()} == {
        f"what happened to the {part} of it?" for part in ("lamp", "bell", "stair")
    }
    # Every passage has the same queries, so hardly one finds its own: one each is kept, and nothing is lost.
    kept = open_artifact(tmp_path / "made/steps/filter").summary
    assert kept["passages_that_lost_all"] == 0
    assert open_artifact(tmp_path / "made/steps/pretrain").summary["passages"] > 0


def test_a_generator_of_ones_own_is_planned_with(
    reports: Path,
    small_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "opening_words.py").write_text(
        "from qontext.queries.generators import Generator\n"
        "class Opening(Generator):\n"
        "    def __call__(self, passages):\n"
        "        for n, passage in enumerate(passages):\n            yield n, [passage.text[:40]]\n"
    )
    monkeypatch.chdir(tmp_path)
    api.adapt(
        reports, out=tmp_path / "made", encoder=small_encoder, budget="60s", dry_run=True,
        generator="opening_words:Opening",
    )  # fmt: skip
    output = capsys.readouterr()
    assert "opening_words:Opening, 5 per passage" in output.out + output.err
    with pytest.raises(QontextError, match="there is no module 'nowhere'"):
        api.adapt(reports, out=tmp_path / "made", generator="nowhere:Opening")


def test_a_t5_model_writes_the_queries(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    from qontext.queries.train_generator import from_scratch

    texts = [json.loads(line)["text"] for line in reports.read_text().splitlines()[:3]]
    model, tokenizer = from_scratch(1, 32, 2, texts, 120, seed=1)
    for part in (model, tokenizer):
        part.save_pretrained(str(tmp_path / "t5"))
    api.adapt(
        reports, out=tmp_path / "made", encoder=small_encoder, budget="10m", generator="t5",
        generator_model=str(tmp_path / "t5"), dry_run=True,
    )  # fmt: skip
    api.run(tmp_path / "made/recipe.toml", out=tmp_path / "made/steps", until="generate")
    assert open_artifact(tmp_path / "made/steps/generate").config["generator"] == "t5"


def test_a_language_model_writes_the_questions_to_measure_with(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    texts = [json.loads(line)["text"] for line in reports.read_text().splitlines()[:3]]
    model = save_llama(tmp_path / "llama", texts)
    api.adapt(
        reports, out=tmp_path / "made", encoder=small_encoder, budget="10m", question_model=model, dry_run=True,
    )  # fmt: skip
    steps = tmp_path / "made/steps"
    api.run(tmp_path / "made/recipe.toml", out=steps, until="holdout")
    measured = load_collection(steps / "holdout/measured")
    written, judged = measured.queries("generated"), measured.qrels("generated")
    generated, trained = (
        [row for batch in records.read_table(str(steps / part), records.QUERIES) for row in batch.to_pylist()]
        for part in ("generate", "holdout/queries")
    )
    assert len(written) > 3 and not set(written.values()) & {row["query"] for row in generated}
    held_out = {passage for passages in judged.values() for passage in passages}
    assert trained and not {row["passage"] for row in trained} & held_out
    assert "question_model" in open_artifact(steps / "holdout").inputs  # the verdict reads it
