"""Models named rather than pathed: from the local cache of the Hugging Face hub, else from the hub itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from qontext.errors import QontextError

PATIENCE = 3.0
"""Seconds in which the hub must answer to count as reachable."""

FILES = ["*.json", "*.txt", "*.model", "model*.safetensors"]
SKIP = ["onnx/*", "openvino/*"]


def snapshot(name: str) -> Path:
    """The directory of a hub model: the cached copy if there is one (no network is touched), else downloaded.

    Without a network, that is said within seconds.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, local_files_only=True))
        if (cached / "config.json").is_file() and any(cached.glob("model*.safetensors")):
            return cached
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:
        raise QontextError(
            "neither a directory nor a possible name of a hub model",
            place=name,
            remedy="Check the path, or write the model's name as owner/name.",
        ) from None
    if not reachable():
        raise QontextError(
            "there is no such directory, the model is not in the local cache, and the model hub cannot be reached",
            place=name,
            remedy="Give the path of a model on disk, or fetch the model where there is a network "
            f"(hf download {name}) and copy it here.",
        )
    try:
        return Path(snapshot_download(name, allow_patterns=FILES, ignore_patterns=SKIP))
    except HfHubHTTPError as error:
        why = getattr(getattr(error, "response", None), "status_code", "no answer")
        raise QontextError(
            f"there is no such directory, and the hub does not give out a model of this name ({why})",
            place=name,
            remedy="Check the spelling; a gated or private model needs: hf auth login.",
        ) from None
    except OSError as error:
        raise QontextError(f"the download broke off: {error}", place=name, remedy="Run it again.") from None


def reachable() -> bool:
    """Whether the hub answers now. Asked in a thread, because a name look-up obeys no time limit."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return False
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(get_session().head(constants.ENDPOINT, timeout=PATIENCE))
        except Exception:  # whatever it is, the hub is not there
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(answers)
