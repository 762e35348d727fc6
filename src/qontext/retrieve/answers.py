"""`qontext search DIR`: search the output of `adapt` with a question on the command line, or with several
from a prompt or a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.retrieve.searcher import Answer, Searcher

PROMPT = "-"
"""As the question: read questions from standard input."""
SHOWN = 5
"""Default number of answers to a question."""


def answer(searcher: Searcher, question: str, k: int, where: tuple[str, ...]) -> list[dict[str, Any]]:
    """Answer one question: show the passages, and return them as JSON."""
    answers = searcher.search(question, k, where)
    show(question, answers)
    return [one.as_json() for one in answers]


def converse(searcher: Searcher, k: int, where: tuple[str, ...]) -> dict[str, Any]:
    """Answer questions until the input ends; the model stays loaded. An error in one question does not stop it."""
    questions = []
    for question in _questions():
        try:
            questions.append({"question": question, "answers": answer(searcher, question, k, where)})
        except QontextError as error:
            if not sys.stdin.isatty():
                raise
            log.warn(str(error))
    return {"questions": questions}


def _questions() -> Iterator[str]:
    """The non-empty lines of the input; on a terminal with a prompt, line editing and a history."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            if line.strip():
                yield line.strip()
        return
    with contextlib.suppress(ImportError):  # Python may be built without it
        import readline  # noqa: F401 -- gives `input` its history
    log.note("Ask a question; an empty line or Ctrl-D ends.")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return
        if not line:
            return
        yield line


def show(question: str, answers: list[Answer]) -> None:
    """Print the passages: title, place, snippet."""
    if not log.is_shown():
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heads = captions(answers)
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="cyan")
    table.add_column(overflow="fold")
    for one in answers:
        head, below = heads[one.rank - 1]
        table.add_row("", "")
        table.add_row(f"{one.rank}.", Text(head, style="bold"))
        if below:
            table.add_row("", Text(below, style="dim"))
        table.add_row("", Text(one.snippet))
    with log.results():
        console = Console(markup=False, emoji=False, highlight=False)
        console.print(Text(question, style="bold"))
        console.print(table if answers else "No passage was found.")


def captions(answers: list[Answer]) -> list[tuple[str, str]]:
    """The title of each answer, and its place, if it is not the title. Answers with the same title have their ids, too."""
    rows = []
    for one in answers:
        place = str(one.place)
        # A title that is part of the place is not shown twice.
        head = place if one.place.headings or not one.title else one.title
        rows.append((head or one.document, place if place != head else ""))
    heads = Counter(head for head, _ in rows)
    return [
        (head, ", ".join(filter(None, (below, one.id)))) if heads[head] > 1 else (head, below)
        for one, (head, below) in zip(answers, rows)
    ]
