"""`qontext search DIR`: answers to a question on the command line, or to several from a prompt or a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from qontext.frame import log
from qontext.frame.config import Action, DeviceConfig, Input
from qontext.frame.errors import QontextError, visible
from qontext.frame.stages import Report
from qontext.retrieve.ask.prepared import compute_vectors, is_documents, prepare
from qontext.retrieve.ask.questions import GroupBy, joined
from qontext.retrieve.searcher import Answer, Answers, Searcher
from qontext.retrieve.system import System


class SearchConfig(DeviceConfig):
    directory: Annotated[str, Input(positional=True, by_content=False)]
    """A directory of `adapt`, the output of `encode` or `index`, or documents as they are: their index is made first, and
    follows them."""

    question: Annotated[str | None, Input(positional=True, by_content=False)] = None
    """The question. Without one, questions are read from a prompt, or line by line from a pipe."""

    k: int = Field(5, ge=1)
    """Number of answers."""

    where: tuple[str, ...] = ()
    """Search only passages whose metadata meet this condition, such as folder=guide, 'date>=2024' or
    'lang=de|fr'. May be repeated; all conditions must hold."""

    group: GroupBy = "passage"
    """document: the best passage of each document only."""

    bm25: bool = False
    """Search by words alone, instead of the recommended system."""

    encoder: Annotated[str | None, Input()] = None
    """An unchanged copy of the encoder, if it is no longer where it was."""

    refresh: Annotated[bool, Action()] = False
    """Index what has changed in the documents of a directory of `adapt` first."""

    vectors: Annotated[bool, Action()] = True
    """Of documents as they are: compute vectors after the first answer, in a process of its own."""

    also: Annotated[tuple[str, ...], Action()] = ()
    """Another sub-query of each question, such as 'words: reset password', 'meaning: …', 'hypothetical: an answer as
    it might be written', or a text for the whole system; the rankings are fused. May be repeated."""

    explain: Annotated[bool, Action()] = False
    """Show what found each answer: its rank in each part of the system, the words that matched with their weights, and the
    sentence nearest to the question."""

    min_score: Annotated[float | None, Action()] = None
    """Leave out answers with a lower score. Scores of different questions are not comparable."""


def ask(config: SearchConfig) -> dict[str, Any]:
    """Print the best passages for one question, or for those from a prompt."""
    directory = prepare(config.directory, refresh=config.refresh)
    searcher = Searcher(directory, device=config.device, encoder=config.encoder)
    if config.bm25:
        searcher.system = System(words=True)
    if config.question is None:
        result: dict[str, Any] = {"questions": list(converse(searcher, config))}
    else:
        result = {"answers": answer(searcher, config.question, config)}
    if config.vectors and is_documents(config.directory):
        compute_vectors(config.directory)
    return result


def answer(searcher: Searcher, question: str, config: SearchConfig) -> Answers:
    """Answer one question, and show the passages."""
    question = joined(question, config.also)
    answers = searcher.search(
        question,
        config.k,
        config.where,
        group=config.group,
        explain=config.explain,
        min_score=config.min_score,
    )
    if log.is_shown():
        with log.results():
            show(question, answers)
    return answers


def converse(searcher: Searcher, config: SearchConfig) -> Iterator[dict[str, Any]]:
    """Answer questions until the input ends; the model stays loaded. A terminal has a prompt with a history, which an error
    in one question does not stop."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):  # Python may be built without it
            import readline  # noqa: F401 -- gives `input` its history
        log.note("Ask a question; an empty line or Ctrl-D ends.")
    while True:
        try:
            question = input("> " if is_terminal else "").strip()
        except EOFError:
            return
        if not question and is_terminal:
            return
        try:
            if question:
                yield {"question": question, "answers": answer(searcher, question, config)}
        except QontextError as error:
            if not is_terminal:
                raise
            log.warn(str(error))


def show(question: str, answers: Answers) -> None:
    """Print the passages: title, place, snippet."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="cyan")
    table.add_column(overflow="fold")
    for one, (head, below) in zip(answers, captions(answers)):
        snippet = Text(visible(one.snippet))
        if one.sentence not in ("", one.snippet):
            snippet.highlight_words([one.sentence], "bold")
        table.add_row("", "")
        table.add_row(f"{one.rank}.", Text(visible(head), style="bold"))
        if below:
            table.add_row("", Text(visible(below), style="dim"))
        table.add_row("", snippet)
        for line in one.evidence.lines() if one.evidence else ():
            table.add_row("", Text(visible(line), style="dim"))
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(Text(visible(question), style="bold"))
    console.print(table if answers else "No passage was found.")


def captions(answers: Sequence[Answer]) -> list[tuple[str, str]]:
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


def _returned(summary: Mapping[str, Any]) -> Answers:
    """The answers to a question."""
    answers: Answers = summary.get("answers", Answers())
    return answers


COMMAND = Report(
    "search",
    SearchConfig,
    ask,
    """
        qontext search handbook "how do I reset my password?"
        qontext search runs/mine "how do I reset my password?" --explain --group document
        qontext search runs/mine "how do I reset my password?" --also "words: password reset" --refresh
        qontext search runs/mine
    """,
    returned=_returned,
)
