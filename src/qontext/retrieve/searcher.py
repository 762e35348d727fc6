"""A question → the best passages, from a directory of `adapt` (with its recommended system), or from passages
in memory."""

from __future__ import annotations

import os
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.data.places import Found, Place
from qontext.frame import html
from qontext.frame.errors import QontextError
from qontext.retrieve.adapted import ADAPTED, INDEX, AdaptedFolder
from qontext.retrieve.rankers import CANDIDATES, Among, Fused, IndexRanker, Ranker, everything
from qontext.retrieve.snippets import snippet
from qontext.retrieve.system import System, SystemName

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.data.runs import Run
    from qontext.retrieve.index import Index

_SHOWN, _SHORT = 200, 60
"""Characters of a text in a table, and in one line."""


@dataclass(frozen=True, repr=False)
class Answer:
    """A passage with its rank and score; scores of different questions are not comparable. `place` is that of the
    passage's best sentence for the question, and `snippet` the text around it."""

    rank: int
    score: float
    passage: str
    document: str
    title: str
    text: str
    place: Place = field(default_factory=Place)
    snippet: str = ""

    @property
    def id(self) -> str:
        """The passage's id."""
        return self.passage

    def as_json(self) -> dict[str, Any]:
        """The answer as JSON, with its place as fields and as text."""
        own = {name: getattr(self, name) for name in _NAMES}
        return {**own, **self.place.as_json(), **({"place": str(self.place)} if str(self.place) else {})}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Answer:
        """The inverse of `as_json`."""
        place = {name: fields[name] for name in Place._fields if name in fields}
        place["headings"] = tuple(place.get("headings", ()))
        return cls(**{name: fields[name] for name in _NAMES}, place=Place(**place))

    def row(self) -> dict[str, object]:
        """The answer as a row of a table."""
        shown = textwrap.shorten(self.snippet or self.text, _SHOWN, placeholder=" …")
        row = {"rank": self.rank, "score": f"{self.score:.4g}", "passage": self.passage, "title": self.title}
        return {**row, "place": str(self.place), "text": shown}

    def __repr__(self) -> str:
        text = textwrap.shorten(self.snippet or self.text, _SHORT, placeholder=" …")
        shown = ": ".join(filter(None, (self.title, text)))
        return f"Answer({self.rank}, {self.passage!r}, {self.score:.4g}, {shown!r})"

    def _repr_html_(self) -> str:
        return Answers([self])._repr_html_()


class Answers(list[Answer]):
    """The answers to a question, best first; a table in a notebook."""

    def _repr_html_(self) -> str:
        rows = [answer.row() for answer in self]
        used = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
        return html.table([{name: row[name] for name in used} for row in rows])


_NAMES = [one.name for one in fields(Answer) if one.name != "place"]
"""The fields of an answer, apart from its place, which has fields of its own."""


WEIGHTS = (0.5, 0.5)
"""The weights of BM25 and of the vectors, without labels to tune them."""


class InMemory:
    """Passages in memory, their index of words and, with an encoder, the ranker that fuses both."""

    def __init__(
        self, passages: Iterable[Passage | str], encoder: str | os.PathLike[str] | None, device: str
    ) -> None:
        from qontext.data.load import as_passages
        from qontext.retrieve.bm25 import Bm25
        from qontext.retrieve.index.lexical import LexicalIndex

        self.encoder, self.device = encoder, device
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

        self._retriever = retriever = Retriever(encoder, device=device, packed=True)
        ordered = sorted(self._by_id)
        encoded: Any = retriever.encode_passages([self._by_id[id] for id in ordered])
        index: Index = index_of_arrays(
            np.array(ordered, dtype=object), encoded, retriever.layout.representation, retriever.dimension
        )
        return IndexRanker(index, retriever)

    def ranker(self) -> Ranker:
        """The ranker of `system`."""
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

        _refuse_content(root)  # no lock is left in it
        with locks.lock(root):
            _refuse_content(root)
            self._save(root)

    def _save(self, root: Path) -> None:
        from qontext.frame.execution import command
        from qontext.frame.workdir import Workdir
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
        if self.encoder is not None:
            name = os.fspath(self.encoder)
            command("encode")(passages, encoder=name, device=self.device, out=folder / "vectors")
            about |= {"encoder": "start", "weights": list(WEIGHTS)}
            about |= {"read_tokens": self._retriever.max_length, "reference": refer(name, root)}
        Workdir(root).write_json(ADAPTED, about)

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
        return {id: Found(self._by_id[id]) for id in ids}


def _refuse_content(root: Path) -> None:
    """Refuse a place that is taken by more than a lock."""
    if root.exists() and (
        not root.is_dir() or any(not child.name.startswith(".lock") for child in root.iterdir())
    ):
        raise QontextError("exists and is not an empty directory", place=root, remedy="Choose another one.")


class Searcher:
    """Answers questions with passages. Opens the directory that `qontext adapt` wrote, or see `build`.

    >>> search = Searcher("runs/mine")
    >>> for hit in search("how do I reset my password?", k=2):
    ...     print(hit.rank, hit.id, hit.score, hit.title, hit.text)
    1 ...
    2 ...

    Args:
        directory: Output directory of `qontext adapt`.
        device: Device of the encoder: auto, cpu, cuda, cuda:N or mps.
        encoder: An unchanged copy of the encoder, if it is no longer where `adapt` found it.
        trust: Allow the code or the server that the directory names for its index; see SECURITY.md.
    """

    collection: AdaptedFolder | InMemory

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        device: str = "auto",
        encoder: str | None = None,
        trust: bool = False,
    ) -> None:
        self.collection = AdaptedFolder(directory, device=device, encoder=encoder, trust=trust)

    @classmethod
    def build(
        cls,
        passages: Iterable[Passage | str],
        encoder: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
    ) -> Searcher:
        """Index passages or plain texts in memory, for BM25 and, with an encoder, vector search.

        With both, a passage's score is the mean of the two, each in standard deviations of the query's hits.

        Args:
            passages: Passages, or texts, which get their numbers from 0 as ids.
            encoder: A model folder, or the name of a model on the Hugging Face Hub.
            device: Where the encoder runs: auto, cpu, cuda, cuda:N or mps.

        >>> search = Searcher.build(load_passages("docs.jsonl"), "sentence-transformers/all-MiniLM-L6-v2")
        >>> [hit.rank for hit in search("which document is this?", k=3)]
        [1, 2, 3]
        """
        searcher = cls.__new__(cls)
        searcher.collection = InMemory(passages, encoder, device)
        return searcher

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write passages that were indexed in memory as a directory, which `Searcher`, `qontext search` and `qontext serve`
        open. With an encoder, the passages are encoded once more.

        >>> Searcher.build(["The mill grinds flour."]).save("saved")
        >>> Searcher("saved")("flour")
        [Answer(1, '0', 0.1514, 'The mill grinds flour.')]
        """
        if not isinstance(self.collection, InMemory):
            raise QontextError(
                "only passages that were indexed in memory are saved", remedy="Copy the directory."
            )
        self.collection.save(Path(directory))

    def __repr__(self) -> str:
        return f"Searcher({self.collection}: {self.system.label})"

    @property
    def system(self) -> System:
        """The combination that is searched. Another system of the same encoder may be set."""
        return self.collection.system

    @system.setter
    def system(self, system: System | SystemName) -> None:
        self.collection.system = System.parse(system) if isinstance(system, str) else system

    def __call__(self, question: str, k: int = 10, where: Sequence[str] = ()) -> Answers:
        """The best k passages for the question."""
        return self.search(question, k, where)

    def search(self, question: str, k: int = 10, where: Sequence[str] = ()) -> Answers:
        """The best k passages for the question. Conditions such as ``folder=guide`` restrict the search."""
        if not isinstance(question, str):
            raise QontextError(
                f"a question is a text, not a {type(question).__name__}",
                remedy="Search many with run({id: text}).",
            )
        if not question.strip():
            raise QontextError("the question is empty")
        hits = self.run({"q": question}, k, where).get("q", [])
        passages = self.collection.find({hit.passage for hit in hits})
        how: dict[str, Any] = {}
        if self.system.words:
            bm25 = self.collection.lexical.bm25
            how = {"analyzer": bm25.analyzer, "rarity": bm25.rarity}
        answers = Answers()
        for rank, hit in enumerate(hits, start=1):
            p, place, sentences = passages[hit.passage]
            shown = snippet(question, p.text, sentences, **how)
            fields = (p.id, p.doc, p.title, p.text, place.within(p.text, shown.begin, shown.end), shown.text)
            answers.append(Answer(rank, round(hit.score, 6), *fields))
        return answers

    def run(self, queries: Mapping[str, str], k: int = 10, where: Sequence[str] = ()) -> Run:
        """The best k passages of each query (id → text)."""
        if not isinstance(queries, Mapping):
            raise QontextError(f"expected queries as id → text, not a {type(queries).__name__}")
        among = self.collection.among(tuple(where))
        return self.collection.ranker().rank(queries, max(k, CANDIDATES), among=among).top(k)
