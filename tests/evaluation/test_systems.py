"""`evaluate --system`: a search that somebody has, on documents, with questions of their own or generated ones."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tests.adapt.conftest import make_report

from qontext import api
from qontext.evaluation import plots
from qontext.frame import artifacts
from qontext.frame.errors import QontextError

SYSTEM = """
import json, re, sys
words = set(re.findall(r"\\w+", sys.argv[1].lower()))
open({asked!r}, "a").write(sys.argv[1] + "\\n")
documents = [json.loads(line) for line in open({documents!r})]
documents.sort(key=lambda d: -len(words & set(re.findall(r"\\w+", (d["title"] + " " + d["text"]).lower()))))
print("\\n".join(document["_id"] for document in documents[:10]))
"""


@pytest.fixture(autouse=True)
def _empty_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "svg_bytes", lambda figure, name: b'<svg width="1pt" height="1pt"></svg>')
    monkeypatch.setattr(plots, "png_bytes", lambda figure: b"")


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    file = tmp_path / "docs.jsonl"
    file.write_text("".join(json.dumps(make_report(n)) + "\n" for n in range(12)))
    return file


@pytest.fixture
def system(tmp_path: Path, documents: Path) -> str:
    """A program that compares words; `asked` has its questions."""
    script = tmp_path / "system.py"
    script.write_text(SYSTEM.format(asked=str(tmp_path / "asked"), documents=str(documents)))
    return f"mine={sys.executable} {script} {{question}}"


def test_generated_questions_need_nothing_but_documents(documents: Path, system: str, tmp_path: Path) -> None:
    out = api.evaluate(documents, system=[system], questions=20, out=tmp_path / "out")
    summary = out.summary
    assert set(summary["measures"]) == {"mine", "BM25"} and 10 <= summary["questions"] <= 30
    assert 0.2 < summary["measures"]["mine"]["nDCG@10"] <= 1
    (pair,) = [pair for pair in summary["differences"] if pair["measure"] == "nDCG@10"]
    assert {pair["a"], pair["b"]} == {"mine", "BM25"} and 0 <= pair["p"] <= 1
    page = (out.path / "derived" / "report.html").read_text()
    assert re.search(r"mine: nDCG@10 0\.\d{3} on \d+ questions, 0\.\d{3} (higher|lower) than BM25", page)
    assert "which favors BM25" in page
    again = api.compare([f"mine={out.path}/runs/mine.trec", f"bm25={out.path}/runs/BM25.trec"], out.path / "measured",
                        "nDCG@10", split="generated", examples=0)  # fmt: skip
    assert again.pairs[0].p == pair["p"], "the same test as any other comparison"


def test_own_questions_are_labels(documents: Path, system: str, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    rows = [
        {"query": f"how high is the lighthouse of {make_report(n)['title']}?", "passage": f"report-{n}"}
        for n in range(12)
    ]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = api.evaluate(documents, labels, system=[system], out=tmp_path / "out").summary
    assert summary["questions"] == 12 and summary["measures"]["mine"]["R@10"] > 0.4
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked.count(rows[0]["query"]) == 1


def test_the_baseline_reads_the_language_of_the_documents(
    documents: Path, system: str, tmp_path: Path
) -> None:
    things = "水轮磨坊 灯塔 面包师 图书馆 黑豹队 自行车 火车站 葡萄酒 望远镜 交响乐 蝴蝶 地震".split()
    rows = [
        {"_id": f"r{n}", "title": "", "text": f"在河边的{thing}今天早上开门。"}
        for n, thing in enumerate(things)
    ]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = tmp_path / "labels.jsonl"
    asked = [{"query": f"谁昨天看见了{thing}？", "passage": f"r{n}"} for n, thing in enumerate(things)]
    labels.write_text("".join(json.dumps(row) + "\n" for row in asked))
    summary = api.evaluate(documents, labels, system=[system], out=tmp_path / "out").summary
    assert summary["measures"]["BM25"]["MRR@10"] == 1.0


def write_labels(folder: Path, of: dict[str, range], splits: tuple[str, ...]) -> Path:
    """Labels of some of the splits, each with questions about these reports."""
    labels = folder / "labels"
    (labels / "qrels").mkdir(parents=True)
    (labels / "corpus.jsonl").write_text('{"_id": "report-0", "text": "x"}\n')
    rows = [{"_id": f"q{n}", "text": f"lighthouse {make_report(n)['title']}"} for n in range(8)]
    (labels / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split in splits:
        lines = "".join(f"q{n}\treport-{n}\t1\n" for n in of[split])
        (labels / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return labels


def test_the_split_of_own_questions(documents: Path, system: str, tmp_path: Path) -> None:
    labels = write_labels(tmp_path, {"dev": range(5), "test": range(5, 8)}, ("dev", "test"))
    made = api.evaluate(documents, labels, system=[system], split="dev", out=tmp_path / "out")
    assert made.summary["questions"] == 5


@pytest.mark.parametrize(
    ("splits", "asked", "questions"),
    [
        (("train", "dev"), "dev", 5),
        (("train", "dev"), "train", 3),
        (("dev",), "dev", 5),
        (("dev",), "test", 5),
    ],
)
def test_a_split_is_the_one_that_was_asked_for(
    splits: tuple[str, ...], asked: str, questions: int, documents: Path, system: str, tmp_path: Path
) -> None:
    labels = write_labels(tmp_path, {"dev": range(5), "train": range(5, 8)}, splits)
    made = api.evaluate(documents, labels, system=[system], split=asked, out=tmp_path / "out")
    assert made.summary["questions"] == questions


def test_an_unknown_split_is_refused_at_once(documents: Path, system: str, tmp_path: Path) -> None:
    labels = write_labels(tmp_path, {"dev": range(5), "train": range(5, 8)}, ("dev", "train"))
    with pytest.raises(QontextError, match=r"unknown split of .*labels 'validation'. Choose from: "):
        api.evaluate(documents, labels, system=[system], split="validation", out=tmp_path / "out")


@pytest.mark.parametrize("name", ["my_seed2", "x_score", "scores"])
def test_a_system_may_have_any_name(name: str, documents: Path, system: str, tmp_path: Path) -> None:
    command = system.partition("=")[2]
    made = api.evaluate(documents, system=[f"{name}={command}"], questions=5, out=tmp_path / "out")
    rows = (made.path / "derived" / "results.csv").read_text()
    assert f"{name}," in rows and "BM25," in rows


def test_it_resumes_to_the_same_bits_and_asks_no_question_twice(
    documents: Path, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.evaluation import systems

    def stop(*arguments: object) -> None:
        raise QontextError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(systems, "_page", stop)
        with pytest.raises(QontextError, match="stopped"):
            api.evaluate(documents, system=[system], questions=20, out=tmp_path / "out")
    asked = (tmp_path / "asked").read_text().splitlines()
    resumed = api.evaluate(documents, system=[system], questions=20, out=tmp_path / "out")
    assert (tmp_path / "asked").read_text().splitlines() == [*asked, asked[0]], (
        "only the first one, to try the system"
    )
    whole = api.evaluate(documents, system=[system], questions=20, out=tmp_path / "whole")
    assert resumed.digest == whole.digest and not (resumed.path / ".steps").exists()


def test_bad_input_is_one_sentence_before_any_work(documents: Path, system: str, tmp_path: Path) -> None:
    failing = f"mine={sys.executable} -c 'raise SystemExit(\"no index\")' {{question}}"
    for wrong, message in (
        ({"system": ["mine=grep docs"]}, "no {question}"),
        ({"system": [system, system]}, "two systems have the name 'mine'"),
        ({"system": [failing]}, "failed with the exit code 1: no index"),
        ({"system": [system], "measures": "MAP"}, "--measures is not read with --system"),
        ({"system": [system], "split": "dev"}, "--split needs labeled questions"),
        ({}, "a run needs judgments"),
    ):
        with pytest.raises(QontextError, match=re.escape(message)):
            api.evaluate(documents, **wrong, out=tmp_path / "out")  # type: ignore[arg-type]
        assert not artifacts.is_artifact(tmp_path / "out") and not (tmp_path / "out" / ".steps").exists()


def test_a_report_on_such_a_directory_leaves_it_out(documents: Path, system: str, tmp_path: Path) -> None:
    api.evaluate(
        documents, system=[system.replace("mine=", "report=")], questions=5, out=tmp_path / "runs" / "a"
    )
    api.evaluate(
        documents, system=[system.replace("mine=", "holdout=")], questions=5, out=tmp_path / "runs" / "b"
    )
    made = api.report([tmp_path / "runs"], out=tmp_path / "report")
    assert "damaged" not in (made.path / "report.html").read_text()
