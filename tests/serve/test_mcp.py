"""MCP as agents speak it: the SDK's client over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from tests.serve.conftest import Running, Serve, World

from qontext.serve.mcp import ANSWER_CHARACTERS, TEXT_CHARACTERS, describe
from qontext.serve.passages import Passage, Passages
from qontext.serve.security import Policy

QUESTION = "Which lamp was repaired by masons after a storm?"
TOKEN = "a-token-of-many-characters"


def stdio(world: World) -> StdioServerParameters:
    arguments = ["serve", str(world / "mine"), "--mcp", "--device", "cpu", "--about", "Invented reports."]
    environment = {"QONTEXT_AUTO_PRECISION": "fp32", "OMP_NUM_THREADS": "1"}
    import os

    return StdioServerParameters(
        command=sys.executable, args=["-m", "qontext", *arguments], env={**os.environ, **environment}
    )


@asynccontextmanager
async def connected(server: Any) -> AsyncIterator[Client]:
    async with Client(server) as client:
        yield client


def texts(result: Any) -> str:
    return "".join(part.text for part in result.content)


async def use(server: Any) -> None:
    """What an agent does: list the tools, search, read; and what it does wrong."""
    async with connected(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "read", "sources"}
        for tool in tools.values():
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint and not tool.annotations.destructive_hint
        about = tools["search"].description or ""
        assert "24 documents" in about and "in English" in about and "Lighthouse" in about
        assert {"question", "k", "folder", "queries", "sources"} < set(
            tools["search"].input_schema["properties"]
        )
        reply = await client.call_tool("search", {"question": QUESTION, "k": 3})
        assert not reply.is_error
        results = reply.structured_content["results"]
        assert len(results) == 3 and json.loads(texts(reply)) == reply.structured_content
        south = await client.call_tool("search", {"question": QUESTION, "folder": "south"})
        assert {r["document"].split("/")[0] for r in south.structured_content["results"]} == {"south"}
        read = (await client.call_tool("read", {"document": results[0]["document"]})).structured_content
        assert results[0]["text"] in read["text"] and read["passages"] > 1 and read["next"] is None
        later = (
            await client.call_tool("read", {"document": results[0]["document"], "start": 2})
        ).structured_content
        assert read["text"].endswith(later["text"]) and len(later["text"]) < len(read["text"])
        for name, arguments in (
            ("search", {"question": " "}),
            ("search", {"question": "boat", "k": 0}),
            ("search", {"question": "boat", "k": 10**9}),
            ("search", {"question": "a" * 50_000}),
            ("search", {}),
            ("search", {"queries": [{"by": "smell", "text": "boat"}]}),
            ("read", {"document": results[0]["document"], "lines": "all"}),
            ("read", {"document": results[0]["document"], "page": 7}),
            ("read", {"document": "../../etc/passwd"}),
            ("read", {"document": results[0]["document"], "start": 1_000}),
        ):
            wrong = await client.call_tool(name, arguments)
            assert wrong.is_error and texts(wrong), (name, arguments)
            assert "Traceback" not in texts(wrong)
        assert "there is no document" in texts(await client.call_tool("read", {"document": "nothing"}))
        document = results[0]["document"]
        for near in (document + "x", document.upper()):
            wrong = await client.call_tool("read", {"document": near})
            assert wrong.is_error and "Did you mean" in texts(wrong) and repr(document) in texts(wrong)


def test_an_agent_reads_on_asks_in_parts_and_names_places(tmp_path: Any) -> None:
    """Further passages, sub-queries, sources, explanations, and reading by lines, headings and a limit."""
    from qontext import api
    from qontext.serve.mcp import build
    from qontext.serve.verb import ServeConfig, open_service

    docs, out = tmp_path / "docs", tmp_path / "made"
    docs.mkdir()
    chapters = "\n\n".join(
        f"## Part {n}\n\nThe lamp number {n} is lit at dusk." + " It burns." * 30 for n in range(6)
    )
    (docs / "lamps.md").write_text(f"# Lamps\n\n{chapters}\n")
    (tmp_path / "tickets.jsonl").write_text(json.dumps({"_id": "7", "text": "The lamp is broken."}) + "\n")
    sources = [f"handbook={docs}", f"tickets={tmp_path / 'tickets.jsonl'}"]
    api.refresh(out, source=sources, about=["handbook=How we work."], words=True)
    service = open_service(
        ServeConfig.make({"directories": (str(out),), "device": "cpu", "port": 0}, where="serve")
    )

    async def main() -> None:
        async with connected(build(service)) as client:

            async def ask(tool: str, **arguments: Any) -> Any:
                reply = await client.call_tool(tool, arguments)
                return texts(reply) if reply.is_error else reply.structured_content

            tools = {tool.name: tool.description for tool in (await client.list_tools()).tools}
            assert "handbook (How we work); tickets" in (tools["search"] or "")
            assert [row["name"] for row in (await ask("sources"))["sources"]] == ["handbook", "tickets"]
            first = await ask("search", question="lamp", k=2, explain=True)
            assert first["results"][0]["evidence"]["words"][0]["word"] == "lamp"
            second = await ask("search", question="lamp", k=2, skip=2)
            ranks = [row["rank"] for row in first["results"] + second["results"]]
            assert ranks == [1, 2, 3, 4] and first["more"]
            (ticket,) = (await ask("search", question="lamp", sources=["tickets"]))["results"]
            assert (ticket["document"], ticket["source"]) == ("tickets/7", "tickets")
            parts = [{"by": "words", "text": "broken"}, {"by": "words", "text": "lamp"}]
            found = (await ask("search", queries=parts, k=7))["results"]
            assert "tickets/7" in {row["document"] for row in found} and len(found) > 1
            assert "needs an index of vectors" in await ask(
                "search", queries=[{"by": "meaning", "text": "lamp"}]
            )
            document = "handbook/lamps.md"
            below = await ask("read", document=document, heading="part 4")
            assert (
                "number 4" in below["text"] and "number 3" not in below["text"] and "Part 4" in below["place"]
            )
            assert "number 0" in (await ask("read", document=document, lines="1-5"))["text"]
            assert "Its headings" in await ask("read", document=document, heading="Ships")
            short = await ask("read", document=document, max_tokens=100)
            assert len(short["text"]) <= 402 and (short["next"], short["offset"]) == (2, 0)
            resource = await client.read_resource(f"qontext://document/{document}")
            assert "number 0" in resource.contents[0].text  # type: ignore[union-attr]
            prompt = await client.get_prompt("answer-with-citations", {"question": "Is it lit?"})
            assert "Is it lit?" in str(prompt.messages[0].content)

    asyncio.run(main())
    service.close()


def test_the_collection_as_a_whole_is_its_own_source(world: World) -> None:
    from qontext.serve.mcp import build
    from qontext.serve.verb import open_service

    service = open_service(world.config("bm25"))

    async def main() -> None:
        async with connected(build(service)) as client:
            listed = (await client.call_tool("sources", {})).structured_content["sources"]
            names = [source["name"] for source in listed]
            every = await client.call_tool("search", {"question": "boat"})
            own = await client.call_tool("search", {"question": "boat", "sources": names})
            assert (
                not own.is_error and own.structured_content["results"] == every.structured_content["results"]
            )
            other = await client.call_tool("search", {"question": "boat", "sources": ["other"]})
            assert "no passage has a field 'source'" in texts(other)

    asyncio.run(main())
    service.close()


def test_all_pages_are_of_one_ranking(world: World) -> None:
    from qontext.serve.mcp import build
    from qontext.serve.verb import open_service

    service = open_service(world.config("bm25"))
    search, depths = service.search, []

    async def recorded(system: Any, texts: list[str], k: int, only: Any) -> Any:
        depths.append(k)
        return await search(system, texts, k, only)

    service.search = recorded  # type: ignore[method-assign, assignment]

    async def main() -> None:
        async with connected(build(service)) as client:
            for skip in (0, 4):
                await client.call_tool("search", {"question": "boat", "k": 4, "skip": skip})
            assert len(depths) == 2 and len({*depths}) == 1, "the depth changes the ranking"
            with pytest.raises(MCPError, match="there is no document 'nothing'"):
                await client.read_resource("qontext://document/nothing")

    asyncio.run(main())
    service.close()


def test_over_stdio(world: World) -> None:
    asyncio.run(use(stdio(world)))


def test_over_http(site: Running) -> None:
    asyncio.run(use(f"{site.url}/mcp"))


def test_nothing_but_the_protocol_is_on_stdout(world: World) -> None:
    parameters = stdio(world)
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        },
    }  # fmt: skip
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    call = {
        "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "search", "arguments": {"question": "boat"}},
    }  # fmt: skip
    process = subprocess.Popen(
        [parameters.command, *parameters.args], env=parameters.env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    for message in (hello, ready, call):
        process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    lines = [process.stdout.readline(), process.stdout.readline()]
    process.stdin.close()
    rest, errors = process.stdout.read(), process.stderr.read()
    assert process.wait(timeout=60) == 0, errors
    answers = {json.loads(line)["id"]: json.loads(line) for line in lines}
    assert set(answers) == {1, 2} and not rest
    assert answers[1]["result"]["serverInfo"]["name"] == "qontext"
    assert not answers[2]["result"]["isError"]
    assert "Serving MCP" in errors and "boat" not in errors


def passages_of(*rows: tuple[str, str, str]) -> Passages:
    return Passages([Passage(id, title, text, id) for id, title, text in rows], "rows")


def test_examples_of_a_collection_are_titles_that_say_something() -> None:
    ids = [(f"{n:07}-2", f"{n:07}-2", f"Boat {n} was moored\nat the pier.") for n in range(40)]
    codes = [(f"d{n}", f"PMC{n}", f"Boat {n} was moored at the pier.") for n in range(40)]
    for rows in (ids, codes):
        about = describe(passages_of(*rows))
        assert (
            "such as “Boat 0 was moored at the pier.”" in about and "PMC" not in about and "-2" not in about
        )
    mixed = [*codes[:20], *((f"t{n}", f"Lamps of harbor {n}", "A lamp.") for n in range(20))]
    about = describe(passages_of(*mixed))
    assert about.count("Lamps of harbor") == 5 and "PMC" not in about
    assert "Leuchttürme" in describe(passages_of(("a", "Leuchttürme", "Ein Turm."), ("b", "灯塔", "塔。")))


def test_no_stream_is_held_open_on_which_nothing_is_sent(site: Running) -> None:
    with site.http.stream("GET", "/mcp", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 405


def test_the_token_guards_mcp_too(serve: Serve) -> None:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    url = f"{serve('bm25', policy=Policy(token=TOKEN)).url}/mcp"

    async def main() -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            connected(streamable_http_client(url, http_client=http)) as client,
        ):
            assert not (await client.call_tool("search", {"question": "boat"})).is_error
        with pytest.raises(Exception):  # noqa: B017 - the SDK wraps it in groups of its own
            async with connected(url):
                pass

    asyncio.run(main())


def test_texts_are_capped(world: World, tmp_path: Any) -> None:
    from qontext import api
    from qontext.serve.mcp import build
    from qontext.serve.verb import open_service

    rows = [{"_id": f"d{n}", "title": f"Long {n}", "text": f"boat {n} " + "word " * 9_000} for n in range(12)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    passages = api.split(tmp_path / "docs.jsonl", keep=True, workers=1, out=tmp_path / "passages")
    api.index(passages, backend="bm25", out=tmp_path / "long")
    service = open_service(world.config(str(tmp_path / "long")))

    async def main() -> None:
        async with connected(build(service)) as client:
            results = (await client.call_tool("search", {"question": "boat", "k": 12})).structured_content[
                "results"
            ]
            assert len(results) == 12 and all(len(r["text"]) <= TEXT_CHARACTERS + 2 for r in results)
            assert sum(len(r["text"]) for r in results) < ANSWER_CHARACTERS + 12 * 200
            read = (await client.call_tool("read", {"document": "d1"})).structured_content
            assert len(read["text"]) <= ANSWER_CHARACTERS + 2 and read["text"].endswith("…")
            said = read["text"].removesuffix(" …")
            while read["next"] is not None:
                ahead = {"start": read["next"], "offset": read["offset"]}
                read = (await client.call_tool("read", {"document": "d1", **ahead})).structured_content
                said += read["text"].removesuffix(" …")
            assert said == rows[1]["text"].strip(), "a passage beyond the limit is read on"

    asyncio.run(main())
    service.close()
