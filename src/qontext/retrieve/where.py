"""`--where folder=guide`: a mask of an index's passages whose metadata meet conditions.

A condition is NAME=VALUE, or has one of the operators ``!=``, ``<``, ``<=``, ``>``, ``>=``. VALUE may have
alternatives separated by ``|``, and ``*`` matches any text. A folder includes its subfolders. If there are
several conditions, all must hold. NAME is a field of the metadata, or `file`, `title`, `document` or `page`:
each page that the passage is on. Without a field `folder`, ids of documents such as guide/install say it.

Programs write ``==`` for one `document` or `folder`, whose name may have ``|`` and ``*`` in it.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qontext.data.collection import read_metadata
from qontext.data.places import is_table, parsed, read_columns
from qontext.frame.artifacts import Artifact, InputEntry, is_artifact, open_artifact
from qontext.frame.errors import QontextError, Unanswerable
from qontext.frame.inputs import find

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_CONDITION = re.compile(r"([^=!<>]+)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ROWS = 16_384
COLUMNS = {"file": "file", "title": "title", "document": "doc", "page": "page"}
"""The columns for names that are not metadata fields."""


class Condition(NamedTuple):
    """NAME OPERATOR VALUE."""

    name: str
    operator: str
    value: str

    def holds(self, value: object) -> bool:
        """True if a field with this value, or one of these values, meets the condition."""
        if self.operator == "!=":
            return not self._replace(operator="=").holds(value)
        if isinstance(value, list):
            return any(self.holds(item) for item in value)
        if self.operator == "==":
            return value == self.value or (self.name == "folder" and f"{value}/".startswith(f"{self.value}/"))
        if self.operator == "=":
            return any(self._equals(value, choice.strip()) for choice in self.value.split("|"))
        return self._compares(value)

    def _equals(self, value: object, choice: str) -> bool:
        if isinstance(value, bool):
            return choice.lower() == str(value).lower()
        if isinstance(value, int | float):
            number = number_in(choice)
            return number is not None and number == value
        text = str(value)
        if self.name == "folder" and choice and text.startswith(choice.rstrip("/") + "/"):
            return True
        if "*" in choice:
            return fnmatchcase(text, choice.replace("[", "[[]").replace("?", "[?]"))
        return text == (choice.rstrip("/") if self.name == "folder" else choice)

    def _compares(self, value: object) -> bool:
        compare = _ORDER[self.operator]
        number = number_in(self.value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return number is not None and compare(value, number)
        if not isinstance(value, str):
            return False
        # Compare at the condition's precision: 2024-05-01 is in 2024, neither before nor after it.
        return compare(value[: len(self.value)], self.value)


def parse(where: Sequence[str | Condition]) -> list[Condition]:
    """The conditions."""
    conditions = []
    for text in where:
        if isinstance(text, Condition):
            conditions.append(text)
            continue
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise Unanswerable(
                f"--where {text!r} is not a condition", remedy="Use NAME=VALUE, as in --where folder=guide."
            )
        conditions.append(Condition(match[1].strip(), match[2], match[3].strip()))
    return conditions


def mask(where: Sequence[str | Condition], ids: np.ndarray[Any, Any], passages: Path | str) -> Mask:
    """[P] which passages of an index meet all conditions, according to the metadata of `passages`."""
    conditions = parse(where)
    names: set[str] = set()
    matching: list[str] = []
    columns = {"id", "metadata", *COLUMNS.values()}
    if any(condition.name == "page" for condition in conditions):
        columns.add("spans")
    for file, batch in _batches(Path(passages), columns):
        metadata = batch["metadata"].dictionary_encode() if "metadata" in batch.schema.names else None
        objects = (
            [parsed(text, file) for text in metadata.dictionary.to_pylist()] if metadata is not None else [{}]
        )
        codes = np.zeros(len(batch), np.int64) if metadata is None else metadata.indices.to_numpy()
        names.update(name for one in objects for name in one)
        names.update(name for name, column in COLUMNS.items() if column in batch.schema.names)
        good = np.ones(len(batch), bool)
        for condition in conditions:
            good &= _fulfils(condition, objects, codes, batch)
        matching += batch["id"].filter(pa.array(good)).to_pylist()
    for condition in conditions:
        if condition.name not in (*names, "folder"):
            fields = ", ".join(sorted(names)[:20])
            # Without a place: documents that are searched as they are have theirs in the user's cache.
            remedy = f"Available fields: {fields}."
            raise Unanswerable(f"no passage has a field {condition.name!r}", remedy=remedy)
    accepted = pc.is_in(pa.array(ids, pa.string()), value_set=pa.array(matching, pa.string()))
    fulfilled: Mask = accepted.to_numpy(zero_copy_only=False)
    return fulfilled


def _fulfils(
    condition: Condition, objects: list[dict[str, Any]], codes: np.ndarray[Any, Any], batch: pa.RecordBatch
) -> Mask:
    """[B] whether each row meets the condition. Each distinct object or column value is checked once."""
    if condition.operator == "==" and condition.name == "document":
        is_it: Mask = pc.equal(batch["doc"].fill_null(""), condition.value).to_numpy(zero_copy_only=False)
        return is_it
    has = np.array([condition.name in fields for fields in objects])
    good = np.array(
        [condition.name in fields and condition.holds(fields[condition.name]) for fields in objects]
    )
    rows: Mask = good[codes]
    column = "doc" if condition.name == "folder" else COLUMNS.get(condition.name)
    if column is not None and column in batch.schema.names and not has.all():
        rows = np.where(has[codes], rows, _column_fulfils(condition, column, batch))
    elif condition.operator == "!=":
        rows = rows | ~has[codes]
    return rows


def _column_fulfils(condition: Condition, column: str, batch: pa.RecordBatch) -> Mask:
    """[B] whether the value of each row's column, or one of its pages, meets the condition."""
    if condition.operator == "!=":
        return ~_column_fulfils(condition._replace(operator="="), column, batch)
    values, owners = batch[column], np.arange(len(batch))
    if column == "page" and "spans" in batch.schema.names:
        pages = pc.struct_field(pc.list_flatten(batch["spans"]), "page")
        values = pa.concat_arrays([values, pages])
        owners = np.concatenate([owners, pc.list_parent_indices(batch["spans"]).to_numpy()])
    values = values.dictionary_encode()
    holds = np.array([*map(condition.holds, values.dictionary.to_pylist()), False])
    rows = np.zeros(len(batch), bool)
    rows[owners[holds[values.indices.fill_null(len(holds) - 1).to_numpy()]]] = True
    return rows


def _batches(source: Path, names: set[str]) -> Iterator[tuple[Path, pa.RecordBatch]]:
    """(file, rows) with `id`, `title`, `doc` and the other columns, of those that are named."""
    if is_table(source):
        yield from read_columns(source, names)
        return
    rows = read_metadata(source)
    while some := list(itertools.islice(rows, _ROWS)):
        columns = {
            "id": [passage.id for passage, _ in some],
            "title": [passage.title for passage, _ in some],
            "doc": [passage.doc for passage, _ in some],
            "metadata": [metadata for _, metadata in some],
        }
        yield source, pa.RecordBatch.from_pydict(columns)


def number_in(text: str) -> float | None:
    """The number that the text is, if it is one."""
    try:
        return float(text)
    except ValueError:
        return None


def passages_of(artifact: Artifact) -> str:
    """The passages of vectors or an index, found through the recorded inputs."""
    for name in ("texts", "source", "passages"):
        if name in artifact.inputs:
            entry: Any = artifact.inputs.take(name, InputEntry)
            remedy = "Name them with --passages."
            path = find(entry, artifact.path, "the passages of the index", remedy=remedy)
            above = open_artifact(path) if is_artifact(path) else None
            return passages_of(above) if above and above.verb in ("encode", "expand") else path
    raise QontextError(
        "does not record its passages", place=artifact.path, remedy="Name them with --passages."
    )
