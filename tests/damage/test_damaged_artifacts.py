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
    "vectors": lambda: fresh(api.search, "vectors", **DENSE),
    "bm25": lambda: fresh(api.search, "bm25", **SEARCH),
    "hnsw": lambda: fresh(api.search, "hnsw", **DENSE),
    "residual": lambda: fresh(api.search, "residual", **DENSE),
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
    yield from (("scores", name) for name in ("queries.parquet", "curves.json"))


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
    ("vectors", "vectors-00000.npy", npy(np.ones((300, 16), np.float64)), "its type is float64"),
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
    ("hnsw", "numbers.npy", npy(np.arange(300) + 1), "its numbers are not below 300"),
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
    ("scores", "curves.json", b'{"depths": 3, "curves": {}}', "depths: input should be a valid"),
    ("passages", "part-00000.parquet", parquet(id=["a"]), "has no column"),
]


@pytest.mark.parametrize(("directory", "name", "content", "message"), CHANGED)
def test_a_file_that_says_something_else(
    copy: Path, directory: str, name: str, content: bytes, message: str
) -> None:
    change(copy / directory / name, content)
    assert message in error_of(READERS[directory], directory)


def test_token_ids_beyond_the_vocabulary(copy: Path) -> None:
    ids = np.array(np.load("tokens/ids.npy"))
    ids[-1] = 60_000
    change(copy / "tokens" / "ids.npy", npy(ids))
    assert "it contains the token id 60,000, the vocabulary has 30,522 entries" in error_of(
        read_store, "tokens"
    )
    training = {"encoder": "encoder", "method": "condenser", "steps": 1, "batch_size": 4, "device": "cpu"}
    with pytest.raises(QontextError, match=r"ids\.npy: damaged: it contains the token id 60,000"):
        api.pretrain("tokens", **training, max_tokens=32, early_layer_number=1, out="pretrained")


def test_text_that_is_no_text(copy: Path) -> None:
    table = pq.read_table("vectors/ids-00000.parquet")
    wrong = pa.Array.from_buffers(
        pa.string(), 300, [*pa.array(["é"] * 300).buffers()[:2], pa.py_buffer(b"\xe9" * 600)]
    )
    file = BytesIO()
    pq.write_table(table.set_column(0, "id", wrong), file)
    change(copy / "vectors" / "ids-00000.parquet", file.getvalue())
    assert "the column 'id' contains text that is not UTF-8" in error_of(READERS["vectors"], "vectors")


# Descriptions

META_PATHS = [
    ("verb",), ("key",), ("config",), ("inputs",), ("digest",), ("summary",), ("parts",), ("made",),
    ("made", "seconds"), ("made", "finished"), ("made", "python"), ("made", "by"), ("made", "machine"),
    ("made", "machine", "gpus"), ("made", "machine", "versions"),
]  # fmt: skip
READ_VALUES = [
    ("vectors", "config", "kind"), ("vectors", "inputs", "encoder"), ("hnsw", "summary", "encoder"),
    ("hnsw", "config", "backend"), ("bm25", "config", "backend"), ("fused", "summary", "weights"),
    ("fused", "config", "method"), ("scores", "inputs", "qrels"), ("scores", "inputs", "run"),
]  # fmt: skip
ODD: list[Any] = [None, 5, "x", [], {}, {"x": None}, [None], -1.5, True]


def replaced(meta: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The description with the value at a path; without it, where the value is `...`."""
    changed = json.loads(json.dumps(meta))
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    if value is ...:
        del inner[path[-1]]
    return changed


def only_sentences(read: Callable[[], Any]) -> None:
    """Reading works, or says why not; anything else fails the test."""
    try:
        read()
    except QontextError as error:
        assert len(str(error)) < 600


@pytest.mark.parametrize("path", META_PATHS)
def test_a_description_with_odd_values(copy: Path, path: tuple[str, ...]) -> None:
    file = copy / "scores" / META
    meta = json.loads(file.read_text())
    for value in (..., *ODD):
        file.write_text(json.dumps(replaced(meta, path, value)))
        only_sentences(lambda: api.show("scores"))
        only_sentences(lambda: api.show("."))
        only_sentences(READERS["scores"])


@pytest.mark.parametrize(("directory", "section", "name"), READ_VALUES)
def test_a_description_without_what_is_read(copy: Path, directory: str, section: str, name: str) -> None:
    file = copy / directory / META
    meta = json.loads(file.read_text())
    file.write_text(json.dumps(replaced(meta, (section, name), ...)))
    message = error_of(READERS[directory], directory)
    assert f"its {section} has no {name!r}" in message
    for value in ODD:
        file.write_text(json.dumps(replaced(meta, (section, name), value)))
        only_sentences(READERS[directory])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"verb": "encode"}'])
def test_a_description_that_is_none(copy: Path, content: bytes) -> None:
    for directory, read in READERS.items():
        (copy / directory / META).write_bytes(content)
        assert f"{META}: damaged" in error_of(read, directory)


def test_a_claim_that_is_damaged(copy: Path) -> None:
    for content in ("", "{}", "[1]", '{"verb": 5, "key": "", "config": {}, "inputs": {}}'):
        shutil.rmtree("half", ignore_errors=True)
        Path("half").mkdir()
        Path("half/claim.json").write_text(content)
        for read in (
            lambda: fresh(api.search, "half", **DENSE),
            lambda: api.split("data", keep=True, out="half"),
        ):
            assert "claim.json: damaged" in error_of(read, "half")


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


def test_a_damaged_chunk_of_an_unfinished_store_can_be_removed(copy: Path) -> None:
    """What stands in an unfinished directory is named, and without it the same command ends as ever."""
    expected = {file.name: file.read_bytes() for file in Path("tokens").glob("*.npy")}
    meta = json.loads(Path("tokens/meta.json").read_text())
    shutil.rmtree("tokens")
    Path("tokens").mkdir()
    claim = {name: meta[name] for name in ("verb", "format", "config", "inputs", "key")}
    Path("tokens/claim.json").write_text(json.dumps(claim))
    chunk = Path("tokens/chunk-00000.npz")
    for content in (b"", b"PK\x03\x04 no archive", npy(np.zeros(3))):
        chunk.write_bytes(content)
        message = error_of(
            lambda: api.tokens("passages", tokenizer="encoder", workers=1, out="tokens"), "tokens"
        )
        assert (
            "chunk-00000.npz: damaged" in message and "Remove it, and run the same command again" in message
        )
    chunk.unlink()
    api.tokens("passages", tokenizer="encoder", workers=1, out="tokens")
    assert {file.name: file.read_bytes() for file in Path("tokens").glob("*.npy")} == expected
