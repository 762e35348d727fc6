"""What a finished directory keeps: the settings and inputs with which it was made, unless others are given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qontext.adapt.config import AdaptConfig
from qontext.adapt.state import ADAPTED, Planned
from qontext.corpus.docset import is_documentation
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.frame.fingerprint import places
from qontext.frame.inputs import digest_of
from qontext.models.reference import default_encoder

Entry = Mapping[str, str]


def with_kept(
    config: AdaptConfig, root: Path, before: Planned | None
) -> tuple[AdaptConfig, dict[str, Entry]]:
    """The configuration with them, or with the default encoder; and the recorded inputs that are no longer there: a
    directory is updated without those that it does not need."""
    if before is None or not (root / ADAPTED).is_file():
        return config.model_copy(update={"encoder": config.encoder or default_encoder()}), {}
    _refuse_another_source(config, root, before.claim["inputs"]["documents"])
    settings: dict[str, Any] = {
        name: value
        for name, entry in before.claim["config"].items()
        for value in [tuple(entry) if isinstance(entry, list) else entry]
        if name in type(config).model_fields
        and name not in config.model_fields_set
        and getattr(config, name) != value
    }
    inputs, absent = _inputs(config, root, before.claim["inputs"])
    unchanged = {**inputs, **settings}
    unchanged.pop("encoder", None)
    if unchanged:
        flags = ", ".join(
            f"--{name.replace('_', '-')} {value}"
            for name, values in unchanged.items()
            for value in (values if isinstance(values, tuple) else (values,))
        )
        log.note(f"{root} keeps what it was made with: {flags}.")
    encoder = inputs.get("encoder") or config.encoder or default_encoder()
    return config.model_copy(update={**inputs, **settings, "encoder": encoder}), absent


def _refuse_another_source(config: AdaptConfig, root: Path, recorded: Entry) -> None:
    """Documents change, but those of Python packages do not become a folder."""
    was_documentation = recorded.get("beside") == "documents"
    is_same = (
        is_documentation(config.documents)
        or Path(config.documents).resolve() == (root / "documents").resolve()
    )
    if was_documentation != is_same:
        other = root.with_name(Path(config.documents.strip(":")).stem)
        raise QontextError(
            f"was made from {'pydocs:' if was_documentation else recorded['path']}, not from {config.documents}",
            place=root,
            remedy=f"Choose another --out, such as {other}."
            if not other.exists()
            else "Choose another --out.",
        )


def _inputs(
    config: AdaptConfig, root: Path, recorded: Mapping[str, Entry]
) -> tuple[dict[str, str], dict[str, Entry]]:
    """The inputs that are not given where they are now, and those that are not there."""
    names = [
        "encoder",
        "reranker",
        "question_model",
        *([] if is_documentation(config.documents) else ["labels"]),
    ]
    inputs: dict[str, str] = {}
    absent: dict[str, Entry] = {}
    for name in names:
        is_set = name in config.model_fields_set and (name != "encoder" or config.encoder is not None)
        if is_set or name not in recorded:
            continue
        entry = recorded[name]
        there = [str(place) for place in places(entry, root) if place.exists()]
        if entry["digest"].startswith("name:") or there:
            inputs[name] = there[0] if there else entry["path"]
        elif name == "encoder" and _is_default(entry):
            inputs[name] = default_encoder()
        else:
            inputs[name], absent[name] = entry["path"], entry
    return inputs, absent


def _is_default(entry: Entry) -> bool:
    """Whether it is the default encoder, which may be installed elsewhere now."""
    default = default_encoder()
    return Path(default).is_dir() and digest_of(default, "encoder") == entry["digest"]
