"""A directory that answers questions: what `adapted.json` says, and where its parts are.

adapted.json     the system, how to search with it, and what was measured
model/           the encoder, unless it was not changed and is referred to
reranker/        the cross-encoder, if the system has one and it was copied
index/           passages, bm25, vectors, and dense if the vectors have an index

The next generation of a folder (index-2, model-2, …) is built beside the current one, and counts once `adapted.json` names
it. The generation before stays until the next one counts, since a process may have it open. Nothing else reads or writes
`adapted.json`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field, NonNegativeFloat
from typing_extensions import TypedDict

from qontext.frame.artifacts import TEMPORARY, Workdir, is_artifact, open_artifact
from qontext.frame.errors import QontextError
from qontext.frame.files import is_own_directory, json_digest, read_json
from qontext.models.reference import Reference, model_digest, resolve
from qontext.retrieve.system import EncoderName, SystemName

ADAPTED, PLAN, INDEX, DENSE = "adapted.json", "plan.json", "index", "dense"
MODEL, RERANKER, STARTS, STEPS = "model", "reranker", "starts", "steps"
FORMAT = 1
"""The format of such a directory, apart from the program's version."""
LOCK = "-adapt"
"""The lock of what writes such a directory."""


class RerankerDescription(TypedDict):
    """The cross-encoder of the recommended system."""

    depth: Annotated[int, Field(ge=1)]
    """Candidates that it reads for a question."""
    weight: Annotated[float, Field(ge=0, le=1)]
    reference: NotRequired[Reference]
    """The cross-encoder, if it is not in a folder of this directory."""
    digest: NotRequired[str]
    """The hash of its folder."""
    model_folder: NotRequired[Annotated[str, Field(pattern=r"^reranker(-[0-9]+)?$")]]


class Description(TypedDict):
    """The content of `adapted.json`."""

    format: int
    system: SystemName
    weights: tuple[NonNegativeFloat, NonNegativeFloat]
    """Those of BM25 and of the vectors."""
    read_tokens: Annotated[int, Field(ge=3)]
    index: Annotated[str, Field(pattern=r"^index(-[0-9]+)?$")]
    """The folder of the index."""
    token_weight: NotRequired[Annotated[float, Field(ge=0, le=1)]]
    """The weight of the comparison by tokens beside both."""
    encoder: NotRequired[EncoderName]
    reference: NotRequired[Reference]
    """The encoder, if it is not in a folder of this directory."""
    model_digest: NotRequired[str]
    """The hash of its folder."""
    model_folder: NotRequired[Annotated[str, Field(pattern=r"^model(-[0-9]+)?$")]]
    reranker: NotRequired[RerankerDescription]
    start: NotRequired[dict[str, Any]]
    """The language of documents that nobody surveyed."""
    labels: NotRequired[dict[str, int]]
    starts: NotRequired[dict[str, float]]
    verdict: NotRequired[dict[str, Any]]
    searching: NotRequired[dict[str, Any]]
    expected_seconds: NotRequired[float]
    seconds: NotRequired[float]


def is_adapted(path: str | os.PathLike[str]) -> bool:
    """True for a finished directory of `adapt`."""
    return (Path(path) / ADAPTED).is_file()


def read_adapted(root: Path) -> dict[str, Any]:
    """The content of `adapted.json`."""
    about: dict[str, Any] = read_json(root / ADAPTED, Description)
    if about["format"] != FORMAT:
        raise QontextError(
            f"has the format {about['format']}, not {FORMAT}", place=root, remedy="Upgrade Qontext."
        )
    return about


def write_adapted(root: Path, about: Mapping[str, Any]) -> None:
    """Replace `adapted.json`: from now on, the directory answers with what it names. Of other generations, only the last one
    before stays."""
    work = Workdir(root)
    work.write_json(ADAPTED, {"format": FORMAT, **about})
    for name, current in (
        (INDEX, root / about["index"]),
        (MODEL, copied_model(about, root, MODEL)),
        (RERANKER, copied_model(about.get("reranker", {}), root, RERANKER)),
    ):
        folders = generations(root, name)
        earlier = [folder for folder in folders if _number(folder) < _number(current)][-1:]
        for folder in folders:
            if folder not in (current, *earlier):
                shutil.rmtree(folder.rename(root / f"{TEMPORARY}{work.writer}.{folder.name}"))


def generations(root: Path, name: str) -> list[Path]:
    """The generations of a folder: name, name-2, name-3, …"""
    folders = (path for path in root.iterdir() if re.fullmatch(rf"{name}(-\d+)?", path.name))
    return sorted(filter(is_own_directory, folders), key=_number)


def next_generation(folder: Path) -> Path:
    """The folder of the generation after this one."""
    name = folder.name.partition("-")[0]
    return folder.with_name(f"{name}-{_number(folder) + 1}")


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[2] or 1)


def copied_model(entry: Mapping[str, Any], root: Path, name: str) -> Path:
    """The folder of a copied model."""
    return root / str(entry.get("model_folder", name))


def model_of(root: Path, encoder: str | None = None, about: Mapping[str, Any] | None = None) -> str:
    """The encoder of a directory of `adapt`: its folder `model`, or the model that it refers to, unchanged. `encoder`
    names a copy of it elsewhere; `about` is what `adapted.json` said when the directory was opened."""
    entry = read_adapted(root) if about is None else about
    if "reference" in entry:
        return resolve(entry["reference"], root, encoder)
    return str(copied_model(entry, root, MODEL))


def reranker_of(root: Path, about: Mapping[str, Any] | None = None) -> str:
    """The cross-encoder of a directory of `adapt`, as `adapted.json` or its new content says."""
    entry = (read_adapted(root) if about is None else about)["reranker"]
    if "reference" in entry:
        return resolve(entry["reference"], root, what="cross-encoder")
    return str(copied_model(entry, root, RERANKER))


def verify_model(root: Path) -> None:
    """Refuse other models in the directory than `adapt` wrote; reads all of them."""
    about = read_adapted(root)
    models = ((MODEL, about, "model_digest"), (RERANKER, about.get("reranker", {}), "digest"))
    for name, entry, key in models:
        folder, digest = copied_model(entry, root, name), entry.get(key)
        if digest is not None and model_digest(folder) != digest:
            raise QontextError(
                "changed since it was written",
                place=folder,
                remedy="Restore it, or run adapt with --retrain.",
            )


def index_of(root: Path) -> Path:
    """The folder of the index of a directory of `adapt`."""
    return root / str(read_adapted(root)["index"])


def dense_index(index: Path) -> Path:
    """The vector index of a directory of `adapt`, or else its vectors."""
    return index / DENSE if is_artifact(index / DENSE) else index / "vectors"


def fingerprint_of(path: str) -> str | None:
    """The hash of what a directory of `adapt` answers with; None for other directories."""
    root = Path(path).expanduser()
    if not is_adapted(root):
        return None
    about = read_adapted(root)
    index = {
        child.name: open_artifact(child).digest
        for child in sorted((root / about["index"]).iterdir())
        if is_artifact(child)
    }
    system = {name: about.get(name) for name in ("system", "weights", "token_weight", "read_tokens")}
    last = about.get("reranker", {})
    models = [
        entry["reference"]["digest"] if "reference" in entry else entry.get(key)
        for entry, key in ((about, "model_digest"), (last, "digest"))
    ]
    return json_digest([system, index, models, last.get("depth"), last.get("weight")])
