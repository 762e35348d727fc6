"""Models that write text, sequence-to-sequence or decoder-only: what is not one is refused with a sentence.

A model is a folder with safetensors. Code that comes with a model is never executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from qontext.frame.errors import QontextError
from qontext.models import hub
from qontext.models.folder import WEIGHTS, check_model
from qontext.models.load import load, quiet, require_weights
from qontext.models.tokenizer import read_tokenizer


def seq2seq_folder(name: str) -> Path:
    """The folder of a sequence-to-sequence model; PyTorch weights of a Hub model are used if it has no others."""
    folder = hub.locate(name, "sequence-to-sequence model", weights=True)
    if not (folder / "config.json").exists():
        raise QontextError("contains no model: it has no config.json", place=folder)
    config = check_model(folder)
    if not config.get("is_encoder_decoder"):
        kind = config.get("model_type", "unknown")
        raise QontextError(
            f"is a {kind!r} model; generating queries needs a sequence-to-sequence model such as T5 or BART",
            place=name,
            remedy="Name one with --model, or train one: qontext train-generator --help.",
        )
    if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return folder
    if Path(name).expanduser().is_dir():
        raise QontextError("contains no weights (model.safetensors)", place=folder)
    # Read with weights_only: nothing in them is executed.
    return hub.download(name, ["*.json", "*.txt", "*.model", "pytorch_model*.bin"])


def causal_folder(name: str) -> Path:
    """The folder of a decoder-only model."""
    folder = hub.locate(name, "language model", weights=True)
    if not (folder / "config.json").exists():
        raise QontextError("contains no model: it has no config.json", place=folder)
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


def find_causal(name: str) -> Path | None:
    """The folder of a decoder-only model; None if `name` is another kind of model."""
    folder = hub.locate(name, "model", weights=True)
    is_model = (folder / "config.json").exists()
    return causal_folder(name) if is_model and is_causal(check_model(folder)) else None


def is_causal(config: Mapping[str, Any]) -> bool:
    """True if a config.json describes a decoder-only model. Encoders that could be used as one are not."""
    from transformers.models.auto import modeling_auto

    kind = config.get("model_type")
    decoders: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    encoders: Any = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return kind in decoders and kind not in encoders and not config.get("is_encoder_decoder")


def load_seq2seq(folder: Path) -> tuple[Any, Any]:
    """A sequence-to-sequence model in fp32, for inference, and its tokenizer."""
    tokenizer = load_seq2seq_tokenizer(folder)
    model, _ = load("AutoModelForSeq2SeqLM", folder, "sequence-to-sequence model", use_safetensors=None)
    _check_ends(model, tokenizer, tokenizer.eos_token_id or tokenizer.sep_token_id, folder)
    starts = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    configs = (model.generation_config, model.config)
    if all(getattr(config, name, None) is None for config in configs for name in starts):
        raise QontextError("the model does not define a decoder start token", place=folder)
    return model.eval(), tokenizer


def load_causal(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A decoder-only model with its weights in `dtype`, for inference, and its tokenizer."""
    tokenizer = load_causal_tokenizer(folder)
    model, missing = load("AutoModelForCausalLM", folder, "language model", dtype=dtype)
    require_weights(missing, folder)
    _check_ends(model, tokenizer, tokenizer.eos_token_id, folder)
    return model.eval(), tokenizer


def load_seq2seq_tokenizer(folder: Path) -> Any:
    with quiet():
        tokenizer = read_tokenizer(folder)
    if tokenizer.pad_token_id is None:
        raise QontextError("the tokenizer has no padding token", place=folder)
    return tokenizer


def load_causal_tokenizer(folder: Path) -> Any:
    with quiet():
        tokenizer = read_tokenizer(folder)
    if not tokenizer.is_fast:
        raise QontextError("has no fast tokenizer (tokenizer.json)", place=folder)
    return tokenizer


def _check_ends(model: Any, tokenizer: Any, end_token: int | None, folder: Path) -> None:
    """Refuse what cannot end a text or embed its tokens; `end_token` is taken where the model defines none."""
    generation = model.generation_config
    if generation.eos_token_id is None:
        generation.eos_token_id = end_token
    if generation.eos_token_id is None:
        raise QontextError("neither the model nor its tokenizer defines an end-of-text token", place=folder)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise QontextError(
            f"the tokenizer has {len(tokenizer):,} tokens, the model {rows:,}: they do not belong together",
            place=folder,
        )
