"""Ids as file names make them, from the files to the report: what comes out names what went in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tiny import WORDS

from qontext import api
from qontext.data.collection import read_passages, write_qrels
from qontext.data.lines import write_jsonl
from qontext.data.runs import read_run
from qontext.finetune.negatives.groups import read_groups

NAMES = (
    "My file 1.md",
    "a\tb.md",
    "new\nline.md",
    "carriage\r.md",
    "no\u00a0break.md",
    "wide\u3000space.md",
    "line\u2028end.md",
    "escape\x1b[0m.md",
    "\"quoted\" and 'so'.md",
    "#.md",
    " .md",
    "␠.md",
    "␛20;.md",
    "a%20b.md",
    "C:\\x.md",
    "\ufeffmark.md",
)


@pytest.fixture
def labeled(tmp_path: Path) -> Path:
    """A folder of text files with odd names, split, and a folder in BEIR's layout whose queries have odd ids, too."""
    rng = np.random.default_rng(0)
    (tmp_path / "files").mkdir()
    for name in NAMES:
        text = " ".join(f"The {a} is near the {b}." for a, b in zip(*rng.choice(WORDS, (2, 4))))
        (tmp_path / "files" / name).write_text(text)
    api.split(tmp_path / "files", out=tmp_path / "passages", workers=1)
    passages = list(read_passages(tmp_path / "passages"))
    assert sorted({passage.doc for passage in passages}) == sorted(NAMES)
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    write_jsonl(folder / "corpus.jsonl", ({"_id": p.id, "title": p.title, "text": p.text} for p in passages))
    write_jsonl(folder / "queries.jsonl", ({"_id": f"what is\t{p.id}", "text": p.text} for p in passages))
    write_qrels(folder / "qrels" / "test.tsv", ((f"what is\t{p.id}", p.id, 1) for p in passages))
    return folder


@pytest.mark.parametrize("backend", ["bm25", "exact", "faiss-hnsw", "milvus"])
def test_every_index_returns_them(labeled: Path, tmp_path: Path, tiny_encoder: Path, backend: str) -> None:
    if backend == "bm25":
        index = api.index(labeled, backend=backend, out=tmp_path / "index")
    else:
        index = api.encode(labeled, encoder=tiny_encoder, out=tmp_path / "vectors", precision="fp32")
        if backend != "exact":
            pytest.importorskip({"faiss-hnsw": "faiss", "milvus": "milvus_lite"}[backend])
            index = api.index(index, backend=backend, out=tmp_path / "index")
    how = {} if backend == "bm25" else {"precision": "fp32"}
    searched = api.retrieve(index, data=labeled, out=tmp_path / "run", **how)
    run = read_run(searched.path)
    ids = {passage.id for passage in read_passages(labeled)}
    assert set(run) == {f"what is\t{id}" for id in ids}
    if backend == "bm25":
        scores = api.evaluate(searched, labeled, measures="Success@3", out=tmp_path / "scores")
        assert scores.summary["measures"]["Success@3"] > 0.9
    else:
        assert all({hit.passage for hit in hits} == ids for hits in run.values())


def test_every_verb_takes_them(
    labeled: Path, tmp_path: Path, tiny_encoder: Path, tiny_rerankers: list[Path]
) -> None:
    texts = {passage.id: passage.content for passage in read_passages(labeled)}
    queries = {f"what is\t{id}" for id in texts}
    words = api.retrieve(bm25=True, data=labeled, out=tmp_path / "words")
    vectors = api.encode(labeled, encoder=tiny_encoder, out=tmp_path / "vectors", precision="fp32")
    dense = api.retrieve(vectors, data=labeled, out=tmp_path / "dense", precision="fp32")
    runs = [str(words.path), str(dense.path)]
    fused = api.fuse(runs, tune=labeled / "qrels" / "test.tsv", out=tmp_path / "fused")
    assert set(read_run(fused.path)) == queries
    best = api.rerank(
        fused, reranker=[str(tiny_rerankers[0])], data=labeled, k=5, out=tmp_path / "best", precision="fp32"
    )
    assert set(read_run(best.path)) == queries and set(read_run(best.path).ids) <= set(texts)
    groups = api.mine(
        best, labeled / "qrels" / "test.tsv", data=labeled, depth=5, per_query=2, out=tmp_path / "groups"
    )
    mined = list(read_groups(groups.path))
    assert {group.query for group in mined} == queries
    assert all(group.positives == [group.query.removeprefix("what is\t")] for group in mined)
    assert {id for group in mined for id in group.negatives} <= set(texts)
    for name in ("words", "dense"):
        api.evaluate(tmp_path / name, labeled, out=tmp_path / f"scores-{name}")
    compared = api.compare(runs, labeled).as_json()
    assert compared["examples"] and {example["query"] for example in compared["examples"]} <= queries
    api.report([str(tmp_path)], out=tmp_path / "report")
    assert (tmp_path / "report" / "report.html").is_file()
