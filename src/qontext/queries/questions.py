"""Sentence → question, by rules for English: the answer's span is replaced by a question word in front.

Only where it gives something that a person might type; otherwise None. Verbs keep their form when no
auxiliary can be moved ("when Tesla moved to Prague"), which search does not mind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qontext.queries.words import Array, Tokens

MAX_WORDS = 18

_BE = r"(?:is|are|was|were)"
_AUXILIARY = rf"(?:{_BE}|has|have|had|can|could|will|would|may|must|should)"
_PAST = r"(?:[a-z]{2,}ed|wrote|won|became|led|made|found|built|took|began|held|gave|went|saw|told|sold|lost)"
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_NAME = r"[A-Z][\w.'’-]+(?: (?:[A-Z][\w.'’-]*|of|the|de|von|van)){0,3}"
_DEFINITION = re.compile(
    rf"^(?:An?|The)?\s*(?P<what>[^,;:]{{3,60}}?) (?P<verb>{_BE}) (?:an?|the|one of|any) "
)
_PASSIVE = re.compile(
    rf"^(?P<what>[^,;:]{{3,80}}?) {_BE} (?P<verb>[a-z]+ed|written|built|made|led|won|held|given) by [A-Z]"
)
_WHEN = re.compile(
    r"\b(?:[Ii]n|[Oo]n|[Bb]y|[Ss]ince|[Ff]rom|[Uu]ntil|[Dd]uring|[Aa]round) (?:the )?"
    r"(?:(?:early|late|mid)[ -])?"
    rf"(?:(?:\d{{1,2}} )?{_MONTH}(?: \d{{1,2}})?(?:,? \d{{4}})?|1\d{{3}}s?|20\d\ds?)\b(?! [a-z]+s\b)"
)
_COUNT = re.compile(
    r"^(?P<what>\S+(?: \S+){0,5}?) (?P<verb>has|have|had|contains?|contained|includes?) "
    r"(?:more than |about |over |nearly |at least )?"
    r"(?:\d[\d,.]*|two|three|four|five|six|seven|eight|nine|ten|twelve)"
    r"(?: (?:hundred|thousand|million|billion))? (?P<noun>[a-z]{3,}s)\b(?P<rest>.*)$"
)
_WHY = re.compile(r"\b(?:because(?: of)?|so that|in order to|due to|for fear)\b.*$")
_WHERE = re.compile(rf"\b(?:in|at|near|from|into) (?:the )?{_NAME}(?:, {_NAME})*(?=$|,)")
_WHO = re.compile(rf"^{_NAME} (?P<rest>(?:also |then |later |first )?{_PAST} \S.*)$")
_MOVE = re.compile(rf"^(?P<subject>\S+(?: \S+){{0,6}}?) (?P<verb>{_AUXILIARY}) (?P<rest>\S.*)$")
_VERB = re.compile(rf"\b{_PAST}\b")
_CLAUSE = re.compile(
    r"[;:].*$|,\s(?:and|but|which|who|whom|while|although|whereas|with|where|when|including)\b.*$"
)
_LEADING = re.compile(
    r"^(?:(?:[Aa]nd|[Bb]ut|[Ss]o|[Tt]hen|[Tt]hus|[Hh]owever|[Aa]lso|[Ii]n addition|[Ff]or example),?\s+)+"
)
_SIGNS = " ,;:.!-'’"
_VAGUE = frozenset(
    """it he she they this these those that there i we you which who what one such here some many most other
    his her their its both each all another if when as in""".split()  # noqa: SIM905
)
_OPENERS = frozenset(
    "the a an in on at by from these those he she they his her their its when after as with".split()  # noqa: SIM905
)


def hints(tokens: Tokens, begins: Array, ends: Array) -> Array:
    """[S, rules]: which sentences (tokens `begins` to `ends`) may fit which rule: few are parsed."""
    T = int(ends[-1]) if len(ends) else 0
    token = tokens.token[:T]
    written = pa.array(tokens.bare, pa.string())

    def marks(pattern: str) -> Array:
        found: Array = pc.match_substring_regex(written, f"^(?:{pattern})$").to_numpy(zero_copy_only=False)
        marked: Array = found.astype(bool)[token]
        return marked

    def then(left: Array, right: Array) -> Array:
        return left & np.concatenate([right[1:], [False]]) if T else left

    place = np.arange(T) - np.repeat(begins, ends - begins)
    capital, past = tokens.capital[token], marks(_PAST)
    asks = np.array([text.endswith("?") for text in tokens.written], bool)[token]
    found = {
        "itself": asks & tokens.ends[:T],
        "passive": then(marks("by"), capital),
        "definition": then(marks(_BE), marks("an?|the|one|any")),
        "when": marks(rf"1\d{{3}}s?|20\d\ds?|{_MONTH}"),
        "why": marks("because|so|order|due|fear"),
        "count": marks("has|have|had|contains?|contained|includes?"),
        "who": past & (place > 0) & (place < 6),
        "where": then(marks("in|at|near|from|into|the"), capital),
    }
    return (
        np.stack([np.logical_or.reduceat(found[name], begins) for name in RULES], 1)
        if T
        else np.zeros((0, 8), bool)
    )


def ask(sentence: str, rules: Iterable[str] | None = None) -> str | None:
    """A question that the sentence answers, by the first of the rules that finds its span (default: all)."""
    clause = _LEADING.sub("", sentence).strip(_SIGNS)
    for rule in RULES if rules is None else rules:
        if question := RULES[rule](sentence if rule == "itself" else clause):
            return question
    return None


def _itself(sentence: str) -> str | None:
    return sentence if sentence.endswith("?") and 3 <= sentence.count(" ") + 1 <= MAX_WORDS else None


def _passive(clause: str) -> str | None:
    found = _PASSIVE.match(clause)
    return f"who {found['verb']} {_lower_first(found['what'])}?" if found and _named(found["what"]) else None


def _definition(clause: str) -> str | None:
    found = _DEFINITION.match(clause)
    return f"what {found['verb']} {found['what']}?" if found and _named(found["what"]) else None


def _count(clause: str) -> str | None:
    found = _COUNT.match(clause)
    if not found or not _named(found["what"], 7):
        return None
    rest = shorten_clause(found["rest"])
    return f"how many {found['noun']} {found['verb']} {_lower_first(found['what'])} {rest}".strip() + "?"


def _who(clause: str) -> str | None:
    found = _WHO.match(clause)
    rest = shorten_clause(found["rest"]) if found else ""
    return f"who {rest}?" if 3 <= rest.count(" ") + 1 <= MAX_WORDS else None


def _cloze(word: str, span: re.Pattern[str]) -> Callable[[str], str | None]:
    """The rule that leaves the span out and asks for it."""

    def rule(clause: str) -> str | None:
        found = span.search(clause)
        return (
            _turn(word, f"{clause[: found.start()].rstrip(_SIGNS)} {clause[found.end() :].lstrip(_SIGNS)}")
            if found
            else None
        )

    return rule


def shorten_clause(text: str) -> str:
    """The main clause: what follows a subordinate one's comma is left out."""
    return " ".join(_CLAUSE.sub("", text).strip(_SIGNS).split())


def _turn(word: str, statement: str) -> str | None:
    """Put the question word in front and move the auxiliary after it, if there is one."""
    statement = shorten_clause(statement)
    if not 4 <= statement.count(" ") + 1 <= MAX_WORDS:
        return None
    if moved := _MOVE.match(statement):
        return f"{word} {moved['verb']} {_lower_first(moved['subject'])} {moved['rest']}?"
    return f"{word} {_lower_first(statement)}?" if _VERB.search(statement) else None


def _named(subject: str, most: int = 5) -> bool:
    """Whether the subject says by itself what it is."""
    heads = subject.split()
    return len(heads) <= most and heads[0].lower() not in _VAGUE


def _lower_first(text: str) -> str:
    """Lower the first letter of a function word that only stood at a sentence's start."""
    first, _, rest = text.partition(" ")
    return f"{first.lower()} {rest}".strip() if first.lower() in _OPENERS else text


RULES: dict[str, Callable[[str], str | None]] = {
    "itself": _itself,
    "passive": _passive,
    "definition": _definition,
    "when": _cloze("when", _WHEN),
    "why": _cloze("why", _WHY),
    "count": _count,
    "who": _who,
    "where": _cloze("where", _WHERE),
}
"""In order of how good their questions are."""
