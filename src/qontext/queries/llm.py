"""Queries from a large language model behind an OpenAI-compatible endpoint (vLLM, Ollama, llama.cpp, hosted).

One request per passage asks for all its queries. Requests run side by side up to a bound. Passages that get
no answer after all attempts are asked once more at the end of their part. One in a hundred may then stay
without queries, and is named; more, or ten in a row, stop the run, and the same command goes on with that part.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from pydantic import Field

from qontext import log
from qontext.collection import Passage
from qontext.config import Machine
from qontext.engine.randomness import torch_seed
from qontext.errors import QontextError
from qontext.queries.chat import Chat, Failed
from qontext.queries.prompts import messages, read_queries
from qontext.queries.t5 import SamplingOptions

if TYPE_CHECKING:
    from qontext.queries.generate import GenerateConfig

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
CHARACTERS_PER_TOKEN = 4
IN_A_ROW = 10
"""So many passages without an answer in a row mean that the endpoint is down or the settings are wrong."""


class LlmOptions(SamplingOptions):
    """Read by the generator `llm`."""

    chat_model: str | None = None
    """llm: the model's name at the endpoint."""
    template: Literal["question", "keywords", "claim"] = "question"
    """llm: what to ask for."""
    language: str = ""
    """llm: the queries' language; if not given, the passage's."""
    style: str = ""
    """llm: a wish in your own words, such as 'as a nurse would ask'."""
    chat_options: str = "{}"
    """llm: more fields of the request, as a JSON object; null removes a field."""
    endpoint: Annotated[str, Machine()] = "http://127.0.0.1:8000/v1"
    """llm: the base address of the server."""
    key_variable: Annotated[str, Machine()] = DEFAULT_KEY_VARIABLE
    """llm: the environment variable that holds the key; the key itself is written nowhere."""
    concurrency: Annotated[int, Field(ge=1, le=1024), Machine()] = 16
    """llm: requests at the same time."""
    timeout: Annotated[float, Field(gt=0), Machine()] = 120.0
    """llm: seconds to wait for a whole reply."""
    retries: Annotated[int, Field(ge=0), Machine()] = 6
    """llm: further attempts after a failure, with growing pauses."""
    price_in: Annotated[float, Field(ge=0), Machine()] = 0.0
    """llm: price of a million tokens read, to report the cost."""
    price_out: Annotated[float, Field(ge=0), Machine()] = 0.0
    """llm: price of a million tokens written."""


def open_generator(settings: GenerateConfig) -> Llm:
    return Llm(settings)


class Llm:
    """Callable generator: asks for many passages at the same time."""

    def __init__(self, settings: GenerateConfig) -> None:
        if not settings.chat_model:
            raise QontextError(
                "the generator 'llm' needs the name of a model", remedy="Add --chat-model NAME."
            )
        key = os.environ.get(settings.key_variable)
        if not key and settings.key_variable != DEFAULT_KEY_VARIABLE:
            raise QontextError(f"the environment variable {settings.key_variable} is not set")
        self.settings, self.more = settings, _options(settings.chat_options)
        self.chat = Chat(settings.endpoint, key, settings.timeout, settings.retries)
        self.tally: Counter[str] = Counter()
        self.halted = Event()

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        failed: dict[int, Failed] = {}
        yield from self._ask_all(passages, range(len(passages)), failed)
        if failed:
            again = list(failed)
            failed.clear()
            yield from self._ask_all(passages, again, failed)
        if len(failed) > max(1, len(passages) // 100):
            self._stop(failed)
        for index, error in failed.items():
            self.tally["unanswered"] += 1
            log.warn(f"passage {passages[index].id!r} got no answer: {error}")
            yield index, []

    def _ask_all(
        self, passages: list[Passage], which: Iterable[int], failed: dict[int, Failed]
    ) -> Iterator[tuple[int, list[str]]]:
        """The answers as they come; those that did not come are put into `failed`."""
        in_a_row = 0
        pool = ThreadPoolExecutor(self.settings.concurrency)
        try:
            asked = {pool.submit(self._ask, passages[i]): i for i in which}
            for answered in as_completed(asked):
                try:
                    queries, counts = answered.result()
                except Failed as error:
                    failed[asked[answered]] = error
                    in_a_row += 1
                    if in_a_row == IN_A_ROW:
                        self._stop(failed)
                else:
                    in_a_row = 0
                    self.tally.update(counts)
                    yield asked[answered], queries
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _stop(self, failed: dict[int, Failed]) -> NoReturn:
        self.halted.set()
        raise QontextError(
            f"{len(failed)} passages got no answer, the last one: {[*failed.values()][-1]}",
            place=self.settings.endpoint,
            remedy="Mend that and run the same command again: it resumes.",
        )

    def _ask(self, passage: Passage) -> tuple[list[str], Counter[str]]:
        """The passage's queries and what they cost; an answer that cannot be read is asked for once more."""
        counts: Counter[str] = Counter()
        for attempt in range(2):
            if self.halted.is_set():
                raise Failed("the run was stopped")
            try:
                reply = self.chat.ask(self._body(passage, attempt))
            except QontextError:
                self.halted.set()  # before the next waiting request starts
                raise
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
        count = settings.per_passage
        body: dict[str, Any] = {
            "model": settings.chat_model,
            "messages": messages(
                passage.title, text, count, settings.template, settings.language, settings.style
            ),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_new_tokens * count + 64,
            "seed": torch_seed(settings.seed, "llm", zlib.crc32(passage.id.encode()), attempt) & 0x7FFFFFFF,
        }
        return {name: value for name, value in {**body, **self.more}.items() if value is not None}


def _options(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise QontextError(f"--chat-options is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise QontextError("--chat-options is not a JSON object", remedy="Example: '{\"top_p\": null}'")
    return value
