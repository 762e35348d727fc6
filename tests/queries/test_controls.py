"""Generators without a model that stand beside generated queries as controls: title, first sentence, random spans."""

from qontext import api


def test_the_title(write_passages, passage, tmp_path, rows_of):
    path = write_passages([passage(0), passage(1, title=""), passage(2, title="  "), passage(3)])
    done = api.generate(path, out=tmp_path / "q", generator="title")
    assert rows_of(done.path) == [("p0", "Aldermoor", 0), ("p3", "Glacier", 0)]
    assert done.summary["passages_without_queries"] == 2


def test_the_first_sentence(write_passages, passage, tmp_path, rows_of):
    texts = [
        "Dr. Finch lit the lamp at 5.30 p.m. yesterday. It stands (so they say) on a cliff, "
        "and many ships were saved by its light.",
        "No end at all here and that is the end",
        "(Nothing.)",
    ]
    path = write_passages([passage(n, text=text) for n, text in enumerate(texts)])
    done = api.generate(path, out=tmp_path / "q", generator="lead")
    assert rows_of(done.path) == [("p0", "Dr. Finch lit the lamp at 5.30 p.m. yesterday.", 0)]
    assert done.summary["dropped"]["echoes"] == 1, "a passage of one sentence"
    assert done.summary["passages_without_queries"] == 2


def test_random_spans(write_passages, passage, tmp_path, rows_of):
    words = [f"w{n}" for n in range(100)]
    path = write_passages([passage(n, text=" ".join(words)) for n in range(60)])
    same = {"generator": "span", "shortest": 3, "longest": 6, "title": "leave"}
    rows = rows_of(api.generate(path, out=tmp_path / "q", **same).path)
    starts, sizes = set(), []
    for _, query, _ in rows:
        start = words.index(query.split()[0])
        assert query.split() == words[start : start + len(query.split())]
        starts.add(start)
        sizes.append(len(query.split()))
    assert {*sizes} == {3, 4, 5, 6} and min(sizes.count(n) for n in (3, 4, 5, 6)) > 40
    assert min(starts) < 5 and max(starts) > 90
    parts = rows_of(api.generate(path, out=tmp_path / "parts", part_passages=7, **same).path)
    assert parts == rows
    assert rows_of(api.generate(path, out=tmp_path / "other", seed=1, **same).path) != rows
