"""Chat endpoints: a real server on this machine that misbehaves in every way that servers do."""

from __future__ import annotations

import json

import pytest

from qontext import api
from qontext.frame.errors import QontextError
from qontext.queries.generators import llm
from qontext.queries.generators.llm import Chat, read_queries

KEY = "sk-very-secret-0123456789"


def generate(server, passages, tmp_path, **settings):
    settings = {"generator": "llm", "endpoint": server.address, "chat_model": "m-1.5", **settings}
    return api.generate(passages, out=tmp_path / "q", **settings)


def test_every_passage_gets_its_queries(server, passages, tmp_path, rows_of):
    done = generate(server, passages, tmp_path, concurrency=4)
    rows = rows_of(done.path)
    assert len(rows) == 200 and rows[:2] == [("p0", "what is number 0?", 0), ("p0", "what is number 1?", 1)]
    summary = done.summary
    assert (summary["requests"], summary["prompt_tokens"], summary["completion_tokens"]) == (40, 4000, 800)
    assert server.most_open <= 4


@pytest.mark.parametrize("script", [["status 500", "garbage", "half", "reset"], ["status 429"]], ids=" ".join)
def test_what_passes_is_waited_out(server, script):
    server.script = list(script)
    text, _ = Chat(server.address).ask({"model": "m"})
    assert "number 4" in text and len(server.requests) == len(script) + 1


@pytest.mark.parametrize(
    ("status", "says"), [(401, "refuses the key"), (403, "refuses the key"), (404, "--chat-model")]
)
def test_what_does_not_pass_stops_at_once(server, passages, tmp_path, status, says):
    server.script = [f"status {status}"] * 50
    with pytest.raises(QontextError, match=says):
        generate(server, passages, tmp_path, concurrency=1)
    assert len(server.requests) < 5


def test_one_refused_passage_does_not_stop_the_others(server, passages, tmp_path, capsys):
    server.answer = lambda body: "[" if "Case 7." in str(body) else '["a fine query"]'
    server.well, well = (
        lambda h, b, _: server.status(h, b, 400) if "Case 7." in str(b) else well(h, b, _),
        server.well,
    )
    done = generate(server, passages, tmp_path)
    assert done.summary["unanswered"] == 1 == done.summary["passages_without_queries"]
    assert "no reply for passage" in capsys.readouterr().err


def test_a_lasting_outage_stops_the_run_and_it_resumes(server, passages, tmp_path, monkeypatch):
    monkeypatch.setattr(llm, "RETRIES", 1)
    monkeypatch.setattr(llm.Llm, "part_passages", 8)
    server.script = ["well"] * 12 + ["status 500"] * 400
    with pytest.raises(QontextError, match=r"2 passages got no reply.*tried 2 times"):
        generate(server, passages, tmp_path, concurrency=1)
    assert sorted(p.name for p in (tmp_path / "q").glob("part-*")) == ["part-00000.parquet"]
    server.script, server.requests = [], []
    done = generate(server, passages, tmp_path, concurrency=1)
    assert done.summary["queries"] == 200
    assert not any("Case 7." in str(body) for body in server.requests)


def test_unreadable_answers_are_asked_for_again_then_counted(server, passages, tmp_path):
    server.answer = lambda body: (
        "I cannot help with that." if len(server.requests) < 3 else '["a fine query", "another"]'
    )
    done = generate(server, passages, tmp_path, concurrency=1)
    assert done.summary["unreadable_replies"] == 2 and done.summary["requests"] == 41
    assert done.summary["passages_without_queries"] == 1


def test_the_key_is_sent_and_written_nowhere(server, passages, tmp_path, warm):
    """In a process of its own, with errors that repeat the key, and with everything it says recorded."""
    server.well, well = (
        lambda h, b, _: server.status(h, b, 400) if "Case 7." in str(b) else well(h, b, _),
        server.well,
    )
    server.script = ["status 500"]
    argv = ["generate", passages, "--out", str(tmp_path / "q"), "--generator", "llm", "-v"]
    argv += ["--endpoint", server.address, "--chat-model", "m", "--key-variable", "MY_KEY"]
    output = warm.run(argv, tmp_path / "said", MY_KEY=KEY)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "***" in output and KEY not in output
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 3 and not any(KEY.encode() in p.read_bytes() for p in files)


def test_the_request_says_what_was_wished(server, passages, tmp_path):
    more = '{"top_p": null, "max_tokens": 77}'
    generate(
        server,
        passages,
        tmp_path,
        template="keywords",
        language="German",
        style="like a nurse",
        chat_options=more,
    )
    first, second = server.requests[:2]
    text = first["messages"][1]["content"]
    assert "German" in text and "like a nurse" in text and "keyword" in text and first["model"] == "m-1.5"
    assert "top_p" not in first and first["max_tokens"] == 77 and first["seed"] != second["seed"]


@pytest.mark.parametrize(
    ("reply", "queries"),
    [
        ('["a b", "c"]', ["a b", "c"]),
        ('```json\n["a b"]\n```', ["a b"]),
        ('{"queries": ["a", "b"]}', ["a", "b"]),
        ("<think>first [1] I think</think>\n1. one thing\n2) two things", ["one thing", "two things"]),
        ('Here they are:\n- "one"\n- two', ["one", "two"]),
        ('["a b", "c', []),
        ("Sorry, I cannot do that.", []),
        ("Sure.\nHere they are:\n1. one", []),
        ('[["a"]]', []),
        ("[1, 2]", []),
        ('{"a": ["x"], "b": ["y"]}', []),
        ("", []),
        (json.dumps(["x" * 500, "fine"]), ["fine"]),
    ],
)
def test_answers_are_read_strictly(reply, queries):
    assert read_queries(reply) == queries


@pytest.mark.parametrize(
    "endpoint",
    ["ftp://h/v1", "http://", f"http://u:{KEY}@h/v1", f"http://h/v1?key={KEY}"],
)
def test_an_address_that_is_none_or_has_a_secret_is_refused(passages, tmp_path, endpoint):
    with pytest.raises(QontextError, match="the address of the endpoint") as error:
        api.generate(passages, out=tmp_path / "q", generator="llm", chat_model="m", endpoint=endpoint)
    assert not (tmp_path / "q").exists() and KEY not in str(error.value)


def test_a_key_that_is_not_set_or_would_be_recorded_is_refused(passages, tmp_path):
    settings = {"passages": passages, "generator": "llm", "chat_model": "m", "out": tmp_path / "q"}
    with pytest.raises(QontextError, match="is not set") as error:
        api.generate(key_variable=KEY, **settings)
    assert KEY not in str(error.value)
    for options in ({"api_key": KEY}, {"headers": {"Authorization": KEY}}):
        with pytest.raises(QontextError, match="options are recorded") as error:
            api.generate(chat_options=json.dumps(options), **settings)
        assert KEY not in str(error.value)


def test_a_key_goes_to_no_other_host(server, passages, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", f" {KEY}\r\n")
    server.script = [f"HTTP/1.1 302 Found\r\nLocation: {server.address}/other\r\n\r\n".encode()]
    with pytest.raises(QontextError, match="the endpoint answers 302"):
        generate(server, passages, tmp_path, key_variable="MY_KEY", concurrency=1)
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in server.headers)
