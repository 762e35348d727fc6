"""Published data sets: ``hf:NAME[:CONFIG][/SPLIT]`` through the datasets library, ``ir_datasets:NAME`` through ir_datasets.

The former is ORGANIZATION/NAME, streamed from the Hugging Face Hub, or a folder, saved by the datasets library or with data
files. The default split is the only one, or `train`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.corpus.sources import records
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.records import Fields, Record
from qontext.data.dpr import columns
from qontext.data.records import Document
from qontext.frame import log
from qontext.frame.errors import QontextError, choose, missing_extra
from qontext.frame.files import json_digest
from qontext.frame.inputs import fingerprint, stamp
from qontext.models import hub

_PLAIN = ("string", "large_string", "bool", "int8", "int16", "int32", "int64", "float32", "float64")
"""Column types that are read as metadata."""


class HuggingFace(Source):
    """The rows of one split."""

    def __init__(self, uri: str, name: str, names: FieldNames) -> None:
        super().__init__(uri, has_passages=True)
        self.fields = Fields(names)
        path, config, split = parse(name)
        splits = _load(uri, path, config)
        split = split or ("train" if "train" in splits or len(splits) > 1 else next(iter(splits)))
        self.rows = splits[choose(split, splits, f"split of {path}")]
        there = self.rows.column_names
        if there:  # a streamed data set may not know its columns
            self.fields.check(there, uri)
            kinds = self.rows.features or {}
            self.rows = self.rows.select_columns(
                [n for n in there if n in self.fields.all or getattr(kinds.get(n), "dtype", "") in _PLAIN]
            )

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> HuggingFace:
        return cls(uri, rest, fields)

    @classmethod
    def fingerprint(cls, rest: str) -> str | None:
        folder = Path(parse(rest)[0])
        return json_digest([rest, fingerprint(folder)]) if folder.is_dir() else None

    @classmethod
    def stamp(cls, rest: str) -> str:
        folder = Path(parse(rest)[0])
        return stamp(folder) if folder.is_dir() else ""

    def documents(self) -> Iterator[Document | Problem]:
        rows = enumerate(self.rows, 1)
        return records.documents(self.fields.read(row, f"{self.name}: row {number}") for number, row in rows)


def parse(name: str) -> tuple[str, str | None, str | None]:
    """The part after ``hf:`` → (name or folder, configuration, split)."""
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser()), None, None
    path, colon, rest = name.rpartition(":")
    if colon:
        config, _, split = rest.partition("/")
        return str(Path(path).expanduser()), config or None, split or None
    above, _, last = name.rpartition("/")
    if (Path(above).expanduser().is_dir() and above) or above.count("/") == 1:
        return str(Path(above).expanduser()), None, last
    return name, None, None


def _load(uri: str, path: str, config: str | None) -> dict[str, Any]:
    """split → rows, streamed; memory-mapped if the files are local."""
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "datasets", uri) from None
    if (Path(path) / "dataset_dict.json").is_file():
        return dict(datasets.load_from_disk(path))
    if (Path(path) / "state.json").is_file():
        return {"train": datasets.load_from_disk(path)}
    if not Path(path).is_dir():
        log.note(f"Reading the data set {path} from the Hugging Face Hub …")
    try:
        return dict(datasets.load_dataset(path, config, streaming=Path(path).is_dir() or hub.online()))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise QontextError(f"cannot be opened: {reason}", place=uri) from error


class IrDatasets(Source):
    """The documents of a test collection, in order. The package downloads files that are not yet in its folder."""

    def __init__(self, uri: str, name: str) -> None:
        try:
            import ir_datasets
        except ImportError:
            raise missing_extra("ir_datasets", "datasets", uri) from None
        try:
            self.dataset = ir_datasets.load(name)
        except KeyError:
            near = difflib.get_close_matches(name, ir_datasets.registry, n=3)
            remedy = f"Did you mean {' or '.join(near)}?" if near else "All names: https://ir-datasets.com"
            raise QontextError("no such data set in ir_datasets", place=uri, remedy=remedy) from None
        super().__init__(uri, has_passages=not name.startswith("msmarco-document"), has_ids=True)

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> IrDatasets:
        return cls(uri, rest)

    def documents(self) -> Iterator[Document | Problem]:
        if self.name.startswith("ir_datasets:dpr-w100"):
            return records.documents(records.by_title(self._records(quoted=True)))
        return records.documents(self._records()) if self.has_passages else records.whole(self._records())

    def _records(self, *, quoted: bool = False) -> Iterator[Record | Problem]:
        reader = Fields(FieldNames(id="doc_id", text="text|body", doc=""))
        for number, doc in enumerate(self.dataset.docs_iter(), 1):
            record = doc._asdict()
            if "text" not in record and "body" not in record:
                record = {"doc_id": doc.doc_id, "text": doc.default_text()}
            if quoted:
                record = dict(zip(record, columns("\t".join(record.values()))))
            yield reader.read(record, f"{self.name}: document {number}")
