"""Data sets through ir_datasets and Hugging Face datasets: local ones, and being offline."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from qontext.corpus.sources import FieldNames, Problem, fingerprint, open_source, stamp
from qontext.data.records import Document


def read(uri: str) -> list[Document]:
    items = list(open_source(uri, fields=FieldNames()).documents())
    assert not [item for item in items if isinstance(item, Problem)], items
    return [item for item in items if isinstance(item, Document)]


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers a data set of ir_datasets whose documents are in a TSV file written here."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    ir_datasets = pytest.importorskip("ir_datasets")
    registered: dict[str, Any] = ir_datasets.registry._registered

    def register(name: str, rows: str, doc_class: type | None = None, **settings: Any) -> str:
        path = tmp_path / "docs.tsv"
        path.write_text(rows, encoding="utf-8")
        documents = ir_datasets.formats.TsvDocs(
            ir_datasets.util.LocalDownload(path), doc_class or ir_datasets.formats.GenericDoc, **settings
        )
        monkeypatch.delitem(registered, name, raising=False)
        ir_datasets.registry.register(name, ir_datasets.datasets.base.Dataset(documents))
        return f"ir_datasets:{name}"

    return register


def test_passages_of_ir_datasets(register: Any) -> None:
    uri = register("tiny-passages", "p1\tOne.\np2\tTwo.\n")
    assert open_source(uri, fields=FieldNames()).has_passages
    assert read(uri) == [
        Document("p1", "", "", f"{uri}: document 1", (("p1", "One."),)),
        Document("p2", "", "", f"{uri}: document 2", (("p2", "Two."),)),
    ]


def test_msmarco_documents_of_ir_datasets(register: Any) -> None:
    doc_class = importlib.import_module("ir_datasets.datasets.msmarco_document").MsMarcoDocument
    uri = register("msmarco-document-tiny", "D1\thttp://x\tTitle\tBody.\n", doc_class)
    assert not open_source(uri, fields=FieldNames()).has_passages
    metadata = '{"url": "http://x"}'
    assert read(uri) == [Document("D1", "Title", "Body.", f"{uri}: document 1", metadata=metadata)]


def test_dpr_of_ir_datasets_is_unquoted_and_grouped_by_title(register: Any) -> None:
    doc_class = importlib.import_module("ir_datasets.datasets.dpr_w100").DprW100Doc
    rows = 'id\ttext\ttitle\n1\t"Say ""a""."\tA\n2\tb\tA\n3\tc\tC\n'
    uri = register("dpr-w100-tiny", rows, doc_class, skip_first_line=True)
    assert [(d.id, d.title, d.passages) for d in read(uri)] == [
        ("1", "A", (("1", 'Say "a".'), ("2", "b"))),
        ("3", "C", (("3", "c"),)),
    ]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Folders as the datasets library writes and reads them: `one`, `splits` and `files`."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict(
        {"_id": ["a#0", "a#1", "b#0"], "text": ["x", "y", "z"], "doc_id": ["a", "a", "b"], "label": [1, 2, 3]}
    )
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"dev": rows, "test": rows.select([2])}).save_to_disk(tmp_path / "splits")
    (tmp_path / "files").mkdir()
    for split, number in (("train", 1), ("test", 2)):
        line = json.dumps({"id": number, "paragraphs": ["one", "two"]})
        (tmp_path / "files" / f"{split}.jsonl").write_text(line)
    return tmp_path


def test_a_local_hugging_face_data_set_is_hashed(saved: Path) -> None:
    uri = f"hf:{saved}/files/train"
    before = fingerprint(uri), stamp(uri)
    assert before == (fingerprint(uri), stamp(uri)) and None not in before
    (saved / "files" / "train.jsonl").write_text('{"id": 1, "text": "changed"}')
    assert fingerprint(uri) != before[0] and stamp(uri) != before[1]
    assert (fingerprint("hf:some/name"), stamp("hf:some/name")) == (None, "")


def test_a_saved_hugging_face_data_set(saved: Path) -> None:
    uri = f"hf:{saved}/one"
    assert read(uri) == [
        Document(
            "a",
            "",
            "",
            f"{uri}: row 1",
            (("a#0", "x"), ("a#1", "y")),
            passage_metadata=('{"label": 1}', '{"label": 2}'),
            passage_places=(f"{uri}: row 1", f"{uri}: row 2"),
        ),
        Document("b", "", "", f"{uri}: row 3", (("b#0", "z"),), metadata='{"label": 3}'),
    ]
    assert [d.id for d in read(f"hf:{saved}/splits/test")] == ["b"]


def test_data_files_through_hugging_face(saved: Path) -> None:
    assert [d.passages for d in read(f"hf:{saved}/files")] == [(("1#0", "one"), ("1#1", "two"))]
    assert [d.id for d in read(f"hf:{saved}/files/test")] == ["2"]
    assert [d.id for d in read(f"hf:{saved}/files:default/test")] == ["2"]
