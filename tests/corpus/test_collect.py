"""A labeled set from files as they are published: MS MARCO's and RocketQA's, and what cannot belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.data.collection import load_collection, read_passages
from qontext.finetune.negatives.groups import read_groups
from qontext.frame.errors import QontextError

TEXTS = ["Bees dance.", "A mill grinds  flour.", "The river is high.", "Bread is baked."]
FILES = {
    "collection.tsv": "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)),
    "para.txt": "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)),
    "para.title.txt": "0\tBees\n2\tRivers, Dr. Stone - high\n",
    "queries.train.tsv": "100\twhy do bees dance\n101\twhat is a mill\n102\tnobody knows\n",
    "queries.dev.tsv": "200\thow is bread made\n",
    "qrels.train.tsv": "100\t0\t0\t1\n101\t0\t1\t1\n",
    "qrels.dev.tsv": "200\t0\t3\t1\n",
    "qidpidtriples.train.full.2.tsv": "100\t0\t2\n100\t0\t3\n101\t1\t2\n",
    "triples.train.small.tsv": f"why do bees dance\t{TEXTS[0]}\t{TEXTS[3]}\n"
    f"what is a mill\t{TEXTS[1]}\t{TEXTS[2]}\nwhat is a mill\t{TEXTS[1]}\tUnknown text.\n",
    "top1000.dev": f"200\t3\thow is bread made\t{TEXTS[3]}\n200\t0\thow is bread made\t{TEXTS[0]}\n",
}
"""Small files in the published formats."""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return {name: tmp_path / name for name in FILES}


def collected(files: dict[str, Path], out: Path, **settings: Any) -> Any:
    settings = {
        "passages": files["collection.tsv"],
        "queries": [files["queries.train.tsv"], files["queries.dev.tsv"]],
        "train": files["qrels.train.tsv"],
        "dev": files["qrels.dev.tsv"],
        **settings,
    }
    return api.collect(**settings, out=out)


def test_msmarco_as_it_is_downloaded(files: dict[str, Path], tmp_path: Path) -> None:
    made = collected(files, tmp_path / "out")
    assert made.summary == {
        "passages": 4, "passages_with_title": 0, "queries": 4, "train_queries": 2, "dev_queries": 1
    }  # fmt: skip
    collection = load_collection(made.path)
    assert collection.splits == ["dev", "train"]
    assert collection.qrels("train") == {"100": {"0": 1}, "101": {"1": 1}}
    assert collection.queries("dev") == {"200": "how is bread made"}
    assert [(p.id, p.title, p.text) for p in collection.passages()] == [
        (str(n), "", text) for n, text in enumerate(TEXTS)
    ]


def test_titles_of_a_file_of_their_own(files: dict[str, Path], tmp_path: Path) -> None:
    made = collected(files, tmp_path / "out", passages=files["para.txt"], titles=files["para.title.txt"])
    assert [p.title for p in read_passages(made.path)] == ["Bees", "", "Rivers, Dr. Stone - high", ""]
    assert made.summary["passages_with_title"] == 2


def negatives(groups: Any) -> dict[str, list[str]]:
    return {group.query: group.negatives for group in read_groups(groups.path)}


def test_triples_of_ids_and_of_texts_are_negatives(files: dict[str, Path], tmp_path: Path) -> None:
    made = collected(files, tmp_path / "out", triples=files["triples.train.small.tsv"])
    assert (made.path / "triples.tsv").read_text() == "100\t0\t3\n101\t1\t2\n"
    assert (made.summary["triples"], made.summary["triples_with_unknown_texts"]) == (2, 1)
    of_texts = api.mine(made.path / "triples.tsv", made.path, data=made.path, out=tmp_path / "a")
    assert negatives(of_texts) == {"100": ["3"], "101": ["2"]}
    of_ids = api.mine(files["qidpidtriples.train.full.2.tsv"], made.path, data=made.path, out=tmp_path / "b")
    assert negatives(of_ids) == {"100": ["2", "3"], "101": ["2"]}
    with pytest.raises(
        QontextError, match=r"qidpidtriples file, or triples\.tsv of 'qontext collect --triples'"
    ):
        api.mine(files["triples.train.small.tsv"], made.path, data=made.path, out=tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("qrels.dev.tsv", "200\t0\t9\t1\n", "names the passage '9', which is not in the passages"),
        ("qrels.dev.tsv", "9\t0\t3\t1\n", "names the query '9', which is not in the queries"),
        ("qrels.dev.tsv", "3\t0\t200\t1\n", "a passage: the columns are swapped"),
        ("queries.dev.tsv", "100\tanother text\n", "the query '100' has another text in an earlier file"),
        ("para.title.txt", "z\tBees\n", "no title belongs to any of these passages"),
        ("para.title.txt", "0\n", "has 1 columns, expected id<tab>title"),
        ("triples.train.small.tsv", "a\tb\tc\n", "no triple has the texts of these queries and passages"),
        ("triples.train.small.tsv", "a\tb\n", "has 2 columns, expected query<tab>positive<tab>negative"),
    ],
)
def test_files_that_do_not_belong_together(
    files: dict[str, Path], tmp_path: Path, name: str, text: str, message: str
) -> None:
    files[name].write_text(text)
    others = {"titles": files["para.title.txt"], "triples": files["triples.train.small.tsv"]}
    with pytest.raises(QontextError, match=message):
        collected(files, tmp_path / "out", **others)


def test_every_line_of_corpus_jsonl_is_beir_s(files: dict[str, Path], tmp_path: Path) -> None:
    made = collected(files, tmp_path / "out")
    rows = [json.loads(line) for line in (made.path / "corpus.jsonl").read_text().splitlines()]
    assert all({"_id", "title", "text"} <= row.keys() for row in rows)
