"""Names → folders with model files: a local path, or a Hub name (NAME or NAME@REVISION) from the cache or the network. A
missing network is detected at once; only named models are downloaded.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qontext.frame import log, trust
from qontext.frame.errors import QontextError
from qontext.frame.files import read_json

PROBE_SECONDS = 3.0
_TEXT_FILES = ["*.json", "*.txt", "*.model"]
_MODEL_FILES = [*_TEXT_FILES, "*.safetensors", "1_Pooling/*"]


def locate(name: str, what: str, *, weights: bool = False) -> Path:
    """The folder of a model: `name` itself if it is a local path, else the Hub model's cached files."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise QontextError(f"expected a folder with a {what}, found a file", place=name)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name:
        raise QontextError(f"no such folder with a {what}", place=name or "(empty name)")
    patterns = _MODEL_FILES if weights else _TEXT_FILES
    if (cached := _cached(name, patterns, weights=weights)) is not None:
        return cached
    if not online():
        raise QontextError(
            f"the {what} {name!r} is neither a local folder nor in the Hub cache, and the Hugging Face Hub is unreachable",
            remedy="Pass the path of a downloaded model, or run the command once with a network.",
        )
    return download(name, patterns)


def is_local(name: str) -> bool:
    """True if the model is a folder, or complete in the Hub's cache: nothing is downloaded."""
    if Path(name).expanduser().is_dir():
        return True
    try:
        return _cached(name, _MODEL_FILES, weights=True) is not None
    except QontextError:  # not the name of a model
        return False


def _cached(name: str, patterns: list[str], *, weights: bool) -> Path | None:
    """The cached files of a Hub model."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(**_at(name), allow_patterns=patterns, local_files_only=True))
    except HFValidationError:
        raise QontextError(
            f"{name!r} is neither a folder nor the name of a model on the Hugging Face Hub"
        ) from None
    except LocalEntryNotFoundError:
        return None
    return cached if not weights or _is_complete(cached) else None


def _is_complete(folder: Path) -> bool:
    """True if a cached model has its configuration and its weights, with every file that their index names. A cached
    tokenizer has no weights, and an interrupted download has a part of them."""
    files = {*folder.rglob("*.safetensors")}
    indices = folder.rglob("model.safetensors.index.json")
    named = {
        index.parent / name for index in indices for name in read_json(index, dict)["weight_map"].values()
    }
    has_config = any((folder / name).is_file() for name in ("config.json", "modules.json"))
    has_whole = any(file in named or "-of-" not in file.name for file in files)
    return has_config and has_whole and named <= files


def _at(name: str) -> dict[str, Any]:
    """The repository and revision of NAME or NAME@REVISION."""
    repository, _, revision = name.partition("@")
    return {"repo_id": repository, "revision": revision or None}


def download(name: str, patterns: list[str]) -> Path:
    """The folder with those files of a Hub model that match the patterns."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    # What only a file names is said even to those who do not want to hear of progress.
    (log.note if trust.is_given(name) else log.warn)(f"downloading {name} from the Hugging Face Hub …")
    try:
        return Path(snapshot_download(**_at(name), allow_patterns=patterns))
    except RepositoryNotFoundError:
        raise QontextError(
            f"the Hugging Face Hub has no public model named {name!r}", remedy="Check the spelling."
        ) from None
    except Exception as error:  # those of the Hub client's HTTP library
        raise QontextError(f"could not download {name!r} from the Hugging Face Hub: {error}") from None


def online() -> bool:
    """True if the Hub answers within three seconds. With HF_HUB_OFFLINE=1, returns False at once."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    return reachable(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


def reachable(url: str) -> bool:
    """True if the host of a URL, or its proxy, answers within three seconds."""
    address = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or url
    parts = urlsplit(address if "//" in address else f"//{address}")
    target = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    answered = threading.Event()

    def probe() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection(target, timeout=PROBE_SECONDS).close()
            answered.set()

    # In a thread, because DNS lookups have no timeout.
    prober = threading.Thread(target=probe, daemon=True)
    prober.start()
    prober.join(PROBE_SECONDS)
    return answered.is_set()
