"""Conditions in the languages of index servers: those of `--where`, where they say exactly the same, or sets of keys.

Values of metadata are strings, numbers, booleans and lists of these; a list meets a condition if one of its values does.
`file`, `title`, `document` and `page` are looked up by `retrieve.where`: they may be fields or columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from qontext.retrieve.index.servers.base import runs
from qontext.retrieve.where import COLUMNS, Condition, number_in

_EXACT = 2**53
"""Below this, a double is as exact as the whole numbers in JSON."""
_SQL_RUNS, _MILVUS_RUNS = 50, 500
"""Runs of keys up to which a condition in SQL names runs (of more it names the keys), and in one condition for Milvus."""


def postgres(conditions: Sequence[Condition]) -> tuple[str, list[Any]] | None:
    """A condition on the column `metadata`, a JSON object, with its values."""
    clauses, values = [], []
    for condition in conditions:
        if condition.name in COLUMNS:
            return None
        wanted = condition.value.split("|") if condition.operator in ("=", "!=") else [condition.value]
        tests = [_test(condition, text.strip()) for text in wanted]
        if any(test is None for test in tests):
            return None
        one_of = " OR ".join(test[0] for test in tests if test)
        clauses.append(f"{'NOT ' if condition.operator == '!=' else ''}EXISTS ({_ITEMS} WHERE {one_of})")
        values += [*[condition.name] * 3, *(value for test in tests if test for value in test[1])]
    return " AND ".join(clauses), values


_ITEMS = (
    "SELECT FROM jsonb_array_elements(CASE jsonb_typeof(metadata -> %s) WHEN 'array' THEN metadata -> %s "
    "ELSE jsonb_build_array(metadata -> %s) END) AS item"
)
_TEXT = "item #>> '{}'"


def _test(condition: Condition, wanted: str) -> tuple[str, list[Any]] | None:
    """SQL and parameters: `item` meets the condition with one of its alternatives; None if SQL cannot say it."""
    number, is_equal = number_in(wanted), condition.operator in ("=", "!=")
    if number is not None and not abs(number) < _EXACT:
        return None
    compares = "=" if is_equal else condition.operator
    tests, values = [], list[Any]()
    if number is not None:
        # In this form, since a server may evaluate both sides of AND.
        tests.append(
            f"CASE WHEN jsonb_typeof(item) = 'number' THEN (item)::float8 {compares} %s ELSE false END"
        )
        values.append(number)
    if is_equal and wanted.lower() in ("true", "false"):
        tests.append("item = %s::jsonb")
        values.append(wanted.lower())
    text, of_text = _text_test(condition, wanted)
    tests.append(f"(jsonb_typeof(item) = 'string' AND ({text}))")
    return f"({' OR '.join(tests)})", [*values, *of_text]


def _text_test(condition: Condition, wanted: str) -> tuple[str, list[Any]]:
    if condition.operator not in ("=", "!="):
        return f'left({_TEXT}, %s) COLLATE "C" {condition.operator} %s', [len(wanted), wanted]
    folder = wanted.rstrip("/")
    tests, values = [], list[Any]()
    if condition.name == "folder" and wanted:
        tests.append(f"starts_with({_TEXT}, %s)")
        values.append(folder + "/")
    if "*" in wanted:
        escaped = wanted.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        tests.append(f"{_TEXT} LIKE %s")
        values.append(escaped.replace("*", "%"))
    else:
        tests.append(f"{_TEXT} = %s")
        values.append(folder if condition.name == "folder" else wanted)
    return " OR ".join(tests), values


def milvus(conditions: Sequence[Condition]) -> str | None:
    """An expression on the field `metadata`. Only texts are compared, and only for equality: numbers in JSON are of several
    kinds there, and versions differ in what `not` means where there is no such field."""
    clauses = []
    for condition in conditions:
        texts = [text.strip() for text in condition.value.split("|")]
        is_plain = condition.operator == "=" and condition.name not in (*COLUMNS, "folder")
        if not is_plain or not all(map(_is_plain_text, texts)):
            return None
        field = f"metadata[{json.dumps(condition.name)}]"
        tests = [
            f"{field} == {json.dumps(text)} or json_contains({field}, {json.dumps(text)})" for text in texts
        ]
        clauses.append(f"({' or '.join(tests)})")
    return " and ".join(clauses)


def _is_plain_text(text: str) -> bool:
    """True if it is neither a number, a truth value nor a pattern, and is written alike in every language."""
    is_other = number_in(text) is not None or text.lower() in ("true", "false")
    return text.isascii() and text.isprintable() and not is_other and not {*text} & {*"*\\\"'"}


def postgres_keys(chosen: Any) -> tuple[Any, list[Any]]:
    """A condition on ascending keys, or one that is translated already, and its values."""
    from psycopg import sql

    if chosen is None:
        return sql.SQL(""), []
    if isinstance(chosen, tuple):
        return sql.SQL("WHERE " + chosen[0]), chosen[1]
    edges = runs(chosen)
    if len(edges) > _SQL_RUNS:
        return sql.SQL("WHERE number = ANY(%s::int8[])"), [chosen.tolist()]
    some = sql.SQL(" OR ").join([sql.SQL("(number >= %s AND number < %s)")] * len(edges))
    return sql.SQL("WHERE {}").format(some), edges.ravel().tolist()


def milvus_keys(keys: Any) -> Iterator[str]:
    """Ascending keys as conditions. They come in runs where ids that begin alike are chosen together."""
    if keys is None or isinstance(keys, str):
        yield keys or ""
        return
    edges = runs(keys)
    for start in range(0, len(edges), _MILVUS_RUNS):
        some = edges[start : start + _MILVUS_RUNS].tolist()
        alone = [begin for begin, end in some if end == begin + 1]
        longer = [f"(number >= {begin} and number < {end})" for begin, end in some if end > begin + 1]
        yield _any([f"number in {alone}", *longer] if alone else longer)


def _any(conditions: list[str]) -> str:
    """One condition or the other, as a balanced tree: a server takes about thirty levels."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return f"({_any(conditions[:half])} or {_any(conditions[half:])})"
