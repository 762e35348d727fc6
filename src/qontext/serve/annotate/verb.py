"""`qontext annotate`: collect human judgments of passages and contexts, or of answers, in a browser."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext.frame import files, locks, log
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, Machine, Seed, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.inputs import digest_of
from qontext.frame.kinds import resolve
from qontext.frame.stages import Server
from qontext.retrieve.directory import is_adapted, read_adapted
from qontext.serve.verb import require

if TYPE_CHECKING:
    from qontext.serve.annotate.store import Store
    from qontext.serve.annotate.study import Study


class AnnotateConfig(StageConfig):
    passages: Annotated[str, Input(positional=True)]
    """Passages from 'qontext split'. Or a directory of `adapt`: people judge which passages answer its questions, and its
    next verdict uses these judgments."""

    queries: Annotated[str | None, Input(positional=True)] = None
    """Queries of the passages, from generate or filter."""

    out: str | None = None
    """Directory of the study. The same command resumes it. Default for a directory of `adapt`: its folder judgments."""

    questions: int = Field(30, ge=1, le=10_000)
    """Number of questions of a directory of `adapt`, each with the best passages of all its systems."""

    documents: int = Field(200, ge=10, le=10_000)
    """Number of documents to draw: each has a pair of passages and a pair of passage and query."""

    annotators: int = Field(3, ge=1, le=50)
    """Number of annotators per pair. There are two groups, and each group judges half of each kind."""

    reranker: Annotated[str | None, Input()] = None
    """Cross-encoder, for comparison with human judgments."""

    seed: Seed = 42
    """Random seed for documents, passages, queries, groups and orders."""

    export: bool = False
    """Write results.json and pairs.csv into the directory, without starting a server."""

    host: str = "127.0.0.1"
    """Address to listen on. Addresses reachable from other machines need a token in QONTEXT_TOKEN for the
    organizer; annotators only need their personal links."""

    port: int = Field(8000, ge=0, le=65_535)
    """Port to listen on; 0 selects a free one."""

    allow_host: tuple[str, ...] = ()
    """Additional accepted host name, besides localhost, such as that of a reverse proxy."""

    device: Annotated[str, Machine()] = "auto"
    """Device of the cross-encoder: auto, cpu, cuda or cuda:N."""

    def check(self) -> None:
        """Refuse what does not belong together, or is missing."""
        if is_adapted(self.passages):
            if self.queries is not None:
                raise QontextError("a directory of adapt has questions: leave out the queries")
        elif self.queries is None or self.out is None:
            raise QontextError(
                f"annotate needs {'the queries of the passages' if self.queries is None else '--out'}"
            )

    @property
    def root(self) -> Path:
        from qontext.adapt.judgments import FOLDER

        return Path(self.out or Path(self.passages) / FOLDER)


def run(config: AnnotateConfig) -> dict[str, Any]:
    from qontext.serve.annotate.store import Store

    config.check()
    root = config.root
    files.require_no_file(root)
    if config.export:
        return export(open_study(config, root), Store(root), root)
    require("fastapi", "the server")
    require("uvicorn", "the server")
    from qontext.serve.listen import Ending, address, bind, listen, policy_of

    policy = policy_of(config.host, config.allow_host, os.environ)
    with bind(config.host, config.port) as socket, contextlib.ExitStack() as stack:
        study = open_study(config, root)
        stack.enter_context(locks.lock(root, "-study"))
        place = address(socket)
        for annotator in study.annotators:
            log.note(f"Annotator {annotator.name}: {place}/a/{annotator.key}")
        log.note(f"Results: {place}/results/{study.organizer}")
        ending = Ending()
        listen(make_app(study, Store(root), policy, ending), socket, "Serving the study", ending)
    return _write_judgments(study, root) if study.is_of_answers else {}


def _write_judgments(study: Study, root: Path) -> dict[str, Any]:
    """Write the judgments of answers as a qrels file, for `adapt`."""
    from qontext.adapt.judgments import FILE
    from qontext.data.collection import write_qrels
    from qontext.serve.annotate.results import judgments
    from qontext.serve.annotate.store import Store

    store = Store(root)
    rows = list(judgments(study, store.votes()))
    store.close()
    if rows:
        with Workdir(root).write(FILE) as path:
            write_qrels(path, rows)
    asked = sum(pair.group == 0 for pair in study.pairs)
    log.note(f"{len(rows):,} of {asked:,} passages are judged.")
    return {
        "out": str(root),
        "judged": len(rows),
        "passages": asked,
        "questions": len(study.settings["answers"]),
    }


def _open_answers(config: AnnotateConfig, root: Path) -> Study:
    """The study of the answers that the systems of a directory of `adapt` found, with more questions if they are wanted."""
    from qontext.adapt.judgments import pools
    from qontext.adapt.verdict import Verdict
    from qontext.serve.annotate import study

    about = read_adapted(Path(config.passages))
    if "verdict" not in about:
        raise QontextError("has no questions to judge: it was not written by adapt", place=config.passages)
    verdict = Verdict(**about["verdict"])
    existing = study.read(root) or study.of_answers()
    if not existing.is_of_answers:
        raise QontextError("contains a study of another kind", place=root, remedy="Choose another --out.")
    if config.export and existing.settings["answers"]:
        return existing
    count = max(config.questions, len(existing.settings["answers"]))
    asked = pools(Path(config.passages), verdict.judged_split, verdict.systems, count)
    if config.questions > len(asked):
        log.note(f"There are only {len(asked):,} questions.")
    current = existing.with_answers(
        (one.id, one.text, [(p.id, p.content) for p in one.passages]) for one in asked
    )
    if current != existing:
        with locks.lock(root, "-new", wait=True):
            study.write(current, root)
    return current


def open_study(config: AnnotateConfig, root: Path) -> Study:
    """The study in the directory, which must match the settings; a new one if there is none."""
    from qontext.serve.annotate import study

    if is_adapted(config.passages):
        return _open_answers(config, root)
    marks = type(config).inputs()
    settings: dict[str, Any] = {
        name: getattr(config, name) for name in ("documents", "annotators", "seed")
    } | {
        name: value and digest_of(value, name, marks[name])
        for name, value in (
            ("passages", config.passages),
            ("queries", config.queries),
            ("reranker", config.reranker),
        )
    }
    existing = study.read(root)
    if existing is None:
        if root.is_dir() and any(not path.name.startswith(".") for path in root.iterdir()):
            raise QontextError(
                "is not empty and contains no study", place=root, remedy="Choose another --out."
            )
        designed = study.design(resolve("qontext.baselines.study:drawn")(config), settings)
        with locks.lock(root, "-new", wait=True):  # if two commands start at once, one creates the study
            if study.read(root) is None:
                study.write(designed, root)
        log.note(f"A new study with {len(designed.pairs)} pairs, in {root}.")
        return open_study(config, root)
    if existing.settings != settings:
        other = [name for name in settings if settings[name] != existing.settings.get(name)]
        raise QontextError(
            f"contains a study with other settings: {', '.join(other)}",
            place=root,
            remedy="Choose another --out, or use the same settings and inputs to resume it.",
        )
    return existing


def make_app(study: Study, store: Store, policy: Any, ending: Callable[[], None] = lambda: None) -> Any:
    """The ASGI application of a study; `ending` is called when all answers are judged."""
    from dataclasses import replace

    from qontext.serve.annotate import pages
    from qontext.serve.app import Observer, bare_app
    from qontext.serve.pages import login, login_form
    from qontext.serve.security import Guard

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> Any:
        yield
        store.close()

    app = bare_app("Qontext", "A study of pairs of texts.", lifespan)
    app.openapi_url = None
    app.state.study, app.state.store, app.state.ending = study, store, ending
    # Personal links are tokens themselves.
    app.state.policy = replace(policy, open_paths=(*policy.open_paths, "/a/"))
    app.include_router(pages.router)
    app.add_api_route("/login", login_form, methods=["GET"], include_in_schema=False)
    app.add_api_route("/login", login, methods=["POST"], include_in_schema=False)
    return Observer(Guard(app, app.state.policy), None)


def export(study: Study, store: Store, root: Path) -> dict[str, Any]:
    """Write the results as JSON and CSV."""
    from qontext.serve.annotate.results import results, to_csv

    if study.is_of_answers:
        store.close()
        return _write_judgments(study, root)
    votes = store.votes()
    store.close()
    summary, work = results(study, votes), Workdir(root)
    work.write_json("results.json", summary)
    work.write_text("pairs.csv", to_csv(study, votes))
    rates = {
        kind: "no pair is decided yet"
        if row["rate"] is None
        else f"{row['rate']:.1%} of {row['decided']} ({row['interval'][0]:.1%} to {row['interval'][1]:.1%})"
        for kind, row in summary["kinds"].items()
    }
    log.show_table("Strongly related", {**rates, "Fleiss' kappa": summary["kappa"], "written": str(root)})
    return summary


COMMAND = Server(
    verb="annotate",
    config=AnnotateConfig,
    run=run,
    examples="""
        qontext annotate passages queries --out study
        qontext annotate passages queries --out study --export
        qontext annotate runs/mine --questions 30
    """,
)
