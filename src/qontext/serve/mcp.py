"""Search as tools for agents: the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from qontext import __version__
from qontext.frame.errors import QontextError, shorten
from qontext.frame.files import json_digest
from qontext.retrieve.ask.questions import joined
from qontext.retrieve.rankers import CANDIDATES
from qontext.serve.passages import FieldFilter, Passages
from qontext.serve.reading import CHARACTERS_PER_TOKEN, Reading, cut
from qontext.serve.reading import read as reading
from qontext.serve.schemas import LONGEST_QUERY
from qontext.serve.service import Service
from qontext.serve.systems import ServedSystem

TEXT_CHARACTERS, ANSWER_CHARACTERS, MOST_RESULTS = 2_000, 20_000, 20
DEEPEST = CANDIDATES
"""Passages on all pages: as many as every system ranks at least, so that each page is of the same ranking."""


class FoundPassage(BaseModel):
    rank: int
    score: float
    document: str
    """The document id, an argument of `read`."""
    title: str
    passage: int
    """The position of the passage in its document, from 1."""
    place: str
    """File or URL, headings, and page, cell or line of the best sentence, if known."""
    text: str
    """The passage; of a long one, the text around its best sentence."""
    sentence: str = ""
    """Its best sentence for the question; empty if no word of the question is in it."""
    source: str = ""
    """The name of its source, if the collection has several."""
    evidence: dict[str, Any] | None = None
    """The evidence for it, if that was asked for."""


class SearchResults(BaseModel):
    results: list[FoundPassage]
    cursor: str | None = None
    """An argument of the same search, for the next passages; none if there are no more, or after 100 passages."""


class SubQuery(BaseModel):
    by: Literal["words", "meaning", "hypothetical", "all"] = "all"
    """words: exact terms, by BM25. meaning: by vectors. hypothetical: an answer as it might be written. all: the whole
    system."""
    text: Annotated[str, Field(min_length=1, max_length=LONGEST_QUERY)]


class SourceInfo(BaseModel):
    name: str
    about: str
    passages: int


class SourceList(BaseModel):
    sources: list[SourceInfo]


CITING = (
    "Answer this question from the collection: {question}\n\n"
    "Search with two or three sub-queries: the exact words, the meaning, and a hypothetical answer. Read the documents "
    "whose passages are promising. Cite the place of each claim (file and line, or page) as search returns it. If the "
    "passages do not answer the question, say so."
)


def build(service: Service) -> Any:
    """The MCP server: tools, whose descriptions mention the collection's content, documents as resources, and a prompt."""
    sources = source_list(service)
    about = " ".join([describe(service.default.passages, service.about), _listed(sources)]).strip()

    async def list_sources() -> SourceList:
        return source_list(service)

    tools = {"search": _search(service), "read": _read(service), "sources": list_sources}
    server = _server(about, tools)
    from mcp_types import ToolAnnotations

    hints = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    for name, title, text in (
        (
            "search",
            "Search the collection",
            f"Find the passages that answer a question. {about} Returns the best passages with the ids of their "
            "documents, for the tool read, and a cursor for more of them. Several sub-queries are fused.",
        ),
        (
            "read",
            "Read a document",
            "Return the text of a document by its id, as returned by search: all of it, some lines, what stands under a "
            "heading, or a page. A long text is truncated: `next` is then the passage to continue from (start), and "
            "`offset` the number of its characters that were read.",
        ),
        (
            "sources",
            "List the sources",
            f"List the sources of the collection, to search in some of them. {about}",
        ),
    ):
        server.tool(name=name, title=title, description=text, annotations=hints)(tools[name])
    _add_resources(server, service)
    return server


def _search(service: Service) -> Callable[..., Any]:
    from mcp.server.mcpserver.exceptions import ToolError

    async def search(
        question: Annotated[str, Field(description="A question or keywords.", max_length=LONGEST_QUERY)] = "",
        k: Annotated[int, Field(description="Number of passages to return.", ge=1, le=MOST_RESULTS)] = 5,
        folder: Annotated[
            str | None, Field(description="Return only passages of documents in this folder.")
        ] = None,
        queries: Annotated[
            list[SubQuery] | None,
            Field(description="Sub-queries, fused, besides the question or instead of it.", max_length=8),
        ] = None,
        sources: Annotated[
            list[str] | None, Field(description="Return only passages of these sources.", max_length=50)
        ] = None,
        cursor: Annotated[
            str | None,
            Field(description="The cursor of the same search, for the next passages.", max_length=200),
        ] = None,
        explain: Annotated[bool, Field(description="Say what found each passage.")] = False,
        max_tokens: Annotated[
            int, Field(description="Limit of the texts together.", ge=100, le=20_000)
        ] = 5_000,
    ) -> SearchResults:
        text = _text(question, queries or [])
        if not text.strip():
            raise ToolError("The question is empty. Ask in a few words.")
        system = service.default
        only = FieldFilter(folder).among(_only(system, sources or []))
        key = _key(system, text, only)
        first = _offset(cursor, key)
        try:
            hits = (await service.search(system, [text], DEEPEST, only)).hits[0]
            shown = hits[first : first + k]
            found = await service.explain(system, text, shown, only) if explain else []
        except QontextError as error:
            raise ToolError(str(error)) from None
        results = _results(
            system, text, shown, first, min(ANSWER_CHARACTERS, CHARACTERS_PER_TOKEN * max_tokens)
        )
        for result, one in zip(results, found):
            result.evidence = one.as_json()
        more = len(hits) > first + k
        return SearchResults(results=results, cursor=f"{first + k}.{key}" if more else None)

    return search


def _text(question: str, queries: Sequence[SubQuery]) -> str:
    """The question and its sub-queries as lines; see `qontext.retrieve.ask.questions`."""
    texts = [(query.by, " ".join(query.text.split())) for query in queries]
    return joined(question, [f"{by}: {text}" for by, text in texts if text])


def _key(system: ServedSystem, text: str, only: FieldFilter) -> str:
    """A hash of what a cursor is for: the search, and the state of the index."""
    state = system.directory.folder.name if system.directory is not None else ""
    return json_digest([system.name, state, len(system.passages), text, str(only)])[:12]


def _offset(cursor: str | None, key: str) -> int:
    from mcp.server.mcpserver.exceptions import ToolError

    if cursor is None:
        return 0
    number, _, own = cursor.partition(".")
    is_number = number.isascii() and number.isdigit()
    if own != key or not is_number or int(number) > DEEPEST:
        raise ToolError("The cursor is of another search, or the documents changed: search again without it.")
    return int(number)


def _read(service: Service) -> Callable[..., Any]:
    from mcp.server.mcpserver.exceptions import ToolError

    async def read(
        document: Annotated[str, Field(description="The id of a document, as search returns it.")],
        start: Annotated[int, Field(description="The passage to start from.", ge=1)] = 1,
        offset: Annotated[int, Field(description="Characters of that passage to skip.", ge=0)] = 0,
        lines: Annotated[str | None, Field(description="Only these lines, such as 12-40.")] = None,
        heading: Annotated[str | None, Field(description="Only what stands under this heading.")] = None,
        page: Annotated[int | None, Field(description="Only this page.", ge=1)] = None,
        max_tokens: Annotated[int, Field(description="Limit of the text.", ge=100, le=20_000)] = 5_000,
    ) -> Reading:
        most = min(ANSWER_CHARACTERS, CHARACTERS_PER_TOKEN * max_tokens)
        try:
            part: dict[str, Any] = {"lines": lines, "heading": heading, "page": page}
            return reading(service, document, start=start, offset=offset, **part, characters=most)
        except QontextError as error:
            raise ToolError(str(error)) from None

    return read


def _add_resources(server: Any, service: Service) -> None:
    """Documents by their ids, and how to answer with citations."""
    from mcp.server.mcpserver.exceptions import ResourceNotFoundError

    @server.resource(  # type: ignore[untyped-decorator]
        "qontext://document/{+document}",
        name="document",
        title="A document",
        description="The text of a document by its id, as search returns it; the beginning of a long one.",
        mime_type="text/plain",
    )
    def document(document: str) -> str:
        try:
            return reading(service, document, characters=ANSWER_CHARACTERS).text
        except QontextError as error:
            raise ResourceNotFoundError(str(error)) from None

    @server.prompt(  # type: ignore[untyped-decorator]
        name="answer-with-citations",
        title="Answer with citations",
        description="Answer a question from the collection, and cite the place of each claim.",
    )
    def answer_with_citations(question: str) -> str:
        return CITING.format(question=question)


def source_list(service: Service) -> SourceList:
    """The sources of the first system; the collection as a whole, if it has none."""
    system = service.default
    counts, named = system.passages.sources, _named(system)
    if not named:
        return SourceList(
            sources=[SourceInfo(name=system.name, about=service.about, passages=len(system.passages))]
        )
    rows = [SourceInfo(name=name, about=about, passages=counts.get(name, 0)) for name, about in named.items()]
    return SourceList(sources=rows)


def _named(system: ServedSystem) -> dict[str, str]:
    """The sources of a collection that has some → what they are about."""
    return system.sources or dict.fromkeys(system.passages.sources, "")


def _only(system: ServedSystem, sources: Sequence[str]) -> str | None:
    """The sources to search in, for a filter; none if the collection as a whole is one of them."""
    is_whole = system.name in sources and not _named(system)
    return None if is_whole else "|".join(sources) or None


def _listed(sources: SourceList) -> str:
    """The sources in a sentence, if there are several."""
    if len(sources.sources) < 2:
        return ""
    listed = (
        f"{one.name} ({one.about.strip().rstrip('.')})" if one.about else one.name for one in sources.sources
    )
    return f"Its sources: {'; '.join(listed)}."


def _server(about: str, tools: dict[str, Callable[..., Any]]) -> Any:
    """The library's server, which answers wrong arguments of these tools with one sentence."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from pydantic import ValidationError

    class Server(MCPServer[Any]):
        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            if name in tools and (wrong := _unknown_argument(name, arguments, tools[name])):
                raise ToolError(wrong)
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if isinstance(error.__cause__, ValidationError):
                    problem = error.__cause__.errors()[0]
                    raise ToolError(_wrong_argument(problem)) from None
                raise

    with _untouched_logging():
        return Server("qontext", title="Qontext search", instructions=about, version=__version__)


def _unknown_argument(tool: str, arguments: dict[str, Any], function: Callable[..., Any]) -> str | None:
    """The first argument that a tool does not have, with those that it has."""
    names = inspect.signature(function).parameters
    unknown = next((name for name in arguments if name not in names), None)
    if unknown is None:
        return None
    return f"{tool} has no argument {shorten(unknown, 60)!r}. Its arguments: {', '.join(names)}."


def _wrong_argument(problem: Any) -> str:
    """The first problem with the value of an argument."""
    name, message = problem["loc"][0], problem["msg"]
    return f"{name}: {message[:1].lower()}{message[1:]}."


def routes(server: Any) -> list[Any]:
    """The routes of the HTTP transport. Hosts, origins and tokens are checked before.

    Only POST: a GET would hold a stream open on which this server has nothing to send.
    """
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.routing import Route

    checked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(stateless_http=True, json_response=True, transport_security=checked)
    return [Route(route.path, endpoint=route.endpoint, methods=["POST"]) for route in app.routes]


@contextlib.contextmanager
def _untouched_logging() -> Iterator[None]:
    """Inside this context, the library configures logging for the whole process; it is restored afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def describe(passages: Passages, about: str = "") -> str:
    """The content of a collection in two sentences, by which agents choose tools."""
    from qontext.retrieve.language import language_name, language_of

    sample = passages.sample(200)
    language = language_name(language_of([passage.text for passage in sample]))
    titles = list(dict.fromkeys(p.title.strip() for p in sample if _says_something(p.title, p.doc)))
    if len(titles) < 2:  # the texts say more
        titles = list(
            dict.fromkeys(f"“{cut(' '.join(p.text.split()), 80)}”" for p in sample[:: len(sample) // 2 or 1])
        )
    spread = [cut(titles[n * len(titles) // 5], 90) for n in range(5)] if len(titles) >= 5 else titles
    what = f"The collection contains {_count(passages.documents, 'document')} ({len(passages):,} passages) in {language}"
    examples = f", such as {'; '.join(dict.fromkeys(spread))}" if spread else ""
    return f"{about.strip().rstrip('.')}. {what}{examples}." if about.strip() else f"{what}{examples}."


def _says_something(title: str, document: str) -> bool:
    """Return True if the title has a word, and is neither the id of its document nor a number of a kind."""
    words = [word.strip(".,;:!?()[]\"'") for word in title.split()]
    return title.strip() != document and any(len(word) > 1 and word.isalpha() for word in words)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _results(
    system: ServedSystem, question: str, hits: list[Any], before: int, characters: int
) -> list[FoundPassage]:
    """The hits after so many others, with a limited amount of text."""
    results, left = [], characters
    for rank, hit in enumerate(hits, before + 1):
        passage = system.passages[hit.number]
        most = min(TEXT_CHARACTERS, max(200, left))
        snippet, place, sentence = system.matched(hit, question, most)
        text = passage.text if len(passage.text) <= most else snippet
        left -= len(text)
        position, _ = system.passages.position(hit.number)
        results.append(
            FoundPassage(
                rank=rank,
                score=round(hit.score, 6),
                document=passage.doc,
                title=passage.title,
                passage=position,
                place=str(place),
                source=str(place.metadata.get("source", "")),
                text=text,
                sentence=sentence,
            )
        )
    return results
