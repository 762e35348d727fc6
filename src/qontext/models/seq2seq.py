"""Loading and validating sequence-to-sequence models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qontext.frame.errors import QontextError, first_line, raise_if_out_of_memory
from qontext.models import hub
from qontext.models.folder import check_model
from qontext.models.writer import check_writer, read_tokenizer


def model_folder(name: str) -> Path:
    """The folder of a sequence-to-sequence model; PyTorch weights of a Hub model are used if it has no others."""
    folder = hub.locate(name, "sequence-to-sequence model", weights=True)
    config_path = folder / "config.json"
    if not config_path.exists():
        raise QontextError("contains no model: it has no config.json", place=folder)
    config = check_model(folder)
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
        raise QontextError("contains no weights (model.safetensors)", place=folder)
    # Read with weights_only: nothing in them is executed.
    return hub.download(name, ["*.json", "*.txt", "*.model", "pytorch_model*.bin"])


def load_model(folder: Path, tokenizer: Any) -> Any:
    """The model in fp32, for inference; checks the settings for decoding."""
    from transformers import AutoModelForSeq2SeqLM

    from qontext.models.load import quiet

    try:
        with quiet():
            model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True, dtype="float32")
    except Exception as error:  # the library raises whatever its parsers raise
        raise_if_out_of_memory(error)
        raise QontextError(
            f"cannot be loaded as a sequence-to-sequence model: {first_line(error)}", place=folder
        ) from None
    check_writer(model, tokenizer, tokenizer.eos_token_id or tokenizer.sep_token_id, folder)
    starts = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    if all(
        getattr(config, name, None) is None
        for config in (model.generation_config, model.config)
        for name in starts
    ):
        raise QontextError("the model does not define a decoder start token", place=folder)
    return model.eval()


def load_tokenizer(folder: Path) -> Any:
    tokenizer = read_tokenizer(folder)
    if tokenizer.pad_token_id is None:
        raise QontextError("the tokenizer has no padding token", place=folder)
    return tokenizer
