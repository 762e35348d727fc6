"""Text → terms for BM25: lower-cased words without stop words, stemmed.

english             a long stop list and Porter's stemmer; the default
lucene              Lucene's 33 stop words and Porter's stemmer, as its EnglishAnalyzer: to compare with Anserini
code                english, and of a name such as getFileName or file_name its parts beside the whole
plain               words, unchanged
cjk                 Chinese, Japanese, Korean and Thai: pairs of neighboring characters, as there are no spaces between
                    words, or not between all; words of other scripts are unchanged (Lucene's CJKAnalyzer)
french, german, …   the Snowball stemmer of that language, and no stop words: frequent words have low weights anyway
"""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from qontext.data.words import WORD, pair_spans, pairs
from qontext.frame.errors import choose

CODE = "code"
"""Source code, where others have a language."""
LANGUAGES = {
    CODE: "code",
    "ar": "arabic", "de": "german", "el": "greek", "es": "spanish", "fr": "french", "hi": "hindi", "it": "italian",
    "nl": "dutch", "pt": "portuguese", "ru": "russian", "sv": "swedish",
    "ja": "cjk", "ko": "cjk", "th": "cjk", "zh": "cjk",
}  # fmt: skip
"""Analyzers of languages other than English, by language code."""
_STOP_LISTS = {"english": "STOPWORDS_EN_PLUS", "code": "STOPWORDS_EN_PLUS", "lucene": "STOPWORDS_EN"}
"""Analyzers of English, and their lists."""
_BETWEEN_PARTS = re.compile(r"_+|(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Underscores; between file and Name; between HTML and Parser."""


class Analyzer:
    """Splits texts into terms; processes each distinct word once. `numbers` maps terms to their numbers."""

    def __init__(self, name: str, numbers: dict[str, int], *, grow: bool) -> None:
        self._term, self._numbers, self._grow = term_of(name), numbers, grow
        self._words = lower_words_of(name)
        self._known: dict[str, int | None] = {}

    def __call__(self, text: str) -> list[int]:
        """The numbers of the text's terms, in order. Unknown terms get new numbers with `grow`, else are skipped."""
        terms = []
        for word in self._words(text):
            try:
                number = self._known[word]
            except KeyError:
                number = self._known[word] = self._number(word)
            if number is not None:
                terms.append(number)
        return terms

    def _number(self, word: str) -> int | None:
        term = self._term(word)
        if term and self._grow:
            return self._numbers.setdefault(term, len(self._numbers))
        return self._numbers.get(term) if term else None


def words_of(name: str) -> Callable[[str], list[str]]:
    """The function text → words of an analyzer."""
    return pairs if name == "cjk" else _with_parts if name == "code" else WORD.findall


def lower_words_of(name: str) -> Callable[[str], list[str]]:
    """The function text → words of an analyzer in lower case, whose terms are compared."""
    words = words_of(name)
    if name == "code":  # capitals say where parts begin
        return lambda text: [word.lower() for word in words(text)]
    return lambda text: words(text.lower())


def spans_of(name: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    """The function text → (begin, end) of each word that `words_of` returns, in the same order."""
    if name == "cjk":
        return pair_spans
    return _part_spans if name == "code" else lambda text: (match.span() for match in WORD.finditer(text))


def _part_spans(text: str) -> Iterator[tuple[int, int]]:
    for match in WORD.finditer(text):
        yield match.span()
        if has_parts(match[0]):
            begin = match.start()
            for separator in _BETWEEN_PARTS.finditer(text, *match.span()):
                if separator.start() > begin:
                    yield begin, separator.start()
                begin = separator.end()
            if begin < match.end():
                yield begin, match.end()


def _with_parts(text: str) -> list[str]:
    """The words of a text, and after a name its parts."""
    words = []
    for word in WORD.findall(text):
        words.append(word)
        if has_parts(word):
            words += filter(None, _BETWEEN_PARTS.split(word))
    return words


def has_parts(word: str) -> bool:
    """True for a name of several words, such as getFileName, or with underscores.

    >>> [word for word in "the file_name of XMLParser in utf8".split() if has_parts(word)]
    ['file_name', 'XMLParser']
    """
    return _BETWEEN_PARTS.search(word) is not None


@cache
def term_of(name: str) -> Callable[[str], str]:
    """The function word → term of an analyzer, with composed characters; stop words become ""."""
    import Stemmer

    choose(name, analyzers(), "analyzer")
    if name in ("plain", "cjk"):
        return composed
    is_english = name in _STOP_LISTS
    stop = _stop_words(_STOP_LISTS[name]) if is_english else frozenset()
    stem = Stemmer.Stemmer("porter" if is_english else name).stemWord

    def term(word: str) -> str:
        word = composed(word)
        if is_english:
            word = word.replace("’", "'").removesuffix("'s")
        return "" if word in stop else str(stem(word))

    return term


def composed(word: str) -> str:
    """A word in composed characters: texts write ü as one or as two. İ in lower case is i, without a second dot."""
    return unicodedata.normalize("NFC", word).replace("i\u0307", "i")


def _stop_words(name: str) -> frozenset[str]:
    """A stop word list of bm25s, read from its file, because importing the package takes a second."""
    package = importlib.util.find_spec("bm25s")
    assert package is not None and package.origin is not None
    spec = importlib.util.spec_from_file_location(
        "bm25s_stopwords", Path(package.origin).with_name("stopwords.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return frozenset(getattr(module, name))


def analyzers() -> list[str]:
    """The names of all analyzers."""
    import Stemmer

    snowball = {name for name in Stemmer.algorithms() if "porter" not in name}
    return [*_STOP_LISTS, "plain", "cjk", *sorted(snowball - {"english"})]
