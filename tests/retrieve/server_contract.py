"""What every index server must keep, as tests of a fixture `server`; modules import them beside a fixture of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.retrieve.conftest import write_vectors

from qontext import api
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.frame.inputs import fingerprint
from qontext.retrieve.index.load import open_index
from qontext.retrieve.stored import open_vectors
from qontext.retrieve.where import mask, parse

DIMENSIONS = 8


@dataclass
class Server:
    """A server that is asked, and how: `count`, `row` and `rows` look past Qontext at what it holds."""

    backend: str
    uri: str
    names: str
    """The setting that names the collection."""
    count: Callable[[str], int]
    row: Callable[[str, str], dict[str, Any]]
    rows: Callable[[str], list[tuple[int, str, list[float]]]]
    """Number, id and vector of all rows."""
    drop: Callable[[str], Any]
    missing: str
    """An address at which nothing listens."""
    dies: str
    """Code that kills the process in the middle of the second part."""
    settings: dict[str, Any] = field(default_factory=dict)
    translates: int = 0
    """At least so many of the conditions below."""

    def settings_of(self, name: str, **more: Any) -> dict[str, Any]:
        return {"backend": self.backend, "uri": self.uri, self.names: name, **self.settings, **more}

    def index(self, vectors: Artifact, out: Path, name: str, **more: Any) -> Artifact:
        return api.index(vectors, out=out, **self.settings_of(name, **more))

    def killed(self, vectors: Artifact, out: Path, name: str, **more: Any) -> None:
        """Start a build that is killed."""
        code = textwrap.dedent(self.dies) + textwrap.dedent("""
            import json, sys
            from qontext import api
            api.index(sys.argv[1], out=sys.argv[2], **json.loads(sys.argv[3]))
        """)
        settings = json.dumps(self.settings_of(name, **more), default=str)
        done = subprocess.run([sys.executable, "-c", code, str(vectors.path), str(out), settings])
        assert done.returncode == -signal.SIGKILL


def texts_of(rows: int, start: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """id → vector, in a random order."""
    rng = np.random.default_rng(start)
    return {
        f"p{number:03d}": rng.standard_normal(DIMENSIONS).astype(np.float32)
        for number in start + rng.permutation(rows)
    }


def written(folder: Path, texts: dict[str, np.ndarray[Any, Any]], **more: Any) -> Artifact:
    """Vectors in parts of 40."""
    ids, array = list(texts), np.stack(list(texts.values()))
    parts = [(ids[at : at + 40], array[at : at + 40]) for at in range(0, len(ids), 40)]
    return write_vectors(folder, parts, **more)


def changed(texts: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Without some, with others, with other vectors of some."""
    kept = {
        id: -vector if id.endswith("7") else vector for id, vector in texts.items() if not id.endswith("3")
    }
    new = {f"{id}-new": vector * 0.5 for id, vector in list(texts.items())[::9]}
    return {**new, **kept}


def check_search(index: Artifact, texts: dict[str, np.ndarray[Any, Any]]) -> None:
    """It returns what comparing all vectors returns."""
    opened, _ = open_index(index.path)
    ids = np.array(sorted(texts), dtype=object)
    array = np.stack([texts[id] for id in ids])
    queries = np.random.default_rng(5).standard_normal((10, DIMENSIONS)).astype(np.float32)
    assert list(opened.ids) == list(ids)
    best = np.argsort(-(queries @ array.T), axis=1, kind="stable")
    numbers, scores = opened.search(queries, 10)
    assert numbers.tolist() == best[:, :10].tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ array.T, numbers, 1), rtol=1e-5)
    rows = np.random.default_rng(6).random(len(ids)) < 0.4
    numbers, _ = opened.search(queries, 10, rows)
    assert numbers.tolist() == [[n for n in row if rows[n]][:10] for row in best.tolist()]
    opened.client.close()  # type: ignore[attr-defined]


def test_a_killed_build_resumes(server: Server, tmp_path: Path) -> None:
    texts = texts_of(100)
    vectors = written(tmp_path / "vectors", texts)
    server.killed(vectors, tmp_path / "index", "killed")
    index = server.index(vectors, tmp_path / "index", "killed")
    assert server.count("killed") == 100
    check_search(index, texts)


def test_an_index_that_replaces_an_earlier_one_with_other_settings(server: Server, tmp_path: Path) -> None:
    """The collection is created again."""
    before, after = texts_of(50), changed(texts_of(50))
    earlier = server.index(written(tmp_path / "before", before), tmp_path / "earlier", "settings")
    vectors = written(tmp_path / "after", after)
    index = server.index(vectors, tmp_path / "index", "settings", replace=earlier.path, effort=100)
    assert server.count("settings") == len(after)
    check_search(index, after)


def test_a_killed_build_that_replaces_an_earlier_index(server: Server, tmp_path: Path) -> None:
    name, before, after = "replaced", texts_of(100), changed(texts_of(100))
    earlier = server.index(written(tmp_path / "before", before), tmp_path / "earlier", name)
    vectors = written(tmp_path / "after", after)
    server.killed(vectors, tmp_path / "index", name, replace=str(earlier.path))
    index = server.index(vectors, tmp_path / "index", name, replace=earlier.path)
    assert server.count(name) == len(after)
    check_search(index, after)
    with pytest.raises(QontextError, match=f"{name}.* was written by another build"):
        open_index(earlier.path)


def test_an_unfinished_build_with_other_settings_is_replaced(server: Server, tmp_path: Path) -> None:
    texts = texts_of(100)
    vectors = written(tmp_path / "vectors", texts)
    server.killed(vectors, tmp_path / "unfinished", "blocked")
    with pytest.raises(QontextError, match=r"'blocked'.* already exists.*, finished or not, with --replace"):
        server.index(vectors, tmp_path / "index", "blocked", effort=100)
    index = server.index(vectors, tmp_path / "index", "blocked", effort=100, replace=tmp_path / "unfinished")
    assert server.count("blocked") == 100
    check_search(index, texts)


def test_only_rows_that_changed_are_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.retrieve.index.servers import milvus, postgres

    counts: list[int] = []
    for store in (milvus.MilvusCollection, postgres.PostgresTable):
        write = store.write

        def counted(self: Any, build: str, part: int, rows: Any, write: Any = write) -> None:
            counts.append(len(rows.keys))
            write(self, build, part, rows)

        monkeypatch.setattr(store, "write", counted)
    before = texts_of(100)
    earlier = server.index(written(tmp_path / "before", before), tmp_path / "earlier", "few")
    after = {id: -vector if id == "p017" else vector for id, vector in before.items() if id != "p044"}
    server.index(written(tmp_path / "after", after), tmp_path / "index", "few", replace=earlier.path)
    assert sum(counts) == 100 + 1 and server.count("few") == 99


def test_a_collection_that_exists_is_refused(server: Server, tmp_path: Path) -> None:
    vectors = written(tmp_path / "vectors", texts_of(50))
    server.index(vectors, tmp_path / "index", "taken")
    with pytest.raises(QontextError, match=r"'taken'.* already exists. Choose another name"):
        server.index(vectors, tmp_path / "other", "taken")
    assert not (tmp_path / "other").exists()
    inputs = {"encoder": {"path": "elsewhere", "digest": "e"}}
    others = written(tmp_path / "others", texts_of(50, 1), inputs=inputs)
    with pytest.raises(QontextError, match=r"'taken'.* already exists, with vectors of another encoder"):
        server.index(others, tmp_path / "other", "taken")
    assert server.count("taken") == 50


def test_texts_are_stored(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = [
        {"_id": f"p{i}", "doc_id": f"d{i // 2}", "title": f"T{i}", "text": f"text 'ä' \0 {i}", "lang": "de"}
        for i in range(50)
    ]
    (tmp_path / "data" / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    inputs = {"texts": {"path": str(tmp_path / "data"), "digest": fingerprint(tmp_path / "data")}}
    array = np.random.default_rng(0).standard_normal((50, DIMENSIONS)).astype(np.float32)
    parts = [([line["_id"] for line in lines][at : at + 20], array[at : at + 20]) for at in (0, 20, 40)]
    vectors = write_vectors(tmp_path / "vectors", parts, inputs=inputs)
    server.index(vectors, tmp_path / "index", "texts", with_text=True)
    row = server.row("texts", "p21")
    np.testing.assert_allclose(row["vector"], array[21], rtol=1e-6)
    assert (row["document"], row["title"], row["metadata"]) == ("d10", "T21", {"lang": "de"})
    assert row["text"].replace("\0", "␀") == "text 'ä' ␀ 21"
    moved = write_vectors(tmp_path / "moved", [([f"x{i}" for i in range(50)], array)], inputs=inputs)
    with pytest.raises(QontextError, match="data: does not hold the passages that were encoded"):
        server.index(moved, tmp_path / "other", "others", with_text=True)


def test_conditions_are_left_to_a_server_that_means_the_same(server: Server, tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    values: dict[str, list[Any]] = {
        "lang": ["de", "fr", "100%", "D", "De"],
        "year": [2001, 2001.0, 2002.5, "2001", "two"],
        "tags": [["a", "b"], ["b"], [], "a", [2001, "a_c"]],
        "open": [True, False, "true", 1],
        "folder": ["guide", "guide/intro", "guides", "a\\b", "a_b"],
    }
    lines: list[dict[str, Any]] = [{"_id": f"p{i:02d}", "text": f"text {i}"} for i in range(60)]
    for line in lines:
        for name, known in values.items():
            if dice.random() < 0.8:
                line[name] = known[dice.integers(len(known))]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    inputs = {"texts": {"path": str(tmp_path / "data"), "digest": fingerprint(tmp_path / "data")}}
    array = dice.standard_normal((60, DIMENSIONS)).astype(np.float32)
    vectors = write_vectors(tmp_path / "vectors", [([line["_id"] for line in lines], array)], inputs=inputs)
    opened, _ = open_index(server.index(vectors, tmp_path / "index", "conditions", with_text=True).path)
    queries = dice.standard_normal((3, DIMENSIONS)).astype(np.float32)
    alone = """lang=de lang!=de lang=de|fr lang=d* lang!=d*|f* lang=100% lang>D lang<=d year=2001 year!=2001 year>2001
    year<=2002.5 tags=a tags!=a tags=a|b tags=2001 tags=a_* open=true open!=True open=1 folder=guide folder!=guide/
    folder=a\\b folder=a_b folder=*b lang= year=9007199254740993""".split()
    translated = 0
    for where in ([condition] for condition in alone), (["lang=de|fr", "tags!=b"], ["open=true", "lang!=de"]):
        for conditions in where:
            rows = opened.where(parse(conditions))
            if rows is None:
                continue
            translated += 1
            wanted = mask(conditions, opened.ids, tmp_path / "data")
            numbers, scores = opened.search(queries, 60, rows)
            expected, their_scores = opened.search(queries, 60, wanted)
            assert [[n for n in row if n >= 0] for row in numbers.tolist()] == expected.tolist(), conditions
            np.testing.assert_allclose(scores[:, : expected.shape[1]], their_scores, rtol=1e-5)
    assert translated >= server.translates
    assert opened.where(parse(["color=red"])) is None and opened.where(parse(["title=T"])) is None
    opened.client.close()  # type: ignore[attr-defined]


def test_a_collection_that_is_gone(server: Server, tmp_path: Path) -> None:
    index = server.index(written(tmp_path / "vectors", texts_of(50)), tmp_path / "index", "gone")
    meta = json.loads((index.path / "meta.json").read_text())
    meta["config"][server.names] = "never"
    (index.path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(QontextError, match=r"'never'.* does not exist. Build the index again"):
        open_index(index.path)


def test_a_missing_server_is_one_sentence(server: Server, tmp_path: Path) -> None:
    vectors = written(tmp_path / "vectors", texts_of(50))
    assert open_vectors(vectors.path).dimension == DIMENSIONS
    with pytest.raises(
        QontextError, match=r"(cannot reach Milvus|PostgreSQL: connection failed).*(Start|Check)"
    ):
        server.index(vectors, tmp_path / "index", "missing", uri=server.missing)
    assert not (tmp_path / "index").exists()
