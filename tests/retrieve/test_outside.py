"""Outside systems: real commands, servers and MCP servers, and their results as passages."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qontext import api
from qontext.data.collection import Passage
from qontext.data.runs import read_run
from qontext.frame import artifacts, trust
from qontext.frame.errors import QontextError
from qontext.retrieve.matching import Matcher
from qontext.retrieve.outside import all_named, check, named, open_outside
from qontext.retrieve.results import Result, parse

LAMPS = (
    "The lamp of the northern tower was lit by oil until a storm broke its glass in the winter of that year."
)
BOATS = (
    "Two boats carried coal and bread to the island every week, and took letters back to the harbour master."
)
BELLS = (
    "A bell rang in fog so that fishermen could hear how near the cliffs were when they saw nothing at all."
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two documents in folders, one of two passages; two judged questions."""
    root = tmp_path / "data"
    (root / "qrels").mkdir(parents=True)
    rows = [("a1", "guide/lamps.md", LAMPS), ("a2", "guide/lamps.md", BELLS), ("b1", "boats.md", BOATS)]
    corpus = [{"_id": id, "title": "", "text": text, "doc_id": doc} for id, doc, text in rows]
    (root / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    queries = [
        {"_id": "q1", "text": "which lamp was lit by oil?"},
        {"_id": "q2", "text": "who carried coal?"},
    ]
    (root / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta1\t1\nq2\tb1\t1\n")
    return root


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """A program of these lines, as a command."""

    def write(code: str, arguments: str = "{question}") -> str:
        file = tmp_path / "system.py"
        file.write_text(f"import json, os, sys, time\n{code}\n")
        return f"{sys.executable} {file} {arguments}"

    return write


@pytest.fixture
def server() -> Iterator[Any]:
    """A server that answers with `answer`, and keeps what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            running.asked.append((self.path, body, self.headers.get("Authorization")))
            status, content = running.answer(body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    running: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.asked, running.url = [], f"http://127.0.0.1:{running.server_port}"
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


def matcher() -> Matcher:
    return Matcher(
        [
            Passage("a1", "", LAMPS, "guide/lamps.md"),
            Passage("a2", "", BELLS, "guide/lamps.md"),
            Passage("b1", "", BOATS, "boats.md"),
        ]
    )


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Result(("a2",)), "a2"),
        (Result(("boats.md",)), "b1"),
        (Result(("/home/me/docs/guide/lamps.md",)), "a1"),
        (Result(("lamps.md",)), "a1"),
        (Result((), " ".join(BOATS.split()[3:12])), "b1"),
        (Result((), f"{BELLS} And more that was cut in another way than here."), "a2"),
        (Result(("guide/lamps.md",), " ".join(BELLS.split()[2:14])), "a2"),
        (
            Result(
                ("elsewhere.md",), "Nothing of this is in any of these passages, wherever one looks for it."
            ),
            None,
        ),
    ],
)
def test_results_become_passages(result: Result, expected: str | None) -> None:
    ids, unmatched = matcher().match("which lamp was lit by oil?", [result], 10)
    assert (ids, unmatched) == (([expected], 0) if expected else ([], 1))


@pytest.mark.parametrize(
    "output",
    [
        "a1\nb1\n",
        "guide/lamps.md:3:The lamp of\nboats.md:1:Two boats\n",
        json.dumps(["a1", "b1"]),
        json.dumps({"hits": {"hits": [{"_id": "a1", "_source": {"text": LAMPS}}, {"_id": "b1"}]}}),
        '{"id": "a1"}\n{"id": "b1"}\n',
        json.dumps({"results": [{"query": "?", "hits": [{"passage": "a1"}, {"passage": "b1"}]}]}),
        json.dumps(
            {"data": [{"filename": "lamps.md", "content": [{"type": "text", "text": LAMPS}]}, {"id": "b1"}]}
        ),
        f"{LAMPS}\n\n{BOATS}\n",
        json.dumps({"documents": [{"page_content": LAMPS}, {"page_content": BOATS, "metadata": {"id": 7}}]}),
    ],
)
def test_every_usual_layout_is_read(output: str) -> None:
    assert matcher().match("which lamp?", parse(output), 10)[0] == ["a1", "b1"]


@pytest.mark.parametrize("id", ["2104.08663", "12e3", "7", "true"])
def test_a_lone_id_may_look_like_a_number(id: str) -> None:
    (result,) = parse(f"{id}\n")
    assert result.names == (id,)


def test_a_command_is_asked_and_its_run_is_as_any_other(data: Path, script: Callable[..., str]) -> None:
    command = script(
        "q, k = sys.argv[1:]\nassert q == os.environ['QONTEXT_QUESTION'] == sys.stdin.readline().strip()\n"
        "print('a1' if 'lamp' in q else 'guide/lamps.md\\nboats.md\\nnowhere.md')",
        "{question} {k}",
    )
    out = api.search(system=command, data=data, split="test", k=10, out=data.parent / "out")
    run = read_run(out.path)
    assert [hit.passage for hit in run["q1"]] == ["a1"]
    assert [hit.passage for hit in run["q2"]] == ["a1", "b1"]
    assert out.summary["unmatched_results"] == 1
    assert api.evaluate(out.path, data).means["MRR@10"] == 0.75


def test_a_question_is_never_shell_code(data: Path, tmp_path: Path) -> None:
    question = "$(touch made); `touch made` & touch made"
    (data / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": question}) + "\n")
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta1\t1\n")
    for code in (
        "sh -c 'grep {question} docs'",
        "bash -ce 'grep {question} docs'",
        "bash -c -e 'grep {question} docs'",
        "bash -c {question}",
        "bash -euo pipefail -c 'echo {question}'",
        "node -r dotenv/config -e 'find({question})'",
        "env bash -xc 'grep {question} docs'",
        "timeout 5 sh -c 'grep {question} docs'",
        "python3 -c 'print(\"{question}\")'",
        "perl -ne 'print if /{question}/' docs",
        "sed -n '/{question}/p' docs",
        "env sed -n '/{question}/p' docs",
    ):
        with pytest.raises(QontextError, match=r"as a part of its code.*QONTEXT_QUESTION"):
            check(code)
    for safe in (
        "sh search.sh {question}",
        "python3 search.py -c 5 {question}",
        "bash -e search.sh {question}",
        "python3 search.py --query={question} -k {k}",
        "sh -c 'grep \"$1\" docs' search {question}",
        "grep -e {question} sed docs",
    ):
        check(safe)
    api.search(
        system="sh -c 'echo a1 \"$QONTEXT_QUESTION\" >&2; echo a1'",
        data=data,
        split="test",
        out=tmp_path / "out",
    )
    assert not Path("made").exists() and not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("", "cannot read the system ''"),
        ("grep {question}", "expected NAME=SYSTEM"),
        ("bm25=grep {question}", "'bm25' is that of a system of Qontext"),
        ("hybrid_start=grep {question}", "is that of a system of Qontext"),
        ("my-own=grep {question}", "expected NAME=SYSTEM"),
        ("mine=grep docs", "no {question}"),
        ("mine=grep 'unclosed {question}", "is not a command"),
        ("mine=no-such-program {question}", "no command 'no-such-program'"),
        ("mine=mcp:no-such-program", "no command 'no-such-program'"),
        ("mine=http://me:secret@127.0.0.1/", "contains credentials"),
        ("mine=http://127.0.0.1/search?key=secret", "into the environment variable QONTEXT_SYSTEM_KEY"),
        ("mine=http://", "not a valid http or https URL"),
    ],
)
def test_what_is_no_system_is_one_sentence(system: str, message: str) -> None:
    with pytest.raises(QontextError) as error:
        named(system)
    assert message in str(error.value) and "secret" not in str(error.value) and "\n" not in str(error.value)


def test_two_systems_have_two_names() -> None:
    with pytest.raises(QontextError, match="two systems have the name 'mine'"):
        all_named(["mine=cat {question}", "mine=echo {question}"])


def test_a_key_is_for_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QONTEXT_SYSTEM_KEY", "a-key-of-mine")
    all_named(["a=http://127.0.0.1:1/one", "b=http://127.0.0.1:1/two", "c=cat {question}"])
    with pytest.raises(QontextError, match=r"several hosts: 127.0.0.1:1, 127.0.0.1:2") as error:
        all_named(["a=http://127.0.0.1:1", "b=http://127.0.0.1:2"])
    assert "a-key-of-mine" not in str(error.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('half'); print('broken index', file=sys.stderr); sys.exit(3)", "exit code 3: broken index"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
        ("while True: print('x' * 99_999)", "its answer to .* is larger than 8 MB"),
        ("print('some other text')", r"none of its results is a passage .*'some other text'"),
    ],
)
def test_a_system_that_fails_is_one_sentence(
    data: Path, script: Callable[..., str], code: str, message: str
) -> None:
    with pytest.raises(QontextError, match=message):
        api.search(system=script(code), data=data, split="test", out=data.parent / "out")
    assert not (data.parent / "out").exists(), "nothing is left that would be resumed"


def test_a_command_may_log_as_much_as_it_likes(script: Callable[..., str]) -> None:
    command = script("[print('x' * 99_999, file=sys.stderr) for _ in range(100)]; print('d1')")
    trust.give(command)
    (found,) = open_outside(command).ask("why", 10)
    assert found.names == ("d1",)


def test_a_system_that_finds_nothing_scores_nothing(data: Path, script: Callable[..., str]) -> None:
    out = api.search(system=script("sys.exit(1)"), data=data, split="test", out=data.parent / "out")
    assert out.summary["results"] == 0
    assert api.evaluate(out.path, data).means["MRR@10"] == 0


def test_a_command_that_hangs_is_ended_with_what_it_started(
    data: Path, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qontext.retrieve import outside

    monkeypatch.setattr(outside, "SECONDS", 0.5)
    command = script("import subprocess; subprocess.run(['sleep', '600'])")
    trust.give(command)
    with pytest.raises(QontextError, match="gave no answer to 'why' within"):
        open_outside(command).ask("why", 10)


def test_a_search_resumes_after_the_questions_that_were_asked(data: Path, script: Callable[..., str]) -> None:
    """The same bits, and no question twice: a system may cost money."""
    asked = data.parent / "asked"
    rows = [{"_id": f"q{n}", "text": f"lamp number {n}?"} for n in range(40)]
    (data / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fail = data.parent / "fail"
    command = script(
        f"open({str(asked)!r}, 'a').write(sys.argv[1] + '\\n')\n"
        f"if '20' in sys.argv[1] and os.path.exists({str(fail)!r}): sys.exit('stopped')\nprint('a1')"
    )
    fail.touch()
    with pytest.raises(QontextError, match="stopped"):
        api.search(system=command, data=data, out=data.parent / "out")
    fail.unlink()
    resumed = api.search(system=command, data=data, out=data.parent / "out")
    lines = asked.read_text().splitlines()
    assert [lines.count(row["text"]) for row in rows] == [1] * 16 + [2] * 5 + [1] * 19
    assert resumed.digest == api.search(system=command, data=data, out=data.parent / "again").digest


def test_urls_are_asked_in_their_own_formats(
    data: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QONTEXT_SYSTEM_KEY", "a-key-of-mine")
    server.answer = lambda body: (200, {"data": [{"filename": "lamps.md", "content": [{"text": LAMPS}]}]})
    trust.give([server.url, f"{server.url}/v1/vector_stores/vs_1/search"])
    for url in (server.url, f"{server.url}/v1/vector_stores/vs_1/search"):
        (result,) = open_outside(url).ask("which lamp?", 100)
        assert result.text == LAMPS
    (ours, store) = server.asked
    assert ours == ("/v1/search", {"query": "which lamp?", "k": 100}, "Bearer a-key-of-mine")
    assert store[:2] == ("/v1/vector_stores/vs_1/search", {"query": "which lamp?", "max_num_results": 50})
    server.answer = lambda body: (401, {"error": {"message": "wrong key a-key-of-mine"}})
    with pytest.raises(QontextError, match=r"refuses the key .*QONTEXT_SYSTEM_KEY") as error:
        open_outside(server.url).ask("which lamp?", 10)
    assert "a-key-of-mine" not in str(error.value)


MCP = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("lamps")
@server.tool()
def other() -> str: return "nothing"
@server.tool()
def search_docs(query: str, limit: int = 5) -> str:
    if query == "fail": raise ValueError("the index is broken")
    return {text!r} + f"\\n\\n{limit} at most"
server.run()
"""


def test_an_mcp_server_is_started_once(data: Path, script: Callable[..., str]) -> None:
    pytest.importorskip("mcp", reason="mcp is not installed")
    command = "mcp:" + script(MCP.replace("{text!r}", repr(LAMPS)), "")
    trust.give([command, f"{command}#other", f"{command}#nothing"])
    system = open_outside(command)
    for k in (3, 7):
        results = system.ask("which lamp?", k)
        assert [result.text for result in results] == [LAMPS, f"{k} at most"]
    with pytest.raises(QontextError, match="does not answer 'fail': Error executing tool search_docs"):
        system.ask("fail", 3)
    system.close()
    with pytest.raises(QontextError, match="its tool other has no argument for a question"):
        open_outside(f"{command}#other")
    with pytest.raises(QontextError, match=r"has no tool 'nothing'. Name one with #TOOL: other, search_docs"):
        open_outside(f"{command}#nothing")


def test_a_recipe_runs_no_command_that_the_user_did_not_name(
    data: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(trust.decided, "words", set())
    (tmp_path / "recipe.toml").write_text(f'[search]\nsystem = "touch {{question}}"\ndata = "{data}"\n')
    with pytest.raises(QontextError, match="it asks to run the command touch"):
        api.run(tmp_path / "recipe.toml", out=tmp_path / "runs")
    assert not artifacts.is_artifact(tmp_path / "runs" / "search")
