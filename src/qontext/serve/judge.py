"""`qontext annotate`: a page on which a person judges pairs of texts, one by one.

answers     does the passage answer the question? Of a directory of `adapt`, whose next verdict uses the judgments
contexts    are a passage and its context strongly related? The study of "Query-as-context Pre-training", appendix A

A verdict is a line of the person's file, flushed to disk before it is acknowledged; the last one of a pair counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from qontext.frame import config, locks, log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.frame.kinds import Kind, Kinds
from qontext.frame.stages import Server
from qontext.retrieve.directory import read_adapted
from qontext.serve.errors import Failed, Unknown
from qontext.serve.verb import require

PAIRS = Kinds(
    "kind of pairs",
    "qontext.pairs",
    "qontext.serve.judge:Pairs",
    {
        "answers": Kind("qontext.serve.judge:FoundAnswers", "questions of a directory of adapt with its systems' passages"),
        "contexts": Kind("qontext.baselines.annotators:Contexts", "passages with a query and with another passage"),
    },
)  # fmt: skip
FILE = "pairs.json"
Grade = Literal["high", "low"]
VERDICTS: tuple[Grade, ...] = ("high", "low")
Votes = Mapping[str, Mapping[str, Grade]]
"""Person → key of a pair → verdict."""


@dataclass(frozen=True)
class JudgedPair:
    """A passage and a context, or a question that it may answer."""

    kind: str
    context: str
    passage: str
    ids: tuple[str, str] = ("", "")
    """Of the question and the passage."""

    @property
    def is_answer(self) -> bool:
        return self.kind == "answer"

    @cached_property
    def key(self) -> str:
        """A digest of all that a person sees: other words have to be judged again."""
        texts = "\0".join((*self.ids, self.context, self.passage))
        return hashlib.blake2b(texts.encode(), digest_size=12).hexdigest()


class Pairs(ABC):
    """A kind of pairs to judge."""

    Options: ClassVar[type[config.Options]] = config.Options

    @classmethod
    @abstractmethod
    def draw(cls, source: str, options: Any, earlier: Sequence[JudgedPair]) -> list[JudgedPair]:
        """The pairs in their order; `earlier` are those of a directory that exists."""

    @classmethod
    def order(cls, pairs: Sequence[JudgedPair], person: str) -> list[JudgedPair]:
        """The pairs in the order in which a person sees them."""
        return list(pairs)

    @classmethod
    @abstractmethod
    def results(cls, pairs: Sequence[JudgedPair], votes: Votes, work: Workdir) -> dict[str, Any]:
        """Write and return what the judgments say."""


class AnnotateConfig(StageConfig):
    kinds: ClassVar = {"pairs": PAIRS}

    source: Annotated[str, Input(positional=True)]
    """A directory of `adapt`, or with `--pairs contexts` passages from 'qontext split'."""

    pairs: str = "answers"
    """The kind of pairs to judge."""

    out: str | None = None
    """Directory of the judgments. The same command resumes it. Default for a directory of `adapt`: its folder judgments."""

    annotator: str = Field("judge", pattern=r"^[\w-]+$")
    """Name of the person who judges; everyone judges all pairs."""

    export: bool = False
    """Only write the results, without starting a server."""

    host: str = "127.0.0.1"
    """Address to listen on. Addresses reachable from other machines need a token in QONTEXT_TOKEN."""

    port: int = Field(8000, ge=0, le=65_535)
    """Port to listen on; 0 selects a free one."""

    allow_host: tuple[str, ...] = ()
    """Additional accepted host name, besides localhost, such as that of a reverse proxy."""


def run(settings: AnnotateConfig) -> dict[str, Any]:
    from qontext.adapt.judgments import FOLDER

    if settings.out is None and settings.pairs != "answers":
        raise QontextError("annotate needs --out")
    kind = PAIRS.load(settings.pairs)
    work = Workdir(Path(settings.out or Path(settings.source) / FOLDER))
    with locks.lock(work.path, f"-{settings.annotator}"):
        pairs = pairs_of(settings, work)
        if not settings.export:
            _serve(settings, kind.order(pairs, settings.annotator), work.path)
    votes = {file.stem.removeprefix("votes-"): read_votes(file) for file in work.path.glob("votes-*.jsonl")}
    results: dict[str, Any] = kind.results(pairs, votes, work)
    return results


def pairs_of(settings: AnnotateConfig, work: Workdir) -> list[JudgedPair]:
    """The pairs of the directory: drawn and written, if there are none or if there may be further answers to judge."""
    earlier = read_pairs(work.path)
    if settings.export and earlier:
        return earlier
    pairs: list[JudgedPair] = PAIRS.load(settings.pairs).draw(
        settings.source, settings.options("pairs"), earlier
    )
    if earlier and pairs != earlier and settings.pairs != "answers":
        raise QontextError(
            "contains pairs of other passages, queries or settings",
            place=work.path,
            remedy="Choose another --out.",
        )
    if pairs != earlier:
        work.write_json(FILE, [asdict(pair) for pair in pairs])
    return pairs


def read_pairs(root: Path) -> list[JudgedPair]:
    """The pairs of a directory; empty if it has none."""
    rows = read_json(root / FILE, list[dict[str, Any]]) if (root / FILE).is_file() else []
    return [JudgedPair(**{**row, "ids": tuple(row["ids"])}) for row in rows]


def read_votes(file: Path) -> dict[str, Grade]:
    """Key of a pair → the person's last verdict."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
    rows = [json.loads(line) for line in lines]
    return {row["pair"]: row["verdict"] for row in rows}


class Store:
    """The verdicts of one person."""

    def __init__(self, file: Path) -> None:
        self.votes, self._lock = read_votes(file), threading.Lock()
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        written = os.read(self._file, os.fstat(self._file).st_size)
        os.ftruncate(
            self._file, written.rfind(b"\n") + 1
        )  # without the line of a process that was killed in it

    def vote(self, pair: str, verdict: Grade) -> None:
        """Store the verdict durably: it survives a killed process and a power failure."""
        line = json.dumps({"pair": pair, "verdict": verdict}).encode() + b"\n"
        with self._lock:
            if self.votes.get(pair) == verdict:  # a form that was submitted twice
                return
            size = os.fstat(self._file).st_size
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError("the disk is full")
                os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, size)
                raise Failed(f"the verdict cannot be written: {error}") from None
            self.votes[pair] = verdict


def _serve(settings: AnnotateConfig, pairs: Sequence[JudgedPair], root: Path) -> None:
    """Show the pairs until the last one is judged, or the server is stopped."""
    require("fastapi", "the server")
    require("uvicorn", "the server")
    from qontext.serve.listen import Ending, bind, listen, policy_of

    policy = policy_of(settings.host, settings.allow_host, os.environ)
    with bind(settings.host, settings.port) as socket:
        ending = Ending()
        app = make_app(pairs, Store(root / f"votes-{settings.annotator}.jsonl"), policy, ending)
        listen(app, socket, "Judge the pairs", ending)


def make_app(
    pairs: Sequence[JudgedPair], store: Store, policy: Any, ending: Callable[[], None] = lambda: None
) -> Any:
    """The ASGI application; `ending` is called when the last pair is judged."""
    from fastapi import Request
    from fastapi.responses import RedirectResponse, Response

    from qontext.serve.app import Observer, bare_app
    from qontext.serve.pages import form_of, login, login_form, static_file
    from qontext.serve.security import Guard
    from qontext.serve.web import page

    of_key = {pair.key: pair for pair in pairs}

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield

    app = bare_app("Qontext", "Pairs of texts to judge.", lifespan)
    app.openapi_url = None
    app.state.policy = policy

    async def show(request: Request) -> Response:
        """The next pair to judge, or with `pair` one that was already judged."""
        wanted = request.query_params.get("pair")
        if wanted is not None and wanted not in of_key:
            raise Unknown("there is no such pair")
        votes = dict(store.votes)
        current = of_key[wanted] if wanted else next((p for p in pairs if p.key not in votes), None)
        place = pairs.index(current) if current else len(pairs)
        if current is None:
            ending()
        return page(
            "judge.html",
            request,
            pair=current,
            verdict=votes.get(current.key) if current else None,
            before=next((pair.key for pair in reversed(pairs[:place]) if pair.key in votes), None),
            done=sum(pair.key in votes for pair in pairs),
            total=len(pairs),
        )

    async def vote(request: Request) -> Response:
        """Store a verdict, then show the next pair."""
        form = await form_of(request)
        verdict = next((one for one in VERDICTS if one == form.get("verdict")), None)
        if verdict is None or form.get("pair") not in of_key:
            raise Unknown("this is neither a pair nor a verdict")
        store.vote(form["pair"], verdict)
        return RedirectResponse("/", 303)

    app.add_route("/", show, ["GET"])
    app.add_route("/", vote, ["POST"])
    for path, endpoint, method in (
        ("/static/{name}", static_file, "GET"),
        ("/login", login_form, "GET"),
        ("/login", login, "POST"),
    ):
        app.add_api_route(path, endpoint, methods=[method], include_in_schema=False)
    return Observer(Guard(app, policy), None)


class FoundAnswersOptions(config.Options):
    questions: int = Field(30, ge=1, le=10_000)
    """Number of questions, each with the best passages of all systems."""


class FoundAnswers(Pairs):
    """The answers that the systems of a directory of `adapt` found."""

    Options = FoundAnswersOptions

    @classmethod
    def draw(cls, source: str, options: Any, earlier: Sequence[JudgedPair]) -> list[JudgedPair]:
        from qontext.adapt.judgments import pools
        from qontext.adapt.verdict import Verdict

        about = read_adapted(Path(source))
        if "verdict" not in about:
            raise QontextError("has no questions to judge: it was not written by adapt", place=source)
        measured = Verdict(**about["verdict"])
        count = max(options.questions, len({pair.ids[0] for pair in earlier}))
        asked = pools(Path(source), measured.judged_split, measured.systems, count)
        if options.questions > len(asked):
            log.note(f"There are only {len(asked):,} questions.")
        return [
            JudgedPair("answer", one.text, p.content, (one.id, p.id)) for one in asked for p in one.passages
        ]

    @classmethod
    def results(cls, pairs: Sequence[JudgedPair], votes: Votes, work: Workdir) -> dict[str, Any]:
        """Write the judgments as a qrels file, for `adapt`."""
        from qontext.adapt.judgments import FILE as JUDGMENTS
        from qontext.data.collection import write_qrels

        verdicts = {key: verdict for own in votes.values() for key, verdict in own.items()}
        rows = [(*pair.ids, int(verdicts[pair.key] == "high")) for pair in pairs if pair.key in verdicts]
        if rows:
            with work.write(JUDGMENTS) as path:
                write_qrels(path, rows)
        log.note(f"{len(rows):,} of {len(pairs):,} passages are judged.")
        questions = len({pair.ids[0] for pair in pairs})
        return {"out": str(work.path), "judged": len(rows), "passages": len(pairs), "questions": questions}


COMMAND = Server(
    verb="annotate",
    config=AnnotateConfig,
    run=run,
    examples="""
        qontext annotate runs/mine --questions 30
        qontext annotate passages --pairs contexts --queries queries --annotator anna --out study
        qontext annotate passages --pairs contexts --queries queries --out study --export
    """,
)
