"""Whatever happens to a file that a stage wrote: its reader says so in a sentence, and never goes on with it.

A file is damaged in two ways. *Cut* files have another size than was written, which their description tells. *Changed*
files have the size that was written, as if a disk had changed their content: their parsers and checks tell.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qontext import api
from qontext.corpus.store import check_ids, open_store
from qontext.data.collection import read_passages
from qontext.frame import artifacts
from qontext.frame.artifacts import META, Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import file_hash

SEARCH: dict[str, Any] = {"data": "data", "split": "test", "k": 3}
DENSE: dict[str, Any] = {**SEARCH, "precision": "fp32", "device": "cpu"}


def read_store() -> None:
    store = open_store("tokens")
    check_ids(store, 30_522, Path("tokens"))


def fresh(verb: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
    """The verb, into a directory that is not there."""
    shutil.rmtree("fresh", ignore_errors=True)
    return verb(*inputs, **settings, out="fresh")


READERS: dict[str, Callable[[], Any]] = {
    "passages": lambda: list(read_passages("passages")),
    "tokens": read_store,
    "vectors": lambda: fresh(api.retrieve, "vectors", **DENSE),
    "bm25": lambda: fresh(api.retrieve, "bm25", **SEARCH),
    "hnsw": lambda: fresh(api.retrieve, "hnsw", **DENSE),
    "residual": lambda: fresh(api.retrieve, "residual", **DENSE),
    "scores": lambda: fresh(api.report, ("scores",)),
    "fused": lambda: fresh(api.fuse, ("run", "run2"), weights_from="fused", method="zscore"),
}


def npy(array: Any, **settings: Any) -> bytes:
    file = BytesIO()
    np.save(file, array, **settings)
    return file.getvalue()


def parquet(**columns: Any) -> bytes:
    file = BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def change(file: Path, content: bytes) -> None:
    """Put other content into a part, and have the description say that it was always so large."""
    directory = next(folder for folder in file.parents if (folder / META).is_file())
    file.write_bytes(content)
    meta = json.loads((directory / META).read_text())
    meta["parts"][str(file.relative_to(directory))] |= {"bytes": len(content), "hash": file_hash(file)}
    (directory / META).write_text(json.dumps(meta))


def error_of(read: Callable[[], Any], directory: str) -> str:
    """The reader's sentence, which names the directory and says what to do."""
    with pytest.raises(QontextError) as caught:
        read()
    assert directory in str(caught.value.place), str(caught.value)
    assert caught.value.remedy or "damaged" not in caught.value.message
    return str(caught.value)


def test_every_reader_reads_what_is_whole(copy: Path) -> None:
    for read in READERS.values():
        read()


def part_names() -> Iterator[tuple[str, str]]:
    yield from (
        ("tokens", f"{name}.npy") for name in ("ids", "word_starts", "sentences", "offsets", "groups")
    )
    yield from (("passages", "part-00000.parquet"), ("tokens", "names.parquet"))
    yield from (("vectors", "vectors-00000.npy"), ("vectors", "ids-00000.parquet"))
    yield from (("hnsw", name) for name in ("index.faiss", "numbers.npy", "ids.parquet"))
    bm25 = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy", "ids.parquet")
    yield from (("bm25", f"bm25/{name}") for name in (*bm25, "params.index.json", "vocab.index.json"))
    residual = ("codec.json", "centroids.npy", "starts.npy", "tokens.npy", "residuals.npy")
    yield from (("residual", name) for name in (*residual, "list-starts.npy", "lists.npy", "ids.parquet"))
    yield from (("scores", name) for name in ("queries.parquet",))


@pytest.mark.parametrize(("directory", "name"), list(part_names()))
def test_a_file_that_is_cut_changed_or_gone(copy: Path, directory: str, name: str) -> None:
    file = copy / directory / name
    whole, meta = file.read_bytes(), (copy / directory / META).read_text()
    for content in (b"", whole[: len(whole) // 2], whole + b"x"):
        file.write_bytes(content)
        assert "damaged" in error_of(READERS[directory], directory)
    for content in (
        b"",
        whole[: len(whole) // 2],
        bytes(len(whole)),
        b"PK\x03\x04 zip",
        b"\x80" * 99,
    ):
        change(file, content)
        message = error_of(READERS[directory], directory)
        assert "damaged" in message and "Remove the directory" in message
        (copy / directory / META).write_text(meta)
    file.unlink()
    error_of(READERS[directory], directory)


CHANGED: list[tuple[str, str, bytes, str]] = [
    ("vectors", "vectors-00000.npy", npy(np.ones(300, np.float32)), "its shape is (300,)"),
    ("vectors", "vectors-00000.npy", npy(np.ones((299, 16), np.float32)), "its shape is (299, 16)"),
    ("vectors", "vectors-00000.npy", npy(np.ones((300, 16), np.int64)), "its type is int64"),
    ("vectors", "vectors-00000.npy", npy(np.array([{}] * 300), allow_pickle=True), "not a readable array"),
    ("vectors", "ids-00000.parquet", parquet(other=["a"] * 300), "has no column 'id'"),
    ("vectors", "ids-00000.parquet", parquet(id=[1.5] * 300), "has the type double"),
    ("vectors", "ids-00000.parquet", parquet(id=[None] * 300), "empty (null)"),
    ("vectors", "ids-00000.parquet", parquet(id=["a"] * 7), "its shape is (300, 16), expected 7"),
    ("tokens", "ids.npy", npy(np.full(5, 60_000, np.uint16)), "not ascending from 0 to 5"),
    ("tokens", "ids.npy", npy(np.zeros((2, 2), np.uint16)), "its shape is (2, 2)"),
    ("tokens", "ids.npy", npy(np.zeros(9, np.float32)), "its type is float32"),
    ("tokens", "groups.npy", npy(np.array([0, 400])), "not ascending from 0 to 300"),
    ("tokens", "groups.npy", npy(np.array([0, 200, 100, 300])), "not ascending from 0 to 300"),
    ("tokens", "sentences.npy", npy(np.array([5, 3])), "not ascending"),
    ("tokens", "sentences.npy", npy(np.array([0, 10**9])), "not ascending"),
    ("tokens", "word_starts.npy", npy(np.zeros(9, np.bool_)), "it has 9 of"),
    ("tokens", "names.parquet", parquet(name=["a"]), "it has 1 names for 300 texts"),
    ("hnsw", "numbers.npy", npy(np.arange(299)), "its shape is (299,)"),
    ("hnsw", "ids.parquet", parquet(id=["a"] * 299), "its shape is (300,), expected 299"),
    ("residual", "lists.npy", npy(np.zeros(9, np.uint16)), "does not cover the 9 entries"),
    ("residual", "tokens.npy", npy(np.full(5_100, 200, np.uint8)), "its numbers are not below 16"),
    ("residual", "starts.npy", npy(np.arange(9)), "its shape is (9,), expected 301"),
    ("residual", "centroids.npy", npy(np.zeros((2, 8), np.float32)), "its shape is (17,), expected 3"),
    ("residual", "centroids.npy", npy(np.zeros((16, 8), np.int64)), "its type is int64"),
    (
        "residual",
        "codec.json",
        b'{"edges": [0.0], "values": [0.0, 1.0, 2.0], "normalized": true}',
        "1 borders for 3",
    ),
    ("residual", "codec.json", b"{}", "edges: field required"),
    ("bm25", "bm25/ids.parquet", parquet(id=["a"] * 299), "it has 300 passages and 299 ids"),
    ("bm25", "bm25/indptr.csc.index.npy", npy(np.array([0, 9, 3])), "do not ascend"),
    ("bm25", "bm25/vocab.index.json", b'{"river": 99999}', "its term numbers are out of range"),
    ("bm25", "bm25/vocab.index.json", b"[1]", "input should be an object"),
    ("bm25", "bm25/params.index.json", b'{"num_docs": "many"}', "num_docs: input should be a valid integer"),
    ("scores", "queries.parquet", parquet(other=["a"]), "has no column 'query'"),
    ("passages", "part-00000.parquet", parquet(id=["a"]), "has no column"),
]


@pytest.mark.parametrize(("directory", "name", "content", "message"), CHANGED)
def test_a_file_that_says_something_else(
    copy: Path, directory: str, name: str, content: bytes, message: str
) -> None:
    change(copy / directory / name, content)
    assert message in error_of(READERS[directory], directory)


# Descriptions


# Making it again


def test_overwriting_makes_a_damaged_directory_again(copy: Path) -> None:
    file = copy / "vectors" / "vectors-00000.npy"
    whole = file.read_bytes()
    for content in (whole[:-4], whole[:-4] + b"abcd"):
        file.write_bytes(content)
        api.encode("data", encoder="encoder", precision="fp32", device="cpu", out="vectors", overwrite=True)
        assert file.read_bytes() == whole


def test_a_model_card_may_be_edited(copy: Path) -> None:
    work = Workdir(copy / "card")
    claim = {"verb": "x", "format": 1, "config": {}, "inputs": {}, "key": ""}
    for name in ("README.md", "model.txt"):
        with work.write(name) as path:
            path.write_text("as written")
    artifact = artifacts.finish(work, claim, {}, 0.0)
    (artifact.path / "README.md").write_text("edited by its owner")
    assert len(artifact.parts()) == 2 and not artifact.is_damaged()
    (artifact.path / "model.txt").write_text("AS WRITTEN")
    assert artifact.is_damaged()
