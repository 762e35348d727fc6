"""The stage: parts, resume, shards, counts, bad input."""

import pytest

from qontext import api
from qontext.data import records
from qontext.data.collection import Passage
from qontext.frame import artifacts
from qontext.frame.errors import QontextError
from qontext.queries.generators import clean


def test_keyphrase_end_to_end(passages, tmp_path, rows_of):
    done = api.generate(passages, out=tmp_path / "q", generator="keyphrase", part_passages=16)
    rows = rows_of(done.path)
    assert [p.name for p in done.parts()] == [
        "part-00000.parquet",
        "part-00001.parquet",
        "part-00002.parquet",
    ]
    assert done.summary["queries"] == len(rows) == 200 and done.summary["passages"] == 40
    assert [r[0] for r in rows[:6]] == ["p0"] * 5 + ["p1"] and [r[2] for r in rows[:6]] == [0, 1, 2, 3, 4, 0]


@pytest.fixture
def start(warm, passages, tmp_path):
    def launch(name, *more):
        argv = ["generate", passages, "--out", str(tmp_path / "q"), "--part-passages", "4", *more]
        return warm.launch({"argv": argv}, tmp_path / name)

    return launch


def test_killed_and_resumed_is_the_same(passages, tmp_path, tiny_t5, rows_of, start):
    settings = {"model": tiny_t5, "max_new_tokens": 10, "per_passage": 3, "part_passages": 4}
    whole = api.generate(passages, out=tmp_path / "whole", **settings)
    running = start("killed", "--model", tiny_t5, "--max-new-tokens", "10", "--per-passage", "3")
    running.kill_when(lambda: list((tmp_path / "q").glob("part-*")))
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "q").glob("part-*")}
    if not (tmp_path / "q" / "meta.json").exists():
        with pytest.raises(QontextError, match="not finished"):
            records.parquet_parts(tmp_path / "q")
    resumed = api.generate(passages, out=tmp_path / "q", **settings)
    assert resumed.digest == whole.digest and rows_of(resumed.path) == rows_of(whole.path)
    assert all((tmp_path / "q" / name).stat().st_mtime_ns == time for name, time in before.items())


def test_shards_make_what_one_process_makes(passages, tmp_path, start):
    whole = api.generate(passages, out=tmp_path / "whole", generator="keyphrase", part_passages=4)
    shards = [start(f"shard-{i}", "--generator", "keyphrase", "--shard", f"{i}/2") for i in range(2)]
    for shard in shards:
        assert shard.wait() == {0}, shard.text()
    assert artifacts.open_artifact(tmp_path / "q").digest == whole.digest


def test_existing_queries(passages, tmp_path, rows_of):
    (tmp_path / "given.jsonl").write_text(
        '{"id": "p1", "predicted_queries": ["why do bees dance", "Why do bees dance?", " "]}\n'
        '{"id": "p0", "query": "when was it built"}\n{"id": "nobody", "query": "x"}\n'
    )
    done = api.generate(passages, out=tmp_path / "q", generator="file", queries=tmp_path / "given.jsonl")
    assert rows_of(done.path) == [("p0", "when was it built", 0), ("p1", "why do bees dance", 0)]
    assert done.summary["dropped"] == {"empty": 1, "duplicates": 1, "echoes": 0}
    assert done.summary["not_in_file"] == 38 and done.summary["passages_without_queries"] == 38


def test_tsv_and_parquet_say_the_same(passages, tmp_path, rows_of):
    (tmp_path / "given.tsv").write_text("p2\twhy does bread rise\np2\twhat is gluten\n")
    tsv = api.generate(passages, out=tmp_path / "a", generator="file", queries=tmp_path / "given.tsv")
    again = api.generate(passages, out=tmp_path / "b", generator="file", queries=tsv)
    assert (
        rows_of(tsv.path)
        == rows_of(again.path)
        == [("p2", "why does bread rise", 0), ("p2", "what is gluten", 1)]
    )


def test_empty_passages_are_counted(write_passages, passage, tmp_path):
    path = write_passages([passage(0), passage(1, text="   "), passage(2, text="")])
    done = api.generate(path, out=tmp_path / "q", generator="keyphrase")
    assert done.summary["empty_passages"] == 2 and done.summary["passages_without_queries"] == 2


def test_cleaning_counts_what_it_drops(passage):
    from collections import Counter

    tally = Counter()
    bees = Passage("p", "", "Bees dance to tell others where the flowers are today", "d")
    queries = [
        "where are flowers?",
        "Where are flowers",
        "",
        " ?! ",
        "bees dance to tell others where the flowers are",
    ]
    assert clean(queries, bees, tally) == ["where are flowers?"]
    assert tally == {"duplicates": 1, "empty": 2, "echoes": 1}
    vowels = ["दिन", "दीन", "ราคาข่าว", "ราคาข้าว"]  # which differ in a vowel sign or a tone mark
    assert clean(vowels, bees, tally) == vowels
    assert clean(["I ❤️ flour", "I ❤ flour"], bees, tally) == ["I ❤️ flour"]
