"""A question → the best passages, from a directory of `adapt` (with its recommended system), or from passages
in memory."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from qontext.data.places import Place
from qontext.frame import html
from qontext.frame.errors import QontextError, choose
from qontext.retrieve.ask.evidence import SNIPPET, Evidence, evidence, snippet
from qontext.retrieve.ask.questions import GroupBy, by_document, rank, text_of
from qontext.retrieve.open import InMemory, Searchable, open_path
from qontext.retrieve.query_encoder import Opening
from qontext.retrieve.system import CANDIDATES, Ranker, System, SystemName

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.data.records import Hit
    from qontext.data.runs import Run
    from qontext.models.folder import TextKind
    from qontext.retrieve.where import Condition

Where: TypeAlias = "Sequence[str | Condition]"

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
    sentence: str = ""
    """The passage's best sentence for the question; empty if no word of the question is in it."""
    evidence: Evidence | None = field(default=None, compare=False)
    """The evidence for the passage, if it was asked for."""

    @property
    def id(self) -> str:
        """The passage's id."""
        return self.passage

    def as_json(self) -> dict[str, Any]:
        """The answer as JSON, with its place as fields and as text."""
        own = {name: value for name, value in vars(self).items() if value or name not in _OPTIONAL}
        own |= {**self.place.as_json(), "place": str(self.place)}
        own |= {"evidence": self.evidence.as_json()} if self.evidence else {}
        return {name: value for name, value in own.items() if value or name != "place"}

    @property
    def metadata(self) -> dict[str, Any]:
        """Everything but the text as one table, with the fields of the place and of the document."""
        own = self.as_json()
        del own["text"]
        return {**own.pop("metadata", {}), **own, "id": self.id}

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


_OPTIONAL = ("sentence", "evidence")
"""The fields that may be empty."""


class Searcher:
    """Answers questions with passages: a directory of `qontext adapt`, the output of `encode` or `index`, documents as they
    are, whose index is made and kept up to date first, or passages in memory, see `build`.

    >>> search = Searcher("runs/mine")
    >>> for hit in search("how do I reset my password?", k=2):
    ...     print(hit.rank, hit.id, hit.score, hit.title, hit.text)
    1 ...
    2 ...

    Args:
        directory: The directory to search.
        device: Device of the encoder: auto, cpu, cuda, cuda:N or mps.
        encoder: An unchanged copy of the encoder, if it is no longer where `adapt` found it.
        trust: Allow the code or the server that the directory names for its index; see SECURITY.md.
    """

    collection: Searchable

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        device: str = "auto",
        encoder: str | None = None,
        trust: bool = False,
    ) -> None:
        self.collection = open_path(directory, Opening(device, encoder=encoder, trust=trust))
        self.system = self.collection.system

    @classmethod
    def build(
        cls,
        passages: Iterable[Passage | str],
        encoder: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
    ) -> Searcher:
        """Index passages or plain texts in memory, for BM25 and, with an encoder, vector search.

        With both, a passage's score is .6 of the one and .4 of the other, each in standard deviations of the query's hits.

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
        searcher.system = searcher.collection.system
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
        self.collection.save(Path(directory), self.system)

    def __repr__(self) -> str:
        return f"Searcher({self.collection}: {self.label})"

    @property
    def label(self) -> str:
        """The name of the system for users."""
        return self.collection.label(self.system)

    @property
    def system(self) -> System:
        """The combination that is searched. Another system of the same encoder may be set."""
        return self._system

    @system.setter
    def system(self, system: System | SystemName) -> None:
        self._system = System.parse(system) if isinstance(system, str) else system

    @property
    def ranker(self) -> Ranker:
        """The ranker of the system."""
        return self.collection.ranker(self.system)

    def __call__(self, question: str, k: int = 10, where: Where = ()) -> Answers:
        """The best k passages for the question."""
        return self.search(question, k, where)

    def search(
        self,
        question: str,
        k: int = 10,
        where: Where = (),
        *,
        group: GroupBy = "passage",
        explain: bool = False,
        min_score: float | None = None,
    ) -> Answers:
        """The best k passages for the question, or sub-queries of it; see `qontext.retrieve.ask.questions`.

        Args:
            where: Conditions such as ``folder=guide``, which restrict the search.
            group: ``document`` for the best passage of each document only.
            explain: Whether answers have their `evidence`.
            min_score: The lowest score of an answer.
        """
        if not isinstance(question, str):
            raise QontextError(
                f"a question is a text, not a {type(question).__name__}",
                remedy="Search many with run({id: text}).",
            )
        if not question.strip():
            raise QontextError("the question is empty")
        hits = self.run({"q": question}, k, where, group=group).get("q", [])
        if min_score is not None:
            hits = [hit for hit in hits if round(hit.score, 6) >= min_score]
        answers = self.answers(question, hits)
        if explain:
            found = self.evidence(question, hits, where)
            answers = [replace(answer, evidence=one) for answer, one in zip(answers, found)]
        return Answers(answers)

    def answers(
        self, question: str, hits: Sequence[Hit], *, first: int = 1, most: int = SNIPPET
    ) -> list[Answer]:
        """The hits of a question as answers with ranks from `first` on and snippets of at most so many characters."""
        text, passages = text_of(question), self.collection.find({hit.passage for hit in hits})
        how: dict[str, Any] = {"most": most}
        if self.collection.lexical is not None:
            bm25 = self.collection.lexical.bm25
            how |= {"analyzer": bm25.analyzer, "rarity": bm25.rarity}
        answers = []
        for number, hit in enumerate(hits, start=first):
            p, place, sentences = passages[hit.passage]
            shown = snippet(text, p.text, sentences, **how)
            answers.append(
                Answer(
                    rank=number,
                    score=round(hit.score, 6),
                    passage=p.id,
                    document=p.doc,
                    title=p.title,
                    text=p.text,
                    place=place.within(p.text, shown.begin, shown.end),
                    snippet=shown.text,
                    sentence="" if shown.is_whole else " ".join(p.text[shown.begin : shown.end].split()),
                )
            )
        return answers

    def evidence(self, question: str, hits: Sequence[Hit], where: Where = ()) -> list[Evidence]:
        """The evidence for each hit of a question."""
        passages = self.collection.find({hit.passage for hit in hits})
        opened = [passages[hit.passage] for hit in hits]
        return evidence(text_of(question), opened, self.ranker, among=self.collection.among(where))

    def run(
        self,
        queries: Mapping[str, str],
        k: int = 10,
        where: Where = (),
        *,
        group: GroupBy = "passage",
        kind: TextKind = "query",
    ) -> Run:
        """The best k passages of each query (id → text), or with ``document`` as the group the best one of k documents."""
        if not isinstance(queries, Mapping):
            raise QontextError(f"expected queries as id → text, not a {type(queries).__name__}")
        from qontext.data.runs import check_depth

        check_depth(k)
        choose(group, get_args(GroupBy), "group")
        among = self.collection.among(where)
        ranked = partial(rank, self.collection, ranker=self.ranker, among=among, kind=kind)
        if group == "passage":
            return ranked(queries, max(k, CANDIDATES)).top(k)
        return by_document(ranked, queries, k, self.collection.find)
