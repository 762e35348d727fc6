"""adapt from end to end: plan, resume, documents that come, change and go, odd corpora, and a verdict that is honest."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from qontext import api, cli
from qontext.finetune.listwise import load_classifier
from qontext.finetune.negatives.groups import read_groups
from qontext.frame import log
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError
from qontext.retrieve.searcher import Searcher


def adapt(documents: Path, out: Path, encoder: Path, **settings: Any) -> dict[str, Any]:
    settings = {"budget": "90s", **settings}
    result: dict[str, Any] = api.adapt(documents, out=out, encoder=encoder, **settings)
    return result


def adapt_until(step: str, documents: Path, out: Path, encoder: Path, **settings: Any) -> Path:
    """Plan, and carry out the recipe up to a step; returns the folder of the steps."""
    adapt(documents, out, encoder, dry_run=True, **settings)
    api.run(out / "recipe.toml", out=out / "steps", until=step)
    return out / "steps"


def test_documents_become_a_retriever_that_loads_everywhere_and_answers(
    adapted: Any, small_encoder: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    out, result = adapted.out, adapted.result
    assert result["system"] in result["verdict"]["scores"]["generated"]
    assert {"bm25", "start", "hybrid-start", "adapted", "hybrid"} == set(
        result["verdict"]["scores"]["generated"]
    )
    assert any(
        "these results are for generated ones" in sentence for sentence in result["verdict"]["sentences"]
    )
    # The report opens with the verdict; then come the systems by their readable names, with the caveat.
    report = (out / "report" / "report.md").read_text()
    assert re.findall(r"^## (.*)", report, re.MULTILINE)[:2] == ["Verdict", "Generated questions"]
    assert any(sentence.startswith("Reason:") for sentence in result["verdict"]["sentences"])
    names = re.findall(r"^\| [a-e] (.*?) \|", report, re.MULTILINE)
    assert names[0] == "BM25" and names[-1] == "BM25 + adapted encoder" and len(names) == 5
    assert "were generated from the passages" in report
    assert "Original encoder → Adapted encoder" in report
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
    assert "qontext adapt DOCUMENTS" in nothing.stderr


def test_documents_added_changed_and_deleted_are_indexed_without_training(
    write_documents: Callable[..., Path], report: Callable[..., Any], small_encoder: Path, adapted: Any
) -> None:
    out = adapted.out
    before = [report(number) for number in range(30)]
    model = Path(adapted.result["model"])
    weights = (model / "model.safetensors").read_bytes()
    after = [*before[1:29], report(40)]  # two gone, one new …
    after[5] = {**after[5], "text": "Nothing is known of this lighthouse but its name."}  # … and one changed
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    shown = adapt(write_documents(after), out, small_encoder, dry_run=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == files
    result = adapt(write_documents(after), out, small_encoder)
    assert result["updated"]
    assert (model / "model.safetensors").read_bytes() == weights
    assert shown["documents"] == {"new": 1, "changed": 1, "unchanged": 27, "removed": 2}
    assert (shown["to_encode"], shown["reused"]) == (result["encoded_now"], result["reused"])
    assert not shown["is_current"] and not shown["training"] and shown["new_share"] == result["new_share"]
    same = adapt(write_documents(after), out, small_encoder, dry_run=True)
    assert same["is_current"] and same["documents"]["unchanged"] == 29 and same["to_encode"] == 0
    fresh = sum(passage.doc in ("report-40", after[5]["_id"]) for passage in _passages(out))
    assert result["encoded_now"] == fresh > 0
    assert result["reused"] == result["passages"] - fresh
    searcher = Searcher(out)
    documents = {answer.document for answer in searcher.search("lighthouse northern harbour storm", k=500)}
    assert "report-40" in documents
    assert not documents & {"report-0", "report-29"}
    assert not (out / "index.before").exists()
    # Most documents are others: that is another collection, and the model is trained anew.
    others = write_documents([report(number) for number in range(60, 90)])
    assert adapt(others, out, small_encoder, dry_run=True)["steps"] > 0, (
        "that training happens again is shown"
    )
    again = adapt(others, out, small_encoder)
    assert "updated" not in again
    new = Path(again["model"]) / "model.safetensors"
    assert new.read_bytes() != weights or again["encoder"] == "start"


def test_a_cleaned_directory_answers_and_updates_as_before(
    write_documents: Callable[..., Path],
    report: Callable[..., Any],
    small_encoder: Path,
    adapted: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = adapted.out
    question = "Which year was the bell of Corrie 12 repaired?"
    answers = Searcher(out).search(question, k=3)
    planned = api.clean(out, dry_run=True)
    assert planned["removed"] == [] and (out / "steps").is_dir()
    removed = api.clean(out, keep_report=True)
    assert [row["folder"] for row in removed["removed"]] == ["steps"]
    assert "--retrain" in capsys.readouterr().out
    assert [row["folder"] for row in api.clean(out)["removed"]] == ["report"]
    assert api.clean(out)["removed"] == []
    assert not [path for path in out.iterdir() if path.name.startswith(".tmp")]
    assert Searcher(out).search(question, k=3) == answers
    # Nothing is trained or measured again, whether or not documents changed.
    same = adapt(adapted.documents, out, small_encoder)
    assert same["updated"] and same["encoded_now"] == 0 and same["new_share"] is None
    more = adapt(write_documents([report(number) for number in range(31)]), out, small_encoder)
    assert more["updated"] and more["encoded_now"] > 0
    assert not (out / "steps").exists()
    with pytest.raises(QontextError, match="not a finished directory of adapt"):
        api.clean(out / "index")


def _passages(out: Path) -> list[Any]:
    from qontext.data.collection import read_passages

    return list(read_passages(out / "index" / "passages"))


def start_and_kill(command: list[str], out: Path, how: signal.Signals) -> subprocess.Popen[bytes]:
    """Start the command, and send the signal when pre-training begins."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    while process.poll() is None and not (out / "steps" / "pretrain").exists():
        time.sleep(0.01)
    process.send_signal(how)
    return process


def test_a_plan_is_kept_by_the_real_run_a_kill_and_the_run_that_resumes(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    planned = adapt(reports, out, small_encoder, dry_run=True)
    assert not (out / "steps").exists()
    assert b"[pretrain]" in (out / "recipe.toml").read_bytes()
    assert planned["expected_seconds"] == pytest.approx(sum(planned["seconds"].values()), abs=0.1)
    plan = {name: (out / name).read_bytes() for name in ("plan.json", "recipe.toml")}
    command = [sys.executable, "-m", "qontext", "adapt", str(reports), "--out", str(out), "--budget", "90s"]
    start_and_kill([*command, "--encoder", str(small_encoder)], out, signal.SIGKILL).wait()
    assert (out / "steps" / "pretrain").exists() and not (out / "adapted.json").exists()
    # Planning something else leaves a run under way alone.
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    adapt(reports, out, small_encoder, budget="10m", dry_run=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert adapt(reports, out, small_encoder)["system"]
    assert {name: (out / name).read_bytes() for name in plan} == plan


def test_a_dry_run_leaves_a_finished_result_alone(adapted: Any, small_encoder: Path) -> None:
    before = {path: path.read_bytes() for path in adapted.out.glob("*.*") if path.is_file()}
    planned = adapt(adapted.documents, adapted.out, small_encoder, budget="10m", dry_run=True)
    assert planned["steps"] > 0
    assert {path: path.read_bytes() for path in adapted.out.glob("*.*") if path.is_file()} == before


def test_a_finished_result_keeps_its_settings(
    write_documents: Callable[..., Path],
    small_encoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An update without the options of the first run is an update, even if their files are gone."""
    documents = [
        {"_id": f"d{n}", "title": "", "text": f"Room {n} has a lamp of {n} candles."} for n in range(5)
    ]
    labels = tmp_path / "labels.jsonl"
    rows = [{"query": f"which room has {n} candles", "document": f"d{n}"} for n in range(5)]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "made"
    first = adapt(write_documents(documents), out, small_encoder, labels=labels, seed=7)
    assert first["labels"] == {"test": 5}, "nothing was trained, so all labels measure"
    again = CliRunner().invoke(cli.app, ["adapt", str(write_documents(documents)), "--out", str(out)])
    assert f"keeps what it was made with: --labels {labels}, --budget 90s, --seed 7." in again.stderr
    assert again.exit_code == 0 and "another request" not in again.stderr
    labels.unlink()
    documents[0]["text"] = "Room 0 is dark."
    updated = api.adapt(write_documents(documents), out=out)
    assert updated["updated"] and updated["encoded_now"] == 1
    assert updated["verdict"] == json.loads(json.dumps(first["verdict"]))
    capsys.readouterr()
    log.show(log.NOTE)
    api.adapt(write_documents(documents), out=out, seed=8, labels=None, budget="2m", dry_run=True)
    assert "budget was '90s' and is now '2m'; seed was 7 and is now 8" in capsys.readouterr().err


def test_another_budget_makes_another_plan_and_says_so(
    reports: Path, small_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapt(reports, tmp_path / "made", small_encoder, dry_run=True)
    plan = (tmp_path / "made" / "plan.json").read_bytes()
    command = ["adapt", str(reports), "--encoder", str(small_encoder), "--out", str(tmp_path / "made")]
    done = CliRunner().invoke(cli.app, [*command, "--budget", "10m", "--dry-run"], catch_exceptions=False)
    assert "has a plan for another request: budget was '90s' and is now '10m'" in done.stderr
    assert (tmp_path / "made" / "plan.json").read_bytes() != plan


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_two_processes_stop_with_their_parent_and_go_on(
    reports: Path, small_encoder: Path, tmp_path: Path, how: signal.Signals
) -> None:
    children_of = "/proc/{0}/task/{0}/children"
    if how == signal.SIGKILL and not Path(children_of.format(os.getpid())).exists():
        pytest.skip("only Linux tells children that their parent was killed")
    out = tmp_path / "made"
    adapt(reports, out, small_encoder, budget="10m", dry_run=True)
    command = [sys.executable, "-m", "qontext", "adapt", str(reports), "--out", str(out), "--budget", "10m"]
    command += ["--encoder", str(small_encoder), "--processes", "2"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
    while process.poll() is None and not (out / "steps" / "pretrain").exists():
        time.sleep(0.01)
    launcher = Path(children_of.format(process.pid)).read_text().split() if how == signal.SIGKILL else []
    process.send_signal(how)
    process.communicate()
    assert process.returncode != 0 and (process.returncode == -signal.SIGKILL) == (how == signal.SIGKILL)
    for pid in launcher:
        assert _ends(int(pid)), "the processes live on"
        assert not (out / "steps" / "adapted-vectors" / "meta.json").exists(), "they went on to the end"
    assert not (out / "adapted.json").exists()
    # No process of the first run holds the directory.
    assert api.run(out / "recipe.toml", out=out / "steps", until="pretrain")["steps"][-1]["summary"]["steps"]


def _ends(pid: int) -> bool:
    """Whether the process ends by itself, which takes torchrun some seconds; after two minutes it is made to."""
    for _ in range(1_200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    os.kill(pid, signal.SIGTERM)
    return False


def test_two_processes_adapt_together(
    reports: Path, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QONTEXT_AUTO_PRECISION", "fp32")
    out = tmp_path / "made"
    command = [sys.executable, "-m", "qontext", "adapt", str(reports), "--out", str(out), "--budget", "90s"]
    done = subprocess.run(
        [*command, "--encoder", str(small_encoder), "--processes", "2", "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["verdict"]["scores"]["generated"]) >= {"bm25", "start", "adapted"}
    assert (out / "steps" / "recipe.toml").is_file(), "written by the processes' own 'qontext run'"
    # One process comes to the same weights.
    alone = api.run(out / "recipe.toml", out=tmp_path / "alone", until="pretrain")
    folders = (out / "steps" / "pretrain", alone["steps"][-1]["path"], small_encoder)
    weights, same, start = (load_file(Path(folder) / "model.safetensors") for folder in folders)
    moved = [(weights[f"bert.{name}"] - start[name]).abs().max().item() for name in start if "layer" in name]
    apart = [(weights[name] - same[name]).abs().max().item() for name in weights]
    assert max(apart) < max(moved) / 5


def test_a_cross_encoders_scores_stand_for_labels(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load_classifier(str(small_encoder), 1, 0.0)
    for part in (model, tokenizer):
        part.save_pretrained(str(tmp_path / "reranker"))
    reranker = tmp_path / "reranker"
    steps = adapt_until("adapted-vectors", reports, tmp_path / "made", small_encoder, reranker=reranker)
    finetuned = open_artifact(steps / "finetune")
    assert finetuned.config["distill"] == "margin-mse"
    assert finetuned.summary["losses"]["margin_mse"] > 0
    searched = {line.split(" ")[0] for line in (steps / "bm25-train" / "run.trec").open()}
    assert searched == {group.query for group in read_groups(steps / "negatives")}, "no other is searched for"
    held = {line.split("\t")[1] for line in (steps / "holdout/measured/qrels/generated.tsv").open()}
    taught = {passage for group in read_groups(steps / "negatives") for passage in group.positives}
    assert taught and not taught & held, "what is measured with is not learnt from"
    assert open_artifact(steps / "adapted-vectors").meta["inputs"]["encoder"]["path"].endswith("finetune")


def test_labels_are_trained_on_and_measured_by_document(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.jsonl"
    rows = [
        {"query": f"how was the {part} of number {number} mended", "document": f"report-{number}"}
        for number in range(30)
        for part in ("lamp", "bell", "stair")
    ]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = adapt(reports, tmp_path / "made", small_encoder, labels=labels)
    assert result["verdict"]["split"] == "test"
    assert set(result["verdict"]["scores"]) == {"test", "generated"}
    assert not any(
        "these results are for generated ones" in sentence for sentence in result["verdict"]["sentences"]
    )
    held = tmp_path / "made" / "steps" / "holdout" / "measured" / "qrels"
    documents = [
        {
            line.split("\t")[1].partition("#")[0]
            for line in (held / f"{split}.tsv").read_text().splitlines()[1:]
        }
        for split in ("train", "dev", "test")
    ]
    assert not documents[0] & documents[2]
    assert not documents[0] & documents[1]
    assert open_artifact(tmp_path / "made" / "steps" / "finetune").summary["steps"] >= 1


def test_few_labels_make_small_batches(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "labels"
    (folder / "qrels").mkdir(parents=True)
    labelled = [(f"q{n}", f"how was the bell of number {n} mended", f"report-{n}") for n in range(30)]
    queries = [json.dumps({"_id": id, "text": text}) + "\n" for id, text, _ in labelled]
    (folder / "queries.jsonl").write_text("".join(queries))
    (folder / "corpus.jsonl").write_text("".join(reports.read_text().splitlines(keepends=True)))
    for split, rows in {"train": labelled[:20], "test": labelled[20:]}.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{id}\t{report}\t1" for id, _, report in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "made"
    steps = adapt_until("finetune", reports, out, small_encoder, labels=folder, max_labels=9)
    assert open_artifact(steps / "holdout").summary["labelled_queries"]["train"] == 9
    finetuned = open_artifact(steps / "finetune")
    assert finetuned.config["batch_size"] == 4
    assert finetuned.summary["queries"] == 9


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


def test_an_encoder_that_was_not_changed_is_copied_only_if_asked(
    write_documents: Callable[..., Path], small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, encoder = tmp_path / "made", Path(shutil.copytree(small_encoder, tmp_path / "encoder"))
    documents = [{"_id": "only", "title": "", "text": "One short document about a single lamp."}]
    file = write_documents(documents)
    result = adapt(file, out, encoder)
    assert result["model"] == str(encoder) and not (out / "model").exists()
    shown = adapt(file, out, encoder, copy_model=True, dry_run=True)
    assert not shown["is_current"] and not (out / "model").exists()
    # Moved with another name for the same encoder: nothing has to be encoded.
    kept = encoder.rename(tmp_path / "kept")
    with pytest.raises(QontextError, match="the encoder of this directory is not found"):
        Searcher(out).search("lamp")
    with pytest.raises(QontextError, match="the encoder of this directory is not found"):
        api.adapt(file, out=out, budget="90s")
    result = adapt(file, out, kept)
    assert result["model"] == str(kept) and Searcher(out).search("lamp")
    result = adapt(file, out, kept, copy_model=True)
    assert result["model"] == str(out / "model") and "reference" not in result
    # Complete in itself: it is searched and updated where there is no such encoder.
    shutil.rmtree(kept)
    documents.append({"_id": "new", "title": "", "text": "Another document about a bell."})
    result = api.adapt(write_documents(documents), out=out, budget="90s")
    assert result["updated"] and result["encoded_now"] == 1 and result["model"] == str(out / "model")
    assert Searcher(out).search("bell", 1)[0].document == "new"


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


def test_a_gigabyte_is_planned_from_a_sample(small_encoder: Path, tmp_path: Path) -> None:
    line = json.dumps({"_id": "@", "title": "A report", "text": "The lamp was mended by the keeper. " * 25})
    block = "".join(line.replace("@", str(n)) + "\n" for n in range(10_000)).encode()
    with (tmp_path / "docs.jsonl").open("wb") as file:  # ids come again, but only the beginning is read
        file.writelines([block] * 2)
        file.truncate(110 * len(block))
    assert (tmp_path / "docs.jsonl").stat().st_size > 10**9
    planned = adapt(tmp_path / "docs.jsonl", tmp_path / "made", small_encoder, dry_run=True)
    assert 0.95e6 < planned["passages"] < 1.2e6
    assert planned["pool"] < planned["passages"]
    assert any("evaluated on" in note for note in planned["notes"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "soon"}, "budget 'soon' is not a length of time"),
        ({"labels": "labels.jsonl"}, "is not a labelled pair"),
        ({"generator": "llm"}, "needs the name of a model"),
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


def test_labels_of_other_documents_are_refused(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    rows = [{"query": f"who is {n}", "passage": "elsewhere"} for n in range(3)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(QontextError, match="none of the labelled ids"):
        adapt(reports, tmp_path / "made", small_encoder, labels=tmp_path / "labels.jsonl")


def test_a_strangers_directory_is_left_alone(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "thesis.txt").write_text("mine")
    with pytest.raises(QontextError, match="was not written by adapt"):
        adapt(reports, tmp_path / "made", small_encoder)


def test_a_moved_tree_goes_on_with_its_plan(
    reports: Path, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan names its inputs as they were named; the same inputs elsewhere are found under their new names."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    reports.rename(before / "docs.jsonl")
    shutil.copytree(small_encoder, before / "encoder")
    monkeypatch.chdir(before)
    adapt(Path("docs.jsonl"), Path("made"), Path("encoder"), budget="20s", dry_run=True)
    recipe = (before / "made" / "recipe.toml").read_text()
    before.rename(after)
    monkeypatch.chdir("/")
    result = adapt(after / "docs.jsonl", after / "made", after / "encoder", budget="20s")
    moved = recipe.replace('"docs.jsonl"', f'"{after}/docs.jsonl"').replace('"encoder"', f'"{after}/encoder"')
    assert (after / "made" / "recipe.toml").read_text() == moved
    assert Searcher(after / "made").search("storm", k=1) and result["system"]


def test_a_damaged_plan_is_told(reports: Path, small_encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    adapt(reports, out, small_encoder, dry_run=True)
    whole = json.loads((out / "plan.json").read_text())
    wrong: list[Any] = [
        None,
        [],
        {},
        {**whole, "claim": {**whole["claim"], "inputs": {}}},
        {**whole, "claim": []},
        {**whole, "request": {}},
    ]
    wrong += [{**whole, "plan": {**whole["plan"], "steps": value}} for value in (None, -1, "many")]
    wrong += [{**whole, "request": {**whole["request"], "splits": 5}}]
    for text in ("", "{", *map(json.dumps, wrong)):
        (out / "plan.json").write_text(text)
        with pytest.raises(QontextError, match=r"plan\.json: damaged: .*Remove it to create a new plan"):
            adapt(reports, out, small_encoder)
