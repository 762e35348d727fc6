"""GGUF files, which hold a quantized decoder and its tokenizer: unpacked once into a folder of safetensors.

transformers parses such a file several times, in Python, which takes far longer than reading the weights does. So the
unpacked model is kept in the cache, and what loads a model knows one format. Weights are kept in bf16: its rounding is
far below that of the four to eight bits from which they are unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
from pathlib import Path
from typing import Any

from qontext.frame import log
from qontext.frame.errors import QontextError, missing_extra
from qontext.frame.files import cache_folder, raise_disk_error, require_regular
from qontext.models.load import load, quiet
from qontext.models.tokenizer import read_tokenizer

FORMAT = 1
"""Raise it when the folder is written in another way."""


def unpacked(file: Path) -> Path:
    """The folder of the model in `file`, from the cache or unpacked now."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "llm", "Reading a GGUF file")
    require_regular(file)
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise QontextError(
                "not a GGUF file",
                place=file,
                remedy="Download it again, or name the folder of a model in safetensors.",
            )
    target = cache_folder("gguf") / f"{file.stem}-{_mark(file)}-{FORMAT}"
    if (target / "config.json").is_file():
        return target
    log.note(f"Converting {file}, once, into {target}.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        _unpack(file, temporary)
        if not target.exists():  # another process may have been faster
            temporary.rename(target)
    except OSError as error:
        if not (target / "config.json").is_file():
            raise_disk_error(error, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _mark(file: Path) -> str:
    """Identifies a file without reading it."""
    # Resolved names of the hub's cache are content hashes; size and time stand for local files.
    real = file.resolve()
    name = f"{file.name} {real.name} {real.stat().st_size} {real.stat().st_mtime_ns}\n"
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _unpack(file: Path, folder: Path) -> None:
    import torch
    from transformers.utils.quantization_config import GgufConfig

    where: dict[str, Any] = {"gguf_file": file.name, "place": file}
    packed: Any = GgufConfig
    settings = {
        "dtype": torch.bfloat16,
        "quantization_config": packed(dequantize=True),
        "use_safetensors": None,
    }
    # The library's progress bar ignores its own settings.
    with contextlib.redirect_stderr(io.StringIO()):
        with quiet():
            tokenizer = read_tokenizer(file.parent, **where)
        model, _ = load("AutoModelForCausalLM", file.parent, "language model", **where, **settings)
    # It is an ordinary model from here on, but the library still takes it for a packed one and would not save it.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config._name_or_path = ""
    with quiet():
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
