"""Sentence → question, by rules for English: the answer's span is replaced by a question word in front.

Only if the result is a plausible query; otherwise None. Verbs keep their form when no
auxiliary can be moved ("when Tesla moved to Prague"), which search does not mind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from qontext.queries.words import content_words

MAX_WORDS = 18

_BE = r"(?:is|are|was|were)"
_AUXILIARY = rf"(?:{_BE}|has|have|had|can|could|will|would|may|must|should)"
_PAST = r"(?:[a-z]{2,}ed|wrote|won|became|led|made|found|built|took|began|held|gave|went|saw|told|sold|lost)"
_NUMBER = "two|three|four|five|six|seven|eight|nine|ten|twelve"
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_NAME = r"[A-Z][\w.'’-]+(?: (?:[A-Z][\w.'’-]*|of|the|de|von|van)){0,3}"
_DEFINITION = re.compile(
    rf"^(?:An?|The)?\s*(?P<what>[^,;:]{{3,60}}?) (?P<verb>{_BE}) (?:an?|the|one of|any) "
)
_PASSIVE = re.compile(
    rf"^(?P<what>[^,;:]{{3,80}}?) {_BE} (?P<verb>[a-z]+ed|written|built|made|led|won|held|given) by [A-Z]"
)
_WHEN = re.compile(
    r" (?:[Ii]n|[Oo]n|[Bb]y|[Ss]ince|[Ff]rom|[Uu]ntil|[Dd]uring|[Aa]round) (?:the )?"
    r"(?:(?:early|late|mid)[ -])?"
    rf"(?:(?:\d{{1,2}} )?{_MONTH}(?: \d{{1,2}})?(?:,? \d{{4}})?|1\d{{3}}s?|20\d\ds?)(?![\w'’-])(?! [a-z]+s\b)"
)
_COUNT = re.compile(
    r"^(?P<what>\S+(?: \S+){0,5}?) (?P<verb>has|have|had|contains?|contained|includes?) "
    r"(?:more than |about |over |nearly |at least )?"
    rf"(?:\d[\d,.]*|{_NUMBER})"
    r"(?: (?:hundred|thousand|million|billion))? (?P<noun>[a-z]{3,}s)\b(?P<rest>.*)$"
)
_WHY = re.compile(r" (?:because(?: of)?|so that|in order to|due to|for fear)\b.*$")
_WHERE = re.compile(rf" (?:in|at|near|from|into) (?:the )?{_NAME}(?:, {_NAME})*(?=$|,)")
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
    his her their its both each all another if when as in""".split()
)
_OPENERS = frozenset(
    "the a an in on at by from these those he she they his her their its when after as with".split()
)


def ask(sentence: str, rules: Iterable[str] | None = None) -> str | None:
    """A question that the sentence answers, by the first of the rules that finds its span (default: all)."""
    leading = _LEADING.match(sentence)
    clause = (sentence[leading.end() :] if leading else sentence).strip(_SIGNS)
    for rule in RULES if rules is None else rules:
        if question := RULES[rule](sentence if rule == "itself" else clause):
            return question
    return None


def _itself(sentence: str) -> str | None:
    return sentence if sentence.endswith("?") and 3 <= sentence.count(" ") + 1 <= MAX_WORDS else None


def _passive(clause: str) -> str | None:
    match = _PASSIVE.match(clause)
    return f"who {match['verb']} {_lower_first(match['what'])}?" if match and _named(match["what"]) else None


def _definition(clause: str) -> str | None:
    match = _DEFINITION.match(clause)
    return f"what {match['verb']} {match['what']}?" if match and _named(match["what"]) else None


def _count(clause: str) -> str | None:
    match = _COUNT.match(clause)
    if not match or not _named(match["what"], 7):
        return None
    rest = shorten_clause(match["rest"])
    return f"how many {match['noun']} {match['verb']} {_lower_first(match['what'])} {rest}".strip() + "?"


def _who(clause: str) -> str | None:
    match = _WHO.match(clause)
    rest = shorten_clause(match["rest"]) if match else ""
    return f"who {rest}?" if 3 <= rest.count(" ") + 1 <= MAX_WORDS else None


def _cloze(word: str, span: re.Pattern[str]) -> Callable[[str], str | None]:
    """A rule that removes the span and asks for it."""

    def rule(clause: str) -> str | None:
        clause = f" {clause}"  # spans begin with a space, which is much faster to find than a word boundary
        match = span.search(clause)
        return (
            _turn(word, f"{clause[: match.start()].rstrip(_SIGNS)} {clause[match.end() :].lstrip(_SIGNS)}")
            if match
            else None
        )

    return rule


def shorten_clause(text: str) -> str:
    """The main clause: removes a subordinate clause after a comma."""
    if "," in text or ";" in text or ":" in text:
        text = _CLAUSE.sub("", text)
    return " ".join(text.strip(_SIGNS).split())


def _turn(word: str, statement: str) -> str | None:
    """Put the question word in front and move the auxiliary after it, if there is one."""
    statement = shorten_clause(statement)
    if not 4 <= statement.count(" ") + 1 <= MAX_WORDS:
        return None
    if moved := _MOVE.match(statement):
        return f"{word} {moved['verb']} {_lower_first(moved['subject'])} {moved['rest']}?"
    return f"{word} {_lower_first(statement)}?" if _VERB.search(statement) else None


def _named(subject: str, most: int = 5) -> bool:
    """True if the subject is self-explanatory."""
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

_CODE = re.compile(
    r"^(?:\.\.\.|[#$@|]) |(?:^|\s)(?:>>>|[-=]>|[!=<>+-]?=|[{}])(?:\s|$)|[{};]$|</?\w+>|^(?:from [\w.]+ )?import [\w.*]+"
)
"""Markup, prompts, operators and imports: a line of code, not a question about it."""
_DECLARES = "(?:package|sub|def|class|func|function|fn|struct|enum|interface|namespace|module|return|typedef)"
_DECLARATIONS = re.compile(
    rf"(?:^|\s){_DECLARES} \S+ {_DECLARES}(?:\s|$)|^\S+\.\w{{1,4}} {_DECLARES}(?:\s|$)"
)
"""Two declarations, or one after the name of a file: what is left of code without its signs."""
_HEADINGS = frozenset(
    """references contents content table index introduction overview summary bibliography acknowledgments acknowledgements
    appendix abstract notes note license copyright changelog changes chapter section figure page see""".split()
)
"""Words that name a part of any document."""
_CONDITION = re.compile(
    r"^(?:If|Unless|Although|Because|Whereas|Provided that)"
    r" (?:the|an?|you|your|it|this|that|these|those|any|no|there|we|they|such|its)\b"
)
_SPACELESS = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")
"""Letters of scripts without spaces between words."""


def stands_alone(query: str) -> bool:
    """True if a query asks for something by itself: not a heading, a line of code, or a condition without what follows."""
    words = query.split()
    if _SPACELESS.search(query):
        return len(query) > 3
    with_letters = sum(any(character.isalpha() for character in word) for word in words)
    if with_letters < max(2, 0.6 * len(words)) or _CODE.search(query):
        return False
    if _DECLARATIONS.search(query) and "?" not in query:
        return False
    named = [word for word in content_words(query) if word not in _HEADINGS and not word.isdigit()]
    if len(named) < (1 if "?" in query else 2):
        return False
    return "?" in query or "," in query or not _CONDITION.match(query)
