"""Another search than Qontext's, measured beside it: a command, started once for a set of questions.

standard input     a line of JSON for each question: {"id": "q1", "text": "who carried coal?"}
standard output    a TREC run: query id, Q0, result, rank, score, tag

A result is the id of a passage, or of a document, of which the passage with most words of the question counts. A result
that is neither has no rank. The command is run without a shell.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from qontext.frame import log, trust
from qontext.frame.errors import QontextError
from qontext.frame.trust import Demand
from qontext.retrieve.system import SYSTEMS

if TYPE_CHECKING:
    from qontext.data.collection import Passage
    from qontext.data.runs import Run

_EXAMPLE = (
    "Example: mine='python3 my_search.py', which reads questions from standard input and writes a TREC run."
)
_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,39})=(.+)", re.DOTALL)


def all_named(texts: Sequence[str]) -> dict[str, str]:
    """Name → command of several ``NAME=COMMAND``."""
    commands: dict[str, str] = {}
    taken = {word for system in SYSTEMS for word in (system.name, system.name.replace("-", "_"))}
    for text in texts:
        match = _NAMED.fullmatch(text)
        if match is None:
            raise QontextError(f"cannot read {text!r}: expected NAME=COMMAND", remedy=_EXAMPLE)
        name, command = match[1], match[2].strip()
        if name.lower() in taken:
            raise QontextError(f"the name {name!r} is taken", remedy="Choose another name.")
        check(command)
        if trust.is_given(text):  # what the user said as a whole is also said of the command alone
            trust.give(command)
        taken.add(name.lower())
        commands[name] = command
    return commands


def check(command: str) -> None:
    """Refuse a command that is not there."""
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is None:
        raise QontextError("there is no such command", place=command, remedy=_EXAMPLE)


def demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """The demand of a file that names a system: to run a command."""
    if isinstance(command := values.get("system"), str):
        yield Demand(f"run the command {command}", (command,))


def also_demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """The demands of a file whose setting `also` has ``NAME=COMMAND`` several times."""
    for command in all_named(values.get("also") or ()).values():
        yield from demands({"system": command})


def ask(command: str, queries: Mapping[str, str], passages: str, k: int) -> Run:
    """The best k passages of each query (id → text)."""
    from qontext.data.collection import read_passages
    from qontext.data.runs import Run, read_run

    check(command)
    trust.require(demands({"system": command}))
    lines = [json.dumps({"id": id, "text": text}, ensure_ascii=False) + "\n" for id, text in queries.items()]
    with TemporaryFile() as output:
        done = subprocess.run(shlex.split(command), input="".join(lines).encode(), stdout=output, check=False)
        if done.returncode:
            raise QontextError(f"failed with the exit code {done.returncode}", place=command)
        found = read_run(f"/dev/fd/{output.fileno()}") if output.seek(0, os.SEEK_END) else Run.of([])
    run, unmatched = _matched(found, queries, list(read_passages(passages)), k)
    if found.size and not run.size:
        raise QontextError(
            f"none of its results is the id of a passage or a document; the first one is {found.ids[0]!r}",
            place=command,
        )
    if unmatched:
        log.warn(f"{unmatched:,} results are no ids of passages or documents: {command}")
    return run


def _matched(found: Run, queries: Mapping[str, str], passages: list[Passage], k: int) -> tuple[Run, int]:
    """The results as passages, each once."""
    from qontext.data.labels import closest
    from qontext.data.records import Hit
    from qontext.data.runs import Run

    ids = {passage.id for passage in passages}
    documents: dict[str, list[Passage]] = {}
    for passage in passages:
        documents.setdefault(passage.doc, []).append(passage)
    hits, unmatched = [], 0
    for query in found:
        best: dict[str, float] = {}
        for hit in found[query] if query in queries else ():
            if hit.passage in ids:
                best.setdefault(hit.passage, hit.score)
            elif hit.passage in documents:
                best.setdefault(closest(queries[query], documents[hit.passage]).id, hit.score)
            else:
                unmatched += 1
        hits += [Hit(query, id, score) for id, score in list(best.items())[:k]]
    return Run.of(hits), unmatched
