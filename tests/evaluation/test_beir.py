"""Zero-shot over several sets, from folders in both layouts, with the mean of the forums."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qontext import api
from qontext.evaluation.beir import beir_table
from qontext.evaluation.tables import to_markdown
from qontext.frame import artifacts
from qontext.frame.errors import QontextError
from qontext.models import hub


def make_set(folder: Path, words: dict[str, str], right: str) -> None:
    (folder / "qrels").mkdir(parents=True)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\t{right}\t1\n")
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in words.items())
    )
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "cat"}) + "\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_set(tmp_path / "scifact", {"a": "cat cat", "b": "dog"}, "a")
    make_set(tmp_path / "cqadupstack" / "android", {"a": "cat", "b": "dog"}, "a")
    make_set(tmp_path / "cqadupstack" / "gis", {"a": "dog", "b": "cat"}, "a")
    return tmp_path


def test_every_set_and_the_mean_of_the_forums(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"sets": ("scifact", "cqadupstack"), "data_root": data, "out": tmp_path / "out"}
    result = api.beir("bm25", **settings)
    assert result["sets"] == {"scifact": 1.0, "cqadupstack": 0.5}
    assert result["average"] == 0.75
    text = (tmp_path / "out" / "beir.md").read_text()
    assert "| scifact | **100.0** | 59.9 | 64.8 | 59.1 | 64.2 |" in text
    assert artifacts.open_artifact(tmp_path / "out" / "cqadupstack-gis" / "evaluate").verb == "evaluate"
    capsys.readouterr()
    assert api.beir("bm25", **settings) == result
    assert capsys.readouterr().err.count("nothing to do") == 6


def test_a_set_in_the_working_directory_has_its_folder_s_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data / "scifact")
    assert api.beir("bm25", sets=(".",), out=tmp_path / "out")["sets"] == {"scifact": 1.0}


def test_what_cannot_be_searched_is_refused_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    settings = {"data_root": data, "out": tmp_path / "out"}
    with pytest.raises(QontextError, match=r"unknown split of .*android 'dev'"):
        api.beir("bm25", sets=("cqadupstack",), split="dev", **settings)
    with pytest.raises(QontextError, match="unknown set 'nowhere'"):
        api.beir("bm25", sets=("scifact", "nowhere"), **settings)
    make_set(tmp_path / "other" / "scifact", {"a": "cat"}, "a")
    with pytest.raises(QontextError, match=r"two sets have the same name: scifact and .*other/scifact"):
        api.beir("bm25", sets=("scifact", str(tmp_path / "other" / "scifact")), **settings)
    with pytest.raises(QontextError, match="cannot read retriever"):
        api.beir("./nowhere", sets=("scifact",), **settings)
    assert not (tmp_path / "out").exists()


def test_the_published_means_are_over_the_same_sets() -> None:
    text = to_markdown(beir_table({"scifact": 0.5, "fiqa": 0.3, "mine": 0.9}))
    assert "| mean | 40.0 | 45.9 | **48.5** | 44.0 | 48.4 |" in text
    assert "| mine | **90.0** | – | – | – | – |" in text


def test_only_own_sets_need_no_published_columns() -> None:
    assert list(beir_table({"mine": 0.9}).columns) == ["Set", "ours"]


def test_what_cannot_be_had_is_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(QontextError, match="Did you mean 'scifact'"):
        api.beir("bm25", sets=("scifact", "scifat"), data_root=data, out=tmp_path / "out")
    assert not (tmp_path / "out" / "scifact").exists()
    monkeypatch.setattr(hub, "online", lambda: False)
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    for proxy in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    with pytest.raises(
        QontextError, match=r"none of the data sets could be downloaded: nfcorpus, cqadupstack"
    ):
        api.beir("bm25", sets=("nfcorpus", "cqadupstack"), data_root=tmp_path / "none", out=tmp_path / "out")
    capsys.readouterr()
    result = api.beir("bm25", sets=("nfcorpus", "scifact"), data_root=data, out=tmp_path / "out")
    assert (result["sets"], result["missing"]) == ({"scifact": 1.0}, ["nfcorpus"])
    messages = " ".join(capsys.readouterr().err.split())
    assert "nfcorpus is skipped: the data set beir/nfcorpus/test is not in the cache" in messages
    assert "there is no network" in messages
    assert "Not downloaded, and not included in means: nfcorpus" in (tmp_path / "out" / "beir.md").read_text()
