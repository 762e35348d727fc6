"""Prompts for chat models, and strict parsing of the replies."""

from __future__ import annotations

import json
import re
from typing import Any

TEMPLATES = {
    "question": "questions that a person would ask and that this passage answers",
    "keywords": "keyword queries of two to six words, without a full sentence, that someone who needs this "
    "passage would type into a search box",
    "claim": "short factual claims that this passage confirms",
}

_SYSTEM = (
    "You write search queries for passages of a collection. A good query can be understood without the passage, "
    "names what it is about, is answered by this passage and by few others, and does not copy long phrases of it."
)
# No pattern backtracks over long runs of spaces: replies may be of any length.
_NUMBERED = re.compile(r"(?:\d{1,3}[.):]|[-*•])\s+(?P<query>\S.*)")
_FENCE = re.compile(r"```\w*\s*")
_THOUGHTS = re.compile(r"^\s*<think>.*?</think>", re.S)
LONGEST_QUERY = 400


def messages(
    title: str, text: str, count: int, template: str, language: str, style: str
) -> list[dict[str, str]]:
    """The chat messages that request `count` queries."""
    wishes = [f"Write {count} different {TEMPLATES[template]}."]
    wishes.append(f"Write them in {language}." if language else "Write them in the language of the passage.")
    if style:
        wishes.append(f"Style: {style}.")
    wishes.append(f"Reply with a JSON list of {count} strings and nothing else.")
    heading = f"Title: {title}\n" if title else ""
    user = f"{heading}Passage:\n{text}\n\n{' '.join(wishes)}"
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}]


def read_queries(reply: str) -> list[str]:
    """The queries in a reply: a JSON list of strings (or an object that contains one), or numbered lines.
    Anything else, such as an apology, a truncated list or surrounding text, returns none.
    """
    body = _THOUGHTS.sub("", reply).strip()
    head, _, inside = body.removesuffix("```").partition("\n")
    if body.endswith("```") and _FENCE.fullmatch(head):
        body = inside.strip()
    if body[:1] in ("[", "{"):
        return _from_json(body)
    matches = [_NUMBERED.match(line) for line in map(str.strip, body.splitlines()) if line]
    # One introductory line is accepted; with two or more, it is not a list of queries.
    if sum(match is None for match in matches) > 1 or not any(matches):
        return []
    return _plausible([match["query"].strip('"“”') for match in matches if match])


def _from_json(body: str) -> list[str]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        value = lists[0] if len(lists) == 1 else None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return []
    return _plausible(value)


def _plausible(queries: list[str]) -> list[str]:
    return [
        query for query in queries if query.strip() and len(query) <= LONGEST_QUERY and _is_unicode(query)
    ]


def _is_unicode(text: str) -> bool:
    """Whether it has no lone surrogate, which JSON can escape but UTF-8 cannot encode."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
