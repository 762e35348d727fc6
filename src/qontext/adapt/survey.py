"""A survey of the documents: number, length, language, duplicates.

At most a sample is read, from the beginning; totals of larger sources are extrapolated by bytes.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qontext.corpus.blocks import problem_of
from qontext.corpus.sources import FieldNames, Problem, open_source
from qontext.corpus.sources.files import announce
from qontext.data.collection import Passage
from qontext.data.records import Document
from qontext.frame.errors import QontextError
from qontext.frame.files import hash64
from qontext.retrieve.language import language_name, language_of

SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 5_000, 10_000_000
WORDS = 80
"""Words of a passage of at most 144 tokens, as written by splitting."""
READ_WORDS, MOST_LOST = 190, 0.25
"""Records are not split if at most this share of their words is beyond the encoder's limit."""
TOKENS_PER_WORD = 1.35
"""Tokens per word of a tokenizer that fits the language; see `fertility`."""
MOST_UNKNOWN = 0.03
"""Share of unknown tokens up to which a vocabulary fits the language."""

_HAN, _THAI = "々-〇\u3040-ヿ㐀-䶿一-鿿豈-﫿\U00020000-\U0003ffff", "฀-໿က-႟ក-៿"
_UNSPACED = rf"[{_HAN}]{{1,2}}|[{_THAI}]{{1,4}}"
"""Characters of scripts without spaces between words that count as one: they have about as many tokens as a word."""
_HAS_UNSPACED, _WORD = re.compile(f"[{_HAN}{_THAI}]"), re.compile(rf"{_UNSPACED}|[^\s{_HAN}{_THAI}]+")
_WORD_OR_SIGN = re.compile(rf"{_UNSPACED}|(?:(?![{_HAN}{_THAI}])\w)+|[^\w\s]")


@dataclass(frozen=True)
class Survey:
    """The result of a survey. Counts are for the whole source, `exact` or extrapolated, but those of unusable documents,
    which are of what was read; `sample` are some of the texts."""

    documents: int
    characters: int
    exact: bool
    keep: bool
    language: str
    words_per_document: int
    duplicates: float
    unusable: int
    seconds: float
    sample: tuple[Passage, ...]
    unread: Mapping[str, int] = field(default_factory=dict)
    """The number of files that are not read, by extension."""
    problems: Mapping[str, int] = field(default_factory=dict)
    """The number of unusable documents by kind of problem."""

    @property
    def left_out(self) -> str:
        """A sentence about the unusable documents. Where only a part was read, there may be more."""
        documents = "1 document is" if self.unusable == 1 else f"{self.unusable:,} documents are"
        kinds = ", ".join(f"{count:,} × {kind}" for kind, count in self.problems.items())
        return f"{documents if self.exact else f'at least {documents}'} left out: {kinds}."

    @property
    def language_name(self) -> str:
        return language_name(self.language)

    def passages(self, max_tokens: int) -> int:
        """Approximate number of passages of at most `max_tokens` tokens: on average they are three quarters full."""
        if self.keep:
            return self.documents
        per_document = max(1.0, self.words_per_document * TOKENS_PER_WORD / (0.75 * max_tokens))
        return round(self.documents * per_document)


def survey(source: str, *, labeled: bool = False, read_as: Iterable[str] = ()) -> Survey:
    """Read the beginning of the documents. Short records with their own ids are used as passages; so are all
    parts of documents if there are labels, which refer to these parts."""
    started = time.monotonic()
    opened = open_source(source, fields=FieldNames(), read_as=read_as)
    announce(opened, source)  # as `split` does, which is silent if it was said before
    documents: list[Document] = []
    characters = 0
    problems: Counter[str] = Counter()
    stream = opened.documents()
    for item in stream:
        if isinstance(item, Problem):
            problems[item.kind] += 1
            continue
        documents.append(item)
        characters += len(item.content)
        if len(documents) >= SAMPLE_DOCUMENTS or characters >= SAMPLE_CHARACTERS:
            break
    if not any(document.content.strip() for document in documents):
        raise QontextError("contains no text", place=source)
    exact = next(stream, None) is None
    scale = 1.0
    if not exact:
        scale = _scale(opened.bytes_total, opened.bytes_read, len(documents), source, read_as)
    are_passages = opened.has_passages and _are_passages(documents, labeled=labeled)
    documents = _usable(documents, problems, keep=are_passages)
    texts = [document.content for document in documents]
    lengths = [words_in(text) for text in texts]
    hashes = Counter(map(hash64, texts))
    records = _records(documents)
    count = len(records) if are_passages else len(documents)
    return Survey(
        documents=round(count * scale),
        characters=round(characters * scale),
        exact=exact,
        keep=are_passages,
        language=language_of(texts[:: max(1, len(texts) // 200)]),
        words_per_document=round(sum(lengths) / count),
        duplicates=1 - len(hashes) / len(texts),
        unusable=problems.total(),
        unread=dict(opened.unread),
        problems=dict(problems.most_common()),
        seconds=time.monotonic() - started,
        sample=tuple(_sample(records, whole=are_passages)),
    )


def _usable(documents: list[Document], problems: Counter[str], *, keep: bool) -> list[Document]:
    """Those that `split` does not leave out; the problems of the others are counted."""
    usable, seen = [], set[str]()
    for document in documents:
        problem = problem_of(document, keep=keep)
        kind = problem.kind if problem else "duplicate id" if document.id in seen and not keep else None
        seen.add(document.id)
        if kind is None:
            usable.append(document)
        else:
            problems[kind] += 1
    return usable


def _records(documents: list[Document]) -> list[tuple[Document, tuple[str, str]]]:
    return [(d, p) for d in documents for p in (d.passages or ((d.id, d.content),))]


def _are_passages(documents: list[Document], *, labeled: bool) -> bool:
    """True if records are short enough to be passages, or labels refer to them."""
    sizes = [words_in(text) for _, (_, text) in _records(documents)]
    lost = sum(max(0, size - READ_WORDS) for size in sizes) / max(1, sum(sizes))
    are_parts = any(document.passages and document.passages[0][0] != document.id for document in documents)
    return lost <= MOST_LOST or (labeled and are_parts)


def _sample(records: list[tuple[Document, tuple[str, str]]], *, whole: bool) -> Iterator[Passage]:
    """About 400 texts of passage length: evenly spaced records, or slices of them."""
    step = max(1, len(records) // 400)
    stretches = max(1, min(50, 400 // len(records)))
    for document, (id, text) in records[::step]:
        if whole:
            yield Passage(id, document.title, _stretch(text, 0, 400), document.id)
            continue
        for number in range(min(stretches, 1 + words_in(text) // WORDS)):
            yield Passage(
                f"{id}#{number}", document.title, _stretch(text, number * WORDS, WORDS), document.id
            )


def words_in(text: str) -> int:
    """The number of words."""
    return len(_WORD.findall(text)) if _HAS_UNSPACED.search(text) else len(text.split())


def _stretch(text: str, first: int, count: int) -> str:
    """So many words of a text."""
    if not _HAS_UNSPACED.search(text):
        return " ".join(text.split()[first : first + count])
    words = list(itertools.islice(_WORD.finditer(text), first, first + count))
    return text[words[0].start() : words[-1].end()] if words else ""


def spread(sample: Sequence[Passage], count: int) -> list[Passage]:
    """At most `count` of them, spread evenly, because adjacent records are similar, especially in length."""
    count = min(count, len(sample))
    return [sample[number * len(sample) // count] for number in range(count)]


def _scale(total: int | None, read: int, documents: int, source: str, read_as: Iterable[str]) -> float:
    """The ratio of the whole to the sample; without a size, the documents are counted."""
    if total and read:
        return total / read
    opened = open_source(source, fields=FieldNames(), read_as=read_as)
    return sum(isinstance(item, Document) for item in opened.documents()) / documents


def fertility(sample: tuple[Passage, ...], tokenizer: Any) -> tuple[float, float]:
    """(tokens per word, share of unknown tokens) of an encoder's tokenizer on the sample."""
    texts = [passage.text for passage in spread(sample, 200) if passage.text.strip()]
    words = sum(len(_WORD_OR_SIGN.findall(text)) for text in texts)
    ids = [
        id for text in texts for id in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    ]
    unknown = sum(id == tokenizer.unk_token_id for id in ids)
    return len(ids) / max(1, words), unknown / max(1, len(ids))
