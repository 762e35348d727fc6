"""Questions to an adapted directory: on the command line, from a pipe, in batches, among some passages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qontext import api, cli
from qontext.data.places import Place
from qontext.data.runs import read_run
from qontext.models import reference
from qontext.models.reference import refer
from qontext.retrieve.searcher import Searcher

PAGES = {
    "guide/mill.html": "<h1>The mill</h1><h2>Flour</h2><p>The mill grinds flour for bread. "
    + "It has a wheel and a stone. " * 8,
    "guide/boat.md": "---\nlang: de\n---\n# The boat\n\nA boat crosses the river.\n",
    "news/oven.txt": "The oven bakes bread with fire.\nIt is hot.\n",
}


@pytest.fixture(scope="module")
def adapted(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of `adapt`, made by its parts: an index of three documents and a model."""
    folder = tmp_path_factory.mktemp("adapted")
    for name, text in PAGES.items():
        (folder / "documents" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "documents" / name).write_text(text)
    root = folder / "runs"
    passages = api.split(folder / "documents", out=root / "index" / "passages")
    shutil.copytree(tiny_encoder, root / "model")
    api.encode(passages, encoder=root / "model", out=root / "index" / "vectors")
    api.index(passages, backend="bm25", out=root / "index" / "bm25")
    (root / "adapted.json").write_text(
        '{"format": 1, "index": "index", "system": "hybrid", "weights": [0.9, 0.1], "read_tokens": 64}'
    )
    return root


def call(*arguments: str | Path, typed: str | bytes | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, ["search", *map(str, arguments)], input=typed)
    return done.exit_code, done.stdout if done.exit_code == 0 else done.stderr


def test_an_answer_knows_its_place(adapted: Path) -> None:
    best = Searcher(adapted).search("who grinds flour?", 2)[0]
    assert (best.document, best.title) == ("guide/mill.html", "The mill › Flour")
    assert best.place == Place(
        "guide/mill.html", ("Flour",), line=1, last_line=1, metadata={"folder": "guide", "format": "html"}
    )
    assert str(best.place) == "guide/mill.html › Flour, line 1"


def test_a_question_as_json(adapted: Path) -> None:
    code, line = call(adapted, "who bakes bread?", "--json")
    answers = json.loads(line)["answers"]
    assert code == 0 and len(answers) == 3
    assert {k: v for k, v in answers[0].items() if k != "score"} == {
        "rank": 1,
        "passage": "news/oven.txt#0",
        "document": "news/oven.txt",
        "title": "oven",
        "text": "The oven bakes bread with fire.\nIt is hot.",
        "snippet": "The oven bakes bread with fire. It is hot.",
        "sentence": "The oven bakes bread with fire.",
        "file": "news/oven.txt",
        "line": 1,
        "last_line": 1,
        "metadata": {"folder": "news", "format": "text"},
        "place": "news/oven.txt, line 1",
    }


@pytest.mark.parametrize(
    ("where", "documents"),
    [
        (["folder=guide"], {"guide/mill.html", "guide/boat.md"}),
        (["folder=guide", "lang=de"], {"guide/boat.md"}),
        (["file=*.txt"], {"news/oven.txt"}),
        (["folder=nowhere"], set()),
    ],
)
def test_only_passages_that_fulfil_the_conditions_are_answers(
    adapted: Path, where: list[str], documents: set[str]
) -> None:
    flags = [part for condition in where for part in ("--where", condition)]
    code, line = call(adapted, "who bakes bread?", *flags, "--json")
    assert code == 0 and {answer["document"] for answer in json.loads(line)["answers"]} == documents
    searcher = Searcher(adapted)
    for conditions in (where, [], where):  # what was kept of earlier conditions is not used for others
        answered = {answer.document for answer in searcher.search("who bakes bread?", 10, conditions)}
        assert answered == (documents if conditions else {*PAGES})


def test_questions_from_a_pipe(adapted: Path) -> None:
    code, line = call(adapted, "--k", "1", "--json", typed="who bakes bread?\n\nwhat crosses the river?\n")
    assert code == 0
    assert [(one["question"], one["answers"][0]["document"]) for one in json.loads(line)["questions"]] == [
        ("who bakes bread?", "news/oven.txt"),
        ("what crosses the river?", "guide/boat.md"),
    ]
    code, shown = call(adapted, typed="who bakes bread?\n")
    assert code == 0 and "1. oven" in shown


def test_sub_queries_are_those_of_every_question(adapted: Path) -> None:
    """On the command line, and from a pipe, where the question is shown as it was asked."""
    question, also = "who bakes bread?", ("--also", "words: boat", "--also", "the mill", "--json")
    expected = Searcher(adapted).search(f"{question}\nwords: boat\nall: the mill", 5)
    _, line = call(adapted, question, *also)
    assert [one["score"] for one in json.loads(line)["answers"]] == [one.score for one in expected]
    _, line = call(adapted, *also, typed=f"{question}\n")
    (asked,) = json.loads(line)["questions"]
    assert asked["question"] == question
    assert [one["score"] for one in asked["answers"]] == [one.score for one in expected]
    assert expected != Searcher(adapted).search(question, 5)


def test_a_prompt_on_a_terminal(adapted: Path) -> None:
    """It answers, survives a mistake, remembers what was asked, and ends at an empty line."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "qontext", "search", str(adapted), "--k", "1"]
    own = {**os.environ, "TERM": "dumb"}  # which cannot show a page
    running = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True, env=own)
    os.close(theirs)

    def after(typed: bytes) -> str:
        """The text that is shown until the next prompt."""
        os.write(ours, typed)
        shown = b""
        while not shown.endswith(b"> "):
            shown += os.read(ours, 4096)
        return shown.decode(errors="replace")

    try:
        assert "an empty line" in after(b"")
        assert "oven" in after(b"who bakes bread?\n")
        assert "boat" in after(b"what crosses the river?\n")
        assert "boat" in after(b"\x1b[A\n"), "the question before"
        os.write(ours, b"\n")
        assert running.wait() == 0
    finally:
        running.kill()
        os.close(ours)


def test_queries_make_a_run_that_says_what_the_searcher_says(adapted: Path, tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("q1\twho bakes bread?\nq2\twhat crosses the river?\n")
    artifact = api.retrieve(adapted, queries=tmp_path / "q.tsv", k=2, out=tmp_path / "run.trec")
    assert artifact.summary["queries_with_results"] == 2
    run = read_run(tmp_path / "run.trec")
    searcher = Searcher(adapted)
    for name, question in (("q1", "who bakes bread?"), ("q2", "what crosses the river?")):
        assert [hit.passage for hit in run[name]] == [a.passage for a in searcher.search(question, 2)]
    api.retrieve(adapted, queries=tmp_path / "q.tsv", where=("lang=de",), out=tmp_path / "de.trec")
    assert {hit.passage for hits in read_run(tmp_path / "de.trec").values() for hit in hits} == {
        "guide/boat.md#0"
    }


def test_conditions_on_indexes_of_every_kind(adapted: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    (tmp_path / "q.tsv").write_text("q1\twho bakes bread?\n")
    indexes = {
        "vectors": adapted / "index" / "vectors",
        "bm25": adapted / "index" / "bm25",
        "hnsw": api.index(adapted / "index" / "vectors", backend="faiss-hnsw", out=tmp_path / "hnsw").path,
    }
    for name, index in indexes.items():
        settings = {"queries": tmp_path / "q.tsv", "where": ("folder=news",)}
        api.retrieve(index, **settings, out=tmp_path / f"{name}.trec")
        run = read_run(tmp_path / f"{name}.trec")
        assert [hit.passage for hit in run["q1"]] == ["news/oven.txt#0"], name


@pytest.fixture
def referring(adapted: Path, tmp_path: Path) -> Path:
    """The same directory with its encoder beside it, in tree/encoder, and not in its folder `model`."""
    root = Path(shutil.copytree(adapted, tmp_path / "tree" / "runs"))
    encoder = (root / "model").rename(tmp_path / "tree" / "encoder")
    about = json.loads((root / "adapted.json").read_text())
    (root / "adapted.json").write_text(json.dumps({**about, "reference": refer(str(encoder), root)}))
    return root


def test_an_encoder_elsewhere_is_found_after_a_move(adapted: Path, referring: Path, tmp_path: Path) -> None:
    expected = Searcher(adapted).search("who grinds flour?")
    assert Searcher(referring).search("who grinds flour?") == expected
    alone = Path(shutil.copytree(referring, tmp_path / "alone"))
    assert Searcher(alone).collection.encoder.model == str(referring.parent / "encoder")
    (tmp_path / "tree").rename(tmp_path / "moved")
    moved = tmp_path / "moved" / "runs"
    assert Searcher(moved).search("who grinds flour?") == expected
    assert Searcher(moved).collection.encoder.model == str(tmp_path / "moved" / "encoder")


def test_an_encoder_that_is_gone_is_named_again(
    referring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = (referring.parent / "encoder").rename(tmp_path / "kept")
    code, output = call(referring, "who grinds flour?")
    assert code == 2 and "is not found at" in output and "--encoder" in output
    assert CliRunner().invoke(cli.app, ["show", str(referring)]).exit_code == 0
    assert call(referring, "who grinds flour?", "--encoder", encoder)[0] == 0
    assert Searcher(referring, encoder=str(encoder)).search("who grinds flour?")
    monkeypatch.setattr(reference, "default_encoder", lambda: str(encoder))  # the package on another machine
    assert Searcher(referring).collection.encoder.model == str(encoder)


@pytest.mark.parametrize("is_given", [False, True])
def test_another_encoder_is_refused(referring: Path, is_given: bool) -> None:
    encoder = referring.parent / "encoder"
    (encoder / "README.md").write_text("A card does not change an encoder.")
    assert call(referring, "who grinds flour?")[0] == 0
    with (encoder / "tokenizer_config.json").open("a") as file:
        file.write(" ")
    code, output = call(referring, "who grinds flour?", *(["--encoder", encoder] if is_given else []))
    assert code == 2 and ("is not the encoder of" if is_given else "has changed") in output
    assert "unchanged copy" in output
