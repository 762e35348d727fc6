"""The settings of `qontext search`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from qontext.frame.config import DeviceConfig, Input, Seed
from qontext.frame.parts import PartsConfig
from qontext.retrieve.answers import PROMPT
from qontext.retrieve.index.lexical import Bm25Options
from qontext.retrieve.searcher import fingerprint_of, is_adapted


class SearchConfig(PartsConfig, Bm25Options, DeviceConfig):
    index: Annotated[str | None, Input(positional=True, fingerprint=fingerprint_of)] = None
    """What to search: vectors (from `encode`, exact search), an index (from `index`), or a directory of
    `adapt`. Optional with --bm25: the passages are then indexed first."""

    question: Annotated[str | None, Input(positional=True, by_content=False)] = None
    """A question to a directory of `adapt`: prints the best passages; no --out is needed. Without a question
    and queries, questions are read from a prompt, or line by line from a pipe."""

    where: tuple[str, ...] = ()
    """Search only passages whose metadata meet this condition, such as folder=guide, 'date>=2024' or
    'lang=de|fr'. May be repeated; all conditions must hold."""

    data: Annotated[str | None, Input()] = None
    """A BEIR folder with the queries and, with --bm25, the passages."""

    split: str | None = None
    """Split of --data whose judged queries are used. Default: all queries."""

    queries: Annotated[str | None, Input()] = None
    """Queries, instead of --data: BEIR JSON Lines, id<tab>text, or generated queries."""

    limit: int | None = Field(None, ge=1)
    """Maximum number of queries, drawn with the seed; `mine --limit` draws the same ones."""

    seed: Seed = 42
    """Random seed for --limit."""

    passages: Annotated[str | None, Input()] = None
    """Passages for --bm25, instead of --data: output of `split`, Parquet, a BEIR folder or corpus file. With
    --where: passages with the metadata, if the index's own passages no longer exist."""

    encoder: Annotated[str | None, Input()] = None
    """Encoder for the queries. Default: the one that encoded the passages. For a directory of `adapt`: an unchanged copy of
    its encoder, if that is no longer where it was."""

    untied: bool = False
    """Accept an --encoder other than that of the passages: the query half of an untied pair."""

    bm25: bool = False
    """Search with BM25 instead of vectors."""

    k: int = Field(1_000, ge=1)
    """Passages per query."""

    max_length: int | None = Field(None, ge=3, le=100_000)
    """Maximum length of a query in tokens; longer queries are truncated. Default: the encoder's limit."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format for encoding queries; auto is bf16 if the hardware supports it, else fp32."""

    scoring: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the first pass of exact search; candidates from bf16 and fp16 are rescored in fp32."""

    @model_validator(mode="before")
    @classmethod
    def _prompt(cls, values: Any) -> Any:
        """Without a question and queries, questions are read from standard input."""
        if not isinstance(values, dict) or any(
            values.get(n) is not None for n in ("question", "queries", "data")
        ):
            return values
        index = values.get("index")
        return {**values, "question": PROMPT} if index and is_adapted(index) else values
