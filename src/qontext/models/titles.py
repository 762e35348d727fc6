"""The title of a passage in its model's input: one rule for every stage, recorded in the model's folder.

| rule | input |
|---|---|
| `prepend` | title, space, text |
| `sep` | title, the tokenizer's separator, text: [CLS] title [SEP] text [SEP] |
| `leave` | text |

A passage without a title is its text. A folder without a record is read as `prepend`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import TypedDict

from qontext.data.passage import TitleRule
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json

FILE = "qontext.json"


class TitleRecord(TypedDict, total=False):
    """The fields of `qontext.json` in a model's folder."""

    title: TitleRule


class Titles(NamedTuple):
    """A rule for one tokenizer; `between` stands between title and text, None leaves out the title."""

    rule: TitleRule
    between: str | None

    @classmethod
    def of(cls, rule: TitleRule, tokenizer: Any, place: str | Path) -> Titles:
        if rule != "sep":
            return cls(rule, " " if rule == "prepend" else None)
        token = tokenizer.sep_token
        encoding = tokenizer.backend_tokenizer.encode(token or "", add_special_tokens=False)
        # tokenizer.json may ask for padding, as that of all-MiniLM-L6-v2 does.
        ids = [id for id, is_text in zip(encoding.ids, encoding.attention_mask) if is_text]
        if ids != [tokenizer.sep_token_id]:
            raise QontextError(
                "the tokenizer has no separator token to put between title and text",
                place=place,
                remedy="Use --title prepend.",
            )
        return cls(rule, token)

    def example(self) -> str:
        """A passage in the code of a model card."""
        return json.dumps("a passage" if self.between is None else f"a title{self.between}and its passage")


def recorded_title(folder: Path) -> TitleRule | None:
    """The rule in a model's folder, or in the one above its transformer's; None without a record."""
    for place in (folder, folder.parent):
        if (place / FILE).is_file():
            record: TitleRecord = read_json(place / FILE, TitleRecord)
            return record.get("title")
        if (place / "modules.json").is_file():
            return None
    return None


def settle_title(
    chosen: TitleRule | None, recorded: TitleRule | None, model: str, *, says: bool
) -> TitleRule:
    """The rule to use: the chosen one, else that of the model, else `prepend`. Warns if the first two differ."""
    if says and chosen and recorded and chosen != recorded:
        log.warn(
            f"{model} was trained with --title {recorded}, and now reads passages with --title {chosen}."
        )
    return chosen or recorded or "prepend"


def record_title(folder: Path, rule: TitleRule) -> None:
    """Write the rule into a model's folder."""
    (folder / FILE).write_text(json.dumps({"title": rule}) + "\n", encoding="utf-8")
