"""A model is pushed to a server that speaks the Hub's upload API: what its card lists, all of it and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.release.hub_server import TOKEN, Hub, running_hub

from qontext import api
from qontext.frame import trust
from qontext.frame.errors import QontextError
from qontext.release.push import PushConfig, run

CARD = """---
library_name: sentence-transformers
license: mit
---
# Dense retriever

| encoder | /home/someone/private/encoder |

```python
model = SentenceTransformer("path/to/this/folder")
```
See https://example.org/a/b. Made at /home/some one/my other work/x and /My Docs/y.
Encoding takes ~10 ms/query. Under MIT / Apache-2.0 and/or GPL; the trade-off of BM25/dense search.
See /v1/search and/or more.
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    monkeypatch.setattr(
        constants, "HF_HUB_DISABLE_XET", True
    )  # the storage of the Hub itself; LFS is what others speak
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture(scope="session")
def made(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder beside which there is much that is nobody's business."""
    folder = tmp_path_factory.mktemp("push") / "retriever"
    shutil.copytree(encoder, folder)
    (folder / "README.md").write_text(CARD)
    for name in ("claim.json", "checkpoints/step-1.safetensors", "logs/steps.parquet", ".git/config", "notes.md",
                 ".env.json", "pytorch_model.bin", "openvino/openvino_model.bin", "onnx/model.onnx",
                 "head.safetensors", "snapshots/1/config.json"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(b"{}")
    (folder / "claim.json").unlink()
    return folder


MODEL = {
    "README.md", "config.json", "data_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "vocab.txt", "modules.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", "special_tokens_map.json", "1_Pooling/config.json",
    "openvino/openvino_model.bin", "onnx/model.onnx",
}  # fmt: skip


def metadata(card: str) -> dict[str, Any]:
    from huggingface_hub import ModelCard

    data: dict[str, Any] = ModelCard(card).data.to_dict()
    return data


def test_what_the_card_lists_is_uploaded_and_nothing_else(hub: Hub, made: Path) -> None:
    result = api.push(
        made, "me/retriever", base_model="someone/base", dataset=["someone/data"], language=["en"]
    )
    assert hub.visibility == {"me/retriever": "private"} and hub.commits == ["Upload the model"]
    files = hub.files["me/retriever"]
    assert set(files) == {name for name in MODEL if name == "README.md" or (made / name).exists()}
    assert result["files"][0]["file"] == "README.md"
    assert {row["file"] for row in result["files"]} == set(files)
    for name, content in files.items():
        if name != "README.md":
            assert content == (made / name).read_bytes()
    assert files["README.md"].decode() == result["card"] and result["url"] == f"{hub.address}/me/retriever"
    assert any(request.startswith("PUT /lfs/") for request in hub.requests), "large files are sent by LFS"
    about = metadata(result["card"])
    assert (about["license"], about["base_model"], about["datasets"]) == (
        "mit",
        "someone/base",
        ["someone/data"],
    )


def test_the_card_names_the_repository_and_no_path_of_this_machine(made: Path) -> None:
    card = api.push(made, "me/retriever", dry_run=True)["card"]
    assert 'SentenceTransformer("me/retriever")' in card and "| encoder | encoder |" in card
    assert "/home" not in card and "https://example.org/a/b. Made at x and y." in card.replace("\n", " ")
    assert (
        "~10 ms/query. Under MIT / Apache-2.0 and/or GPL; the trade-off of BM25/dense search.\nSee search and/or more."
        in card
    )


def test_a_dry_run_sends_nothing(hub: Hub, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = api.push(made, "me/retriever", dry_run=True)
    assert hub.requests == [] and result["url"] == "" and result["visibility"] == "private"
    said = " ".join("".join(capsys.readouterr()).split())
    assert "Would upload to the private repository me/retriever" in said and "model.safetensors" in said
    assert "# Dense retriever" in said


def test_figures_are_in_the_index(made: Path, beir: Path, tmp_path: Path) -> None:
    run = api.retrieve(data=beir, split="test", bm25=True, k=20, out=tmp_path / "run")
    scores = api.evaluate(run, beir, measures="nDCG@10 R@20", out=tmp_path / "scores")
    result = api.push(made, "me/retriever", scores=[scores], dry_run=True)
    (entry,) = metadata(result["card"])["model-index"]
    (measured,) = entry["results"]
    assert (
        measured["dataset"] == {"name": "beir", "type": "beir", "split": "test"}
        and entry["name"] == "retriever"
    )
    expected = scores.summary["measures"]
    assert {m["name"]: m["value"] for m in measured["metrics"]} == {
        n: round(v, 5) for n, v in expected.items()
    }
    assert [m["type"] for m in measured["metrics"]] == ["ndcg_at_10", "r_at_20"]


def test_a_token_is_needed_and_stays_secret(
    hub: Hub, made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.refuses_commits = True
    with pytest.raises(QontextError, match=r"could not upload to me/retriever: .*hf auth whoami") as raised:
        api.push(made, "me/retriever")
    assert TOKEN not in str(raised.value)
    before = len(hub.requests)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    with pytest.raises(QontextError, match="HF_ENDPOINT is not encrypted, and a token would be sent there"):
        api.push(made, "me/retriever")
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(QontextError, match="Hub is unreachable"):
        api.push(made, "me/retriever")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(QontextError, match=r"uploading needs a token .* Run 'hf auth login'"):
        api.push(made, "me/retriever")
    assert len(hub.requests) == before


def test_only_the_user_names_a_repository(hub: Hub, made: Path) -> None:
    settings = PushConfig(directory=str(made), repository="someone/else")
    with (
        trust.trusting(),
        pytest.raises(trust.Untrusted, match="asks to upload a model to the repository someone/else"),
    ):
        run(settings)
    assert hub.requests == []


def test_what_adapt_made_is_pushed_with_its_figures(made: Path, tmp_path: Path) -> None:
    root = tmp_path / "adapted"
    shutil.copytree(made, root / "model")
    scores = {"test": {"bm25": {"nDCG@10": 0.5}, "adapted": {"nDCG@10": 0.625}, "hybrid": {"nDCG@10": 0.75}}}
    about = {
        "format": 1,
        "index": "index",
        "system": "hybrid",
        "weights": [1, 1],
        "read_tokens": 256,
        "verdict": {"scores": scores, "queries": {"test": 7}},
    }
    for changes in (
        {},
        {"system": "bm25", "encoder": "adapted"},  # beside BM25 alone, an encoder is handed over, too
        {
            "verdict": {
                "scores": {"test": {"adapted": {"nDCG@10": 0.625, "low": 0.5, "high": 0.7}}},
                "queries": {"test": 7},
            }
        },
    ):
        (root / "adapted.json").write_text(json.dumps({**about, **changes}))
        result = api.push(root, "me/retriever", dry_run=True)
        (entry,) = metadata(result["card"])["model-index"]
        (figure,) = entry["results"][0]["metrics"]
        assert (figure["name"], figure["value"]) == ("nDCG@10", 0.625)
    shutil.rmtree(root / "model")
    with pytest.raises(QontextError, match="refers to a model that it did not change"):
        api.push(root, "me/retriever", dry_run=True)
