"""The tokenizer of an encoder: loaded from a folder or a tokenizer.json, and checked before anything uses it."""

from __future__ import annotations

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


def load_tokenizer(path: Path) -> Any:
    """The fast tokenizer of a folder (transformers' files, or a bare tokenizer.json) or of a tokenizer.json."""
    from transformers import AutoTokenizer

    folder = path if path.is_dir() else path.parent
    if path.is_file() or (
        not (folder / "tokenizer_config.json").exists() and (folder / "tokenizer.json").exists()
    ):
        return _from_file(path if path.is_file() else folder / "tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), use_fast=True, trust_remote_code=False)
    except Exception as error:  # the library raises whatever its parsers raise
        raise QontextError(
            f"holds no readable tokenizer: {_first_line(error)}",
            place=path,
            remedy="Expected tokenizer.json and tokenizer_config.json there.",
        ) from None
    if not getattr(tokenizer, "is_fast", False):
        raise QontextError(
            "has a slow tokenizer only, which cannot say where words begin",
            place=path,
            remedy="Convert it to a tokenizer.json with transformers.",
        )
    return tokenizer


def check_tokenizer(tokenizer: Any, place: str | Path) -> None:
    """Refuse a tokenizer without the special tokens that masking and pooling live on."""
    names = ("pad_token", "cls_token", "sep_token", "mask_token")
    missing = [name for name in names if getattr(tokenizer, name) is None]
    if missing:
        raise QontextError(
            f"the tokenizer has no {', '.join(n.removesuffix('_token') for n in missing)} token",
            place=place,
            remedy="Name them in its tokenizer_config.json, or train one with: qontext train-tokenizer",
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
    highest = max(tokenizer.get_vocab().values())
    if highest >= config.vocab_size:
        raise QontextError(
            f"the tokenizer does not fit the encoder: it has token ids up to {highest:,}, "
            f"the encoder embeds {config.vocab_size:,}",
            place=place,
            remedy="Use the tokenizer that came with the encoder.",
        )
    if reserved_positions and tokenizer.pad_token_id != reserved_positions - 1:
        raise QontextError(
            f"the tokenizer does not fit the encoder: it pads with id {tokenizer.pad_token_id}, "
            f"the encoder counts positions from padding id {reserved_positions - 1}",
            place=place,
            remedy="Use the tokenizer that came with the encoder.",
        )


def _from_file(path: Path) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    try:
        parsed = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exceptions
        raise QontextError(f"not a tokenizer.json: {_first_line(error)}", place=path) from None
    vocabulary = parsed.get_vocab()
    special = {
        name: next((token for token in tokens if token in vocabulary), None)
        for name, tokens in _SPECIAL.items()
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=parsed, **{n: t for n, t in special.items() if t is not None}
    )


def save_tokenizer(tokenizer: Any, directory: Path, max_length: int) -> None:
    """Write the tokenizer's files, without the traces of where and how it was loaded."""
    import copy

    clean = copy.deepcopy(tokenizer)
    clean.backend_tokenizer.no_truncation()
    clean.backend_tokenizer.no_padding()
    clean.model_max_length = max_length
    clean.save_pretrained(str(directory))
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for trace in ("is_local", "local_files_only", "name_or_path", "max_length", "stride", "truncation_side"):
        settings.pop(trace, None)
    for trace in ("truncation_strategy", "pad_to_multiple_of", "pad_token_type_id"):
        settings.pop(trace, None)
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that older versions know, too
    path.write_text(
        json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
