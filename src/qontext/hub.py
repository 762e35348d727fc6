"""Names → folders with model files: a local path as it is, a hub name from the cache or the network.

Being offline is noticed at once and explained; nothing hangs, and nothing is fetched unless it was named.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

from qontext.errors import QontextError

PROBE_SECONDS = 3.0
_TEXT_FILES = ["*.json", "*.txt", "*.model"]
_MODEL_FILES = [*_TEXT_FILES, "*.safetensors", "1_Pooling/*"]


def locate(name: str, what: str, *, weights: bool = False) -> Path:
    """The folder of a model: `name` itself if it is a local path, else the hub model's cached files."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise QontextError(f"expected a folder with a {what}, found a file", place=name)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name:
        raise QontextError(f"no such folder with a {what}", place=name or "(empty name)")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    patterns = _MODEL_FILES if weights else _TEXT_FILES
    try:
        cached = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        # A cached tokenizer is a folder without weights.
        if not weights or any(cached.rglob("*.safetensors")):
            return cached
    except HFValidationError:
        raise QontextError(f"{name!r} is neither a folder nor the name of a model on the hub") from None
    except LocalEntryNotFoundError:
        pass
    if not online():
        raise QontextError(
            f"the {what} {name!r} is no local folder and not in the hub's cache, and the hub cannot be reached from here",
            remedy="Give the path of a downloaded model, or run once where there is a network.",
        )
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except RepositoryNotFoundError:
        raise QontextError(
            f"the hub has no public model named {name!r}", remedy="Check its spelling."
        ) from None
    except (OSError, ValueError) as error:
        raise QontextError(f"could not fetch {name!r} from the hub: {error}") from None


def online() -> bool:
    """Whether the hub answers, within three seconds. HF_HUB_OFFLINE=1 means no, without asking."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    return reachable(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))


def reachable(url: str) -> bool:
    """Whether the host of an address, or the proxy before it, answers within three seconds."""
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    target = urlsplit(proxy or url)
    port = target.port or (443 if target.scheme == "https" else 80)
    answered = threading.Event()

    def probe() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection((target.hostname or "", port), timeout=PROBE_SECONDS).close()
            answered.set()

    # In a thread, because looking up a host's address has no time limit of its own.
    prober = threading.Thread(target=probe, daemon=True)
    prober.start()
    prober.join(PROBE_SECONDS)
    return answered.is_set()
