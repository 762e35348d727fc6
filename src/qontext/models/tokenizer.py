"""An encoder's tokenizer: loaded from a folder or a tokenizer.json, and validated; and the rule for titles, one for every
stage, which is recorded in the model's folder.

| rule | input |
|---|---|
| `prepend` | title, space, text |
| `sep` | title, the tokenizer's separator, text: [CLS] title [SEP] text [SEP] |
| `leave` | text |

A passage without a title is its text. A folder without a record is read as `prepend`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qontext.data.passage import TitleRule
from qontext.frame import log
from qontext.frame.errors import QontextError, first_line, raise_if_out_of_memory
from qontext.frame.files import damaged, read_json, require_regular
from qontext.models.folder import FolderLayout, TextKind, locate, message_format

_SPECIAL = {
    "unk_token": ("[UNK]", "<unk>"),
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
"""Common names of special tokens, for a tokenizer.json without a configuration."""

_VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
"""The vocabulary files of tokenizers, at least one of which is required."""

_NAMED = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
_SAMPLES = ("qontext", "Rain, 12 km.", "(what?)")
"""Texts that a chat template must leave as they are."""

_TRACES = ("name_or_path", "is_local", "local_files_only", "max_length", "stride", "truncation_strategy")
"""Settings that a tokenizer keeps from its origin and last use."""


def check_tokenizer_files(path: Path) -> None:
    """Refuse what cannot be a tokenizer, without loading it: a file that is not JSON, or a folder without a vocabulary."""
    if path.is_file():
        read_json(path, dict[str, Any])
    elif not any((path / name).is_file() for name in _VOCABULARIES):
        raise QontextError(
            "contains no readable tokenizer",
            place=path,
            remedy="Expected tokenizer.json and tokenizer_config.json there.",
        )


def load_tokenizer(path: Path) -> Any:
    """The fast tokenizer of a model folder, or of a separate tokenizer.json. In a folder whose texts are messages, it puts
    the rest of the message around each."""
    alone = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file() or (alone.is_file() and not (path / "tokenizer_config.json").is_file()):
        return _from_file(alone)
    check_tokenizer_files(path)  # without a vocabulary, the library would create one with 5 words
    tokenizer = read_tokenizer(path, use_fast=True)
    longest = tokenizer.model_max_length
    if type(longest) not in (int, float) or not longest >= 1:
        raise damaged(path / "tokenizer_config.json", f"model_max_length is {str(longest)[:40]!r}")
    if not tokenizer.is_fast:
        raise QontextError(
            "only has a slow tokenizer, which does not report word boundaries",
            place=path,
            remedy="Convert it to a tokenizer.json with transformers.",
        )
    message = message_format(path)
    return tokenizer if message is None else _in_messages(tokenizer, message == "structured", path)


def read_tokenizer(folder: Path, *, place: Path | None = None, **settings: Any) -> Any:
    """The tokenizer of a model folder, as the library reads it. Code that comes with it is never executed."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **settings
        )
    except Exception as error:  # the library raises whatever its parsers raise
        raise_if_out_of_memory(error)
        raise QontextError(
            f"contains no readable tokenizer: {first_line(error)}",
            place=place or folder,
            remedy="Expected tokenizer.json and tokenizer_config.json there.",
        ) from None


def token_ids(
    tokenizer: Any, layout: FolderLayout, texts: Sequence[str], kind: TextKind, max_length: int
) -> list[np.ndarray[Any, Any]]:
    """Token ids of each text, with prompt and special tokens, truncated at the length limit."""
    prompt = layout.prompt(kind)
    prepared = [(prompt + text).strip() for text in texts]
    prepared = [lowered(text, tokenizer) for text in prepared] if layout.lower else prepared
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_length)
    return [np.array(e.ids, dtype=np.int32) for e in backend.encode_batch_fast(prepared)]


def lowered(text: str, tokenizer: Any) -> str:
    """The text in lower case, except for the tokenizer's separator."""
    token = tokenizer.sep_token
    return token.join(part.lower() for part in text.split(token)) if token else text.lower()


class Frame(NamedTuple):
    """The ids that a tokenizer puts before and after those of a text."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


def frame_of(tokenizer: Any, prompt: str = "") -> Frame:
    """The special tokens around a text, and the prompt before it."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    encoding = backend.encode("a")
    own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
    first, last = (int(own[0]), int(own[-1]) + 1) if len(own) else (len(encoding.ids), len(encoding.ids))
    before = (*encoding.ids[:first], *backend.encode(prompt.strip(), add_special_tokens=False).ids)
    return Frame(tuple(before), tuple(encoding.ids[last:]))


def end_texts(tokenizer: Any) -> Any:
    """The tokenizer, which ends each text with its end token, as decoders for retrieval do: a bare language model's text
    ends in whatever word is last."""
    end = tokenizer.eos_token
    if frame_of(tokenizer).after or end is None:
        return tokenizer
    from tokenizers import processors

    before = tokenizer.backend_tokenizer.post_processor
    closing = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A $B:1 {end}:1", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    return _with_processor(tokenizer, closing if before is None else processors.Sequence([before, closing]))


def in_lower_case(tokenizer: Any) -> Any:
    """The tokenizer, or if it keeps capital letters, one that reads texts in lower case."""
    from tokenizers import normalizers

    backend = tokenizer.backend_tokenizer
    own = [] if backend.normalizer is None else [backend.normalizer]
    if own and own[0].normalize_str("A") == "a":
        return tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    return _with_processor(tokenizer, backend.post_processor)


def _in_messages(tokenizer: Any, structured: bool, place: Path) -> Any:
    """The tokenizer, which reads each text as a user's message of its chat template: what the template writes before and
    after a text become special tokens around it, of which truncation takes none."""
    from tokenizers import processors

    def rendered(text: str, *, tokenize: bool) -> Any:
        content = [{"type": "text", "text": text}] if structured else text
        settings = {"return_dict": False} if tokenize else {}
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=tokenize, **settings
        )

    try:
        expected = [rendered(text, tokenize=True) for text in _SAMPLES]
        head, _, tail = rendered(_SAMPLES[0], tokenize=False).partition(_SAMPLES[0])
    except Exception as error:  # a template raises what it likes
        raise QontextError(
            f"texts are messages, but the tokenizer's chat template fails: {first_line(error)}", place=place
        ) from None
    around, names = [], []
    for name, text in (("<head>", head), ("<tail>", tail)):
        encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        if encoding.ids:
            around.append({"id": name, "ids": encoding.ids, "tokens": encoding.tokens})
        names.append(name if encoding.ids else "")
    single = " ".join([names[0], "$A", names[1]]).strip()
    processor = processors.TemplateProcessing(single=single, special_tokens=around)
    framed = _with_processor(tokenizer, processor)
    found = [framed.backend_tokenizer.encode(text).ids for text in _SAMPLES]
    if found != expected:
        raise QontextError(
            "texts are messages, but the tokenizer's chat template changes them, which is not supported",
            place=place,
            remedy="To read the texts as they are, remove 'message' from modality_config in sentence_bert_config.json.",
        )
    return framed


def _with_processor(tokenizer: Any, processor: Any) -> Any:
    """The tokenizer with another post-processor, as the class that makes no parts of its own when it is loaded."""
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    backend.post_processor = processor
    kind: Any = PreTrainedTokenizerFast
    names = {f"{name}_token": getattr(tokenizer, f"{name}_token") for name in _NAMED}
    return kind(tokenizer_object=backend, model_max_length=tokenizer.model_max_length, **names)


def prompt_length(tokenizer: Any, prompt: str) -> int:
    """The number of a prompt's tokens."""
    ids = tokenizer.backend_tokenizer.encode(prompt.strip(), add_special_tokens=False).ids
    return len(ids)


def usable_tokenizer(name: str, predicts: str) -> Any:
    """The tokenizer of a model, or of a folder or file of its own, with what an encoder with this prediction needs."""
    path = Path(name).expanduser()
    tokenizer = load_tokenizer(path if path.exists() else locate(name).transformer)
    check_tokenizer(tokenizer, name, is_masked=predicts == "masked")
    return tokenizer


def check_tokenizer(tokenizer: Any, place: str | Path, *, is_masked: bool = True) -> None:
    """Refuse a tokenizer without the special tokens that masking and pooling need. Without a padding token, a decoder's end
    token is used as one."""
    if not is_masked:
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        if tokenizer.pad_token is None:
            raise QontextError(
                "the tokenizer has neither a padding nor an end token",
                place=place,
                remedy="Add it to tokenizer_config.json.",
            )
        return
    begin = tokenizer.cls_token or tokenizer.bos_token
    end = tokenizer.sep_token or tokenizer.eos_token
    special = {"pad": tokenizer.pad_token, "cls": begin, "sep": end, "mask": tokenizer.mask_token}
    if missing := [name for name, token in special.items() if token is None]:
        raise QontextError(
            f"the tokenizer has no {', '.join(missing)} token",
            place=place,
            remedy="Add it to tokenizer_config.json, or train a tokenizer: qontext train-tokenizer",
        )
    before, after = ([tokenizer.convert_ids_to_tokens(id) for id in ids] for ids in frame_of(tokenizer))
    is_ended = after[-1:] == [end] or not (after or tokenizer.sep_token)
    if before[:1] != [begin] or not is_ended:
        raise QontextError(
            f"the tokenizer does not put {begin} before and {end} after a text",
            place=place,
            remedy="Add a post-processor to its tokenizer.json that inserts them.",
        )


def check_fit(tokenizer: Any, config: Any, reserved_positions: int, place: str | Path) -> None:
    """Refuse a tokenizer whose ids the encoder cannot embed or would misread."""
    check_vocabulary(tokenizer, config.get_text_config().vocab_size, place)
    padding, expected = tokenizer.pad_token_id, reserved_positions - 1
    if reserved_positions and padding != expected:
        raise _misfit(f"its padding id is {padding}, the encoder expects {expected}", place)


def check_vocabulary(tokenizer: Any, rows: int, place: str | Path) -> None:
    """Refuse a tokenizer with more ids than the encoder has embeddings."""
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest < 0:
        raise _misfit("it has no tokens", place)
    if highest >= rows:
        raise _misfit(f"its token ids go up to {highest:,}, the encoder's up to {rows - 1:,}", place)


def _misfit(what: str, place: str | Path) -> QontextError:
    return QontextError(
        f"the tokenizer does not fit the encoder: {what}",
        place=place,
        remedy="Use the tokenizer that came with the encoder.",
    )


def save_tokenizer(tokenizer: Any, directory: Path, max_length: int) -> None:
    """Write the tokenizer's files, without its origin and last use."""
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
        parsed = Tokenizer.from_str(require_regular(path).read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exceptions
        raise_if_out_of_memory(error)
        raise QontextError(f"not a tokenizer.json: {first_line(error)}", place=path) from None
    vocabulary = parsed.get_vocab(with_added_tokens=True)
    special = {
        name: token for name, tokens in _SPECIAL.items() for token in reversed(tokens) if token in vocabulary
    }
    kind: Any = transformers.PreTrainedTokenizerFast
    return kind(tokenizer_object=parsed, **special)


class Titles(NamedTuple):
    """A rule for one tokenizer; `between` stands between title and text, None leaves out the title."""

    rule: TitleRule
    between: str | None

    @classmethod
    def of(cls, rule: TitleRule, tokenizer: Any, place: str | Path) -> Titles:
        if rule != "sep":
            return cls(rule, " " if rule == "prepend" else None)
        token = tokenizer.sep_token
        encoding = tokenizer.backend_tokenizer.encode(token or "", add_special_tokens=False)
        # tokenizer.json may ask for padding, as that of all-MiniLM-L6-v2 does.
        ids = [id for id, is_text in zip(encoding.ids, encoding.attention_mask) if is_text]
        if ids != [tokenizer.sep_token_id]:
            raise QontextError(
                "the tokenizer has no separator token to put between title and text",
                place=place,
                remedy="Use --title prepend.",
            )
        return cls(rule, token)

    def example(self) -> str:
        """A passage in the code of a model card."""
        return json.dumps("a passage" if self.between is None else f"a title{self.between}and its passage")


def settle_title(
    chosen: TitleRule | None, recorded: TitleRule | None, model: str, *, says: bool
) -> TitleRule:
    """The rule to use: the chosen one, else that of the model, else `prepend`. Warns if the first two differ."""
    if says and chosen and recorded and chosen != recorded:
        log.warn(
            f"{model} was trained with --title {recorded}, and now reads passages with --title {chosen}."
        )
    return chosen or recorded or "prepend"
