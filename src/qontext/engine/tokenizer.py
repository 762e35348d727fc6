"""An encoder's tokenizer: loaded from a folder or a tokenizer.json, and checked before anything uses it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from qontext.errors import QontextError

_SPECIAL = {
    "unk_token": ("[UNK]", "<unk>"),
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
"""The names that special tokens go by, for a tokenizer.json on its own: it does not say which is which."""

_VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
"""The files that a tokenizer's words stand in, one of them at least."""

_TRACES = ("name_or_path", "is_local", "local_files_only", "max_length", "stride", "truncation_strategy")
"""Settings that a tokenizer keeps from where it was loaded and what it was last used for."""


def load_tokenizer(path: Path) -> Any:
    """The fast tokenizer of a model's folder, or of a tokenizer.json on its own."""
    from transformers import AutoTokenizer

    alone = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file() or (alone.is_file() and not (path / "tokenizer_config.json").is_file()):
        return _from_file(alone)
    if not any(
        (path / name).is_file() for name in _VOCABULARIES
    ):  # the library would make one up, of 5 words
        raise QontextError(
            "holds no readable tokenizer",
            place=path,
            remedy="Expected tokenizer.json and tokenizer_config.json there.",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), use_fast=True, trust_remote_code=False)
    except Exception as error:  # the library raises whatever its parsers raise
        raise QontextError(
            f"holds no readable tokenizer: {_reason(error)}",
            place=path,
            remedy="Expected tokenizer.json and tokenizer_config.json there.",
        ) from None
    if not tokenizer.is_fast:
        raise QontextError(
            "has a slow tokenizer only, which cannot say where words begin",
            place=path,
            remedy="Convert it to a tokenizer.json with transformers.",
        )
    return tokenizer


def check_tokenizer(tokenizer: Any, place: str | Path) -> None:
    """Refuse a tokenizer without the special tokens that masking and pooling live on."""
    missing = [name for name in ("pad", "cls", "sep", "mask") if getattr(tokenizer, f"{name}_token") is None]
    if missing:
        raise QontextError(
            f"the tokenizer has no {', '.join(missing)} token",
            place=place,
            remedy="Name it in tokenizer_config.json, or train another: qontext train-tokenizer",
        )
    ids = tokenizer("a")["input_ids"]
    if ids[0] != tokenizer.cls_token_id or ids[-1] != tokenizer.sep_token_id:
        raise QontextError(
            f"the tokenizer does not put {tokenizer.cls_token} before and {tokenizer.sep_token} after a text",
            place=place,
            remedy="Give its tokenizer.json a post-processor that adds them.",
        )


def check_fit(tokenizer: Any, config: Any, reserved_positions: int, place: str | Path) -> None:
    """Refuse a tokenizer whose ids the encoder cannot embed or would misread."""
    highest, last = max(tokenizer.get_vocab().values()), config.vocab_size - 1
    padding, expected = tokenizer.pad_token_id, reserved_positions - 1
    if highest > last:
        misfit = f"its token ids go up to {highest:,}, the encoder's up to {last:,}"
    elif reserved_positions and padding != expected:
        misfit = f"it pads with id {padding}, the encoder counts positions from padding id {expected}"
    else:
        return
    raise QontextError(
        f"the tokenizer does not fit the encoder: {misfit}",
        place=place,
        remedy="Use the tokenizer that came with the encoder.",
    )


def save_tokenizer(tokenizer: Any, directory: Path, max_length: int) -> None:
    """Write the tokenizer's files, without traces of where it came from and what it was used for."""
    clean = copy.deepcopy(tokenizer)
    clean.backend_tokenizer.no_truncation()
    clean.backend_tokenizer.no_padding()
    clean.model_max_length = max_length
    clean.save_pretrained(str(directory))
    path = directory / "tokenizer_config.json"
    settings = {k: v for k, v in json.loads(path.read_text(encoding="utf-8")).items() if k not in _TRACES}
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # its name in all versions
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _from_file(path: Path) -> Any:
    import transformers
    from tokenizers import Tokenizer

    try:
        parsed = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exceptions
        raise QontextError(f"not a tokenizer.json: {_reason(error)}", place=path) from None
    vocabulary = parsed.get_vocab(with_added_tokens=True)
    special = {
        name: token for name, tokens in _SPECIAL.items() for token in reversed(tokens) if token in vocabulary
    }
    kind: Any = transformers.PreTrainedTokenizerFast
    return kind(tokenizer_object=parsed, **special)


def _reason(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
