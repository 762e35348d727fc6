"""Inputs are opened as their step will open them, before the first step runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.workflow.test_recipe import LAST

from qontext import api
from qontext.corpus.split import SplitConfig
from qontext.frame.errors import QontextError
from qontext.workflow.preflight import problems_of


def refuses(
    recipe: str, good: dict[str, Any], folder: Path, name: str, file: str, text: str, message: str
) -> None:
    """A dry run with these inputs passes; with one of them replaced by a file of this text, it does not."""
    place = folder / file
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
    (folder / "r.toml").write_text(recipe)

    def dry_run(**inputs: object) -> Any:
        settings = tuple(f"inputs.{key}={value}" for key, value in {**good, **inputs}.items())
        return api.run(folder / "r.toml", set=settings, out=str(folder / "out"), dry_run=True)

    assert dry_run()["steps"]
    with pytest.raises(QontextError, match=message):
        dry_run(**{name: place.parent if "/" in file else place})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("search.data=nowhere", "search .step 'search'.: cannot read data: no such file or folder .nowhere."),
        ("search.split=dev", "unknown split of .*labeled 'dev'"),
        ("compare.split=dev", "unknown split of .*labeled 'dev'"),
        ("compare.measures=", None),
    ],
)
def test_inputs_are_looked_at_before_the_first_step(
    labeled: Path, tmp_path: Path, change: str, message: str | None
) -> None:
    (tmp_path / "r.toml").write_text(LAST)
    settings = {"set": (f"inputs.data={labeled}", change), "out": str(tmp_path / "out"), "dry_run": True}
    if message is None:
        api.run(tmp_path / "r.toml", **settings)
        return
    with pytest.raises(QontextError, match=message):
        api.run(tmp_path / "r.toml", **settings)


def test_a_folder_may_have_the_name_of_a_counting_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()
    (tmp_path / "docs.jsonl").write_text('{"_id": "d", "text": "The mill grinds."}\n')
    assert [*problems_of(SplitConfig(source="docs.jsonl"), ())] == []


def test_a_file_of_queries_by_passage_may_have_several_of_one(labeled: Path, tmp_path: Path) -> None:
    file = tmp_path / "written.tsv"
    recipe = f'''
    [recipe]
    title = "Queries from a file"
    [generate]
    passages = "{labeled}"
    generator = "file"
    queries = "{file}"
    '''
    (tmp_path / "r.toml").write_text(recipe)
    file.write_text("p1\twhere is it\np1\twhen was it\n")
    assert api.run(tmp_path / "r.toml", out=str(tmp_path / "out"), dry_run=True)["steps"]
    file.write_text("p1 without a tab\n")
    with pytest.raises(QontextError, match=r"generate .step 'generate'.*line 1|written.tsv:1"):
        api.run(tmp_path / "r.toml", out=str(tmp_path / "out"), dry_run=True)


def test_all_problems_are_told_at_once(labeled: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(LAST)
    changes = (f"inputs.data={labeled}", "search.data=nowhere", "again.k1=-1", "compare.split=dev")
    with pytest.raises(QontextError, match=r"3 problems: .*nowhere.*; .*k1 = -1.*; .*'dev'"):
        api.run(tmp_path / "r.toml", set=changes, out=str(tmp_path / "out"))
    assert not (tmp_path / "out" / "search").exists()


FAULTS = """
[inputs]
data = ""
run = ""
encoder = ""
texts = ""
queries = ""
qrels = ""
[mine]
run = "$run"
qrels = "$qrels"
queries = "$queries"
passages = "$texts"
[encode]
texts = "$texts"
encoder = "$encoder"
[search]
verb = "retrieve"
data = "$data"
bm25 = true
"""


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        (
            "data",
            "collection.tsv",
            "0\tBees dance.\n",
            "search .*: a collection is a folder with corpus.jsonl",
        ),
        ("encoder", "model/notes.txt", "", "encode .*: contains no encoder: it has no config.json"),
        ("encoder", "model.txt", "", "encode .*: is a file, expected the folder of a model"),
        ("run", "triples.tsv", "a query\ta text\tanother\n", "mine .*: expected three ids.*triples.tsv:1"),
        (
            "run",
            "run.trec",
            "q Q0 p 1\n",
            "mine .*: has 4 columns, expected the six of a TREC run.*run.trec:1",
        ),
        ("queries", "queries.tsv", "q\n", "mine .*: has 1 columns, expected id<tab>text"),
        ("qrels", "qrels.tsv", "q\tp\n", "mine .*: has 2 columns, expected query, passage, grade"),
        ("texts", "corpus.jsonl", "no json\n", "encode .*: is not JSON"),
        ("texts", "folder/notes.txt", "", "encode .*: is a folder without anything that this step reads"),
    ],
)
def test_inputs_are_opened_as_their_step_will_open_them(
    labeled: Path, tmp_path: Path, name: str, file: str, text: str, message: str
) -> None:
    good = {
        "data": labeled, "queries": labeled / "queries.jsonl", "qrels": labeled / "qrels" / "test.tsv",
        "texts": labeled, "run": tmp_path / "good.trec", "encoder": "someone/model",
    }  # fmt: skip
    good["run"].write_text("q Q0 p1 1 2.0 x\n")  # type: ignore[attr-defined]
    refuses(FAULTS, good, tmp_path, name, file, text, message)


MORE_FAULTS = """
[inputs]
documents = ""
tokenizer = ""
corpus = ""
vectors = ""
index = ""
groups = ""
questions = ""
[split]
source = "$documents"
tokenizer = "$tokenizer"
[bm25]
verb = "index"
source = "$corpus"
backend = "bm25"
[encode]
texts = "$corpus"
encoder = "someone/model"
[dense]
verb = "index"
source = "$vectors"
backend = "int8"
[search]
verb = "retrieve"
index = "$index"
queries = "$questions"
[finetune]
groups = "$groups"
passages = "$corpus"
encoder = "someone/model"
"""
DPR = (
    '[{"question": "q", "answers": ["a"], "positive_ctxs": [{"passage_id": "1"}], "hard_negative_ctxs": []}]'
)


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("documents", "docs.jsonl", '{"_id": 1}\n', "split .*: .*docs.jsonl:1"),
        ("documents", "docs.parquet", "no Parquet", "split .*: .*docs.parquet"),
        ("documents", "docs.xyz", "\0", "split .*docs.xyz"),
        ("tokenizer", "tokenizer.json", "no json", "split .*: .*tokenizer.json"),
        ("tokenizer", "words/notes.txt", "", "split .*: contains no readable tokenizer"),
        ("corpus", "corpus.parquet", "no Parquet", "index .*: .*corpus.parquet"),
        ("corpus", "corpus.jsonl", "no json\n", "index .*: is not JSON"),
        ("vectors", "vectors/notes.txt", "", "index .*: not a Qontext directory"),
        ("index", "index/notes.txt", "", "search .*: not a Qontext directory"),
        ("groups", "nq-train.json", '[{"question": 1}]', "finetune .*: expected a question"),
        ("groups", "nq-train.json", DPR.replace("passage_id", "id"), "finetune .*: .*passage_id"),
        ("questions", "nq-test.qa.csv", "question\n", "search .*: .*nq-test.qa.csv:1"),
    ],
)
def test_other_inputs_are_opened_as_their_step_will_open_them(
    labeled: Path, tmp_path: Path, name: str, file: str, text: str, message: str
) -> None:
    (tmp_path / "good.json").write_text(DPR)
    good: dict[str, Any] = {
        "documents": labeled, "tokenizer": "words", "corpus": labeled, "vectors": "@encode", "index": "@encode",
        "groups": tmp_path / "good.json", "questions": labeled / "queries.jsonl",
    }  # fmt: skip
    refuses(MORE_FAULTS, good, tmp_path, name, file, text, message)


def test_documents_are_looked_at_as_split_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "docs.jsonl"
    file.write_bytes('{"_id": "d", "text": "Der Müller mahlt."}\n'.encode("latin-1"))
    assert [*problems_of(SplitConfig(source=str(file), encoding="latin-1"), ())] == []
    assert [*problems_of(SplitConfig(source=str(file), on_error="skip"), ())] == []
    ((message, place),) = problems_of(SplitConfig(source=str(file)), ())
    assert "is not utf-8 text" in message and place == f"{file}:1"
