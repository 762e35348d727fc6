"""Run a verb: as a Python function, and a stage in its directory, which is claimed, resumed, skipped if it is finished, and
refused if it is another's."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from qontext.frame import artifacts, files, locks, log, process, trust
from qontext.frame.artifacts import Artifact, Workdir
from qontext.frame.config import StageConfig, problem_of_name
from qontext.frame.errors import QontextError
from qontext.frame.inputs import (
    digest_of,
    named_inputs,
    refuse_inputs_below,
    refuse_output_within,
    relative,
)
from qontext.frame.parts import Parts, PartsConfig, finish_all, make_share, missing
from qontext.frame.stages import VERBS, C, Command, Pipeline, Stage, load

RANKS = "qontext.cluster.on_ray"
"""The module that runs a training on a cluster."""


def function(name: str) -> Callable[..., Any]:
    """The verb as a Python function: `split(source, out=..., max_tokens=128)`."""
    about = VERBS[name.replace("_", "-")]
    if about.takes_objects:
        own: Callable[..., Any] = getattr(importlib.import_module(about.module), name)
        return own
    return command(name)


def command(name: str) -> Callable[..., Any]:
    """The verb as a function of its settings, which are those of the command line."""
    verb = name.replace("_", "-")
    loaded = load(verb)
    arguments = [field for field, mark in loaded.config.inputs().items() if mark.positional]

    def call(*values: Any, **settings: Any) -> Any:
        if len(values) > len(arguments):
            raise QontextError(f"{verb} takes {len(arguments)} positional arguments, got {len(values)}")
        if twice := next((name for name in arguments[: len(values)] if name in settings), None):
            raise QontextError(f"{verb} got {twice} twice, by its position and by its name")
        settings = {**dict(zip(arguments, map(_text, values))), **{k: _text(v) for k, v in settings.items()}}
        trust.give(settings)
        with trust.trusting(bool(settings.pop("trust", False))):
            return run(settings)

    def run(settings: dict[str, Any]) -> Any:
        out, overwrite = None, False
        if isinstance(loaded, Stage):
            out, overwrite = settings.pop("out", None), bool(settings.pop("overwrite", False))
        config = loaded.config.make(settings, where=verb)
        with files.readable_errors():
            if out is not None:
                assert isinstance(loaded, Stage)
                return execute(loaded, config, directory(out), overwrite=overwrite)
            report = report_of(loaded, config, "out=")
            result = report.run(config)
        is_dry = getattr(config, "dry_run", False)
        return result if report.returned is None or is_dry else report.returned(result)

    call.__name__ = name
    call.__doc__ = VERBS[verb].help
    return call


def _text(value: Any) -> Any:
    """Convert paths and artifacts to a path string, so that Python calls can pass either."""
    if isinstance(value, list | tuple):
        return [_text(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def directory(text: str) -> Path:
    """The directory that `--out` names."""
    if problem := problem_of_name(text, is_path=True):
        raise QontextError(f"--out {problem}", remedy="Name an output directory.")
    return Path(text).expanduser()


def claim_of(
    verb: Stage[Any] | Pipeline[Any], settings: StageConfig, out: Path | None = None
) -> dict[str, Any]:
    """The claim of a stage or pipeline: verb, settings and the inputs' fingerprints.

    With `out` it also records the inputs' paths relative to it, so that a directory tree can be moved.
    """
    marks = type(settings).inputs()
    inputs = {}
    for name, item in named_inputs(settings):
        mark = marks[name.partition("[")[0]]
        inputs[name] = {
            "path": item,
            "digest": digest_of(item, name, mark),
            **(relative(item, out) if out is not None and mark.by_content else {}),
        }
    claim: dict[str, Any] = {
        "verb": verb.verb,
        "format": verb.format,
        "config": settings.identity(),
        "inputs": inputs,
    }
    return {**claim, "key": artifacts.key_of(claim)}


def execute(stage: Stage[C], settings: C, out: Path, *, overwrite: bool = False) -> Artifact:
    """Write the directory `out`, unless it is already finished.

    With the same settings and inputs, a finished directory is kept and an interrupted one is resumed.
    Anything else in `out` is refused with the differences, or replaced with `overwrite`.

    Several processes may work on one directory. The processes of a distributed stage work together. For a stage
    that consists of parts, each writes a share of them, and the process that sees all parts finishes the
    directory. For any other stage, rank 0 works and the others wait.
    """
    if stage.file and out.suffix == Path(stage.file).suffix and not out.is_dir():
        return _execute_file(stage, settings, out, stage.file, overwrite=overwrite)
    refuse_output_within(out, settings)
    claim = claim_of(stage, settings, out)
    refuse_inputs_below(out, claim)
    if _is_for_ranks_elsewhere(stage, settings) and artifacts.state(out, claim["key"])[0] != "done":
        importlib.import_module(RANKS).train(stage.verb, settings, out, overwrite)
        return artifacts.open_artifact(out)
    share = _share(stage, settings)
    if process.rank() != 0 and share.shards is None:
        return _follow(stage, settings, out, claim)
    with contextlib.ExitStack() as stack:
        # One process at a time checks and claims; then each holds its own lock while it works.
        with _finishing(out, share), locks.lock(out, "-claim", wait=True):
            state, earlier = _prepare(out, claim, overwrite=overwrite)
            if state == "done":
                assert earlier is not None
                return earlier
            stack.enter_context(locks.lock(out, f"-{share.writer}"))
            if earlier is not None:
                claim |= {key: value for key, value in earlier.meta.items() if key == artifacts.COMPUTED}
            claimed = {**claim, "launch": process.launch_id()}
            work = artifacts.begin(out, claimed, share.writer, rank=share.rank, world=share.world)
            # An attempt that failed before its first part leaves nothing to go on from.
            if state == "interrupted" and process.rank() == 0 and (share.is_shard or work.names()):
                log.note(f"{'Joining' if share.is_shard else 'Resuming'} {out}.")
        return _work(stage, settings, work, claim, share)


def report_of(verb: Stage[C] | Command[C], settings: C, option: str) -> Command[C]:
    """The report of a verb that is called without an output directory; `option` is the name of the setting."""
    if not isinstance(verb, Stage):
        return verb
    if verb.without_out is None:
        raise QontextError(f"{verb.verb} needs {option}, the output directory")
    marks = type(settings).inputs()
    for name, item in named_inputs(settings):  # refuses what is missing or not finished
        digest_of(item, name, marks[name.partition("[")[0]])
    return verb.without_out


def _is_for_ranks_elsewhere(stage: Stage[C], settings: C) -> bool:
    """True if the stage is a training that a cluster runs."""
    if not stage.distributed or getattr(settings, "on", "local") == "local":
        return False
    if process.world() > 1:
        raise QontextError("--on starts the ranks itself", remedy="Start the command without torchrun.")
    return True


class _Share(NamedTuple):
    """This process among those that write the directory: `rank` of `world`, and its `shard`, if any."""

    rank: int
    world: int
    shards: int | None = None

    @property
    def is_shard(self) -> bool:
        """True if other processes write other parts independently of this one."""
        return (self.shards or 1) > 1

    @property
    def writer(self) -> str:
        return f"{self.rank}-of-{self.world}" if self.is_shard else "0"


def _share(stage: Stage[C], settings: C) -> _Share:
    if isinstance(settings, PartsConfig):
        if settings.on != "local" and process.world() > 1:  # rank 0 connects to the cluster, the others wait
            if settings.shard is not None:
                raise QontextError("--shard and --on cannot be combined", remedy="Leave one of them out.")
            return _Share(0, 1)
        index, count = process.share(settings.shard)
        return _Share(index, count, count)
    return _Share(process.rank(), process.world()) if stage.distributed else _Share(0, 1)


def _prepare(out: Path, claim: dict[str, Any], *, overwrite: bool) -> tuple[str, Artifact | None]:
    """The state of the directory: done, absent or interrupted; anything else is refused or cleared."""
    state, earlier = artifacts.state(out, claim["key"])
    if state == "foreign":
        raise QontextError(
            "the output directory is not empty and was not written by Qontext",
            place=out,
            remedy="Choose another --out.",
        )
    if state == "absent" or earlier is None:
        return "absent", None
    if state == "done" and not (overwrite and earlier.is_damaged()):
        earlier.parts()  # raises if one is missing or cut off
        (out / artifacts.CLAIM).unlink(missing_ok=True)  # of a process that was killed just before its end
        log.note(f"{out} is already finished with the same settings and inputs; nothing to do.")
        return "done", earlier
    if state == "interrupted":
        return "interrupted", earlier
    if not overwrite:
        raise QontextError(
            f"the output directory holds another result: {artifacts.differences(earlier.meta, claim)}",
            place=out,
            remedy="Choose another --out, or replace it with --overwrite.",
        )
    locks.refuse_if_written(out)
    artifacts.clear(out)
    return "absent", None


def _work(
    stage: Stage[C],
    settings: C,
    work: Workdir,
    claim: dict[str, Any],
    share: _Share,
) -> Artifact:
    """Run the stage in its claimed directory, and finish it once all parts exist."""
    out, started = work.path, time.monotonic()
    try:
        if isinstance(stage.run, type):
            return _make_parts(stage.run, settings, work, claim, share)
        summary = stage.run(settings, work)
        process.check_interrupt()
    except (QontextError, OSError):
        if not share.is_shard:
            artifacts.abandon(work)
        raise
    with locks.lock(out, "-claim", wait=True):
        return artifacts.finish(work, claim, summary or {}, time.monotonic() - started)


def _make_parts(
    kind: type[Parts[Any]],
    settings: Any,
    work: Workdir,
    claim: dict[str, Any],
    share: _Share,
) -> Artifact:
    """Make this process' share of the parts; whoever finds all of them there finishes the directory."""
    out, started = work.path, time.monotonic()
    parts, outcome = make_share(claim["verb"], kind, settings, work)
    process.check_interrupt()
    with _finishing(out, share):
        if artifacts.state(out, claim["key"])[0] == "done":  # another process found all parts first
            return artifacts.open_artifact(out)
        waiting = missing(parts, outcome)
        if not waiting:
            summary = finish_all(parts, outcome)
            process.check_interrupt()
            with locks.lock(out, "-claim", wait=True):
                return artifacts.finish(work, claim, summary, time.monotonic() - started)
    if settings.shard is None:
        return _await(out, claim)
    log.note(
        f"This shard is done; {waiting} of {len(outcome.parts)} parts are missing and belong to other processes."
    )
    return Artifact(out, {**claim, "digest": "", "summary": {}, "parts": {}})


def _finishing(out: Path, share: _Share) -> contextlib.AbstractContextManager[None]:
    """Of several processes that make parts, one at a time finishes the directory, and none begins meanwhile."""
    return locks.lock(out, "-finish", wait=True) if share.is_shard else contextlib.nullcontext()


def _execute_file(stage: Stage[C], settings: C, out: Path, part: str, *, overwrite: bool) -> Artifact:
    """Write a single file: its directory is written beside it under a hidden name, and one part is moved out."""
    if out.exists() and not overwrite:
        raise QontextError(
            "the file already exists",
            place=out,
            remedy="Choose another --out, or replace it with --overwrite.",
        )
    if _share(stage, settings).is_shard or process.world() > 1:
        raise QontextError(
            "several processes can only write a directory, not a file",
            place=out,
            remedy=f"Give --out {out.with_suffix('')}.",
        )
    if out.exists():
        refuse_inputs_below(out, claim_of(stage, settings))
    hidden = out.with_name(f".{out.name}.making")
    artifact = execute(stage, settings, hidden, overwrite=True)
    (hidden / part).replace(out)
    artifacts.clear(hidden)
    shutil.rmtree(hidden)
    return Artifact(out, artifact.meta)


def _follow(stage: Stage[C], settings: C, out: Path, claim: dict[str, Any]) -> Artifact:
    """Ranks other than 0: join the work once rank 0 has claimed the directory, then wait until it is finished."""

    def is_done() -> bool:
        return artifacts.state(out, claim["key"])[0] == "done"

    def is_claimed() -> bool:
        return stage.distributed and artifacts.claimed_by(out) == process.launch_id()

    process.wait_until(lambda: is_done() or is_claimed())
    if not is_done():
        share = _share(stage, settings)
        assert not isinstance(stage.run, type), stage.verb
        stage.run(settings, Workdir(out, str(share.rank), share.rank, share.world))
    return _await(out, claim)


def _await(out: Path, claim: dict[str, Any]) -> Artifact:
    """The finished artifact, once rank 0 has described it."""
    process.wait_until(lambda: artifacts.state(out, claim["key"])[0] == "done")
    return artifacts.open_artifact(out)
