"""Outside systems: a search that is not Qontext's, asked as its users ask it.

command {question}      a program: results are lines of its output, or JSON
http://host:port        the HTTP API of `qontext serve` (``/v1/search``), or any that answers a POST of query and k in JSON
…/vector_stores/ID/search       the search of an OpenAI-like vector store
mcp:URL, mcp:command    the search tool of an MCP server; ``#TOOL`` at the end names another tool

A result is an id, a path, a text, or several of these; `matching` turns them into passages. A command is run without a
shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qontext.frame import trust
from qontext.frame.errors import QontextError, missing_extra, shorten
from qontext.frame.trust import Demand
from qontext.retrieve.results import Result, parse, results_of
from qontext.retrieve.system import SYSTEMS

KEY = "QONTEXT_SYSTEM_KEY"
"""The environment variable with the key that is sent to URLs."""
QUESTION = "QONTEXT_QUESTION"
"""The environment variable in which a command finds the question."""
SECONDS = 120.0
"""Time for one answer."""
LARGEST = 8 << 20
"""Bytes of the largest answer."""
MOST_OF_A_STORE = 50
"""Results that OpenAI's vector stores return at most."""
_EXAMPLE = "Example: mine='python3 my_search.py {question}', or mine=http://127.0.0.1:8000."
_INTERPRETER = re.compile(
    r"(ba|da|z|k|a|c|tc)?sh|fish|su|(python|pypy|perl|ruby|node|bun|deno|php|lua|rscript)[\d.]*"
)
_CODE = re.compile(
    r"-\w*[cer]\w*($|\W)|--(eval|print|execute|command|run)\b|-\w*[ce].*\{question\}", re.IGNORECASE
)
"""An option after which, or in which, an interpreter reads code."""
_READS_AGAIN = re.compile(r"cmd|powershell|pwsh|ssh|[gmn]?awk|sed")
"""Programs that may read each of their arguments as code."""
_LAUNCHERS = frozenset(
    "env timeout nice nohup sudo doas stdbuf time xargs setsid wsl busybox ionice taskset".split()
)
_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,39})=(.+)", re.DOTALL)


class Outside(ABC):
    """A search that answers questions."""

    def __init__(self, spec: str) -> None:
        self.spec, self._opened = spec, contextlib.ExitStack()

    @abstractmethod
    def ask(self, question: str, k: int) -> list[Result]:
        """The best results, at most about `k`."""

    def close(self) -> None:
        """End what was opened."""
        with contextlib.suppress(Exception):
            self._opened.close()


def named(text: str) -> tuple[str, str]:
    """``NAME=SYSTEM`` → the name and the system. What the user said as a whole is also said of the system alone."""
    match = _NAMED.fullmatch(text)
    if match is None:
        raise QontextError(
            f"cannot read the system {text!r}: expected NAME=SYSTEM, the name of letters, digits and _",
            remedy=_EXAMPLE,
        )
    name, spec = match[1], match[2].strip()
    if name.lower() in {word for system in SYSTEMS for word in (system.name, system.name.replace("-", "_"))}:
        raise QontextError(f"the name {name!r} is that of a system of Qontext", remedy="Choose another name.")
    check(spec)
    if trust.is_given(text):
        trust.give(spec)
    return name, spec


def all_named(texts: Sequence[str]) -> dict[str, str]:
    """Name → system of several ``NAME=SYSTEM``."""
    pairs = [named(text) for text in texts]
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise QontextError(f"two systems have the name {twice!r}", remedy="Choose another name.")
    hosts = {urlsplit(spec).netloc for _, spec in pairs if _is_url(spec)}
    if len(hosts) > 1 and os.environ.get(KEY):
        raise QontextError(
            f"the key in {KEY} would be sent to several hosts: {', '.join(sorted(hosts))}",
            remedy="Unset it, or measure them in two commands.",
        )
    return dict(pairs)


def probe(spec: str, question: str) -> float:
    """Ask one question; returns the seconds that it took. What cannot be asked is an error before any other work."""
    with contextlib.closing(open_outside(spec)) as system:
        started = time.monotonic()
        system.ask(question, 10)
        return time.monotonic() - started


def check(spec: str) -> None:
    """Refuse what is not the form of a system, a command that is not there, and questions in shell code."""
    rest = spec.removeprefix("mcp:")
    if _is_url(rest):
        from qontext.queries.generators.chat import check_endpoint

        try:
            check_endpoint(_without_tool(rest)[0] if rest != spec else rest)
        except QontextError as error:
            remedy = f"Put a key into the environment variable {KEY}. {_EXAMPLE}"
            raise QontextError(error.message.replace("endpoint", "system"), remedy=remedy) from None
        return
    words = _words(_without_tool(rest)[0] if rest != spec else rest)
    if shutil.which(words[0]) is None:
        raise QontextError(f"there is no command {words[0]!r}", place=spec, remedy=_EXAMPLE)
    if rest != spec:
        return
    if not any("{question}" in word or QUESTION in word for word in words):
        raise QontextError("the command has no {question}", place=spec, remedy=_EXAMPLE)
    if _is_in_code(words):
        raise QontextError(
            "a shell or interpreter would read {question} as a part of its code",
            place=spec,
            remedy=f'Write "${QUESTION}" instead.',
        )


def _is_in_code(words: Sequence[str]) -> bool:
    """True if an interpreter, which another program may start, reads the question as code: in the argument of an option for
    code, or in any argument of a program that reads each as code."""
    names = [Path(word).name.lower().removesuffix(".exe") for word in words]
    for number, name in enumerate(names):
        after = words[number + 1 :]
        is_run = number == 0 or names[0] in _LAUNCHERS
        if is_run and _READS_AGAIN.fullmatch(name) and "-file" not in (word.lower() for word in after):
            pairs = zip(words[number:], after)
            return any("{question}" in word and before != "-v" for before, word in pairs)
        if _INTERPRETER.fullmatch(name):
            for code in (place for place, word in enumerate(after) if _CODE.match(word)):
                values = [place for place in range(code + 1, len(after)) if after[place][0:1] != "-"]
                if any("{question}" in word for word in after[code : [*values, code][0] + 1]):
                    return True
    return False


def demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """The demands of a file that names a system: to run a command, or to send questions to a host."""
    spec = values.get("system")
    if not isinstance(spec, str):
        return
    rest = spec.removeprefix("mcp:")
    if not _is_url(rest):
        yield Demand(f"run the command {rest}", (spec,))
        return
    has_key = bool(os.environ.get(KEY))
    with contextlib.suppress(ValueError):
        if trust.is_this_machine(urlsplit(rest).hostname or "") and not has_key:
            return
    yield Demand(f"send questions{f' and the key in {KEY}' if has_key else ''} to {rest}", (spec,))


def also_demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """The demands of a file whose setting `also` or `system` has ``NAME=SYSTEM`` several times."""
    for spec in all_named(values.get("also") or values.get("system") or ()).values():
        yield from demands({"system": spec})


def open_outside(spec: str) -> Outside:
    """The system, which the user has to have named."""
    check(spec)
    trust.require(demands({"system": spec}))
    if spec.startswith("mcp:"):
        return Tool(spec)
    return Url(spec) if _is_url(spec) else OutsideCommand(spec)


class OutsideCommand(Outside):
    """A program that is run for each question."""

    def ask(self, question: str, k: int) -> list[Result]:
        filled = {"{question}": question, "{k}": str(k)}
        words = [re.sub(r"\{question\}|\{k\}", lambda m: filled[m[0]], word) for word in _words(self.spec)]
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**os.environ, QUESTION: question}, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise QontextError(f"cannot be run: {error}", place=self.spec) from None
        try:
            output, errors = self._heard(process, question)
        except BaseException:
            _end(process)
            raise
        said = errors.decode("utf-8", "replace").strip()
        # Without a message, as of grep, the code says that nothing was found; a signal never does.
        if process.returncode < 0 or (process.returncode and said):
            last = f": {shorten(said.splitlines()[-1], 300)}" if said else ""
            raise QontextError(f"failed with the exit code {process.returncode}{last}", place=self.spec)
        return parse(output.decode("utf-8", "replace"))[:k]

    def _heard(self, child: subprocess.Popen[bytes], question: str) -> list[bytes]:
        """The output of the command, which is ended once it is too large, and the end of what it logs."""
        heard = [b"", b""]

        def write(pipe: Any) -> None:
            with contextlib.suppress(OSError), pipe:
                pipe.write(question.encode(errors="replace") + b"\n")

        def read(number: int, pipe: Any) -> None:
            with pipe:
                logged = deque(iter(lambda: pipe.read(1 << 16), b"") if number else (), maxlen=2)
                heard[number] = b"".join(logged) or pipe.read(LARGEST + 1)
            if len(heard[0]) > LARGEST:
                _end(child)

        tasks: Any = [(write, child.stdin), (read, 0, child.stdout), (read, 1, child.stderr), (child.wait,)]
        calls = [threading.Thread(target=task, args=args, daemon=True) for task, *args in tasks]
        for call in calls:
            call.start()
        until = time.monotonic() + SECONDS
        for call in calls:
            call.join(max(0.0, until - time.monotonic()))
        problem = f"gave no answer to {question!r} within {SECONDS:g} s"
        if len(heard[0]) > LARGEST:
            problem = f"its answer to {question!r} is larger than {LARGEST >> 20} MB"
        elif not any(call.is_alive() for call in calls):
            return heard
        raise QontextError(problem, place=self.spec)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Url(Outside):
    """A search over HTTP."""

    def __init__(self, spec: str) -> None:
        from qontext.queries.generators.chat import Endpoint, read_key

        class Search(Endpoint):
            remedy = "Check its URL."
            key_remedy = f"Set the environment variable {KEY} to a valid key."

        super().__init__(spec)
        self.endpoint = Search(spec, read_key(KEY, needed=False), timeout=SECONDS, retries=3)
        path = urlsplit(spec).path.rstrip("/")
        self.is_store = "/vector_stores/" in path
        self.path = "" if path else "/v1/search"

    def ask(self, question: str, k: int) -> list[Result]:
        from qontext.queries.generators.chat import CallFailed

        size = {"max_num_results": min(k, MOST_OF_A_STORE)} if self.is_store else {"k": k}
        try:
            return self.endpoint.post(self.path, {"query": question, **size}, _parsed)[:k]
        except CallFailed as error:
            raise QontextError(f"does not answer {question!r}: {error}", place=self.spec) from None


def _parsed(content: bytes) -> list[Result]:
    try:
        return list(results_of(json.loads(content)))
    except (ValueError, RecursionError):
        from qontext.queries.generators.chat import TryAgain

        raise TryAgain("the reply is not JSON") from None


class Tool(Outside):
    """A search tool of an MCP server. The server is started, or the connection opened, once."""

    _QUESTIONS = ("question", "query", "q", "text", "prompt", "search")
    _SIZES = ("k", "limit", "top_k", "max_results", "num_results", "n", "n_results", "count", "size")

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        try:
            from anyio.from_thread import start_blocking_portal
            from mcp import Client, StdioServerParameters
        except ImportError:
            raise missing_extra("mcp", "serve", "an MCP server as a system") from None
        target, tool = _without_tool(spec.removeprefix("mcp:"))
        server: Any = target
        if not _is_url(target):
            program, *arguments = _words(target)
            server = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
        with self._explained("cannot be opened"), contextlib.ExitStack() as opening:
            self._portal = opening.enter_context(start_blocking_portal())
            client = Client(server, read_timeout_seconds=SECONDS)
            self._client = opening.enter_context(self._portal.wrap_async_context_manager(client))
            tools = {one.name: one for one in self._portal.call(self._client.list_tools).tools}
            self.tool, self._question, self._size, self._most = self._chosen(tools, tool)
            self._opened = opening.pop_all()

    def _chosen(self, tools: Mapping[str, Any], tool: str | None) -> tuple[str, str, str | None, int | None]:
        """The tool, and its arguments for the question and for the number of results, with its maximum."""
        names = [tool] if tool else sorted((n for n in tools if "search" in n), key=lambda n: n != "search")
        if not names or names[0] not in tools:
            raise QontextError(
                f"has no tool {tool!r}" if tool else "has no tool with 'search' in its name", place=self.spec,
                remedy=f"Name one with #TOOL: {', '.join(tools) or 'it has none'}.",
            )  # fmt: skip
        schema: Mapping[str, Any] = tools[names[0]].input_schema
        properties = schema.get("properties", {})
        types = {name: properties.get(name, {}).get("type") for name in schema.get("required", ())}
        required = [name for name, kind in types.items() if kind == "string"]
        question = next((name for name in (*self._QUESTIONS, *required) if name in properties), None)
        if question is None:
            raise QontextError(f"its tool {names[0]} has no argument for a question", place=self.spec)
        size = next((name for name in self._SIZES if name in properties), None)
        return names[0], question, size, properties[size].get("maximum") if size else None

    def ask(self, question: str, k: int) -> list[Result]:
        arguments: dict[str, Any] = {self._question: question}
        if self._size:
            arguments[self._size] = min(k, int(self._most or k))
        with self._explained(f"does not answer {question!r}"):
            reply = self._portal.call(self._client.call_tool, self.tool, arguments)
        texts = [part.text for part in reply.content if getattr(part, "text", None)]
        if reply.is_error:
            said = shorten(" ".join(texts), 300)
            raise QontextError(f"does not answer {question!r}: {said}", place=self.spec)
        if reply.structured_content is not None and (found := list(results_of(reply.structured_content))):
            return found[:k]
        return [result for text in texts for result in parse(text)][:k]

    @contextlib.contextmanager
    def _explained(self, problem: str) -> Iterator[None]:
        """Errors of the library, which come in groups, as one sentence."""
        try:
            yield
        except QontextError:
            raise
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            if isinstance(cause, QontextError):
                raise cause from None
            said = str(cause).strip().partition("\n")[0] or type(cause).__name__
            raise QontextError(f"{problem}: {said}", place=self.spec) from None


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command) if os.name != "nt" else _windows_words(command)
    except ValueError as error:
        said = str(error).lower()
        raise QontextError(f"is not a command: {said}", place=command, remedy=_EXAMPLE) from None
    if not words:
        raise QontextError("the command is empty", remedy=_EXAMPLE)
    return words


def _windows_words(command: str) -> list[str]:
    """Words in which a backslash is a part of a path."""
    return [
        word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word
        for word in shlex.split(command, posix=False)
    ]


def _without_tool(target: str) -> tuple[str, str | None]:
    """The server and, after ``#``, the name of its tool."""
    server, sign, tool = target.rpartition("#")
    return (server, tool) if sign and re.fullmatch(r"[\w./-]+", tool) else (target, None)


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
