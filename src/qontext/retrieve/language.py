"""The language of texts: by their script, and in Latin letters by the most common function words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from qontext.corpus.sources import FieldNames, Problem, open_source
from qontext.data.words import WORD
from qontext.retrieve.analyzer import CODE, has_parts

SAMPLE = 64
"""Documents of a source that tell its language."""
NAMES_IN_CODE = 0.03
"""Share of names of several parts, such as getFileName, above which words are those of source code. Python functions have
8 %, other English texts at most 1 % (names of genes)."""

# The most common function words, to distinguish languages with the same alphabet.
_FUNCTION_WORDS = {
    "en": "the of and to in is that for it with as was on are by this be from or at",
    "de": "der die und das von den ist des mit nicht für ein eine auf dem zu im sich werden auch",
    "fr": "le la les des et est une dans que pour qui sur pas par plus avec ce sont au du",
    "es": "el los las del que por con una para como más pero sus este fue entre cuando muy sin sobre",
    "it": "il che di della per sono con una nel gli come anche più alla dei delle questo ha non essere",
    "pt": "o os que do da em um uma para com não mais dos como foi ao das ele seu sua",
    "nl": "de het een van en niet zijn op te dat met voor aan wordt ook als door naar maar bij",
    "sv": "och att det som en på är av för med den till inte om ett har de var från kan",
    "pl": "w na się nie jest do że z jak po przez dla od który są oraz przy był ale tym",
}
# Kana before Han: Japanese uses both.
_SCRIPTS = {
    "ru": "Ѐ-ӿ", "el": "Ͱ-Ͽ", "ar": "؀-ۿ", "he": "֐-׿", "hi": "ऀ-ॿ", "ja": "぀-ヿ", "zh": "一-鿿", "ko": "가-힯", "th": "฀-๿",
}  # fmt: skip
_NAMES = {
    "en": "English", CODE: "source code", "de": "German", "fr": "French", "es": "Spanish", "it": "Italian",
    "pt": "Portuguese", "nl": "Dutch", "sv": "Swedish", "pl": "Polish", "ru": "Cyrillic script", "el": "Greek",
    "ar": "Arabic", "he": "Hebrew", "hi": "Hindi", "ja": "Japanese", "zh": "Chinese", "ko": "Korean", "th": "Thai",
}  # fmt: skip


def language_of(texts: Iterable[str]) -> str:
    """A two-letter code, from the script and the function words, or `CODE`; English by default."""
    written = " ".join(text[:2_000] for text in islice(texts, 200))
    joined = written.lower()
    letters = max(1, sum(character.isalpha() for character in joined))
    for code, letters_of_script in _SCRIPTS.items():
        if len(re.findall(f"[{letters_of_script}]", joined)) > (0.05 if code == "ja" else 0.3) * letters:
            return code
    words = Counter(re.findall(r"[^\W\d_]+", joined))
    scores = {code: sum(words[word] for word in common.split()) for code, common in _FUNCTION_WORDS.items()}
    best = max(scores, key=lambda code: scores[code])
    if scores[best] > 1.2 * scores["en"]:
        return best
    names = [has_parts(word) for word in WORD.findall(written)]
    return CODE if sum(names) > NAMES_IN_CODE * len(names) else "en"


def language_of_source(source: str) -> str:
    """The language of the first documents of a source."""
    opened = open_source(source, fields=FieldNames())
    documents = (item for item in opened.documents() if not isinstance(item, Problem))
    return language_of(document.content for document in islice(documents, SAMPLE))


def natural(language: str) -> str:
    """The language of the words in a text: in source code, English."""
    return "en" if language == CODE else language


def language_name(code: str) -> str:
    """The name of the language with this code, in English."""
    return _NAMES.get(code, code)
