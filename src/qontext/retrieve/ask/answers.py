"""`qontext search DIR`: search the output of `adapt` with a question on the command line, or with several
from a prompt or a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from qontext.frame import log
from qontext.frame.config import Action, StageConfig
from qontext.frame.errors import QontextError, visible
from qontext.retrieve.ask.questions import GroupBy, joined
from qontext.retrieve.searcher import Answer, Searcher

PROMPT = "-"
"""The question that stands for reading questions from standard input."""
SHOWN = 5
"""Default number of answers to a question."""


class AskConfig(StageConfig):
    """The settings of questions; a run has none of them."""

    refresh: Annotated[bool, Action()] = False
    """Index what has changed in the documents of a directory of `adapt` before it is asked; before a run,
    'qontext refresh' does so."""

    vectors: Annotated[bool, Action()] = True
    """Of a folder of documents as it is: compute vectors after the first answer, in a process of its own."""

    also: Annotated[tuple[str, ...], Action()] = ()
    """Another sub-query of each question, such as 'words: reset password', 'meaning: …', 'hypothetical: an answer as
    it might be written', or a text for the whole system; the rankings are fused. May be repeated."""

    explain: Annotated[bool, Action()] = False
    """Show what found each answer: its rank in each part of the system, the words that matched with their weights, and the
    sentence nearest to the question."""

    min_score: Annotated[float | None, Action()] = None
    """Leave out answers with a lower score. Scores of different questions are not comparable."""

    context: Annotated[int, Action()] = Field(0, ge=0, le=100)
    """Number of neighboring passages to show on either side of an answer."""

    files: Annotated[bool, Action()] = False
    """Print the paths of the files of the answers alone, one on each line."""


class Asking(NamedTuple):
    """The settings of answers; see `Searcher.search`."""

    settings: AskConfig
    k: int
    where: tuple[str, ...] = ()
    group: GroupBy = "passage"

    def ask(self, searcher: Searcher, question: str) -> list[Answer]:
        """The answers to a question, with the sub-queries of `--also`."""
        question = joined(question, self.settings.also)
        names = ("explain", "min_score", "context")
        settings: dict[str, Any] = {name: getattr(self.settings, name) for name in names}
        return searcher.search(question, self.k, self.where, group=self.group, **settings)


def answer(searcher: Searcher, question: str, how: Asking) -> list[dict[str, Any]]:
    """Answer one question: show the passages, and return them as JSON."""
    answers = how.ask(searcher, question)
    if how.settings.files:
        show_files(searcher, answers)
    else:
        show(question, answers, how.where if how.settings.min_score is None else ())
    return [one.as_json() for one in answers]


def show_files(searcher: Searcher, answers: list[Answer]) -> None:
    """Print the paths of the files of the answers, each once; of a document that is no file, its id."""
    if not log.is_shown():
        return
    path_of = getattr(searcher.collection, "path_of", lambda place: None)
    shown = dict.fromkeys(str(path_of(one.place) or one.place.file or one.document) for one in answers)
    with log.results():
        for path in shown:
            print(path)


def converse(searcher: Searcher, how: Asking) -> dict[str, Any]:
    """Answer questions until the input ends; the model stays loaded. An error in one question does not stop it."""
    questions = []
    for question in _questions():
        try:
            questions.append({"question": question, "answers": answer(searcher, question, how)})
        except QontextError as error:
            if not sys.stdin.isatty():
                raise
            log.warn(str(error))
    return {"questions": questions}


def _questions() -> Iterator[str]:
    """The non-empty lines of the input; on a terminal with a prompt, line editing and a history."""
    if not sys.stdin.isatty():
        for number, line in enumerate(sys.stdin.buffer, start=1):
            try:
                question = line.decode("utf-8-sig").strip()
            except UnicodeDecodeError as error:
                place = f"standard input:{number}"
                raise QontextError(f"is not UTF-8 text: {error.reason}", place=place) from None
            if question:
                yield question
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


def show(question: str, answers: list[Answer], where: Sequence[str] = ()) -> None:
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
        table.add_row(f"{one.rank}.", Text(visible(head), style="bold"))
        if below:
            table.add_row("", Text(visible(below), style="dim"))
        table.add_row("", _highlighted(one))
        for text in (one.before, one.after):
            if text:
                table.add_row("", Text(visible(text), style="dim"))
        for line in one.evidence.lines() if one.evidence else ():
            table.add_row("", Text(visible(line), style="dim"))
    with log.results():
        console = Console(markup=False, emoji=False, highlight=False)
        console.print(Text(visible(question), style="bold"))
        none = "No passage that meets --where was found." if where else "No passage was found."
        console.print(table if answers else none)


def _highlighted(answer: Answer) -> Any:
    """The snippet with its best sentence in bold."""
    from rich.text import Text

    shown = Text(visible(answer.snippet))
    start = answer.snippet.find(answer.sentence) if answer.sentence != answer.snippet else -1
    if answer.sentence and start >= 0:
        shown.stylize("bold", start, start + len(answer.sentence))
    return shown


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
