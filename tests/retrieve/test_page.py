"""The page of a search at a terminal: asked, read and left with keys."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")

from textual.widgets import OptionList, Static

from qontext import api
from qontext.retrieve.answers import captions
from qontext.retrieve.ask.page import QuestionInput, SearchPage, editor_at, preview
from qontext.retrieve.searcher import Searcher

MILL = "# The mill\n\nIt stands by the river.\n\nThe mill grinds flour for the village. It is old.\n"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "mill.md").write_text(MILL)
    (folder / "oven.txt").write_text("The oven bakes flour into bread.\n")
    return folder


def made(docs: Path) -> Path:
    """An index of two sources, by words."""
    tickets = docs.parent / "tickets.jsonl"
    tickets.write_text('{"_id": "t1", "text": "The flour was damp."}\n')
    out = docs.parent / "made"
    api.refresh(out, source=[f"handbook={docs}", f"tickets={tickets}"], words=True)
    return out


def page_of(out: Path) -> SearchPage:
    searcher = Searcher(out)
    path_of: Any = getattr(searcher.collection, "path_of")  # noqa: B009 -- not of passages in memory
    return SearchPage(partial(searcher.search, k=5), captions, lambda one: path_of(one.place))


def drive(page: SearchPage, steps: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with page.run_test() as pilot:
            await steps(pilot)

    asyncio.run(run())


def status(page: SearchPage) -> str:
    return str(page.query_one("#status", Static).render())


def test_a_question_is_answered_with_a_list_and_a_preview(docs: Path) -> None:
    page = page_of(made(docs))

    async def steps(pilot: Any) -> None:
        await pilot.press(*"grinds", "space", *"flour", "enter")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        hits = page.query_one(OptionList)
        listed = [str(hits.get_option_at_index(number).prompt) for number in range(hits.option_count)]
        assert listed[0].splitlines() == ["1. The mill", "   handbook/mill.md, line 5"]
        assert any("tickets" in row for row in listed[1:])
        assert "The mill grinds flour" in str(page.query_one("#text", Static).render())
        assert page.focused is hits
        await pilot.press("down")
        assert hits.highlighted == 1 and "mill grinds" not in str(page.query_one("#text", Static).render())
        await pilot.press("escape")
        assert isinstance(page.focused, QuestionInput)

    drive(page, steps)
    assert [asked["question"] for asked in page.asked] == ["grinds flour"]


def test_the_best_sentence_is_highlighted(docs: Path) -> None:
    answer = Searcher(made(docs)).search("who grinds flour", k=1)[0]
    shown = preview(answer)
    (span,) = [span for span in shown.spans if span.style == "reverse"]
    assert shown.plain[span.start : span.end] == "The mill grinds flour for the village."


def test_nothing_found_and_a_refused_question_are_said(docs: Path) -> None:
    page = page_of(made(docs))

    async def steps(pilot: Any) -> None:
        for question, said in (("zebra", "No passage was found."), ("meaning: mill", "error: meaning:")):
            page.query_one(QuestionInput).value = question
            await pilot.press("enter")
            await pilot.app.workers.wait_for_complete()
            await pilot.pause()
            assert status(page).startswith(said)

    drive(page, steps)


def test_a_web_page_is_opened_in_the_browser_and_a_record_without_a_file_is_not(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    page = page_of(made(docs))
    answer = Searcher(made(docs)).search("grinds flour", k=1)[0]

    async def steps(pilot: Any) -> None:
        for file in ("https://example.org/mill", "javascript:alert(1)"):
            place = answer.place._replace(file=file)
            page.open_answer(type(answer)(1, 1.0, "p", "d", "", "text", place=place))
        assert "no file on this machine" in status(page)

    drive(page, steps)
    assert opened == ["https://example.org/mill"]


@pytest.mark.parametrize(
    ("editor", "command"),
    [
        ("vi", ["vi", "+5", "/x/a.md"]),
        ("emacsclient -nw", ["emacsclient", "-nw", "+5", "/x/a.md"]),
        ("code --wait", ["code", "--wait", "--goto", "/x/a.md:5"]),
        ("/usr/bin/hx", ["/usr/bin/hx", "/x/a.md:5"]),
        ("", []),
    ],
)
def test_editors_open_a_line(editor: str, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor)
    assert editor_at("/x/a.md", 5) == command


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals there")
def test_at_a_terminal_a_plain_folder_is_asked_and_a_passage_opened(docs: Path, tmp_path: Path) -> None:
    """The command itself, with its keys, in a pseudo-terminal; $EDITOR writes down what it was asked to open."""
    import pty

    editor, noted = tmp_path / "edit", tmp_path / "noted"
    editor.write_text(f'#!/bin/sh\necho "$@" > "{noted}"\n')
    editor.chmod(0o700)
    own = {"EDITOR": str(editor), "TERM": "xterm-256color", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= own
        os.environ.pop("VISUAL", None)
        os.execv(sys.executable, [sys.executable, "-m", "qontext", "search", str(docs), "--no-vectors"])
    try:
        read_until(terminal, b"Ask a question")
        os.write(terminal, b"who grinds flour\r")
        read_until(terminal, b"mill.md")
        while not noted.exists():
            os.write(terminal, b"\r")
            read_until(terminal, b"", seconds=0.5)
        assert noted.read_text().split() == ["+5", str(docs / "mill.md")]
        os.write(terminal, b"\x11")  # ctrl+q
        read_until(terminal, None)
    finally:
        os.kill(child, signal.SIGKILL)
        _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) in (0, -signal.SIGKILL)


def read_until(terminal: int, text: bytes | None, seconds: float = 60) -> bytes:
    """What the program writes until the text appears, or until it ends."""
    said, deadline = b"", time.monotonic() + seconds
    while time.monotonic() < deadline and (text is None or not text or text not in said):
        ready, _, _ = select.select([terminal], [], [], 0.1)
        if ready:
            try:
                block = os.read(terminal, 65_536)
            except OSError:
                return said
            if not block:
                return said
            said += block
    assert not text or text in said, said[-2_000:]
    assert text is not None, "the program did not end"
    return said
