"""Counting the tokens of a sentence, with an encoder's tokenizer or with a rule.

The rule (`words`) counts a word of up to 8 letters as one token, a longer one as one per 5 letters, and a
punctuation mark as one. On English Wikipedia it is within about 1 % of BERT's WordPiece. Splitting with
it is 2.5 times as fast. Use the encoder's tokenizer if spans must fit its limit exactly.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qontext.corpus.sentences import PIECE, token_count
from qontext.frame.errors import QontextError
from qontext.models import hub

WORDS = "words"
Counter = Callable[[list[str]], list[int]]


def count_words(sentences: list[str]) -> list[int]:
    """Apply the rule `words` to each sentence."""
    return [sum(map(token_count, PIECE.findall(sentence))) for sentence in sentences]


def counter(tokenizer: str) -> Counter:
    """The counting function of a tokenizer (a folder, a file, a Hub name) or of the rule `words`."""
    if tokenizer == WORDS:
        return count_words
    loaded = load_tokenizer(tokenizer)
    return lambda sentences: [len(e) for e in loaded.encode_batch_fast(sentences, add_special_tokens=False)]


def load_tokenizer(name: str) -> Any:
    """A `tokenizers.Tokenizer` without truncation or padding, from a folder, a tokenizer.json or the Hub."""
    path = Path(name).expanduser()
    file = path if path.is_file() else hub.locate(name, "tokenizer") / "tokenizer.json"
    status = file.stat() if file.is_file() else None
    return _load(file, (status.st_mtime_ns, status.st_size, status.st_ino) if status else None)


@functools.lru_cache(maxsize=4)
def _load(file: Path, version: tuple[int, ...] | None) -> Any:
    """The tokenizer in this version of the file; None: there is no file, only a vocabulary beside it."""
    from tokenizers import Tokenizer

    # There is one process per core already: threads inside each would compete for the cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if version is None:
        tokenizer = _convert(file.parent)
    else:
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise QontextError(f"not a tokenizer: {error}", place=file) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # "[MASK]" or "<pad>" in a text are words, not special tokens.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _convert(folder: Path) -> Any:
    """The fast tokenizer of a folder that has only vocabulary files, built by transformers."""
    if not any(
        (folder / name).is_file()
        for name in ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
    ):
        raise QontextError("contains no tokenizer (no tokenizer.json and no vocabulary)", place=folder)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return tokenizer.backend_tokenizer
    except Exception as error:
        raise QontextError(f"its tokenizer has no fast version: {error}", place=folder) from None
