"""GGUF files, which hold a quantized decoder and its tokenizer: unpacked once into a folder of safetensors.

transformers parses such a file several times, in Python, which takes far longer than reading the weights does. So the
unpacked model is kept in the cache, and what loads a model knows one format. Weights are kept in bf16: its rounding is
far below that of the four to eight bits from which they are unpacked.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from pathlib import Path
from typing import Any

from qontext.frame.disk import require_regular
from qontext.frame.errors import QontextError, first_line, missing_extra, raise_if_out_of_memory
from qontext.frame.hashes import cache_folder
from qontext.models.converted import converted, mark
from qontext.models.load import quiet

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
            raise QontextError("not a GGUF file", place=file)
    target = cache_folder("gguf") / f"{file.stem}-{mark([file])}-{FORMAT}"
    return converted(file, target, "config.json", lambda folder: _unpack(file, folder))


def _unpack(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    packed: Any = GgufConfig
    try:
        # The library's progress bar ignores its own settings.
        with quiet(), contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
            model: Any = AutoModelForCausalLM.from_pretrained(
                str(file.parent), **where, dtype=torch.bfloat16, quantization_config=packed(dequantize=True)
            )
    except Exception as error:  # the library raises whatever its parsers raise
        raise_if_out_of_memory(error)
        raise QontextError(f"cannot be loaded as a language model: {first_line(error)}", place=file) from None
    # It is an ordinary model from here on, but the library still takes it for a packed one and would not save it.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config._name_or_path = ""
    with quiet():
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
