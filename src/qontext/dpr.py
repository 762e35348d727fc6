"""The files of the DPR set-up, in which Natural Questions and TriviaQA are published.

- ``psgs_w100.tsv``: passages, with the header ``id text title``, quoted as a CSV writer does.
- ``nq-test.qa.csv``, ``trivia-test.qa.csv.gz``: ``question<tab>['answer', …]``, quoted likewise. They have no
  ids: the number of the line, from 0, is the id, as in the runs made from them.
- ``biencoder-nq-dev.json``: one list of questions with answers and passages, too large to be read in one piece.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.collection import read_lines
from qontext.errors import QontextError

_ENDINGS = (".gz", ".zst", ".xz")
_HEADER = ["id", "text", "title"]
_BETWEEN = re.compile(r"[\s,]*")  # what stands between the items of a JSON list
_BLOCK = 4 << 20  # characters


def plain_name(path: Path) -> str:
    """A file's name without the ending of its compression."""
    return path.stem if path.suffix in _ENDINGS else path.name


def is_passages(path: Path) -> bool:
    return _first_line(path).split("\t") == _HEADER


def is_questions(path: Path) -> bool:
    """Whether a file holds questions with answers, whatever it is called."""
    name, first = plain_name(path), _first_line(path)
    if name.endswith(".json"):
        return first.lstrip().startswith("[")
    fields = next(csv.reader([first], delimiter="\t"), [])
    return name.endswith(".qa.csv") or (len(fields) == 2 and fields[1].strip().startswith("["))


def passages(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """(place, id, title, text) of each passage."""
    rows = csv.reader(read_lines(path), delimiter="\t")
    next(rows)
    for fields in rows:
        place = f"{path}:{rows.line_num}"
        if len(fields) != 3:
            raise QontextError(f"has {len(fields)} columns, expected id<tab>text<tab>title", place=place)
        id, text, title = fields
        yield place, id, title, text


def questions(path: Path) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """(place, id, question, answers) of each question."""
    rows = _from_json(path) if plain_name(path).endswith(".json") else _from_csv(path)
    for number, (place, text, answers) in enumerate(rows):
        if not isinstance(text, str) or not isinstance(answers, list) or not answers:
            raise QontextError("expected a question and a list of at least one answer", place=place)
        yield place, str(number), text, tuple(map(str, answers))


def _from_csv(path: Path) -> Iterator[tuple[str, Any, Any]]:
    rows = csv.reader(read_lines(path), delimiter="\t")
    for fields in rows:
        place = f"{path}:{rows.line_num}"
        if len(fields) != 2:
            raise QontextError(f"has {len(fields)} columns, expected question<tab>['answer', …]", place=place)
        try:
            yield place, fields[0], ast.literal_eval(fields[1])
        except (ValueError, SyntaxError):
            raise QontextError(
                f"the answers are {fields[1]!r}, expected a list of strings", place=place
            ) from None


def _from_json(path: Path) -> Iterator[tuple[str, Any, Any]]:
    for number, row in enumerate(_items(path), start=1):
        place = f"{path}, question {number}"
        if not isinstance(row, dict):
            raise QontextError("expected an object with question and answers", place=place)
        yield place, row.get("question"), row.get("answers")


def _items(path: Path) -> Iterator[Any]:
    """The items of a JSON list, of which a few MB are in memory at a time."""
    decode, rest, opened = json.JSONDecoder().raw_decode, "", False
    for block in _blocks(path):
        rest += block
        if not opened:
            opened, rest = True, rest.lstrip().removeprefix("[")
        at = 0
        while (at := _BETWEEN.match(rest, at).end()) < len(rest):  # type: ignore[union-attr]
            try:
                item, at = decode(rest, at)
            except ValueError:
                break  # the item goes on in the next block, or the list has ended
            yield item
        rest = rest[at:]
    if rest.strip() != "]":
        raise QontextError("is not a JSON list, or is cut off", place=path)


def _blocks(path: Path) -> Iterator[str]:
    lines, size = [], 0
    for line in read_lines(path):
        lines.append(line + "\n")
        size += len(line)
        if size >= _BLOCK:
            yield "".join(lines)
            lines, size = [], 0
    yield "".join(lines)


def _first_line(path: Path) -> str:
    return next(iter(read_lines(path)), "")
