"""Reusing vectors of texts that an earlier run encoded with the same weights and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from qontext.data import records
from qontext.data.passage import Passage
from qontext.frame import artifacts
from qontext.frame.files import hash64, json_digest
from qontext.models.folder import TextKind
from qontext.models.packed import Packed
from qontext.retrieve.stored import Encoded, has_bits, open_bits, open_stored

Array: TypeAlias = np.ndarray[Any, Any]

SAME = (
    "representation",
    "window",
    "weights",
    "tokenizer",
    "attention",
    "prompt",
    "max_length",
    "pooling",
    "normalized",
    "computed_in",
    "dimension",
    "storage",
)
"""The summary entries on which two runs must agree, so that equal texts have equal vectors."""
_HASHES = pa.schema([pa.field("hash", pa.uint64(), nullable=False)])
_TITLED = _HASHES.append(pa.field("title", pa.int32(), nullable=False))


def text_hashes(texts: Sequence[str]) -> Array:
    """[N] a 64-bit hash of each text; for a hundred million texts the probability of a collision is 1 in 3,000."""
    return np.fromiter(map(hash64, texts), np.uint64, len(texts))


def title_lengths(passages: Sequence[Passage], between: str | None) -> Array:
    """[N] the characters of each passage's title, which its windows repeat; 0 where titles are left out."""
    lengths = (0 if between is None else len(passage.title) for passage in passages)
    return np.fromiter(lengths, np.int32, len(passages))


def tokenizer_hash(retriever: Any) -> str:
    """A hash of all that determines the tokens of a text, apart from their maximum number."""
    backend = retriever.tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return json_digest([backend.to_str(), retriever.layout.lower])


def weights_hash(model: Any) -> str:
    """A hash that identifies a loaded model, independent of its path."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        state.update(name.encode())
        state.update(tensor.detach().cpu().contiguous().numpy().data)
    return state.hexdigest()


class Earlier:
    """The representations of an earlier run, by the hash of the text. Empty if the settings differ."""

    def __init__(self, path: str | None, kind: str, encoding: dict[str, Any]) -> None:
        self.hashes, self.places = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self.titles: Array | None = None
        self.vectors: Encoded | None = None
        self.bits: Encoded | None = None
        if path is None or not artifacts.is_artifact(path):
            return
        artifact = artifacts.open_artifact(path, verb="encode")
        needs_bits = "token_bytes" in encoding
        if (
            artifact.config["kind"] != kind
            or any(artifact.summary.get(name) != encoding.get(name) for name in SAME)
            or (needs_bits and not has_bits(artifact))
        ):
            return
        self.vectors = open_stored(path)
        self.bits = open_bits(path) if needs_bits else None
        columns = _TITLED if "window" in encoding else _HASHES
        stored = pa.concat_tables([records.read_part(part, columns) for part in artifact.parts(".parquet")])
        self.places = np.argsort(stored["hash"].to_numpy(), kind="stable")
        self.hashes = stored["hash"].to_numpy()[self.places]
        self.titles = stored["title"].to_numpy()[self.places] if "window" in encoding else None

    def knows(self, hashes: Array, titles: Array | None = None) -> Array:
        """The mask of the texts that are known, [N] bool; of windows, with `titles` of the same lengths."""
        if self.vectors is None:
            return np.zeros(len(hashes), bool)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        is_known: Array = self.hashes[at] == hashes
        if titles is not None and self.titles is not None:
            is_known &= self.titles[at] == titles
        return is_known

    def take(self, hashes: Array) -> tuple[Array | Packed | None, Packed | None]:
        """The representations of these texts, which are known, and the bits of their tokens; None if there are none."""
        if self.vectors is None or not len(hashes):
            return None, None
        places = self.places[np.searchsorted(self.hashes, hashes)]
        return self.vectors.take(places), None if self.bits is None else self.bits.take(places)


def properties_of(
    retriever: Any,
    storage: str,
    window: int | None = None,
    *,
    tokens: bool = False,
    kind: TextKind = "passage",
) -> dict[str, Any]:
    """The settings that determine the representations of this kind of texts, and with `tokens` the bytes of each token's
    bits, for the summary and for reuse."""
    common = {
        "dimension": retriever.dimension,
        "max_length": retriever.max_length,
        "title": retriever.titles.rule,
        "computed_in": str(retriever.dtype).removeprefix("torch."),
        "weights": weights_hash(retriever.modules()),
        "storage": storage,
    }
    layout, representation = retriever.layout, retriever.representation
    if retriever.is_packed:
        return {**representation.about(), **common}
    prompt = layout.prompt(kind)
    both = getattr(retriever.config.get_text_config(), "is_causal", None) is False
    return {
        **({} if window is None else {"representation": "windows", "window": window}),
        **({"token_bytes": -(-retriever.width // 8)} if tokens else {}),
        "similarity": layout.similarity,
        "pooling": layout.pooling if representation is None else layout.representation,
        "normalized": layout.normalize,
        **common,
        "tokenizer": tokenizer_hash(retriever),
        **({"prompt": prompt} if prompt else {}),
        **({"attention": "bidirectional"} if both else {}),
    }
