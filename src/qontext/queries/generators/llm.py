"""Queries from a large language model behind an OpenAI-compatible endpoint (vLLM, Ollama, llama.cpp, hosted).

One request per passage asks for all its queries. Requests run concurrently, up to a limit. Passages without a
reply after all retries are requested once more at the end of their part. Up to one percent may then remain
without queries, and are listed; more, or ten in a row, stop the run, and the same command resumes at that
part. Replies are parsed strictly.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import Field, model_validator

from qontext.data.collection import Passage
from qontext.frame import log, trust
from qontext.frame.config import Asks, Machine
from qontext.frame.errors import QontextError
from qontext.queries.generators import Generator, Task
from qontext.queries.generators.chat import (
    DEFAULT_ENDPOINT,
    DEFAULT_KEY_VARIABLE,
    CallFailed,
    Chat,
    check_endpoint,
    demands,
    read_key,
)
from qontext.queries.generators.t5 import SamplingOptions
from qontext.training.randomness import key_of, torch_seed

CHARACTERS_PER_TOKEN = 4
_SECRET = re.compile(
    r'(?i)"([^"]*(?:api[_-]?key|authorization|password|secret|(?:auth|access|bearer)[_-]?token))":'
)
IN_A_ROW = 10
"""Consecutive passages without a reply after which the run stops (endpoint down, or wrong settings)."""


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


class LlmOptions(SamplingOptions):
    """Read by the generator `llm`."""

    chat_model: str | None = None
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
    timeout: Annotated[float, Field(gt=0, le=86_400), Machine()] = 120.0
    """Timeout of a request, in seconds without an answer."""
    retries: Annotated[int, Field(ge=0), Machine()] = 6
    """Number of retries after a failure, with increasing pauses."""
    price_in: Annotated[float, Field(ge=0), Machine()] = 0.0
    """Price per million input tokens, to report the cost."""
    price_out: Annotated[float, Field(ge=0), Machine()] = 0.0
    """Price per million output tokens."""

    @model_validator(mode="after")
    def _can_be_requested(self) -> Self:
        if not self.chat_model:
            raise QontextError(
                "the generator 'llm' needs the name of a model", remedy="Add --chat-model NAME."
            )
        check_endpoint(self.endpoint)
        read_options(self.chat_options)
        return self


class Llm(Generator):
    """Sends requests for many passages concurrently."""

    Options = LlmOptions
    part_passages = 128
    model_option = "chat_model"

    def __init__(self, settings: LlmOptions, task: Task) -> None:
        trust.require(demands({"endpoint": settings.endpoint, "key_variable": settings.key_variable}))
        key = read_key(settings.key_variable)
        self.settings, self.task, self.more = settings, task, read_options(settings.chat_options)
        self.chat = Chat(settings.endpoint, key, settings.timeout, settings.retries)
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: LlmOptions, task: Task) -> Llm:
        return cls(options, task)

    @classmethod
    def report(cls, options: LlmOptions, tally: Counter[str]) -> dict[str, Any]:
        """The cost of the tokens, if prices are known."""
        if not options.price_in and not options.price_out:
            return {}
        read, written = tally["prompt_tokens"], tally["completion_tokens"]
        return {"cost": round((read * options.price_in + written * options.price_out) / 1e6, 6)}

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        failed: dict[int, CallFailed] = {}
        yield from self._ask_all(passages, range(len(passages)), failed)
        if failed:
            again = list(failed)
            failed.clear()
            yield from self._ask_all(passages, again, failed)
        if len(failed) > max(1, len(passages) // 100):
            self._stop(failed)
        for index, error in failed.items():
            self.tally["unanswered"] += 1
            log.warn(f"no reply for passage {passages[index].id!r}: {error}")
            yield index, []

    def _ask_all(
        self, passages: list[Passage], which: Iterable[int], failed: dict[int, CallFailed]
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield replies as they arrive; failed requests are put into `failed`."""
        in_a_row = 0
        pool = ThreadPoolExecutor(self.settings.concurrency)
        try:
            passage_of = {pool.submit(self._ask, passages[i]): i for i in which}
            for future in as_completed(passage_of):
                try:
                    queries, counts = future.result()
                except CallFailed as error:
                    failed[passage_of[future]] = error
                    in_a_row += 1
                    if in_a_row == IN_A_ROW:
                        self._stop(failed)
                else:
                    in_a_row = 0
                    self.tally.update(counts)
                    yield passage_of[future], queries
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _stop(self, failed: dict[int, CallFailed]) -> NoReturn:
        raise QontextError(
            f"{len(failed)} passages got no reply; last error: {[*failed.values()][-1]}",
            place=self.settings.endpoint,
            remedy="Fix the cause and run the same command again: it resumes.",
        )

    def _ask(self, passage: Passage) -> tuple[list[str], Counter[str]]:
        """The passage's queries and their cost; an invalid reply is requested once more."""
        counts: Counter[str] = Counter()
        for attempt in range(2):
            reply = self.chat.ask(self._body(passage, attempt))
            counts["requests"] += 1
            counts["prompt_tokens"] += reply.prompt_tokens
            counts["completion_tokens"] += reply.completion_tokens
            if queries := read_queries(reply.text):
                return queries, counts
            counts["unreadable_replies"] += 1
        return [], counts

    def _body(self, passage: Passage, attempt: int) -> dict[str, Any]:
        settings = self.settings
        text = passage.text[: settings.max_passage_tokens * CHARACTERS_PER_TOKEN]
        count = self.task.per_passage
        body: dict[str, Any] = {
            "model": settings.chat_model,
            "messages": messages(
                passage.title, text, count, settings.template, settings.language, settings.style
            ),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_new_tokens * count + 64,
            "seed": torch_seed(self.task.seed, "llm", key_of(passage.id), attempt) & 0x7FFFFFFF,
        }
        return {name: value for name, value in {**body, **self.more}.items() if value is not None}


def read_options(text: str) -> dict[str, Any]:
    """The additional fields of the request; they are recorded, so keys are refused."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise QontextError("--chat-options is not a JSON object", remedy="Example: '{\"top_p\": null}'")
    if secret := _SECRET.search(json.dumps(value)):
        raise QontextError(
            f"--chat-options contains {secret[1]!r}, and options are recorded",
            remedy="Put the key into an environment variable and name that variable with --key-variable.",
        )
    return value


def messages(
    title: str, text: str, count: int, template: str, language: str, style: str
) -> list[dict[str, str]]:
    """The chat messages that request `count` queries."""
    wishes = [f"Write {count} different {TEMPLATES[template]}."]
    wishes.append(f"Write them in {language}." if language else "Write them in the language of the passage.")
    if style:
        wishes.append(f"Style: {style}.")
    wishes.append(f"Reply with a JSON list of {count} strings and nothing else.")
    heading = f"Title: {title}\n" if title else ""
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
        return _from_json(body)
    matches = [_NUMBERED.match(line) for line in map(str.strip, body.splitlines()) if line]
    # One introductory line is accepted; with two or more, it is not a list of queries.
    if sum(match is None for match in matches) > 1 or not any(matches):
        return []
    return _plausible([match["query"].strip('"“”') for match in matches if match])


def _from_json(body: str) -> list[str]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        value = lists[0] if len(lists) == 1 else None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return []
    return _plausible(value)


def _plausible(queries: list[str]) -> list[str]:
    return [
        query for query in queries if query.strip() and len(query) <= LONGEST_QUERY and _is_unicode(query)
    ]


def _is_unicode(text: str) -> bool:
    """True if it has no lone surrogate, which JSON can escape but UTF-8 cannot encode."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
