"""Search as tools for agents: the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from qontext import __version__
from qontext.data.places import Place, TextPlace
from qontext.frame.errors import QontextError
from qontext.retrieve.ask.questions import joined
from qontext.retrieve.system import CANDIDATES
from qontext.serve.passages import Passages, conditions
from qontext.serve.schemas import LONGEST_QUERY
from qontext.serve.service import Service
from qontext.serve.systems import ServedSystem

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

TEXT_CHARACTERS, ANSWER_CHARACTERS, MOST_RESULTS = 2_000, 20_000, 20
CHARACTERS_PER_TOKEN = 4
"""A cautious mean for English; what matters is that an answer has a limit."""
DEEPEST = CANDIDATES
"""Passages on all pages: as many as every system ranks at least, so that each page is of the same ranking."""
CUT = " …"
"""The sign of text that was left out."""
CITING = (
    "Answer this question from the collection: {question}\n\n"
    "Search with two or three sub-queries: the exact words, the meaning, and a hypothetical answer. Read the documents "
    "whose passages are promising. Cite the place of each claim (file and line, or page) as search returns it. If the "
    "passages do not answer the question, say so."
)
_LINES = re.compile(r"\s*(\d{1,18})\s*(?:[-–:]\s*(\d{1,18})\s*)?")


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
    more: bool = False
    """True if there are more passages: search again with `skip`."""


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


class Reading(BaseModel):
    document: str
    title: str
    text: str
    passages: int
    """The number of passages of the document."""
    next: int | None = None
    """The passage to continue from, if the text was truncated."""
    offset: int = 0
    """The characters of that passage that were read, if it is longer than the limit."""
    place: str = ""
    """The place where the text begins: file or URL, headings, and page, cell or line, if known."""


Tokens = Annotated[int, Field(description="Limit of the texts together.", ge=100, le=20_000)]


def build(service: Service) -> Any:
    """The MCP server: tools, whose descriptions mention the collection's content, documents as resources, and a prompt."""
    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations

    listed = [
        f"{one.name} ({one.about.strip().rstrip('.')})" if one.about else one.name
        for one in source_list(service).sources
    ]
    about = describe(service.default.passages, service.about)
    about += f" Its sources: {'; '.join(listed)}." if len(listed) > 1 else ""
    root = logging.getLogger()  # which the library configures for the whole process
    handlers, level = root.handlers[:], root.level
    server = MCPServer[Any]("qontext", title="Qontext search", instructions=about, version=__version__)
    root.handlers[:] = handlers
    root.setLevel(level)
    hints = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )

    @server.tool(
        title="List the sources",
        description=f"List the sources of the collection, to search in some of them. {about}",
        annotations=hints,
    )
    async def sources() -> SourceList:
        return source_list(service)

    _add_search(server, service, about, hints)
    _add_read(server, service, hints)
    _add_resources(server, service)
    return server


def _add_search(server: MCPServer[Any], service: Service, about: str, hints: Any) -> None:
    @server.tool(
        title="Search the collection",
        description=f"Find the passages that answer a question. {about} Returns the best passages with the ids of their "
        "documents, for the tool read. Several sub-queries are fused.",
        annotations=hints,
    )
    async def search(
        question: Annotated[str, Field(description="A question or keywords.", max_length=LONGEST_QUERY)] = "",
        k: Annotated[int, Field(description="Number of passages to return.", ge=1, le=MOST_RESULTS)] = 5,
        skip: Annotated[int, Field(description="Number of best passages to skip.", ge=0, le=DEEPEST)] = 0,
        folder: Annotated[str | None, Field(description="Only passages of documents in this folder.")] = None,
        queries: Annotated[
            list[SubQuery] | None,
            Field(description="Sub-queries, fused, besides the question or instead of it.", max_length=8),
        ] = None,
        sources: Annotated[
            list[str] | None, Field(description="Only passages of these sources.", max_length=50)
        ] = None,
        explain: Annotated[bool, Field(description="Say what found each passage.")] = False,
        max_tokens: Tokens = 5_000,
    ) -> SearchResults:
        with _answering():
            text, system = _text(question, queries or []), service.default
            if not text.strip():
                raise QontextError("the question is empty")
            where = conditions(folder=folder, source=_only(system, sources or []))
            hits = (await service.search(system, [text], DEEPEST, where)).hits[0]
            shown = hits[skip : skip + k]
            results = _results(system, text, shown, skip, max_tokens)
            if explain:
                for result, one in zip(results, await service.explain(system, text, shown, where)):
                    result.evidence = one.as_json()
            return SearchResults(results=results, more=len(hits) > skip + k)


def _add_read(server: MCPServer[Any], service: Service, hints: Any) -> None:
    @server.tool(
        title="Read a document",
        description="Return the text of a document by its id, as returned by search: all of it, some lines, what stands "
        "under a heading, or a page. A long text is truncated: `next` is then the passage to continue from (start), and "
        "`offset` the number of its characters that were read.",
        annotations=hints,
    )
    async def read(
        document: Annotated[str, Field(description="The id of a document, as search returns it.")],
        start: Annotated[int, Field(description="The passage to start from.", ge=1)] = 1,
        offset: Annotated[int, Field(description="Characters of that passage to skip.", ge=0)] = 0,
        lines: Annotated[
            str | None, Field(description="Only these lines, such as 12-40.", max_length=40)
        ] = None,
        heading: Annotated[str | None, Field(description="Only what stands under this heading.")] = None,
        page: Annotated[int | None, Field(description="Only this page.", ge=1)] = None,
        max_tokens: Tokens = 5_000,
    ) -> Reading:
        with _answering():
            return reading(service, document, start, offset, lines, heading, page, max_tokens)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Sentences for users are for agents, too."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        yield
    except QontextError as error:
        raise ToolError(str(error)) from None


def _add_resources(server: MCPServer[Any], service: Service) -> None:
    """Documents by their ids, and how to answer with citations."""
    from mcp.server.mcpserver.exceptions import ResourceNotFoundError

    @server.resource(
        "qontext://document/{+document}",
        name="document",
        title="A document",
        description="The text of a document by its id, as search returns it; the beginning of a long one.",
        mime_type="text/plain",
    )
    def document(document: str) -> str:
        try:
            return reading(service, document).text
        except QontextError as error:
            raise ResourceNotFoundError(str(error)) from None

    @server.prompt(
        name="answer-with-citations",
        title="Answer with citations",
        description="Answer a question from the collection, and cite the place of each claim.",
    )
    def answer_with_citations(question: str) -> str:
        return CITING.format(question=question)


def _text(question: str, queries: Sequence[SubQuery]) -> str:
    """The question and its sub-queries as lines; see `qontext.retrieve.ask.questions`."""
    texts = [(query.by, " ".join(query.text.split())) for query in queries]
    return joined(question, [f"{by}: {text}" for by, text in texts if text])


def _results(
    system: ServedSystem, question: str, hits: list[Any], before: int, max_tokens: int
) -> list[FoundPassage]:
    """The hits after so many others, with a limited amount of text."""
    results, left = [], min(ANSWER_CHARACTERS, CHARACTERS_PER_TOKEN * max_tokens)
    for rank, hit in enumerate(hits, before + 1):
        most = min(TEXT_CHARACTERS, max(200, left))
        (answer,) = system.answers(question, [hit], first=rank, most=most)
        text = answer.text if len(answer.text) <= most else answer.snippet
        left -= len(text)
        results.append(
            FoundPassage(
                rank=rank,
                score=answer.score,
                document=answer.document,
                title=answer.title,
                passage=system.passages.position(answer.id)[0],
                place=str(answer.place),
                source=str(answer.place.metadata.get("source", "")),
                text=text,
                sentence=answer.sentence,
            )
        )
    return results


def reading(
    service: Service,
    document: str,
    start: int = 1,
    offset: int = 0,
    lines: str | None = None,
    heading: str | None = None,
    page: int | None = None,
    max_tokens: int = 5_000,
) -> Reading:
    """The passages of a document from one on, or those that have these lines, stand under this heading, or on this page;
    without `offset` characters of the passage to start from."""
    found, characters = service.document(document), min(ANSWER_CHARACTERS, CHARACTERS_PER_TOKEN * max_tokens)
    passages, places = [one.passage for one in found], [one.place for one in found]
    wanted = [n for n in range(start - 1, len(found)) if _is_wanted(places[n], lines, heading, page)]
    if not wanted:
        headings = list(dict.fromkeys(name for place in places for name in place.headings))[:12]
        raise QontextError(
            f"nothing is there: the document has {len(found)} passages. Its headings: {'; '.join(headings) or 'none'}"
        )
    texts: list[str] = []
    length, following, ahead = 0, None, 0
    for number in wanted:
        skipped = offset if number == start - 1 else 0
        text = passages[number].text[skipped:]
        length += len(text)
        if texts and length > characters:
            following = number + 1
            break
        texts.append(cut(text, characters))
        if len(text) > characters:
            following, ahead = number + 1, skipped + len(texts[-1]) - len(CUT)
            break
    return Reading(
        document=document,
        title=passages[0].title,
        text="\n\n".join(texts),
        passages=len(found),
        next=following,
        offset=ahead,
        place=str(places[wanted[0]].within(passages[wanted[0]].text, 0, 1)),
    )


def cut(text: str, limit: int) -> str:
    """The beginning of a text that is longer, in whole words."""
    return text if len(text) <= limit else (text[:limit].rsplit(" ", 1)[0] or text[:limit]) + CUT


def _is_wanted(place: Place, lines: str | None, heading: str | None, page: int | None) -> bool:
    ones: list[Place | TextPlace] = [place, *place.spans]
    if lines is not None:
        match = _LINES.fullmatch(lines)
        if match is None:
            raise QontextError(f"{lines!r} are no lines: write 12 or 12-40")
        first, last = int(match[1]), int(match[2] or match[1])
        known = [n for one in ones for n in (one.line, one.last_line) if n is not None]
        if not known or min(known) > last or max(known) < first:
            return False
    if heading is not None:
        names = {name for one in ones for name in one.headings}
        if not any(heading.casefold() in name.casefold() for name in names):
            return False
    if page is not None:
        pages = [place.page, place.last_page, *(span.page for span in place.spans)]
        known = [number for number in pages if number is not None]
        return bool(known) and min(known) <= page <= max(known)
    return True


def source_list(service: Service) -> SourceList:
    """The sources of the first system; the collection as a whole, if it has none."""
    system = service.default
    counts, named = system.passages.sources, _named(system)
    rows = [SourceInfo(name=name, about=about, passages=counts.get(name, 0)) for name, about in named.items()]
    whole = SourceInfo(name=system.name, about=service.about, passages=len(system.passages))
    return SourceList(sources=rows or [whole])


def _named(system: ServedSystem) -> dict[str, str]:
    """The sources of a collection that has some → what they are about."""
    return system.sources or dict.fromkeys(system.passages.sources, "")


def _only(system: ServedSystem, sources: Sequence[str]) -> str | None:
    """The sources to search in, for a filter; none if the collection as a whole is one of them."""
    is_whole = system.name in sources and not _named(system)
    return None if is_whole else "|".join(sources) or None


def routes(server: Any) -> list[Any]:
    """The routes of the HTTP transport. Hosts, origins and tokens are checked before.

    Only POST: a GET would hold a stream open on which this server has nothing to send.
    """
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.routing import Route

    checked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(stateless_http=True, json_response=True, transport_security=checked)
    return [Route(route.path, endpoint=route.endpoint, methods=["POST"]) for route in app.routes]


def describe(passages: Passages, about: str = "") -> str:
    """The content of a collection in two sentences, by which agents choose tools."""
    from qontext.retrieve.language import language_name, language_of

    sample = passages.sample(200)
    language = language_name(language_of([passage.text for passage in sample]))
    titles = list(dict.fromkeys(p.title.strip() for p in sample if _says_something(p.title, p.doc)))
    if len(titles) < 2:  # the texts say more
        step = len(sample) // 2 or 1
        titles = list(dict.fromkeys(f"“{cut(' '.join(p.text.split()), 80)}”" for p in sample[::step]))
    spread = [titles[n * len(titles) // 5] for n in range(5)] if len(titles) >= 5 else titles
    examples = f", such as {'; '.join(dict.fromkeys(cut(title, 90) for title in spread))}" if spread else ""
    what = (
        f"The collection contains {passages.documents:,} documents ({len(passages):,} passages) in {language}"
    )
    return f"{about.strip().rstrip('.')}. {what}{examples}." if about.strip() else f"{what}{examples}."


def _says_something(title: str, document: str) -> bool:
    """True if the title has a word, and is neither the id of its document nor a number of a kind."""
    words = [word.strip(".,;:!?()[]\"'") for word in title.split()]
    return title.strip() != document and any(len(word) > 1 and word.isalpha() for word in words)
