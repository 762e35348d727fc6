"""`ir_datasets:NAME`: the documents of a test collection, through the ir_datasets package.

The package downloads files that are not yet in its folder. The network is checked first.
"""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.corpus.sources import fields
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.fields import Fields, Record
from qontext.corpus.sources.records import by_title
from qontext.data.dpr import columns
from qontext.data.records import Document
from qontext.frame.errors import QontextError, missing_extra
from qontext.models import hub

_NAMES = FieldNames(id="doc_id", title="title", text="text|body", doc="")


class IrDatasets(Source):
    """The documents of a data set, in order."""

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
            raise QontextError(
                "ir_datasets has no data set with this name", place=uri, remedy=remedy
            ) from None
        if not self.dataset.has_docs():
            raise QontextError("this data set has no documents", place=uri)
        super().__init__(uri, has_passages=not name.startswith("msmarco-document"), has_ids=True)

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> IrDatasets:
        return cls(uri, rest)

    def documents(self) -> Iterator[Document | Problem]:
        urls = _to_fetch(self.dataset.docs_handler())
        if urls and not any(map(hub.reachable, urls[:2])):
            raise QontextError(
                "its documents are not on this machine and cannot be downloaded without a network",
                place=self.name,
                remedy=f"Run the command once where {urls[0]} can be reached.",
            )
        if self.name.startswith("ir_datasets:dpr-w100"):
            return fields.documents(by_title(self._records(quoted=True)))
        return fields.documents(self._records()) if self.has_passages else fields.whole(self._records())

    def _records(self, *, quoted: bool = False) -> Iterator[Record | Problem]:
        reader, number = Fields(_NAMES), 0
        try:
            for number, doc in enumerate(self.dataset.docs_iter(), 1):
                record = doc._asdict()
                if "text" not in record and "body" not in record:
                    record = {"doc_id": doc.doc_id, "text": doc.default_text()}
                if quoted:
                    record = dict(zip(record, columns("\t".join(record.values()))))
                yield reader.read(record, f"{self.name}: document {number}")
        except Exception as error:  # any error of its many formats and hosts
            raise QontextError(
                f"ir_datasets could not read document {number + 1}: {type(error).__name__}: {error}",
                place=self.name,
            ) from error


def _to_fetch(node: Any) -> list[str] | None:
    """The URLs from which the package would download one of its objects; None if it is local. The package has
    no public API for this. If its internals change, no URL is found, and its own timeouts apply.
    """
    for attribute in ("_path", "_cache_path"):
        path = getattr(node, attribute, None)
        if isinstance(path, str | os.PathLike) and Path(path).exists():
            return None
    if isinstance(getattr(node, "url", None), str):
        return [node.url]
    values = itertools.chain.from_iterable(v if isinstance(v, list) else [v] for v in vars(node).values())
    parts = [_to_fetch(value) for value in values if type(value).__module__.startswith("ir_datasets")]
    absent = [urls for urls in parts if urls is not None]
    if (parts and not absent) or (hasattr(node, "mirrors") and len(absent) < len(parts)):
        return None
    return [url for urls in absent for url in urls]
