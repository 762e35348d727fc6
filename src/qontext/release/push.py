"""`qontext push`: a model folder → a repository on the Hugging Face Hub, private unless it is said otherwise.

Only what the model card lists is uploaded: the files of the model, and the card. Descriptions of stages, logs, checkpoints,
hidden files, links and pickles stay here. The token is that of the user's login (`hf auth login`) or of HF_TOKEN; it is only
sent over an encrypted connection, or to this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from qontext.frame import log
from qontext.frame.artifacts import CARD, open_artifact
from qontext.frame.config import Action, Asks, Input, StageConfig, existing
from qontext.frame.errors import QontextError, first_line
from qontext.frame.files import shown_size
from qontext.frame.stages import Report
from qontext.frame.trust import Demand, is_this_machine, require
from qontext.models import hub
from qontext.release.export import LEFT_OUT

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_FOLDER = re.compile(r'(?<=SentenceTransformer\(")[^"]*(?="\))|path/to/this/folder')
_FOLDERS = r"[\w.@+~-]+(?:(?! and/or)(?: [\w.@+~-]+){1,4}(?=/))?"
_PATH = re.compile(rf"(?<![\w:/.<-])(?:~|/{_FOLDERS})(?:/{_FOLDERS})+/?")
_UPLOADED = (".json", ".txt", ".model", ".jinja", ".safetensors", ".onnx", ".xml")
_BESIDE = {".bin": "openvino", ".data": "onnx"}
"""Suffixes of weights that are uploaded from one folder alone; elsewhere, they may be pickles."""


def demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """Nothing is uploaded unless the user named the repository."""
    name = str(values.get("repository"))
    yield Demand(
        f"upload a model to the repository {name}",
        (name,),
        only_by="Name the repository on the command line yourself.",
    )


class PushConfig(StageConfig):
    directory: Annotated[str, Input(positional=True)]
    """A model folder: written by `finetune`, `pretrain`, `train-reranker` or `export`, or what `adapt` made."""

    repository: Annotated[str, Input(positional=True, by_content=False), Asks(demands)]
    """The repository: OWNER/NAME, or NAME for one of your own. It is created if it does not exist."""

    scores: Annotated[tuple[str, ...], Input()] = ()
    """Output directories of `evaluate`, whose figures are in the card. May be repeated. Those of what `adapt` made are
    there without being named."""

    license: str = ""
    """The license of the model, such as apache-2.0. Default: that of its card."""

    base_model: str = ""
    """The Hub name of the model that training started from. Default: that of its card."""

    dataset: tuple[str, ...] = ()
    """A Hub name of data that the model was trained on. May be repeated."""

    language: tuple[str, ...] = ()
    """A language of the model, such as en. May be repeated."""

    public: bool = False
    """Create a public repository, or push to one."""

    dry_run: Annotated[bool, Action()] = False
    """Only show the card and the files; nothing is sent."""


def run(settings: PushConfig) -> dict[str, Any]:
    root = model_folder(existing(settings.directory, "the model"))
    files = files_of(root)
    card = card_of(root, settings, figures_of(Path(settings.directory).expanduser(), settings.scores))
    url = ""
    if not settings.dry_run:
        require(demands({"repository": settings.repository}))
        url = upload(root, files, card, settings.repository, is_public=settings.public)
    rows = [{"file": CARD, "size": shown_size(len(card.encode()))}]
    rows += [{"file": name, "size": shown_size((root / name).stat().st_size)} for name in files]
    visibility = "public" if settings.public else "private"
    would = "Would upload" if settings.dry_run else "Uploaded"
    log.show_rows(f"{would} to the {visibility} repository {settings.repository}", rows)
    if settings.dry_run:
        log.show_line(f"{CARD}:\n\n{card}")
    else:
        log.note(url)
    return {
        "repository": settings.repository,
        "visibility": visibility,
        "files": rows,
        "card": card,
        "url": url,
    }


def model_folder(path: Path) -> Path:
    """The model's folder: of a directory of `adapt`, its folder `model`."""
    from qontext.retrieve.directory import MODEL, copied_model, is_adapted, read_adapted

    if is_adapted(path):
        folder = copied_model(read_adapted(path), path, MODEL)
        if not folder.is_dir():
            raise QontextError(
                "refers to a model that it did not change, so there is nothing to push",
                place=path,
                remedy="Use that model by its own name.",
            )
        return folder
    if not any((path / name).is_file() for name in ("config.json", "modules.json")):
        raise QontextError(
            "contains no model: it has no config.json",
            place=path,
            remedy="Pass the output of finetune, pretrain, train-reranker, export or adapt.",
        )
    return path


def files_of(root: Path) -> list[str]:
    """The files of the model, in order."""
    names = []
    for folder, folders, files in os.walk(root):
        inside = Path(folder).relative_to(root)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in LEFT_OUT)
        for name in sorted(files):
            path = Path(folder, name)
            if name.startswith(".") or name in LEFT_OUT or not _is_uploaded(inside / name):
                continue
            if path.is_symlink():
                raise QontextError(
                    "is a link: what it leads to may not belong to the model",
                    place=path,
                    remedy="Replace it by a copy, or remove it.",
                )
            names.append((inside / name).as_posix())
    return sorted(names, key=lambda name: (name.count("/"), name))


def _is_uploaded(name: Path) -> bool:
    return name.suffix in _UPLOADED or (name.suffix in _BESIDE and _BESIDE[name.suffix] in name.parts)


def figures_of(directory: Path, scores: Sequence[str]) -> list[dict[str, Any]]:
    """The figures of `evaluate` directories, and those of the encoder alone that `adapt` measured."""
    from qontext.retrieve.directory import is_adapted, read_adapted
    from qontext.retrieve.system import System

    figures: list[dict[str, Any]] = []
    if is_adapted(directory):
        about = read_adapted(directory)
        verdict = about.get("verdict") or {}
        alone = System(about.get("encoder") or System.parse(about["system"]).encoder or "start").name
        for split, measured in verdict.get("scores", {}).items():
            dataset = f"{'generated' if split == 'generated' else 'real'} questions about its documents"
            values = {n: v for n, v in measured.get(alone, {}).items() if n not in ("low", "high")}
            figures.append({"dataset": dataset, "split": split, "measures": values})
    for folder in scores:
        artifact = open_artifact(folder, verb="evaluate")
        dataset = artifact.summary.get("benchmark") or Path(artifact.inputs["qrels"]["path"]).name
        split = str(artifact.config.get("split") or "test")
        figures.append({"dataset": dataset, "split": split, "measures": artifact.summary["measures"]})
    return figures


def card_of(root: Path, settings: PushConfig, figures: Sequence[Mapping[str, Any]]) -> str:
    """The folder's card with license, base model, data and figures in its metadata, where the Hub shows them beside the
    model. Paths of this machine become the names of their files."""
    from huggingface_hub import EvalResult, ModelCard

    name, file = settings.repository, root / CARD
    text = file.read_text(encoding="utf-8") if file.is_file() else f"---\ntags: [qontext]\n---\n# {name}\n"
    card = ModelCard(_FOLDER.sub(name, text))
    card.text = _PATH.sub(lambda path: Path(str(path[0])).name, card.text)
    data: Any = card.data
    values: dict[str, Any] = {"license": settings.license, "base_model": settings.base_model}
    values |= {"datasets": list(settings.dataset), "language": list(settings.language)}
    for key, value in values.items():
        if value:
            setattr(data, key, value)
    results = [
        EvalResult(
            task_type="text-retrieval",
            dataset_type=re.sub(r"[^a-z0-9]+", "-", str(figure["dataset"]).lower()).strip("-"),
            dataset_name=figure["dataset"],
            dataset_split=figure["split"],
            metric_type=measure.lower().replace("@", "_at_"),
            metric_name=measure,
            metric_value=round(value, 5),
        )
        for figure in figures
        for measure, value in figure["measures"].items()
    ]
    if results:
        data.model_name, data.eval_results = name.rpartition("/")[2], results
    return str(card)


def upload(root: Path, files: list[str], card: str, repository: str, *, is_public: bool) -> str:
    """Create the repository if it does not exist, and commit the files and the card at once; returns its address."""
    from huggingface_hub import CommitOperationAdd

    api = _api()
    try:
        name = api.create_repo(repository, private=not is_public, exist_ok=True).repo_id
        if not is_public and not api.model_info(name).private:
            raise QontextError(
                f"the repository {name} is public", remedy="Add --public, or choose another name."
            )
        added = [CommitOperationAdd(path, str(root / path)) for path in files]
        added.append(CommitOperationAdd(CARD, card.encode()))
        commit = api.create_commit(name, added, commit_message="Upload the model", repo_type="model")
    except QontextError:
        raise
    except Exception as error:  # those of the Hub client and of its HTTP library
        message = first_line(error).replace(str(api.token), "***")
        raise QontextError(
            f"could not upload to {repository}: {message}",
            remedy="Check the name, and that your token may write there (hf auth whoami).",
        ) from None
    return str(commit.repo_url)


def _api() -> HfApi:
    """The client of the Hub, with the user's token."""
    from huggingface_hub import HfApi, get_token

    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    parts = urlsplit(address)
    if parts.scheme != "https" and not is_this_machine(parts.hostname or ""):
        raise QontextError(
            "HF_ENDPOINT is not encrypted, and a token would be sent there",
            remedy="Use an address of https://.",
        )
    token = get_token()
    if not token:
        raise QontextError(
            "uploading needs a token of the Hugging Face Hub",
            remedy="Run 'hf auth login', or set HF_TOKEN; --dry-run shows what would be uploaded.",
        )
    if not hub.online():
        raise QontextError(
            "the Hugging Face Hub is unreachable",
            remedy="Check the network, and that HF_HUB_OFFLINE is not set.",
        )
    return HfApi(endpoint=address, token=token, library_name="qontext")


PUSH = Report(
    "push",
    PushConfig,
    run,
    """
        qontext push retriever someone/retriever --dry-run
        qontext push retriever someone/retriever --scores scores --license apache-2.0 --dry-run
    """,
)
