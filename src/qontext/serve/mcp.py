"""Search as tools for agents: the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field

from qontext import __version__
from qontext.frame.errors import QontextError, shorten
from qontext.serve.passages import FieldFilter, Passages
from qontext.serve.schemas import LONGEST_QUERY
from qontext.serve.service import Service
from qontext.serve.systems import ServedSystem

TEXT_CHARACTERS, ANSWER_CHARACTERS, MOST_RESULTS = 2_000, 20_000, 20


class SearchResult(BaseModel):
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


class SearchResults(BaseModel):
    results: list[SearchResult]


class Reading(BaseModel):
    document: str
    title: str
    text: str
    passages: int
    """The number of passages of the document."""
    next: int | None = None
    """The passage to continue from, if the text was truncated."""


def build(service: Service) -> Any:
    """The MCP server with its two tools, whose descriptions mention the collection's content."""
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

    about = describe(service.default.passages, service.about)
    hints = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )

    async def search(
        question: Annotated[str, Field(description="A question or keywords.", max_length=LONGEST_QUERY)],
        k: Annotated[int, Field(description="Number of passages to return.", ge=1, le=MOST_RESULTS)] = 5,
        folder: Annotated[
            str | None, Field(description="Return only passages of documents in this folder.")
        ] = None,
    ) -> SearchResults:
        if not question.strip():
            raise ToolError("The question is empty. Ask in a few words.")
        try:
            results = await service.search(service.default, [question], k, FieldFilter(folder))
        except QontextError as error:
            raise ToolError(str(error)) from None
        return SearchResults(results=_results(service.default, question, results.hits[0]))

    async def read(
        document: Annotated[str, Field(description="The id of a document, as search returns it.")],
        start: Annotated[int, Field(description="The passage to start from.", ge=1)] = 1,
    ) -> Reading:
        try:
            return _reading(document, service, start)
        except QontextError as error:
            raise ToolError(str(error)) from None

    server = _server(about, {"search": search, "read": read})
    server.tool(
        title="Search the collection",
        description=f"Find the passages that answer a question. {about} Returns the best passages with the ids of "
        "their documents, for the tool read.",
        annotations=hints,
    )(search)
    server.tool(
        title="Read a document",
        description="Return the text of a document by its id, as returned by search. A long text is truncated: `next` is "
        "then the passage to continue from.",
        annotations=hints,
    )(read)
    return server


def _server(about: str, tools: dict[str, Callable[..., Any]]) -> Any:
    """The library's server, which answers wrong arguments of these tools with one sentence."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from pydantic import ValidationError

    class Server(MCPServer[Any]):
        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if isinstance(error.__cause__, ValidationError):
                    problem = error.__cause__.errors()[0]
                    raise ToolError(_wrong_argument(name, arguments, tools[name], problem)) from None
                raise

    with _untouched_logging():
        return Server("qontext", title="Qontext search", instructions=about, version=__version__)


def _wrong_argument(tool: str, arguments: dict[str, Any], function: Callable[..., Any], problem: Any) -> str:
    """The first problem with the arguments of a tool."""
    names = inspect.signature(function).parameters
    if unknown := [name for name in arguments if name not in names]:
        return f"{tool} has no argument {shorten(unknown[0], 60)!r}. Its arguments: {', '.join(names)}."
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
    from qontext.adapt.survey import language_name, language_of

    sample = passages.sample(200)
    language = language_name(language_of([passage.text for passage in sample]))
    titles = list(dict.fromkeys(p.title.strip() for p in sample if _says_something(p.title, p.doc)))
    if len(titles) < 2:  # the texts say more
        titles = list(
            dict.fromkeys(f"“{_cut(' '.join(p.text.split()), 80)}”" for p in sample[:: len(sample) // 2 or 1])
        )
    spread = [_cut(titles[n * len(titles) // 5], 90) for n in range(5)] if len(titles) >= 5 else titles
    what = f"The collection contains {_count(passages.documents, 'document')} ({len(passages):,} passages) in {language}"
    examples = f", such as {'; '.join(dict.fromkeys(spread))}" if spread else ""
    return f"{about.strip().rstrip('.')}. {what}{examples}." if about.strip() else f"{what}{examples}."


def _says_something(title: str, document: str) -> bool:
    """Return True if the title has a word, and is neither the id of its document nor a number of a kind."""
    words = [word.strip(".,;:!?()[]\"'") for word in title.split()]
    return title.strip() != document and any(len(word) > 1 and word.isalpha() for word in words)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _results(system: ServedSystem, question: str, hits: list[Any]) -> list[SearchResult]:
    """The hits, with a limited amount of text."""
    results, left = [], ANSWER_CHARACTERS
    for rank, hit in enumerate(hits, 1):
        passage = system.passages[hit.number]
        most = min(TEXT_CHARACTERS, max(200, left))
        snippet, place = system.matched(hit, question, most)
        text = passage.text if len(passage.text) <= most else snippet
        left -= len(text)
        position, _ = system.passages.position(hit.number)
        results.append(
            SearchResult(
                rank=rank,
                score=round(hit.score, 6),
                document=passage.doc,
                title=passage.title,
                passage=position,
                place=str(place),
                text=text,
            )
        )
    return results


def _reading(document: str, service: Service, start: int) -> Reading:
    parts = service.document(document)
    if start > len(parts):
        raise QontextError(f"there is no passage {start:,}: the document has {len(parts)} passages")
    texts: list[str] = []
    length = 0
    for passage in parts[start - 1 :]:
        length += len(passage.text)
        if texts and length > ANSWER_CHARACTERS:
            break
        texts.append(_cut(passage.text, ANSWER_CHARACTERS))
    following = start + len(texts)
    return Reading(
        document=document,
        title=parts[0].title,
        text="\n\n".join(texts),
        passages=len(parts),
        next=following if following <= len(parts) else None,
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"
