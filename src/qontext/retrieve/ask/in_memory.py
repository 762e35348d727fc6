"""Passages in memory: their index of words and, with an encoder, their vectors; saved as a directory of `adapt`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.data.places import Found
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import INDEX, write_adapted
from qontext.retrieve.rankers import Among, Fused, IndexRanker, Ranker, everything
from qontext.retrieve.system import WEIGHTS, System

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.models.retriever import Retriever
    from qontext.retrieve.index import Index


class InMemory:
    """Passages in memory, their index of words and, with an encoder, the ranker that fuses both."""

    def __init__(
        self, passages: Iterable[Passage | str], encoder: str | os.PathLike[str] | None, device: str
    ) -> None:
        from qontext.data.load import as_passages
        from qontext.retrieve.bm25 import Bm25
        from qontext.retrieve.index.lexical import LexicalIndex

        self.device, self._model = device, encoder
        self.encoder: Retriever | None = None
        own = list(as_passages(passages))
        self.lexical = LexicalIndex(Bm25.build(own))  # refuses ids that occur twice
        self._by_id = {passage.id: passage for passage in own}
        self.system = System("start" if encoder is not None else None, words=True)
        self.words = IndexRanker(self.lexical)
        self.dense = self.words if encoder is None else self._dense(encoder, device)

    def _dense(self, encoder: str | os.PathLike[str], device: str) -> IndexRanker:
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

    def ranker(self) -> Ranker:
        """The ranker of `system`."""
        own = self.encoder is not None
        if self.system.tokens or self.system.reranked or (self.system.encoder is not None and not own):
            raise QontextError(
                f"passages in memory have no system {self.system.name!r}",
                remedy="Choose from: " + ("start, hybrid-start, bm25." if own else "bm25."),
            )
        if self.system.words and self.system.encoder is not None:
            return Fused((self.words, self.dense), WEIGHTS)
        return self.words if self.system.words else self.dense

    def among(self, where: tuple[str, ...]) -> Among:
        if where:
            raise QontextError(
                "passages in memory have no metadata to filter by",
                remedy="Search a directory of 'qontext adapt' or 'qontext index' instead.",
            )
        return everything

    def save(self, root: Path) -> None:
        """Write what a directory of `adapt` needs to be searched; its encoder is referred to."""
        from qontext.frame import locks

        self.ranker()  # refuses a system that is not there
        if self.encoder is not None and self.encoder.is_packed:
            raise QontextError(
                f"passages with the representation {self.encoder.layout.representation!r} are not saved as a directory",
                remedy="Write them with 'qontext encode', whose output is searched and served.",
            )
        _refuse_content(root)  # no lock is left in it
        with locks.lock(root):
            _refuse_content(root)
            self._save(root)

    def _save(self, root: Path) -> None:
        from qontext.frame.execution import command
        from qontext.models.reference import refer

        folder = root / INDEX
        passages = folder / "passages"
        self._write_passages(passages)
        command("index")(passages, backend="bm25", out=folder / "bm25")
        about: dict[str, Any] = {
            "system": self.system.name,
            "weights": [1, 0],
            "read_tokens": 3,
            "index": INDEX,
        }
        if self.encoder is not None and self._model is not None:
            name = os.fspath(self._model)
            command("encode")(passages, encoder=name, device=self.device, out=folder / "vectors")
            about |= {"encoder": "start", "weights": list(WEIGHTS)}
            about |= {"read_tokens": self.encoder.max_length, "reference": refer(name, root)}
        write_adapted(root, about)

    def _write_passages(self, out: Path) -> None:
        """Write the passages as `split` does."""
        from qontext.corpus.split import STAGE as SPLIT
        from qontext.data import records
        from qontext.frame import artifacts

        claim: dict[str, Any] = {
            "verb": "split",
            "format": SPLIT.format,
            "config": {"source": "passages in memory"},
            "inputs": {},
        }
        claim["key"] = artifacts.key_of(claim)
        started = time.monotonic()
        work = artifacts.begin(out, claim)
        with work.write("part-00000.parquet") as path:
            records.write_table(path, records.table_of(list(self._rows()), records.PASSAGES))
        counts = {
            "documents": len({passage.doc for passage in self._by_id.values()}),
            "passages": len(self._by_id),
        }
        artifacts.finish(work, claim, counts, time.monotonic() - started)

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The passages as rows of a table."""
        from qontext.corpus.sentences import by_rules

        positions: Counter[str] = Counter()
        for p in self._by_id.values():
            yield {
                "id": p.id, "doc": p.doc, "position": positions[p.doc], "title": p.title, "text": p.text,
                # These are for search, not for training: their tokens are not counted.
                "sentences": by_rules(p.text, "en"), "tokens": 0, "overlong": False,
            }  # fmt: skip
            positions[p.doc] += 1

    def __str__(self) -> str:
        return f"{len(self._by_id):,} passages"

    def find(self, ids: set[str]) -> Mapping[str, Found]:
        return {id: Found(self._by_id[id]) for id in ids if id in self._by_id}


def _refuse_content(root: Path) -> None:
    """Refuse a place that is taken by more than a lock."""
    if root.exists() and (
        not root.is_dir() or any(not child.name.startswith(".lock") for child in root.iterdir())
    ):
        raise QontextError("exists and is not an empty directory", place=root, remedy="Choose another one.")
