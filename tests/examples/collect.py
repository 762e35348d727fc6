"""The places of examples: in help texts, in the documentation's blocks of code and at the head of recipes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qontext import cli
from qontext.frame import stages
from qontext.workflow.tables import SHIPPED

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "skills").glob("*/SKILL.md")),
]
COMMAND = re.compile(r"^\W*((?:qontext|torchrun) .*)", re.M)


@dataclass(frozen=True)
class Example:
    """A command as it is shown, with the arguments of `qontext` in it and how many processes it has."""

    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def argv(self) -> list[str]:
        """The words after `qontext`."""
        words = self.words
        return words[words.index("qontext") + 1 :]

    @property
    def ranks(self) -> int:
        return 2 if self.words[0] == "torchrun" else 1

    @property
    def outputs(self) -> list[str]:
        """The outputs that it is told to write."""
        argv = self.argv
        return [argv[n + 1] for n, word in enumerate(argv) if word in ("--out", "-o")]


def examples_in(script: str) -> Iterator[Example]:
    """The commands of a shell script, which has no others than those of qontext."""
    for line in re.sub(r"\\\n\s*", "", script).splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] != "export":
            assert words[0] in ("qontext", "torchrun") and "qontext" in words, (
                f"no command of qontext: {line}"
            )
            yield Example(line)


def in_help() -> dict[str, list[Example]]:
    """Verb → the examples of its help; those of `qontext --help` stand under an empty name."""
    examples = {
        verb: [Example(line) for line in COMMAND.findall(stages.load(verb).examples)] for verb in stages.VERBS
    }
    return {
        "": [Example(line.strip()) for line in cli.ABOUT.splitlines() if line.startswith("    ")],
        **examples,
    }


def in_recipes() -> dict[str, list[Example]]:
    """Recipe → the commands in its comments."""
    texts = {path.stem: path.read_text() for path in sorted(SHIPPED.rglob("*.toml"))}
    return {
        name: [Example(line) for line in re.findall(r"^# (qontext .*)", text, re.M)]
        for name, text in texts.items()
    }


def blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of code on a page: their language and their text."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.S | re.M)
