"""Questions, and sub-queries of one, whose rankings are fused; hits by document instead of by passage.

words:          searched by BM25 alone
meaning:        searched by vectors alone
hypothetical:   an answer as it might be written, whose vector is that of a passage (Gao et al., 2022)
all:            a question to the whole system, as is a line without such a word

Agents write them themselves, a line each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from qontext.frame.errors import Unanswerable
from qontext.retrieve.system import CANDIDATES, Among, Ranker

if TYPE_CHECKING:
    from qontext.data.places import Found
    from qontext.data.records import Hit
    from qontext.data.runs import Run
    from qontext.models.folder import TextKind
    from qontext.retrieve.open import Searchable

By = Literal["words", "meaning", "hypothetical"]
GroupBy = Literal["passage", "document"]
DEPTHS = 10, 1_000, 16_384
"""For documents, so many times as many passages are ranked, at least and at most so many: as deep as every index server
goes."""
_ALL = "all"
_LINE = re.compile(rf"\s*({'|'.join(get_args(By))}|{_ALL}):\s*(\S.*)", re.IGNORECASE | re.DOTALL)


class SubQuery(NamedTuple):
    """A text to search for, and by which part of the system; None for the whole."""

    text: str
    by: By | None = None


def parse(question: str) -> list[SubQuery]:
    """The sub-queries of a question: one of each line, if any line begins with ``words:``, ``meaning:``,
    ``hypothetical:`` or ``all:``; else the question itself.

    >>> parse("words: flour price\\nhypothetical: Flour costs two coins.")
    [SubQuery(text='flour price', by='words'), SubQuery(text='Flour costs two coins.', by='hypothetical')]
    """
    lines = [line for line in question.splitlines() if line.strip()]
    matches = [_LINE.fullmatch(line) for line in lines]
    if not any(matches):
        return [SubQuery(question)]
    return [
        SubQuery(line.strip()) if match is None else SubQuery(match[2].strip(), _by(match[1].lower()))
        for line, match in zip(lines, matches)
    ]


def _by(word: str) -> Any:
    return None if word == _ALL else word


def joined(question: str, also: Iterable[str]) -> str:
    """The question with more sub-queries, as `parse` reads them.

    >>> joined("What is the price?", ["words: flour"])
    'all: What is the price?\\nwords: flour'
    """
    more = [sub for text in also for sub in parse(text)]
    if not more:
        return question
    lines = [(sub.by or _ALL, " ".join(sub.text.split())) for sub in (*parse(question), *more)]
    return "\n".join(f"{by}: {text}" for by, text in lines if text)


def text_of(question: str) -> str:
    """The words of all sub-queries, for what is shown of a passage."""
    return " ".join(sub.text for sub in parse(question))


def rank(
    collection: Searchable,
    queries: Mapping[str, str],
    k: int,
    *,
    ranker: Ranker,
    among: Among,
    kind: TextKind = "query",
) -> Run:
    """The best k passages of each question (id → text), of which some have sub-queries, or of each passage. `ranker` is that
    of the whole system."""
    from qontext.data.runs import Run

    asked = {query: [SubQuery(text)] if kind == "passage" else parse(text) for query, text in queries.items()}
    plain = {query: subs[0].text for query, subs in asked.items() if len(subs) == 1 and subs[0].by is None}
    run = ranker.rank(plain, k, among=among, kind=kind) if plain else Run.of([])
    if len(plain) == len(queries):
        return run
    hits = [hit for query in run for hit in run[query]]
    for query, subs in asked.items():
        if query not in plain:
            hits += _fused(collection, ranker, query, subs, k, among).get(query, [])
    return Run.of(hits)


def _fused(
    collection: Searchable, whole: Ranker, query: str, subs: Sequence[SubQuery], k: int, among: Among
) -> Run:
    """The rankings of sub-queries with equal weights, each in standard deviations of its hits."""
    from qontext.retrieve.fuse import hybrid

    runs = []
    for sub in subs:
        ranker = whole if sub.by is None else collection.words if sub.by == "words" else collection.dense
        if ranker is None:
            kind = "words" if sub.by == "words" else "vectors"
            raise Unanswerable(
                f"{sub.by}: needs an index of {kind}, which this system does not have",
                remedy="Ask without it.",
            )
        as_kind: Any = "passage" if sub.by == "hypothetical" else "query"
        runs.append(ranker.rank({query: sub.text}, max(k, CANDIDATES), kind=as_kind, among=among))
    return hybrid(runs, [1 / len(runs)] * len(runs), k)


def by_document(
    rank: Callable[[Mapping[str, str], int], Run],
    queries: Mapping[str, str],
    k: int,
    find: Callable[[set[str]], Mapping[str, Found]],
    *,
    renamed: bool = False,
) -> Run:
    """The best passage of each of the best k documents among `DEPTHS` passages, or, `renamed`, the document itself."""
    from qontext.data.runs import Run

    times, least, most = DEPTHS
    run = rank(queries, max(k, min(most, max(times * k, least))))
    found = find({*run.ids.tolist()})
    hits: list[Hit] = []
    for query in run:
        best: dict[str, Hit] = {}
        for hit in run[query]:
            document = found[hit.passage].passage.doc
            best.setdefault(document, hit._replace(passage=document) if renamed else hit)
        hits += list(best.values())[:k]
    return Run.of(hits)
