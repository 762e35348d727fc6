"""The page of `qontext search DIR` at a terminal: a line for the question, the passages that answer it, and the one at the
cursor with its best sentence highlighted. It is opened at its line in $EDITOR, or else where the system opens such files."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from qontext.frame.errors import QontextError, visible
from qontext.retrieve.searcher import Answer

Ask = Callable[[str], Sequence[Answer]]
Captions = Callable[[Sequence[Answer]], list[tuple[str, str]]]
_AT_LINE = ("code", "codium", "cursor", "windsurf")
"""Editors that open a line with --goto FILE:LINE."""
_JOINED = ("hx", "helix", "micro", "subl", "zed")
"""Editors that open a line as FILE:LINE. All others, such as vi, nano and emacs, take +LINE FILE."""


class QuestionInput(Input):
    """The line of the question."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Search"),
        Binding("down", "app.choose", "Passages"),
    ]


class Hits(OptionList):
    """The passages that were found."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open"),
        Binding("escape,slash", "app.ask", "Question"),
        Binding("left", "app.scroll(-1)", "Scroll up"),
        Binding("right", "app.scroll(1)", "Scroll down"),
    ]


class SearchPage(App[None]):
    """Asks with `ask`; `captions` are the two lines of each answer in the list, and `path_of` is the path of an answer's
    file, if it is one on this machine."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #status { height: auto; padding: 0 1; color: $text-muted; }
    Hits { height: 2fr; }
    #preview { height: 3fr; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "Quit", priority=True)]

    def __init__(self, ask: Ask, captions: Captions, path_of: Callable[[Answer], str | None]) -> None:
        super().__init__()
        self.search, self.captions, self.path_of = ask, captions, path_of
        self.answers: Sequence[Answer] = ()
        self.asked: list[dict[str, Any]] = []
        """The questions and their answers, as JSON."""
        self._searching = threading.Lock()  # a searcher is used by one thread at a time

    def compose(self) -> ComposeResult:
        yield QuestionInput(placeholder="Ask a question")
        yield Static(id="status")
        yield Hits(markup=False)
        with VerticalScroll(id="preview", can_focus=False):
            yield Static(id="text")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(QuestionInput).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.tell("Searching …")
            self.answer(event.value.strip())

    @work(thread=True, exclusive=True)
    def answer(self, question: str) -> None:
        """Search, and show what was found, unless another question was asked meanwhile."""
        worker = get_current_worker()
        try:
            with self._searching:
                answers = [] if worker.is_cancelled else self.search(question)
        except QontextError as error:
            answers, message = [], f"error: {error}"
        else:
            message = "" if answers else "No passage was found."
            self.asked.append({"question": question, "answers": [one.as_json() for one in answers]})
        if not worker.is_cancelled:
            self.call_from_thread(self.show, answers, message)

    def show(self, answers: Sequence[Answer], message: str) -> None:
        """Show answers, and a message about them."""
        self.answers = answers
        self.tell(message)
        hits = self.query_one(Hits)
        hits.clear_options()
        hits.add_options([self._listed(*pair) for pair in zip(answers, self.captions(answers))])
        self.query_one("#text", Static).update("")
        if answers:
            hits.highlighted = 0
            hits.focus()

    def _listed(self, answer: Answer, caption: tuple[str, str]) -> Option:
        head, below = caption
        source = str(answer.place.metadata.get("source", ""))
        is_said = below.startswith(f"{source}/")  # as in the ids of several sources
        about = " · ".join(part for part in ("" if is_said else source, below) if part)
        shown = Text.assemble((f"{answer.rank}. ", "cyan"), (visible(head), "bold"))
        if about:
            shown.append(f"\n   {visible(about)}", "dim")
        return Option(shown)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#text", Static).update(preview(self.answers[event.option_index]))
        self.query_one("#preview", VerticalScroll).scroll_home(animate=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.open_answer(self.answers[event.option_index])

    def open_answer(self, answer: Answer) -> None:
        """Open the file or the web page of an answer."""
        place = answer.place
        if place.file.startswith(("http://", "https://")):
            self._away(lambda: webbrowser.open(place.file), place.file)
        elif (path := self.path_of(answer)) is None:
            self.tell(f"{place.file or answer.document} is no file on this machine.")
        elif place.line is not None and (command := editor_at(path, place.line)):
            self._away(lambda: subprocess.run(command, check=False).returncode == 0, command[0])
        else:
            page = "" if place.page is None else f"#page={place.page}"
            self._away(lambda: webbrowser.open(Path(path).absolute().as_uri() + page), path)

    def _away(self, act: Callable[[], bool], name: str) -> None:
        """Leave the terminal to another program."""
        try:
            with self.suspend():
                is_done = act()
        except SuspendNotSupported:
            is_done = act()
        except OSError as error:
            self.tell(f"error: {name} cannot be run: {error.strerror}")
            return
        self.tell("" if is_done else f"{name} could not be opened; set EDITOR to your editor.")

    def tell(self, message: str) -> None:
        """Show a message below the question."""
        self.query_one("#status", Static).update(Text(visible(message)))

    def action_choose(self) -> None:
        if self.answers:
            self.query_one(Hits).focus()

    def action_ask(self) -> None:
        self.query_one(QuestionInput).focus()

    def action_scroll(self, pages: int) -> None:
        view = self.query_one("#preview", VerticalScroll)
        view.scroll_relative(y=pages * max(1, view.size.height - 1), animate=False)


def preview(answer: Answer) -> Text:
    """An answer with its place, its best sentence highlighted, and what else was asked for."""
    shown = Text()
    for line in (answer.title, str(answer.place)):
        if line:
            shown.append(f"{visible(line)}\n", "bold" if line == answer.title else "dim")
    shown.append("\n")
    if answer.before:
        shown.append(f"{visible(answer.before)}\n\n", "dim")
    begin = len(shown)
    shown.append(visible(answer.text))
    words = answer.sentence.split()
    if words and (
        match := re.search(r"\s+".join(re.escape(visible(word)) for word in words), shown.plain[begin:])
    ):
        shown.stylize("reverse", begin + match.start(), begin + match.end())
    if answer.after:
        shown.append(f"\n\n{visible(answer.after)}", "dim")
    strength = (
        [] if answer.strength is None else [f"stronger than {answer.strength:.0%} of the held-out answers"]
    )
    for line in (*strength, *(answer.evidence.lines() if answer.evidence else ())):
        shown.append(f"\n{visible(line)}", "dim")
    return shown


def editor_at(path: str, line: int) -> list[str]:
    """The command that opens a file at a line in the user's editor; none if no editor is set."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not command:
        return []
    name, file = Path(command[0]).stem, os.path.abspath(path)  # noqa: PTH100 -- links are the user's
    if name in _AT_LINE:
        return [*command, "--goto", f"{file}:{line}"]
    return [*command, f"{file}:{line}"] if name in _JOINED else [*command, f"+{line}", file]
