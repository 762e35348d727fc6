"""The DPR file formats, in which Natural Questions and TriviaQA are published.

- ``psgs_w100.tsv``: passages, with the header ``id text title``, quoted as a CSV writer does.
- ``nq-test.qa.csv``, ``trivia-test.qa.csv.gz``: ``question<tab>['answer', …]``, quoted likewise. They have no
  ids: the line number, from 0, is the id, as in runs produced from them.
- ``biencoder-nq-train.json``, ``biencoder-trivia-train.json``, and ``-dev``: one list of questions with answers and the ids
  of positive and negative passages, too large to read at once.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.data.ids import id_of
from qontext.data.lines import LONGEST, check_characters, first_line, plain_name, read_blocks, read_lines
from qontext.frame.errors import QontextError

_HEADER = ["id", "text", "title"]
_BETWEEN = re.compile(r"[\s,]*")  # between the items of a JSON list
csv.field_size_limit(LONGEST)


def is_passages(path: Path) -> bool:
    return first_line(path).split("\t") == _HEADER


def is_questions(path: Path) -> bool:
    """True if a file contains questions with answers, whatever its name."""
    name = plain_name(path)
    if name.endswith(".json"):
        return next(read_blocks(path), b"").lstrip().startswith(b"[")
    fields = columns(first_line(path))
    return name.endswith(".qa.csv") or (len(fields) == 2 and bool(read_list(fields[1])))


def passages(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """(place, id, title, text) of each passage."""
    rows = _rows(path, 3, "id<tab>text<tab>title")
    next(rows)
    for place, (id, text, title) in rows:
        yield place, id, title, text


def questions(path: Path) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """(place, id, question, answers) of each question."""
    rows = _from_json(path) if plain_name(path).endswith(".json") else _from_csv(path)
    for number, (place, text, answers) in enumerate(rows):
        yield place, str(number), *checked(text, answers, place)


def is_training_file(path: Path) -> bool:
    """True if a file is a list of questions with passages."""
    return path.is_file() and plain_name(path).endswith(".json") and is_questions(path)


def labeled(path: Path) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """(id, question, positives, hard negatives) of each question; one without positives is left out, as DPR does. The ids
    of questions are those of `questions`."""
    for number, (place, row) in enumerate(_objects(path)):
        text, _ = checked(row.get("question"), row.get("answers"), place)
        positives, negatives = (
            _ids(row.get(name), name, place) for name in ("positive_ctxs", "hard_negative_ctxs")
        )
        if positives:
            yield str(number), text, positives, [id for id in negatives if id not in positives]


def positives(path: Path) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, str]]]]:
    """(question, answers, titles and texts of its positive passages) of each question that has one."""
    for place, row in _objects(path):
        question, answers = checked(row.get("question"), row.get("answers"), place)
        found = row.get("positive_ctxs")
        _ids(found, "positive_ctxs", place)
        passages = [(passage.get("title") or "", passage.get("text")) for passage in found or ()]
        if not all(isinstance(value, str) for passage in passages for value in passage):
            raise QontextError("expected a text of each positive passage", place=place)
        check_characters(passages, place)
        if passages:
            yield question, answers, passages


def _ids(passages: object, name: str, place: str) -> list[str]:
    """The ids of a list of passages."""
    if not isinstance(passages, list) or not all(isinstance(passage, dict) for passage in passages):
        raise QontextError(f"expected a list of passages as {name!r}", place=place)
    ids = [passage.get("passage_id", passage.get("psg_id")) for passage in passages]
    check_characters(ids, place)
    return list(dict.fromkeys(id_of(id, place, f"passage_id in {name!r}") for id in ids))


def checked(text: object, answers: object, place: str) -> tuple[str, tuple[str, ...]]:
    """Validate a question and its answers (at least one)."""
    if not isinstance(text, str) or not isinstance(answers, list) or not answers:
        raise QontextError("expected a question and a list of at least one answer", place=place)
    if not all(isinstance(answer, str | int) and not isinstance(answer, bool) for answer in answers):
        raise QontextError("an answer is neither a string nor an integer", place=place)
    return text, tuple(map(str, answers))


def columns(line: str) -> list[str]:
    """The columns of a line, without the quotes that a CSV writer puts around a value with quotes or tabs in it."""
    return next(csv.reader([line], delimiter="\t")) if '"' in line else line.split("\t")


def read_list(text: str) -> list[Any] | None:
    """The items of a list in JSON or Python syntax; None if it is not a list."""
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = parse(text.strip())
            return value if isinstance(value, list) else None
    return None


def _rows(path: Path, count: int, expected: str) -> Iterator[tuple[str, list[str]]]:
    for place, line in read_lines(path):
        fields = columns(line)
        if len(fields) != count:
            raise QontextError(f"has {len(fields)} columns, expected {expected}", place=place)
        yield place, fields


def _from_csv(path: Path) -> Iterator[tuple[str, Any, Any]]:
    for place, (question, answers) in _rows(path, 2, "question<tab>['answer', …]"):
        strings = read_list(answers)
        if strings is None:
            raise QontextError(f"the answers are {answers[:80]!r}, expected a list of strings", place=place)
        check_characters(strings, place)
        yield place, question, strings


def _from_json(path: Path) -> Iterator[tuple[str, Any, Any]]:
    for place, row in _objects(path):
        yield place, row.get("question"), row.get("answers")


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, question) for each question of a list."""
    for number, row in enumerate(_items(path), start=1):
        place = f"{path}, question {number}"
        if not isinstance(row, dict):
            raise QontextError("expected an object with question and answers", place=place)
        check_characters([row.get("question"), row.get("answers")], place)
        yield place, row


def _items(path: Path) -> Iterator[Any]:
    """The items of a JSON list, reading a few MB at a time."""
    decode, rest, is_open = json.JSONDecoder().raw_decode, "", False
    for block in codecs.iterdecode(read_blocks(path), "utf-8-sig"):
        rest += block
        if not is_open:
            is_open, rest = True, rest.lstrip().removeprefix("[")
        at = 0
        while (at := _BETWEEN.match(rest, at).end()) < len(rest):  # type: ignore[union-attr]
            try:
                item, at = decode(rest, at)
            except RecursionError:
                raise QontextError("is not usable JSON: nested too deeply", place=path) from None
            except ValueError:
                break  # the rest of the item is in the next block, or the list has ended
            yield item
        rest = rest[at:]
    if rest.strip() != "]":
        raise QontextError("is not a JSON list, or is truncated", place=path)
