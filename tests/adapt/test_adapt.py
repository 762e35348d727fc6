"""adapt from end to end: documents that come, change and go, odd corpora, and a verdict that is honest."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.calls import adapt
from tests.adapt.test_plan import REQUEST, survey
from typer.testing import CliRunner

from qontext import api, cli
from qontext.adapt.plan import make_plan
from qontext.adapt.rates import Rates
from qontext.adapt.show import request_consent
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import index_of
from qontext.retrieve.searcher import Searcher
from qontext.retrieve.system import SYSTEMS, label_of


def test_documents_become_a_retriever_that_loads_everywhere_and_answers(
    adapted: Any, small_encoder: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    out, result = adapted.out, adapted.result
    assert result["system"] in result["verdict"]["scores"]["generated"]
    assert {"bm25", "start", "hybrid-start", "tokens-start", "adapted", "hybrid", "tokens"} == set(
        result["verdict"]["scores"]["generated"]
    )
    assert any(
        "these results are for generated ones" in sentence for sentence in result["verdict"]["sentences"]
    )
    # The report opens with the verdict; then come the systems by their readable names, with the caveat.
    report = (out / "report" / "report.html").read_text()
    assert re.findall(r"<h2>([^<]*)", report)[:2] == ["Verdict", "Generated questions"]
    assert any(sentence.startswith("Reason:") for sentence in result["verdict"]["sentences"])
    assert all(one.label in report for one in SYSTEMS if not one.reranked)
    assert f"{label_of(result['system'])} (recommended)" in report
    assert "were generated from the passages" in report
    assert "original encoder → adapted encoder" in report
    assert result["verdict"]["sentences"][0] in report
    # The recipe is an ordinary one, and has nothing left to do.
    assert all(
        row["state"] == "done"
        for row in api.run(out / "recipe.toml", out=out / "steps", dry_run=True)["steps"]
    )
    assert (out / "model").exists() == (result["encoder"] == "adapted")
    vectors = SentenceTransformer(result["model"], device="cpu").encode(["a bell in a storm"])
    assert vectors.shape == (1, 16)
    answers = Searcher(out).search("Which year was the bell of Corrie 12 repaired?", k=3)
    assert [answer.rank for answer in answers] == [1, 2, 3]
    assert all(answer.text and answer.document.startswith("report-") for answer in answers)
    assert answers == Searcher(out).search("Which year was the bell of Corrie 12 repaired?", k=3)
    # A second time there is nothing to do.
    trained = (out / "steps" / "pretrain" / "meta.json").read_bytes()
    again = adapt(adapted.documents, out, small_encoder)
    assert again["verdict"] == json.loads(json.dumps(result["verdict"]))
    assert (out / "steps" / "pretrain" / "meta.json").read_bytes() == trained


def test_a_question_from_the_shell(finished: Any) -> None:
    command = [sys.executable, "-m", "qontext", "search", str(finished.out), "storm at Jura 9"]
    process = subprocess.run([*command, "--json", "--k", "2"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert len(json.loads(process.stdout)["answers"]) == 2
    shown = CliRunner().invoke(cli.app, command[3:], catch_exceptions=False)
    assert "Lighthouse" in shown.stdout
    nothing = CliRunner().invoke(cli.app, ["search", "nowhere", "question"])
    assert nothing.exit_code == 2
    assert "qontext adapt DOCUMENTS --out nowhere" in nothing.stderr


def test_documents_added_changed_and_deleted_are_indexed_without_training(
    write_documents: Callable[..., Path], report: Callable[..., Any], small_encoder: Path, adapted: Any
) -> None:
    out = adapted.out
    before = [report(number) for number in range(30)]
    model = Path(adapted.result["model"])
    weights = (model / "model.safetensors").read_bytes()
    after = [*before[1:29], report(40)]  # two gone, one new …
    after[5] = {**after[5], "text": "Nothing is known of this lighthouse but its name."}  # … and one changed
    result = adapt(write_documents(after), out, small_encoder)
    assert result["updated"]
    assert (model / "model.safetensors").read_bytes() == weights
    assert result["documents"] == {"new": 1, "changed": 1, "unchanged": 27, "removed": 2}
    fresh = sum(passage.doc in ("report-40", after[5]["_id"]) for passage in _passages(out))
    assert result["encoded_now"] == fresh > 0
    assert result["reused"] == result["passages"] - fresh
    searcher = Searcher(out)
    documents = {answer.document for answer in searcher.search("lighthouse northern harbour storm", k=500)}
    assert "report-40" in documents
    assert not documents & {"report-0", "report-29"}
    assert index_of(out).name == "index-2"
    # Most documents are others: that is another collection, and the model is trained anew.
    others = write_documents([report(number) for number in range(60, 90)])
    again = adapt(others, out, small_encoder)
    assert "updated" not in again
    new = Path(again["model"]) / "model.safetensors"
    assert new.read_bytes() != weights or again["encoder"] == "start"


def test_a_directory_without_its_steps_answers_and_updates_as_before(
    write_documents: Callable[..., Path],
    report: Callable[..., Any],
    small_encoder: Path,
    adapted: Any,
) -> None:
    out = adapted.out
    question = "Which year was the bell of Corrie 12 repaired?"
    answers = Searcher(out).search(question, k=3)
    shutil.rmtree(out / "steps")
    shutil.rmtree(out / "report")
    assert Searcher(out).search(question, k=3) == answers
    # Nothing is trained or measured again, whether or not documents changed.
    same = adapt(adapted.documents, out, small_encoder)
    assert same["updated"] and same["encoded_now"] == 0 and same["new_share"] is None
    more = adapt(write_documents([report(number) for number in range(31)]), out, small_encoder)
    assert more["updated"] and more["encoded_now"] > 0
    assert not (out / "steps").exists()


def _passages(out: Path) -> list[Any]:
    from qontext.data.collection import read_passages

    return list(read_passages(index_of(out) / "passages"))


@pytest.mark.parametrize(
    "text",
    [
        "One short document about a single lamp.",
        "word " * 200 + "lamp " * 200,  # no sentence ends anywhere
    ],
    ids=["a sentence", "no punctuation"],
)
def test_a_single_document_is_indexed_and_said_to_be_too_little(
    write_documents: Callable[..., Path], small_encoder: Path, tmp_path: Path, text: str
) -> None:
    file = write_documents([{"_id": "only", "title": "", "text": text}])
    result = adapt(file, tmp_path / "made", small_encoder)
    assert result["encoder"] == "start"
    assert Searcher(tmp_path / "made").search("lamp")[0].document == "only"


def test_what_is_said_from_the_plan_to_the_result(
    small_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain names, the same counts, warnings once, the time by the clock, and one line at the end."""
    documents, out = tmp_path / "documents", tmp_path / "made"
    documents.mkdir()
    (documents / "lamp.md").write_text("# Lamp\n\nThe lamp of the lighthouse is mended.\n")
    (documents / "empty.md").write_text("\n")
    (documents / "image.xyz").write_bytes(b"\0\1x")
    command = ["adapt", str(documents), "--out", str(out), "--encoder", str(small_encoder), "--budget", "3"]
    started = time.monotonic()
    done = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, command, catch_exceptions=False)
    seconds = time.monotonic() - started
    assert done.exit_code == 0, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "1 file (1 .xyz) not read" in said
    assert "1 document is left out: 1 × no text" in said and "left out 1 × no text" in said
    assert "budget 3 min" in said and "Plan documents 1," in said
    assert f'Try it: qontext search {out} "a question"' in said
    assert not re.search(
        r"hold out|\bserve\b|windows of|by words|\bstart\b(?!-)", said.replace("hybrid-start", "")
    )
    about = json.loads((out / "adapted.json").read_text())
    stages = [json.loads(file.read_text())["made"]["seconds"] for file in out.glob("[si][tn]*/*/meta.json")]
    assert sum(stages) < about["seconds"] <= seconds, "the survey and the speed test count, too"
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["show", str(out)], catch_exceptions=False)
    assert about["verdict"]["sentences"][0] in shown.stdout and "(recommended)" in shown.stdout


def test_more_than_the_budget_is_not_started_without_consent(
    reports: Path, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Rates(trained=0.1, encoded=0.5, generated=2_000, scored=1)
    monkeypatch.setattr("qontext.adapt.rates.measure", lambda *_, **__: slow)
    with pytest.raises(QontextError, match=r"more than the budget of 3 min.* Use --budget [0-9]+m, or --yes"):
        adapt(reports, tmp_path / "made", small_encoder, budget="3m", yes=False)
    assert not (tmp_path / "made").exists(), "the next run measures the speed again"
    planned = adapt(reports, tmp_path / "made", small_encoder, budget="3m", yes=False, dry_run=True)
    assert planned["expected_seconds"] > 180
    with pytest.raises(QontextError, match="more than the budget of 3 min"):
        adapt(reports, tmp_path / "made", small_encoder, budget="3m", yes=False)
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    log.show(log.NOTE)
    request = dataclasses.replace(REQUEST, budget=180)
    request_consent(make_plan(request, survey(5_000), slow), request)
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    with pytest.raises(QontextError, match="--yes"):
        request_consent(make_plan(request, survey(5_000), slow), request)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_encoder_that_was_not_changed_is_copied_only_if_asked(
    write_documents: Callable[..., Path], small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, encoder = tmp_path / "made", Path(shutil.copytree(small_encoder, tmp_path / "encoder"))
    documents = [{"_id": "only", "title": "", "text": "One short document about a single lamp."}]
    file = write_documents(documents)
    result = adapt(file, out, encoder)
    assert result["model"] == str(encoder) and not (out / "model").exists()
    # Moved with another name for the same encoder: nothing has to be encoded.
    kept = encoder.rename(tmp_path / "kept")
    with pytest.raises(QontextError, match="the encoder of this directory is not found"):
        Searcher(out).search("lamp")
    with pytest.raises(QontextError, match="cannot find the encoder of this directory"):
        api.adapt(file, out=out, budget="90s")
    result = adapt(file, out, kept)
    assert result["model"] == str(kept) and Searcher(out).search("lamp")
    result = adapt(file, out, kept, copy_model=True)
    assert result["model"] == str(out / "model") and "reference" not in result
    # Complete in itself: it is searched and updated where there is no such encoder.
    shutil.rmtree(kept)
    api.show(out, verify=True)
    documents.append({"_id": "new", "title": "", "text": "Another document about a bell."})
    weights = out / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(QontextError, match="model: changed since it was written"):
        api.show(out, verify=True)
    weights.write_bytes(content)
    write_documents(documents)
    result = api.refresh(out)
    assert result["changed"] and result["encoded_now"] == 1
    assert "new" in {answer.document for answer in Searcher(out).search("bell")}


def test_one_passage_per_document(
    write_documents: Callable[..., Path], small_encoder: Path, tmp_path: Path
) -> None:
    short = [
        {"_id": f"d{n}", "title": f"Note {n}", "text": f"The {w} is kept in room {n}."}
        for n, w in enumerate("abcdefghijklmnopqrstuvwxyz")
    ]
    result = adapt(write_documents(short), tmp_path / "made", small_encoder)
    assert result["passages"] == 26


def test_a_language_that_the_encoder_does_not_know(
    write_documents: Callable[..., Path],
    small_encoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "Маяк стоит на северном берегу и светит кораблям каждую ночь. Смотритель поднимается по лестнице."
    documents = [{"_id": f"d{n}", "title": "", "text": f"{text} Номер {n}."} for n in range(30)]
    adapt(write_documents(documents), tmp_path / "made", small_encoder, dry_run=True)
    assert "does not fit this language" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "soon"}, "budget 'soon' is not a length of time"),
        ({"labels": "labels.jsonl"}, "is not a labeled pair"),
        ({"generator": "llm"}, "chat_model: field required"),
    ],
)
def test_bad_requests_are_told(
    reports: Path, small_encoder: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    if "labels" in settings:
        settings = {"labels": tmp_path / "labels.jsonl"}
        settings["labels"].write_text('{"what": 1}\n')
    with pytest.raises(QontextError, match=message):
        adapt(reports, tmp_path / "made", small_encoder, **settings)


def test_a_strangers_directory_is_left_alone(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "thesis.txt").write_text("mine")
    with pytest.raises(QontextError, match="was not written by adapt"):
        adapt(reports, tmp_path / "made", small_encoder)


def test_a_folder_of_another_kind_is_said_to_be_one(
    finished: Any, reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(QontextError, match="contains no output of qontext"):
        api.show(reports.parent)
