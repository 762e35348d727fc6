"""Loading decoder-only language models: what is not one is refused with a sentence.

A model is a folder with safetensors, or a GGUF file. Code that comes with a model is never executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from qontext.frame.errors import QontextError, first_line, raise_if_out_of_memory
from qontext.models import hub
from qontext.models.folder import WEIGHTS, check_model
from qontext.models.gguf import unpacked
from qontext.models.load import quiet
from qontext.models.writer import check_writer, read_tokenizer


def model_folder(name: str) -> Path:
    """The folder of a decoder-only model; a GGUF file is unpacked into the cache."""
    path = Path(name).expanduser()
    if path.is_file() and path.suffix.lower() == ".gguf":
        return unpacked(path)
    folder = hub.locate(name, "language model", weights=True)
    if not (folder / "config.json").exists():
        files = sorted(folder.glob("*.gguf"))
        if len(files) > 1:
            raise QontextError(f"holds {len(files)} GGUF files", place=folder, remedy="Name one of them.")
        if files:
            return unpacked(files[0])
        raise QontextError("holds no model: it has neither a config.json nor a GGUF file", place=folder)
    config = check_model(folder)
    if not is_causal(config):
        raise QontextError(
            f"is a {config.get('model_type', 'unknown')!r} model, not a decoder-only language model such as Llama",
            place=name,
            remedy="Choose one, or let a sequence-to-sequence model write the queries: --generator t5.",
        )
    if not any(folder.glob(WEIGHTS)):
        raise QontextError("holds no weights (model.safetensors)", place=folder)
    return folder


def find(name: str) -> Path | None:
    """The folder of a decoder-only model; None if `name` is another kind of model."""
    if Path(name).expanduser().is_file():
        return model_folder(name)
    folder = hub.locate(name, "model", weights=True)
    if (folder / "config.json").exists():
        return model_folder(name) if is_causal(check_model(folder)) else None
    return model_folder(name) if any(folder.glob("*.gguf")) else None


def is_causal(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a decoder-only model. Encoders that could be used as one are not."""
    from transformers.models.auto import modeling_auto

    kind = config.get("model_type")
    decoders: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    encoders: Any = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return kind in decoders and kind not in encoders and not config.get("is_encoder_decoder")


def load_model(folder: Path, tokenizer: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The model with its weights in `dtype`, for inference, with what decoding needs checked."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        with quiet():
            model, report = auto.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=dtype,
                output_loading_info=True,
            )  # fmt: skip
    except Exception as error:  # the library raises whatever its parsers raise
        raise_if_out_of_memory(error)
        raise QontextError(
            f"cannot be loaded as a language model: {first_line(error)}", place=folder
        ) from None
    if missing := sorted(report["missing_keys"]):
        raise QontextError(
            f"the weights do not belong to this config.json: {len(missing)} are missing, such as {missing[0]}",
            place=folder,
        )
    check_writer(model, tokenizer, tokenizer.eos_token_id, folder)
    return model.eval()


def load_tokenizer(folder: Path) -> Any:
    tokenizer = read_tokenizer(folder)
    if not tokenizer.is_fast:
        raise QontextError("has no fast tokenizer (tokenizer.json)", place=folder)
    return tokenizer
