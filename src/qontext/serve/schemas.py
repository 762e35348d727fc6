"""The schemas of the HTTP API, with bounds on all values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

LONGEST_QUERY, LONGEST_TEXT, LONGEST_CONDITION = 20_000, 200_000, 2_000
"""Characters."""
MOST_QUERIES, MOST_TEXTS, MOST_DOCUMENTS, MOST_RESULTS, MOST_CONDITIONS = 64, 2_048, 1_000, 1_000, 20
MOST_HITS = 10_000
"""Results of all queries of a request."""


def _utf8(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("is not valid Unicode")
    return text


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return _utf8(text)


_FILLED: dict[str, Any] = {"minLength": 1, "pattern": r"\S"}
Query = Annotated[str, Field(max_length=LONGEST_QUERY, json_schema_extra=_FILLED), AfterValidator(_filled)]
Text = Annotated[str, Field(max_length=LONGEST_TEXT, json_schema_extra=_FILLED), AfterValidator(_filled)]
Name = Annotated[str, Field(max_length=200), AfterValidator(_utf8)]
Id = Annotated[str, Field(max_length=2_000), AfterValidator(_utf8)]
Condition = Annotated[str, Field(max_length=LONGEST_CONDITION), AfterValidator(_utf8)]


class Body(BaseModel):
    """Base class of requests. Unknown fields are ignored, since clients send additional fields of other services."""

    model_config = ConfigDict(use_attribute_docstrings=True, strict=True)


class SearchRequest(Body):
    query: Query | Annotated[list[Query], Field(min_length=1, max_length=MOST_QUERIES)]
    """One query, or a list of queries."""
    k: int = Field(10, ge=1, le=MOST_RESULTS)
    """Passages per query."""
    system: Name | None = None
    """The system to search with (listed by `GET /v1/models`). Default: the first one."""
    folder: Id | None = None
    """Return only passages of documents in this folder."""
    document: Id | None = None
    """Return only passages of this document."""
    where: Annotated[list[Condition], Field(max_length=MOST_CONDITIONS)] = []
    """Conditions on the metadata, all of which must hold, such as `date>=2024` or `author=Ada|Grace`."""

    source: Name | None = None
    """Return only passages of this source, or of several, separated by `|`."""
    group: Literal["passage", "document"] = "passage"
    """`document`: only the best passage of each document."""
    min_score: float | None = None
    """Leave out passages with a lower score."""
    explain: bool = False
    """Say of each passage what found it."""

    @model_validator(mode="after")
    def _not_too_many(self) -> SearchRequest:
        if isinstance(self.query, list) and len(self.query) * self.k > MOST_HITS:
            raise ValueError(f"asks for more than {MOST_HITS:,} passages: lower k, or send fewer queries")
        return self


class SearchHit(BaseModel):
    rank: int
    score: float
    passage: str
    document: str
    title: str
    text: str
    snippet: str
    """The text around the passage's best sentence for the query."""
    position: int
    """The position of the passage in its document, from 1."""
    passages: int
    """The number of passages of the document."""
    place: str
    """File or URL, headings, and page, cell or line of the best sentence, if known."""
    metadata: dict[str, Any]
    sentence: str = ""
    """The passage's best sentence for the query; empty if no word of the query is in it."""
    evidence: dict[str, Any] | None = None
    """The evidence for it, if that was asked for: `parts` with ranks, `words` with weights, the nearest `sentence`."""


class SearchResult(BaseModel):
    query: str
    hits: list[SearchHit]


class SearchResponse(BaseModel):
    system: str
    seconds: float
    results: list[SearchResult]


class EmbeddingRequest(Body):
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
    """One text, or a list of texts. Arrays of token ids are not accepted."""
    model: Name
    """A model of `GET /v1/models`: NAME, NAME-query or NAME-passage."""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    """Truncate the vectors to their first dimensions and normalize them."""
    input_type: Literal["query", "passage", "document", "search_query", "search_document"] | None = None
    """The kind of the texts, if the model name does not specify it. Default: passages."""
    user: str | None = None
    """Ignored."""

    @field_validator("input", mode="before")
    @classmethod
    def _no_token_ids(cls, value: Any) -> Any:
        items = value if isinstance(value, list) else []
        if items and all(isinstance(item, int | list) for item in items):
            raise ValueError(
                "contains token ids, which are not supported: send texts "
                "(LangChain does so with check_embedding_ctx_length=False)"
            )
        return value


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class RerankDocument(Body):
    text: Text


class RerankRequest(Body):
    query: Query
    documents: Annotated[list[Text | RerankDocument], Field(min_length=1, max_length=MOST_DOCUMENTS)]
    """Texts, or objects with a `text`."""
    model: Name | None = None
    """A reranker or an encoder of `GET /v1/models`. Default: the first reranker, else the first encoder."""
    top_n: int | None = Field(None, ge=1)
    """Maximum number of results. Default: all."""
    return_documents: bool = False


class RerankedText(BaseModel):
    text: str


class RerankResult(BaseModel):
    index: int
    relevance_score: float
    document: RerankedText | None = None


class RerankResponse(BaseModel):
    id: str
    model: str
    results: list[RerankResult]


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "qontext"
    capabilities: list[Literal["search", "embeddings", "rerank"]]
    description: str


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The format of all API errors (OpenAI's)."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        400: "The request cannot be processed",
        401: "The token is missing or wrong",
        403: "The request comes from another site",
        404: "No such system or model",
        408: "The request was not sent in time",
        413: "The request is too large",
        415: "The request is not JSON",
        422: "The request is not valid",
        429: "The server is busy",
        503: "The answer was not ready in time",
    }.items()
}
