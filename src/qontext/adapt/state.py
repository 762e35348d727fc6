"""The state of a directory of `adapt`.

    absent      nothing, or the passages of `pydocs:` alone
    planned plan.json (the request and the amounts of work) and recipe.toml (the steps)
    under way also steps/: the directories of the recipe's stages
    adapted also model/, index/ and report/, and last adapted.json (the verdict, and how to search)

A kill in any state loses no finished work, and the same command resumes. When documents change, the next index is built
beside the one that is searched, as index-2, index-3 and so on. It counts once adapted.json, which is replaced atomically,
names it; the one before stays until the next one does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from qontext.adapt.config import AdaptConfig, Request
from qontext.adapt.plan import Plan
from qontext.adapt.recipes import training_recipe
from qontext.corpus.docset import is_documentation
from qontext.frame import artifacts, locks, log
from qontext.frame.artifacts import ClaimShape, Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json
from qontext.frame.inputs import Entry, digest_of, places
from qontext.models.reference import default_encoder
from qontext.retrieve.directory import ADAPTED, LOCK, PLAN

RECIPE = "recipe.toml"


class PlannedShape(TypedDict):
    """The content of `plan.json`."""

    claim: ClaimShape
    request: Request
    plan: Plan
    starts: NotRequired[dict[str, float]]
    pending: NotRequired[bool]


@dataclass(frozen=True)
class Planned:
    """The content of `plan.json`: the claim (as that of a stage: settings, inputs, key), the request and the plan."""

    claim: dict[str, Any]
    request: Request
    plan: Plan
    starts: Mapping[str, float] | None = None
    """Several initial encoders with their nDCG@10."""
    is_pending: bool = False
    """True if the directory still answers with the result of an earlier plan."""

    @property
    def documents(self) -> str:
        """The fingerprint of the documents."""
        return str(self.claim["inputs"]["documents"]["digest"])

    def is_for(self, claim: dict[str, Any]) -> bool:
        """True if the request is the same, apart from the documents."""
        is_same = _key_of_the_rest(self.claim) == _key_of_the_rest(claim)
        return is_same and _have_same_labels(self.claim["inputs"], claim["inputs"])

    def write(self, work: Workdir) -> None:
        work.write_json(
            PLAN,
            {
                "claim": self.claim,
                "request": asdict(self.request),
                "plan": asdict(self.plan),
                **({"starts": dict(self.starts)} if self.starts else {}),
                **({"pending": True} if self.is_pending else {}),
            },
        )

    def carried_out(self, work: Workdir) -> Planned:
        """The plan whose result is what the directory answers with."""
        if not self.is_pending:
            return self
        after = replace(self, is_pending=False)
        after.write(work)
        return after

    def write_new(self, work: Workdir) -> None:
        """Put the directory into the state "planned". What it answers with stays until the plan is carried out."""
        work.write_text(RECIPE, training_recipe(self.request, self.plan).dump())
        self.write(work)


def read_planned(root: Path) -> Planned | None:
    """The earlier plan, if any."""
    if not (root / PLAN).exists():
        return None
    try:
        value = read_json(root / PLAN, PlannedShape)
        if "documents" not in value["claim"]["inputs"]:
            raise QontextError("damaged: its claim has no documents", place=root / PLAN)
    except QontextError as error:
        raise QontextError(
            error.message, place=error.place, remedy="Remove it to create a new plan."
        ) from None
    request = value["request"]
    request |= {name: tuple(request[name]) for name in ("splits", "read_as") if name in request}
    return Planned(
        value["claim"],
        Request(**request),
        Plan(**value["plan"]),
        value.get("starts"),
        value.get("pending", False),
    )


@contextlib.contextmanager
def writing(root: Path) -> Iterator[None]:
    """One `adapt` at a time writes the directory. A directory that stays empty is removed."""
    with locks.lock(root, LOCK):
        try:
            Workdir(root).sweep(deep=False)
            yield
        finally:
            if [path.name for path in root.iterdir()] == [f".lock{LOCK}"]:
                with contextlib.suppress(OSError):  # a scratch folder of another process
                    (root / f".lock{LOCK}").unlink()
                    root.rmdir()


def renamed(before: Planned, claim: dict[str, Any], now: Mapping[str, str | None], work: Workdir) -> Planned:
    """Write the plan and the recipe with the current paths of the inputs, which may have been moved."""
    request: dict[str, Any] = asdict(before.request)
    names: dict[str, str] = {}
    for name, value in now.items():
        if value is not None and request[name] not in (None, value):
            names[request[name]] = request[name] = value
    if not names:
        return before
    pretrain = request["pretrain"]
    if "encoder" in pretrain:
        pretrain["encoder"] = names.get(pretrain["encoder"], pretrain["encoder"])
    after = replace(before, claim=claim, request=Request(**request))
    after.write_new(work)
    return after


def _key_of_the_rest(claim: dict[str, Any]) -> str:
    """The identity of the request without the documents and the labels."""
    inputs = {name: entry for name, entry in claim["inputs"].items() if name not in ("documents", "labels")}
    return artifacts.key_of({**claim, "format": claim.get("format"), "inputs": inputs})


def _have_same_labels(before: Mapping[str, Entry], now: Mapping[str, Entry]) -> bool:
    """True if the labels of both are the same, or are made of the documents, as those of docstrings."""
    if "labels" not in before or "labels" not in now:
        return "labels" not in before and "labels" not in now
    was, labels = before["labels"]["digest"], now["labels"]["digest"]
    are_made = was == before["documents"]["digest"] and labels == now["documents"]["digest"]
    return are_made or was == labels


def with_recorded_settings(config: AdaptConfig, root: Path, before: Planned | None) -> AdaptConfig:
    """The configuration with the recorded settings. Of an unfinished directory, only the encoder is kept."""
    if before is None:
        return config
    inputs = _inputs(config, root, before.claim["inputs"])
    if not (root / ADAPTED).is_file():
        encoder = inputs.get("encoder")
        return config.model_copy(update={"encoder": (encoder,)}) if encoder else config
    _refuse_another_source(config, root, before.claim["inputs"]["documents"])
    settings: dict[str, Any] = {
        name: value
        for name, entry in before.claim["config"].items()
        for value in [tuple(entry) if isinstance(entry, list) else entry]
        if name in type(config).model_fields
        and name not in config.model_fields_set
        and getattr(config, name) != value
    }
    unchanged = {**inputs, **settings}
    unchanged.pop("encoder", None)
    if unchanged:
        flags = ", ".join(
            f"--{name.replace('_', '-')} {value}"
            for name, values in unchanged.items()
            for value in (values if isinstance(values, tuple) else (values,))
        )
        log.note(f"Using the settings recorded in {root}: {flags}.")
    encoders = (inputs["encoder"],) if "encoder" in inputs else config.encoder
    return config.model_copy(update={**inputs, **settings, "encoder": encoders})


def _refuse_another_source(config: AdaptConfig, root: Path, recorded: Entry) -> None:
    """Documents change, but those of Python packages do not become a folder."""
    was_documentation = recorded.get("beside") == "documents"
    is_same = (
        is_documentation(config.documents)
        or Path(config.documents).resolve() == (root / "documents").resolve()
    )
    if was_documentation != is_same:
        other = root.resolve().with_name(Path(config.documents.strip(":")).resolve().stem or "adapted")
        raise QontextError(
            f"was made from {'pydocs:' if was_documentation else recorded['path']}, not from {config.documents}",
            place=root,
            remedy=f"Choose another --out, such as {other}."
            if not other.exists()
            else "Choose another --out.",
        )


def _inputs(config: AdaptConfig, root: Path, recorded: Mapping[str, Entry]) -> dict[str, str]:
    """The recorded inputs that are not given, where they are now."""
    names = ["encoder", "reranker", "question_model", "questions"]
    names += [] if is_documentation(config.documents) else ["labels"]
    inputs: dict[str, str] = {}
    for name in names:
        is_set = name in config.model_fields_set and (name != "encoder" or config.encoder)
        if is_set or name not in recorded:
            continue
        entry = recorded[name]
        there = [str(place) for place in places(entry, root) if place.exists()]
        if there or entry["digest"].startswith("name:"):
            inputs[name] = there[0] if there else entry["path"]
        elif name == "encoder" and _is_default(entry):
            inputs[name] = default_encoder()
        else:
            raise QontextError(
                f"cannot find the {name.replace('_', ' ')} of this directory",
                place=entry["path"],
                remedy=f"Name it with --{name.replace('_', '-')}, or index what changed: 'qontext refresh {root}'.",
            )
    return inputs


def _is_default(entry: Entry) -> bool:
    """True if it is the default encoder, which may be installed elsewhere now."""
    default = default_encoder()
    return Path(default).is_dir() and digest_of(default, "encoder") == entry["digest"]
