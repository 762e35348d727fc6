"""Replies of a chat endpoint that are damaged, hostile or of the wrong shape: retried, then counted and skipped."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

from qontext import api
from qontext.queries.generators import chat
from qontext.queries.generators.chat import CallFailed, Chat
from qontext.queries.generators.llm import read_queries


def completion(content='["a query"]', **more):
    return json.dumps({"choices": [{"message": {"content": content}}], **more}).encode()


DEEP = b"[" * 100_000
WRONG_BODIES = {
    "empty": b"",
    "html": b"<html><body>502 Bad Gateway</body></html>",
    "cut off": completion()[:-9],
    "deep": DEEP,
    "deep inside": b'{"choices": ' + DEEP,
    "a list": b"[1]",
    "a number": b"1e999",
    "a long number": b"1" * 5000,
    "null": b"null",
    "a text": b'"choices"',
    "no choices": b"{}",
    "empty choices": b'{"choices": []}',
    "choices null": b'{"choices": null}',
    "choices an object": b'{"choices": {"message": 1}}',
    "a choice is a list": b'{"choices": [[]]}',
    "no message": b'{"choices": [{"message": null}]}',
    "a message is a text": b'{"choices": [{"message": "hello"}]}',
    "content null": completion(None),
    "content a list": completion(["a"]),
    "usage infinite": completion(usage={"prompt_tokens": float("inf")}),
    "usage not a number": completion(usage={"prompt_tokens": float("nan")}),
    "usage negative": completion(usage={"completion_tokens": -5}),
    "usage astronomical": completion(usage={"completion_tokens": 1e300}),
    "usage words": completion(usage={"prompt_tokens": "many"}),
    "usage a list": completion(usage=[1]),
    "not UTF-8": b'{"choices": "\xff\xfe\x00"}',
}
WRONG_REPLIES = {
    "shorter than promised": b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + completion(),
    "longer than promised": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + completion(),
    "far longer": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n" + completion(),
    "bad chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc",
    "no such status": b"HTTP/1.1 99999 OK\r\n\r\n",
    "long header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 1000 + b"\r\n",
    "not HTTP": b"HTTP/9 \x00\xff\r\n\r\n",
}


@pytest.mark.parametrize(
    "reply", [*WRONG_BODIES.values(), *WRONG_REPLIES.values()], ids=[*WRONG_BODIES, *WRONG_REPLIES]
)
def test_a_bad_reply_is_retried(server, reply):
    server.script = [reply] * 2
    assert "number 4" in Chat(server.address, timeout=20).ask({"model": "m"}).text
    assert len(server.requests) == 3
    server.script = [reply] * 2
    with pytest.raises(CallFailed, match="tried 2 times") as error:
        Chat(server.address, timeout=20, retries=1).ask({})
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "length",
    [b"-1", b"abc", b"\xb2", b"", b"1" * 5000],
    ids=["negative", "word", "superscript", "empty", "long"],
)
def test_a_length_that_is_no_number_does_not_matter(server, length):
    server.script = [b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n" + completion()]
    assert Chat(server.address).ask({}).text == '["a query"]'


@pytest.mark.parametrize(
    "start",
    ["|HTTP/1.1 100 Continue~~", "HTTP/1.1 200 OK~|X", "HTTP/1.1 200 OK~X: |x", "HTTP/1.1 200 OK~~[|1,",
     "HTTP/1.1 200 OK~Transfer-Encoding: chunked~~|1~x~"],
    ids=["continue", "status", "header", "body", "chunks"],
)  # fmt: skip
def test_a_reply_without_end_ends_at_the_deadline(server, start):
    server.script = [f"endless {start}"] * 9
    started = time.monotonic()
    with pytest.raises(CallFailed, match=r"no complete reply within 0\.3 s"):
        Chat(server.address, timeout=0.3, retries=0).ask({})
    assert time.monotonic() - started >= 0.3


def test_a_reply_without_end_does_not_fill_the_memory(server, monkeypatch):
    monkeypatch.setattr(chat, "LARGEST_REPLY", 1000)
    server.script = ["endless HTTP/1.1 200 OK~~[|" + "1," * 1000]
    with pytest.raises(CallFailed, match="larger than"):
        Chat(server.address, retries=0).ask({})


@pytest.mark.parametrize(
    "after", ["nan", "inf", "-3", "1e999", "Fri, 31 Dec 0001 23:59:59 -2359", "soon", "\xb2"]
)
def test_an_odd_pause_is_a_pause(server, after, monkeypatch):
    pauses = []
    monkeypatch.setattr(chat, "time", SimpleNamespace(**{**vars(time), "sleep": pauses.append}))
    server.script = [b"HTTP/1.1 429 Busy\r\nRetry-After: " + after.encode("latin-1") + b"\r\n\r\n"]
    assert Chat(server.address).ask({}).text
    assert len(pauses) == 1 and 0 <= pauses[0] <= chat.LONGEST_PAUSE


HALF = completion(json.dumps(["half a pair \ud800", "fine"]))


@pytest.mark.parametrize(
    ("bad", "counted"),
    [(completion(usage={"prompt_tokens": float("inf")}), "unanswered"), (DEEP, "unanswered"),
     (completion("[" * 100_000), "unreadable_replies"), (completion(json.dumps(["\udc00"])), "unreadable_replies")],
    ids=["usage", "deep", "deep inside", "half a pair"],
)  # fmt: skip
def test_one_passage_with_bad_replies_is_counted_and_skipped(server, passages, tmp_path, bad, counted):
    well = server.well
    server.well = lambda h, b, _: server.reply(h, 200, bad) if "Case 7." in str(b) else well(h, b, _)
    done = api.generate(
        passages, out=tmp_path / "q", generator="llm", endpoint=server.address, chat_model="m", retries=1
    )
    assert done.summary[counted] == (1 if counted == "unanswered" else 2)
    assert done.summary["passages_without_queries"] == 1 and done.summary["queries"] == 39 * 5


def test_a_half_character_costs_its_query_alone():
    assert read_queries(json.loads(HALF)["choices"][0]["message"]["content"]) == ["fine"]


@pytest.mark.parametrize(
    "reply", ["1. a" + " " * 200_000 + "b\n" * 9, "```\n" + "``` \n" * 200_000 + "x", " " * 400_000 + "x"]
)
def test_a_long_run_of_blanks_is_read_in_linear_time(reply):
    """With backtracking, each of these takes hours."""
    assert read_queries(reply) == []
