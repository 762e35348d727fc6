"""Queries from a large language model behind an OpenAI-compatible endpoint (vLLM, Ollama, llama.cpp, hosted).

One request per passage asks for all its queries. Requests run concurrently, up to a limit. What passes (too many
requests, server errors, timeouts, broken connections, replies that are no chat completions) is tried again after a growing
pause. Up to one percent of a part's passages may remain without a reply, and are listed; more stop the run, and the same
command resumes at that part. A wrong key or URL stops the run at once. No message and no file contains the key.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import httpx
from pydantic import Field, model_validator

from qontext.data.collection import Passage
from qontext.frame import log, trust
from qontext.frame.config import Asks, Machine
from qontext.frame.errors import QontextError, shorten
from qontext.frame.trust import Demand
from qontext.queries.generators import Generator, Task
from qontext.queries.generators.t5 import SamplingOptions
from qontext.training.randomness import key_of, torch_seed

DEFAULT_ENDPOINT, DEFAULT_KEY_VARIABLE = "http://127.0.0.1:8000/v1", "OPENAI_API_KEY"
CHARACTERS_PER_TOKEN = 4
TIMEOUT, RETRIES, LONGEST_PAUSE = 300.0, 7, 60.0
"""Seconds without an answer, attempts after the first one, and seconds between two of them."""
_PASSES = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529))
_SECRET = re.compile(
    r'(?i)"([^"]*(?:api[_-]?key|authorization|password|secret|(?:auth|access|bearer)[_-]?token))":'
)

TEMPLATES = {
    "question": "questions that a person would ask and that this passage answers",
    "keywords": "keyword queries of two to six words, without a full sentence, that someone who needs this "
    "passage would type into a search box",
    "claim": "short factual claims that this passage confirms",
}
_SYSTEM = (
    "You write search queries for passages of a collection. A good query can be understood without the passage, "
    "names what it is about, is answered by this passage and by few others, and does not copy long phrases of it."
)
# No pattern backtracks over long runs of spaces: replies may be of any length.
_NUMBERED = re.compile(r"(?:\d{1,3}[.):]|[-*•])\s+(?P<query>\S.*)")
_FENCE = re.compile(r"```\w*\s*")
_THOUGHTS = re.compile(r"^\s*<think>.*?</think>", re.S)
LONGEST_QUERY = 400


def demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """Permissions that the settings need: to send passages to the endpoint, and a key with them. A key is only sent to the
    host that the user named; passages that stay on this machine, without a key, need no permission."""
    endpoint = str(values.get("endpoint") or DEFAULT_ENDPOINT)
    variable = str(values.get("key_variable") or DEFAULT_KEY_VARIABLE)
    host = () if endpoint == DEFAULT_ENDPOINT else (endpoint,)
    check_endpoint(endpoint)
    if host and not trust.is_this_machine(urlsplit(endpoint).hostname or ""):
        yield Demand(f"send passages to {endpoint}", host)
    is_default = variable == DEFAULT_KEY_VARIABLE
    # A variable that is named is told even where it is not set.
    if is_default and not os.environ.get(variable, "").strip():
        return
    sends = f"send the environment variable {variable} to {endpoint}"
    if is_default or variable.startswith(trust.PREFIX):
        yield Demand(sends, host if is_default else (*host, variable))
    elif trust.is_given(variable):
        yield Demand(sends, host)
    else:
        yield Demand(
            sends,
            (variable,),
            only_by=f"Name the variable yourself (--key-variable, or --set STEP.key_variable={variable}): a file may only "
            f"name {DEFAULT_KEY_VARIABLE} and variables that begin with {trust.PREFIX}.",
        )


def check_endpoint(endpoint: str) -> None:
    """Refuse what is no base URL, and one with a secret, which would be recorded. Neither is repeated."""
    if any(sign in endpoint for sign in "@?#") or not re.fullmatch(
        r"https?://[\w.\-\[\]:]+(/\S*)?", endpoint
    ):
        raise QontextError(
            "the address of the endpoint is no http or https URL without credentials, query and fragment",
            remedy=f"Example: --endpoint {DEFAULT_ENDPOINT}. A key belongs into the environment variable of --key-variable.",
        )


class LlmOptions(SamplingOptions):
    """Read by the generator `llm`."""

    chat_model: str
    """Name of the model at the endpoint."""
    template: Literal["question", "keywords", "claim"] = "question"
    """Type of queries to request."""
    language: str = ""
    """Language of the queries. Default: the passage's language."""
    style: str = ""
    """Additional instruction, such as 'as a nurse would ask'."""
    chat_options: str = "{}"
    """Additional fields of the request, as a JSON object; null removes a field."""
    endpoint: Annotated[str, Machine(), Asks(demands)] = DEFAULT_ENDPOINT
    """Base URL of the server."""
    key_variable: Annotated[str, Machine()] = DEFAULT_KEY_VARIABLE
    """Environment variable with the API key; the key itself is never written."""
    concurrency: Annotated[int, Field(ge=1, le=1024), Machine()] = 16
    """Number of concurrent requests."""

    @model_validator(mode="after")
    def _can_be_requested(self) -> Self:
        check_endpoint(self.endpoint)
        if secret := _SECRET.search(json.dumps(json.loads(self.chat_options))):
            raise QontextError(
                f"--chat-options contains {secret[1]!r}, and options are recorded",
                remedy="Put the key into an environment variable and name that variable with --key-variable.",
            )
        return self


class CallFailed(Exception):
    """No usable reply to this request; other requests may succeed."""


class Chat:
    """A chat endpoint (``https://host/v1``) and its key."""

    first_pause = 1.0

    def __init__(self, endpoint: str, key: str | None = None, connections: int = 1) -> None:
        self.endpoint, self.key = endpoint, key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Neither redirects nor proxies: the key is for the host that was named.
        self.client = httpx.Client(
            headers=headers,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=connections),
            trust_env=False,
        )

    def ask(self, body: dict[str, Any]) -> tuple[str, Counter[str]]:
        """The model's text, and its cost in tokens."""
        pause = self.first_pause
        for attempt in range(RETRIES + 1):
            if attempt:
                # A random share, so that waiting requests are not all sent again at the same time.
                time.sleep(min(LONGEST_PAUSE, pause * (0.5 + random.random())))
                pause *= 2
            try:
                response = self.client.post(f"{self.endpoint.rstrip('/')}/chat/completions", json=body)
                if response.is_success:
                    return _parse(response.json())
            except (httpx.RequestError, ValueError, LookupError, TypeError) as error:
                reason = f"no chat completion: {type(error).__name__} {error}"
                continue
            reason = self._hide(f"{response.status_code} {response.reason_phrase}: {response.text}")
            if response.status_code not in _PASSES:
                self._refuse(response.status_code, reason)
        raise CallFailed(f"{self._hide(reason)} (tried {RETRIES + 1} times)")

    def _refuse(self, status: int, reason: str) -> None:
        """A request that must not be sent again: another passage's may succeed, unless the key or the address is wrong."""
        if status in (400, 413, 422):
            raise CallFailed(reason)
        is_of_key = status in (401, 403)
        raise QontextError(
            f"the endpoint refuses the key ({reason})" if is_of_key else f"the endpoint answers {reason}",
            place=self.endpoint,
            remedy="Set the environment variable named by --key-variable to a valid key."
            if is_of_key
            else "Check --endpoint and --chat-model.",
        )

    def _hide(self, text: str) -> str:
        """A short message without the key, which servers may repeat in their errors."""
        return shorten(text.replace(self.key, "***") if self.key else text, 400)


def _parse(reply: Any) -> tuple[str, Counter[str]]:
    text, usage = reply["choices"][0]["message"]["content"], reply.get("usage") or {}
    if not isinstance(text, str):
        raise TypeError("the reply contains no text")
    return text, Counter({name: int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")})


class Llm(Generator):
    """Sends requests for many passages concurrently."""

    Options = LlmOptions
    part_passages = 128
    model_option = "chat_model"

    def __init__(self, options: LlmOptions, task: Task) -> None:
        super().__init__(options, task)
        trust.require(demands({"endpoint": options.endpoint, "key_variable": options.key_variable}))
        key = os.environ.get(options.key_variable, "").strip()
        if not key and options.key_variable != DEFAULT_KEY_VARIABLE:
            # The variable's name is not repeated: it may be the key, passed by mistake.
            raise QontextError("the environment variable that --key-variable names is not set")
        self.more = json.loads(options.chat_options)
        self.chat = Chat(options.endpoint, key or None, options.concurrency)

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        """The queries, as replies arrive."""
        unanswered = 0
        pool = ThreadPoolExecutor(self.options.concurrency)
        try:
            place_of = {pool.submit(self._ask, passage): place for place, passage in enumerate(passages)}
            for future in as_completed(place_of):
                place = place_of[future]
                try:
                    queries, counts = future.result()
                except CallFailed as error:
                    unanswered += 1
                    if unanswered > max(1, len(passages) // 100):
                        raise QontextError(
                            f"{unanswered} passages got no reply; last error: {error}",
                            place=self.options.endpoint,
                            remedy="Fix the cause and run the same command again: it resumes.",
                        ) from None
                    log.warn(f"no reply for passage {passages[place].id!r}: {error}")
                    queries, counts = [], Counter(unanswered=1)
                self.tally.update(counts)
                yield place, queries
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, passage: Passage) -> tuple[list[str], Counter[str]]:
        """The passage's queries and their cost; an invalid reply is requested once more."""
        counts: Counter[str] = Counter()
        for attempt in range(2):
            text, tokens = self.chat.ask(self._body(passage, attempt))
            counts += tokens + Counter(requests=1)
            if queries := read_queries(text):
                return queries, counts
            counts["unreadable_replies"] += 1
        return [], counts

    def _body(self, passage: Passage, attempt: int) -> dict[str, Any]:
        settings, count = self.options, self.task.per_passage
        body: dict[str, Any] = {
            "model": settings.chat_model,
            "messages": messages(passage, count, settings),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_new_tokens * count + 64,
            "seed": torch_seed(self.task.seed, "llm", key_of(passage.id), attempt) & 0x7FFFFFFF,
        }
        return {name: value for name, value in {**body, **self.more}.items() if value is not None}


def messages(passage: Passage, count: int, settings: LlmOptions) -> list[dict[str, str]]:
    """The chat messages that request `count` queries."""
    language = f"in {settings.language}" if settings.language else "in the language of the passage"
    wishes = [f"Write {count} different {TEMPLATES[settings.template]}.", f"Write them {language}."]
    if settings.style:
        wishes.append(f"Style: {settings.style}.")
    wishes.append(f"Reply with a JSON list of {count} strings and nothing else.")
    heading = f"Title: {passage.title}\n" if passage.title else ""
    text = passage.text[: settings.max_passage_tokens * CHARACTERS_PER_TOKEN]
    user = f"{heading}Passage:\n{text}\n\n{' '.join(wishes)}"
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}]


def read_queries(reply: str) -> list[str]:
    """The queries in a reply: a JSON list of strings (or an object that contains one), or numbered lines.
    Anything else, such as an apology, a truncated list or surrounding text, returns none.
    """
    body = _THOUGHTS.sub("", reply).strip()
    head, _, inside = body.removesuffix("```").partition("\n")
    if body.endswith("```") and _FENCE.fullmatch(head):
        body = inside.strip()
    if body[:1] in ("[", "{"):
        queries = _from_json(body)
    else:
        matches = [_NUMBERED.match(line) for line in map(str.strip, body.splitlines()) if line]
        # One introductory line is accepted; with two or more, it is not a list of queries.
        is_list = sum(match is None for match in matches) <= 1
        queries = [match["query"].strip('"“”') for match in matches if match and is_list]
    return [query for query in queries if query.strip() and len(query) <= LONGEST_QUERY]


def _from_json(body: str) -> list[str]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        value = lists[0] if len(lists) == 1 else None
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []
