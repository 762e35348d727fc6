"""What is set aside to measure with: real labels in all the shapes they come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from qontext import api
from qontext.adapt.prepare import _splits
from qontext.cluster.torchrun import shared_by
from qontext.data import records
from qontext.data.collection import load_collection
from qontext.data.labels import measured_sizes
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.workflow.recipe import read_recipe


def passages(tmp_path: Path, count: int) -> Artifact:
    source = tmp_path / "docs.jsonl"
    rows = ({"_id": f"d{n}", "title": f"Note {n}", "text": f"Room {n} has a lamp."} for n in range(count))
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return api.split(source, keep=True, workers=1, out=tmp_path / "passages")


def pairs(tmp_path: Path, ids: list[str]) -> Path:
    file = tmp_path / "labels.jsonl"
    rows = ({"query": f"question {n} about {id}", "passage": id} for n, id in enumerate(ids))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def folder(tmp_path: Path, splits: dict[str, list[tuple[str, int]]]) -> Path:
    """A labeled folder: for each split, the judged passages and their grades, a query for each."""
    root = tmp_path / "labels"
    (root / "qrels").mkdir(parents=True)
    queries = []
    for split, judged in splits.items():
        lines = ["query-id\tcorpus-id\tscore"]
        for n, (passage, grade) in enumerate(judged):
            queries.append({"_id": f"{split}{n}", "text": f"question {n} of {split}"})
            lines.append(f"{split}{n}\t{passage}\t{grade}")
        (root / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    (root / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (root / "corpus.jsonl").write_text(json.dumps({"_id": "none", "text": "elsewhere"}) + "\n")
    return root


def held(tmp_path: Path, source: Artifact, labels: Path, **settings: Any) -> dict[str, Any]:
    artifact = api.holdout(source.path, labels=labels, out=tmp_path / "holdout", **settings)
    measured = load_collection(artifact.path / "measured")
    return {split: measured.qrels(split) for split in measured.splits}


def planned(labels: Path) -> tuple[tuple[str, ...], int]:
    return _splits(str(labels), None)[:2]


def test_queries_of_other_programs_are_conformed_or_refused(tmp_path: Path) -> None:
    source = passages(tmp_path, 30)
    file = tmp_path / "queries.parquet"
    rows = {"passage": [f"d{n}" for n in range(30)], "query": ["what?"] * 30}
    for verb, settings in ((api.filter, {"passages": source.path}), (api.holdout, {})):
        names = (file, source.path)[: 1 if settings else 2]
        pq.write_table(pa.table({**rows, "number": [0] * 30}), file)  # 64-bit integers
        assert verb(*names[::-1], **settings, out=tmp_path / "out", overwrite=True).summary
        pq.write_table(pa.table({**rows, "number": [False] * 30}), file)
        with pytest.raises(QontextError, match="the column 'number' has the type bool, expected int32"):
            verb(*names[::-1], **settings, out=tmp_path / "out", overwrite=True)
        for content in (b"", b"\n\n"):
            file.write_bytes(content)
            with pytest.raises(QontextError, match="not a readable Parquet file"):
                verb(*names[::-1], **settings, out=tmp_path / "out", overwrite=True)
    lines = tmp_path / "queries.tsv"
    lines.write_text("d1\twhat?\n")
    with pytest.raises(
        QontextError, match=r"queries.tsv: is not a Parquet file. .* generate --generator file"
    ):
        api.holdout(source.path, lines, out=tmp_path / "out", overwrite=True)


@pytest.mark.parametrize(("documents", "each"), [(1, 40), (5, 20), (60, 4), (400, 1)])
def test_there_is_always_something_to_train_on_to_tune_on_and_to_measure_with(
    tmp_path: Path, documents: int, each: int
) -> None:
    source = passages(tmp_path, documents)
    ids = [f"d{d}" for d in range(documents) for _ in range(each)]
    labels = pairs(tmp_path, ids)
    splits, trained = planned(labels)
    assert splits == ("dev", "test", "generated")
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        qrels = held(tmp_path / str(seed), source, labels, seed=seed, least_labels=trained)
        test, dev = measured_sizes(len(ids), "labels")
        assert test / 2 <= len(qrels["test"]) <= test and dev / 2 <= len(qrels["dev"]) <= dev
        assert sum(map(len, qrels.values())) == len(ids)
        if documents >= 20:
            texts = [
                {passage for query in qrels[s].values() for passage in query}
                for s in ("train", "dev", "test")
            ]
            assert not texts[0] & texts[2] and not texts[0] & texts[1] and not texts[1] & texts[2]


def test_one_large_document_does_not_leave_the_test_empty(tmp_path: Path) -> None:
    source = passages(tmp_path, 30)
    labels = pairs(tmp_path, [f"d{n}" for n in range(30) for _ in range(100 if n else 1)])
    qrels = held(tmp_path, source, labels)
    test, dev = measured_sizes(2901, "labels")
    assert len(qrels["test"]) >= test / 2 and len(qrels["dev"]) >= dev / 2


def test_a_folder_with_a_test_split_alone_measures_with_all_of_it(tmp_path: Path) -> None:
    source = passages(tmp_path, 60)
    labels = folder(tmp_path, {"test": [(f"d{n}", 1) for n in range(60)]})
    assert planned(labels) == (("test", "generated"), 0)
    qrels = held(tmp_path, source, labels)
    assert qrels.keys() == {"test"} and len(qrels["test"]) == 60


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": [("d1", 0)] * 4}, "judges no passage as relevant"),
        ({}, "judges no passage as relevant"),
        ({"train": [("d1", 1)] * 2}, "2 labeled queries are too few"),
    ],
    ids=["grades of 0", "no qrels", "two labels"],
)
def test_labels_that_judge_nothing_usable_are_told_when_planning(
    tmp_path: Path, splits: dict[str, list[tuple[str, int]]], message: str
) -> None:
    with pytest.raises(QontextError, match=message):
        planned(folder(tmp_path, splits))


def test_a_test_split_of_other_documents_is_told(tmp_path: Path) -> None:
    source = passages(tmp_path, 30)
    splits = {"train": [(f"d{n}", 1) for n in range(30)], "test": [("elsewhere", 1)]}
    with pytest.raises(QontextError, match=r"none of the labeled ids of the split 'test'.*'elsewhere'"):
        held(tmp_path, source, folder(tmp_path, splits))


def test_too_few_labels_left_to_train_on_are_told_at_once(tmp_path: Path) -> None:
    source = passages(tmp_path, 30)
    splits = {"train": [(f"d{26 + n}", 1) for n in range(30)], "test": [("d0", 1)]}
    with pytest.raises(QontextError, match=r"only 4 labeled queries are left for training, 15 are needed"):
        held(tmp_path, source, folder(tmp_path, splits), least_labels=15)


@pytest.mark.parametrize(
    ("requested", "batches", "shared"), [(3, (32,), 2), (8, (512, 12), 4), (2, (25,), 1), (4, (), 4)]
)
def test_processes_divide_every_batch(
    tmp_path: Path, requested: int, batches: tuple[int, ...], shared: int
) -> None:
    steps = [f'[s{n}]\nverb = "finetune"\ngroups = "g"\nbatch_size = {b}\n' for n, b in enumerate(batches)]
    (tmp_path / "r.toml").write_text('[recipe]\ntitle = "x"\n[split]\nsource = "docs"\n' + "".join(steps))
    assert shared_by(requested, read_recipe(str(tmp_path / "r.toml"))) == shared


def generated(path: Path, **columns: list[Any]) -> Path:
    rows = {"passage": ["d0", "d1", "d2"], "query": ["a", "b", "c"], "number": [0, 0, 0], **columns}
    pq.write_table(pa.table(rows), path)
    return path


def test_generated_queries_of_other_programs_have_the_types_of_ours(tmp_path: Path) -> None:
    source = passages(tmp_path, 3)
    queries = generated(tmp_path / "q.parquet", score=[0.5, 1.0, 0.0])
    artifact = api.holdout(source.path, queries, out=tmp_path / "holdout")
    kept = pq.read_table(artifact.path / "queries" / "queries.parquet")
    assert str(kept.schema.field("number").type) == "int32" and len(kept) == 2
    assert kept.column("score").to_pylist()


@pytest.mark.parametrize("column", ["passage", "query", "number"])
def test_empty_queries_are_refused(tmp_path: Path, column: str) -> None:
    source = passages(tmp_path, 3)
    whole: dict[str, list[Any]] = {"passage": ["d0", "d1"], "query": ["a", "b"], "number": [0, 0]}
    queries = generated(tmp_path / "q.parquet", **{**whole, column: [whole[column][0], None]})
    with pytest.raises(QontextError, match=rf"q\.parquet: row 2: the column '{column}' is empty \(null\)"):
        api.holdout(source.path, queries, out=tmp_path / "holdout")


def test_labels_that_were_generated_queries_once_keep_their_text(tmp_path: Path) -> None:
    source = passages(tmp_path, 3)
    queries = generated(tmp_path / "q.parquet")
    artifact = api.holdout(source.path, queries, out=tmp_path / "holdout")
    (query,) = load_collection(artifact.path / "measured").qrels("generated")
    labels = folder(tmp_path, {"test": [("d1", 1)]})
    (labels / "queries.jsonl").write_text(json.dumps({"_id": query, "text": "another"}) + "\n")
    (labels / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{query}\td1\t1\n")
    with pytest.raises(
        QontextError, match=f"the id '{query}' of a labeled query is also the id of a generated query"
    ):
        api.holdout(source.path, queries, labels=labels, out=tmp_path / "again")


def test_a_split_of_labels_is_not_taken_for_the_generated_questions(tmp_path: Path) -> None:
    source, queries = passages(tmp_path, 3), generated(tmp_path / "q.parquet")
    labels = folder(tmp_path, {"generated": [("d1", 1)], "test": [("d2", 1)]})
    with pytest.raises(QontextError, match="the split 'generated' has the name of one that holdout makes"):
        api.holdout(source.path, queries, labels=labels, out=tmp_path / "refused")
    assert set(held(tmp_path, source, labels)) == {"generated", "test"}, "nothing else has the name"


def test_a_part_without_queries_holds_nothing_out(tmp_path: Path) -> None:
    source, parts = passages(tmp_path, 30), tmp_path / "queries"
    parts.mkdir()
    rows = [{"passage": f"d{n}", "query": f"where is lamp {n}?", "number": 0} for n in range(30)]
    for number, some in enumerate((rows, [])):
        table = records.table_of(some, records.QUERIES)
        records.write_table(parts / f"part-{number:05d}.parquet", table)
    summary = api.holdout(source.path, parts, out=tmp_path / "holdout").summary
    assert summary["training_queries"] + summary["held_out_queries"] == 30


def test_labels_can_all_be_for_evaluation(tmp_path: Path) -> None:
    source = passages(tmp_path, 40)
    labels = pairs(tmp_path, [f"d{n}" for n in range(40)])
    assert {
        name: len(qrels) for name, qrels in held(tmp_path, source, labels, split_labels=False).items()
    } == {"test": 40}


def test_a_single_document_is_held_out_as_a_whole(tmp_path: Path) -> None:
    from qontext.evaluation.holdout import HoldoutConfig, _held_out

    source = tmp_path / "passages.parquet"
    rows = [(f"d{d}#{n}", f"d{d}") for d in range(30) for n in range(4)]
    columns = {
        "id": [id for id, _ in rows],
        "title": [""] * 120,
        "text": ["x"] * 120,
        "doc": [d for _, d in rows],
    }
    pq.write_table(pa.table(columns), source)
    config = HoldoutConfig.make({"passages": str(source), "queries": "q", "share": 0.001}, where="holdout")
    total, held_out, rule = _held_out(config)
    assert (total, rule) == (120, "documents")
    assert len(held_out) == 4 and len({id.partition("#")[0] for id in held_out}) == 1


def test_a_passage_without_a_question_tests_nothing(tmp_path: Path) -> None:
    source = passages(tmp_path, 30)
    file = tmp_path / "queries.parquet"
    good, silly = "which room has a lamp", ["References", "# NT stuff", "a.b >>> import Factors"]
    rows = [(f"d{n}", query, i) for n in range(30) for i, query in enumerate([*silly, good][: 3 + n % 2])]
    columns = dict(zip(("passage", "query", "number"), map(list, zip(*rows))))
    pq.write_table(pa.table(columns, schema=records.QUERIES), file)
    held = api.holdout(source.path, file, share=0.9, out=tmp_path / "out")
    queries = load_collection(held.path / "measured").queries("generated")
    assert set(queries.values()) == {good} and {int(id[1:-2]) % 2 for id in queries} == {1}
    assert held.summary["held_out_queries"] == len(queries) > 5
    assert held.summary["passages_without_a_question"] > 5
    pq.write_table(
        pa.table(columns, schema=records.QUERIES).filter(pc.equal(pa.array(columns["query"]), silly[0])), file
    )
    kept = api.holdout(source.path, file, share=0.9, out=tmp_path / "out", overwrite=True)
    assert kept.summary["held_out_queries"] > 5, "silly questions are better than none"


@pytest.mark.parametrize("ending", ["jsonl", "tsv", "parquet"])
def test_repeated_real_questions_count_once(ending: str, tmp_path: Path) -> None:
    source, file, answers = passages(tmp_path, 12), tmp_path / f"log.{ending}", tmp_path / "run.trec"
    texts = {f"s{n}": f"{' ' * (n // 8)}{'Where' if n % 3 else 'where'} is lamp {n % 8}?" for n in range(40)}
    if ending == "parquet":
        pq.write_table(pa.table({"id": list(texts), "text": list(texts.values())}), file)
    else:
        rows = (json.dumps({"_id": id, "text": text}) for id, text in texts.items())
        lines = (f"{id}\t{text}" for id, text in texts.items())
        file.write_text("\n".join(rows if ending == "jsonl" else lines) + "\n")
    drawn = list(texts)[13:]  # a search may be for some of them
    answers.write_text("".join(f"{id} Q0 d{int(id[1:]) % 8} 1 1.0 x\n" for id in drawn))
    queries = generated(tmp_path / "q.parquet")
    held = api.holdout(source.path, queries, asked=file, answers=answers, out=tmp_path / "holdout")
    assert held.summary["asked_questions"] == {"train": 4, "asked": 4}
    judged = set(load_collection(held.path / "measured").queries("asked").values())
    training = set(pq.read_table(held.path / "queries" / "queries.parquet").column("query").to_pylist())
    asked = {text for text in training if "lamp" in text}
    assert len(judged) == 4 and asked
    assert not {text.lower().strip() for text in judged} & {text.lower().strip() for text in asked}
