"""Loading sequence-to-sequence models: what is not one is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qontext import hub
from qontext.errors import QontextError


def model_folder(name: str) -> Path:
    """The folder of a sequence-to-sequence model; a hub model that has only PyTorch weights gets those."""
    folder = hub.locate(name, "sequence-to-sequence model", weights=True)
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise QontextError("holds no model: it has no config.json", place=folder)
    config = json.loads(config_path.read_text(encoding="utf-8"))
    kind = config.get("model_type", "unknown")
    if not config.get("is_encoder_decoder"):
        raise QontextError(
            f"is a {kind!r} model; generating queries needs a sequence-to-sequence model such as T5 or BART",
            place=name,
            remedy="Name one with --model, or train one: qontext train-generator --help.",
        )
    if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return folder
    if Path(name).expanduser().is_dir():
        raise QontextError("holds no weights (model.safetensors)", place=folder)
    from huggingface_hub import snapshot_download

    try:
        # Read with weights_only: nothing in them is executed.
        return Path(
            snapshot_download(name, allow_patterns=["*.json", "*.txt", "*.model", "pytorch_model*.bin"])
        )
    except (OSError, ValueError) as error:
        raise QontextError(f"could not fetch the weights of {name!r}: {error}") from None


def load_model(folder: Path, tokenizer: Any) -> Any:
    """The model in fp32, for inference, with what decoding needs checked."""
    from safetensors import SafetensorError
    from transformers import AutoModelForSeq2SeqLM

    from qontext.engine.load import quiet

    try:
        with quiet():
            model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True, dtype="float32")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise QontextError(
            f"cannot be loaded as a sequence-to-sequence model: {first}", place=folder
        ) from None
    generation = model.generation_config
    if generation.eos_token_id is None:
        generation.eos_token_id = tokenizer.eos_token_id or tokenizer.sep_token_id
    if generation.eos_token_id is None:
        raise QontextError("neither the model nor its tokenizer says which token ends a text", place=folder)
    starts = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    if all(getattr(config, name, None) is None for config in (generation, model.config) for name in starts):
        raise QontextError("the model does not say which token its decoder starts with", place=folder)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise QontextError(
            f"the tokenizer has {len(tokenizer):,} tokens, the model {rows:,}: they do not belong together",
            place=folder,
        )
    return model.eval()


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = str(error).strip().splitlines()[0]
        raise QontextError(f"the tokenizer cannot be loaded: {first}", place=folder) from None
    if tokenizer.pad_token_id is None:
        raise QontextError("the tokenizer has no padding token", place=folder)
    return tokenizer
