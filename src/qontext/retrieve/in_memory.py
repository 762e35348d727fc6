"""Passages in memory; saved as a directory that is searched and served."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.data.places import Found
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import INDEX, write_adapted
from qontext.retrieve.open import Searchable
from qontext.retrieve.rankers import Among, IndexRanker, everything
from qontext.retrieve.system import WEIGHTS, System

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.retrieve.index import Index


class InMemory(Searchable):
    """Passages in memory, their index of words and, with an encoder, their vectors."""

    def __init__(
        self, passages: Iterable[Passage | str], encoder: str | os.PathLike[str] | None, device: str
    ) -> None:
        from qontext.data.load import as_passages
        from qontext.retrieve.bm25 import Bm25
        from qontext.retrieve.index.lexical import LexicalIndex

        self.device, self._model = device, encoder
        own = list(as_passages(passages))
        self.lexical = LexicalIndex(Bm25.build(own))  # refuses ids that occur twice
        self._by_id = {passage.id: passage for passage in own}
        self.system = System("start" if encoder is not None else None, words=True)
        self._words = IndexRanker(self.lexical)
        self._dense = None if encoder is None else self._encoded(encoder, device)

    def _encoded(self, encoder: str | os.PathLike[str], device: str) -> IndexRanker:
        import numpy as np

        from qontext.models.retriever import Retriever
        from qontext.retrieve.index.load import index_of_arrays

        self.encoder = retriever = Retriever(encoder, device=device, packed=True)
        ordered = sorted(self._by_id)
        encoded: Any = retriever.encode_passages([self._by_id[id] for id in ordered])
        index: Index = index_of_arrays(
            np.array(ordered, dtype=object), encoded, retriever.layout.representation, retriever.dimension
        )
        return IndexRanker(index, retriever)

    def __str__(self) -> str:
        return f"{len(self._by_id):,} passages"

    @property
    def words(self) -> IndexRanker:
        return self._words

    @property
    def dense(self) -> IndexRanker | None:
        return self._dense

    def find(self, ids: set[str]) -> Mapping[str, Found]:
        return {id: Found(self._by_id[id]) for id in ids if id in self._by_id}

    def among(self, where: tuple[str, ...]) -> Among:
        if where:
            raise QontextError("passages in memory have no metadata to filter by")
        return everything

    def save(self, root: Path) -> None:
        """Write what a directory of `adapt` needs to be searched; its encoder is referred to."""
        from qontext.data.collection import passage_row
        from qontext.frame.execution import command
        from qontext.models.reference import refer

        self.ranker()  # refuses a system that is not there
        if self.encoder is not None and self.encoder.is_packed:
            raise QontextError(
                f"passages with the representation {self.encoder.layout.representation!r} are not saved as a directory",
                remedy="Write them with 'qontext encode', whose output is searched and served.",
            )
        if root.exists() and any(root.iterdir()):
            raise QontextError("is not an empty directory", place=root, remedy="Choose another one.")
        passages = root / INDEX / "passages"
        with tempfile.TemporaryDirectory(prefix="qontext-") as folder:
            file = Path(folder) / "passages.jsonl"
            lines = (json.dumps(passage_row(passage)) + "\n" for passage in self._by_id.values())
            file.write_text("".join(lines), encoding="utf-8")
            command("split")(file, keep=True, language="en", out=passages)
        command("index")(passages, backend="bm25", out=root / INDEX / "bm25")
        about: dict[str, Any] = {"system": self.system.name, "weights": [1, 0], "read_tokens": 3}
        if self.encoder is not None and self._model is not None:
            name = os.fspath(self._model)
            command("encode")(passages, encoder=name, device=self.device, out=root / INDEX / "vectors")
            about |= {"encoder": "start", "weights": list(WEIGHTS)}
            about |= {"read_tokens": self.encoder.max_length, "reference": refer(name, root)}
        write_adapted(root, {**about, "index": INDEX})
