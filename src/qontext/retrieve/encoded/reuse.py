"""Reusing vectors of texts that an earlier run encoded with the same weights and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from qontext.data import records
from qontext.data.passage import Passage
from qontext.frame import artifacts
from qontext.frame.files import hash64, json_digest
from qontext.models.folder import TextKind
from qontext.models.packed import Packed
from qontext.retrieve.encoded.packed import has_bits, open_bits, open_packed
from qontext.retrieve.encoded.vectors import Vectors, open_vectors, representation_of

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


def text_hashes(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """[N] a 64-bit hash of each text; for a hundred million texts the probability of a collision is 1 in 3,000."""
    return np.fromiter(map(hash64, texts), np.uint64, len(texts))


def title_lengths(passages: Sequence[Passage], between: str | None) -> np.ndarray[Any, Any]:
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
    """The vectors of an earlier run, by the hash of the text. Empty if the settings differ."""

    def __init__(self, path: str | None, kind: str, encoding: dict[str, Any]) -> None:
        self.hashes, self.places = np.zeros(0, np.uint64), np.zeros((0, 2), np.int64)
        self.titles: np.ndarray[Any, Any] | None = None
        self.vectors: Any = None
        self.bits: Sequence[Any] = []
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
        self.bits = open_bits(path).parts if needs_bits else []
        is_packed = representation_of(artifact) != "vector"
        self.vectors = open_packed(path) if is_packed else open_vectors(path)
        columns = _TITLED if "window" in encoding else _HASHES
        tables = [records.read_part(part, columns) for part in artifact.parts(".parquet")]
        stored = pa.concat_tables(tables)
        places = np.concatenate(
            [np.stack([np.full(len(t), n), np.arange(len(t))], 1) for n, t in enumerate(tables)]
        )
        order = np.argsort(stored["hash"].to_numpy(), kind="stable")
        self.hashes, self.places = stored["hash"].to_numpy()[order], places[order]
        self.titles = stored["title"].to_numpy()[order] if "window" in encoding else None

    def knows(
        self, hashes: np.ndarray[Any, Any], titles: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """The mask of the texts that are known, [N] bool; of windows, with `titles` of the same lengths."""
        if self.vectors is None:
            return np.zeros(len(hashes), bool)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        is_known: np.ndarray[Any, Any] = self.hashes[at] == hashes
        if titles is not None and self.titles is not None:
            is_known &= self.titles[at] == titles
        return is_known

    def bits_of(self, hashes: np.ndarray[Any, Any]) -> Packed | None:
        """The bits of the tokens of these texts, which are known; None if there are none."""
        if not self.bits:
            return None
        places = self.places[np.searchsorted(self.hashes, hashes)].tolist()
        return Packed.join([self.bits[part][row : row + 1] for part, row in places]) if places else None

    def rows(
        self, hashes: np.ndarray[Any, Any], titles: np.ndarray[Any, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], Any]:
        """A mask [N] of the texts with cached representations, and these representations."""
        is_known = self.knows(hashes, titles)
        if self.vectors is None:
            return is_known, np.zeros((0, 0), np.float32)
        at = np.searchsorted(self.hashes, hashes)
        places = self.places[at[is_known]].tolist()
        if not isinstance(self.vectors, Vectors) and places:
            return is_known, Packed.join([self.vectors.parts[part][row : row + 1] for part, row in places])
        vectors = [self.vectors.parts[part][row] for part, row in places]
        return is_known, np.stack(vectors).astype(np.float32) if vectors else np.zeros((0, 0), np.float32)


def properties_of(
    retriever: Any,
    storage: str,
    window: int | None = None,
    *,
    tokens: bool = False,
    kind: TextKind = "passage",
) -> dict[str, Any]:
    """The settings that determine vectors of this kind of texts, and with `tokens` the bytes of each token's bits, for the
    summary and for reuse."""
    return {
        **({} if window is None else {"representation": "windows", "window": window}),
        **({"token_bytes": -(-retriever.width // 8)} if tokens else {}),
        "dimension": retriever.dimension,
        "similarity": retriever.layout.similarity,
        "pooling": retriever.layout.pooling
        if retriever.representation is None
        else retriever.layout.representation,
        "normalized": retriever.layout.normalize,
        "max_length": retriever.max_length,
        "title": retriever.titles.rule,
        "computed_in": str(retriever.dtype).removeprefix("torch."),
        "weights": weights_hash(retriever.modules()),
        "tokenizer": tokenizer_hash(retriever),
        **_read_with(retriever, kind),
        "storage": storage,
    }


def _read_with(retriever: Any, kind: TextKind) -> dict[str, str]:
    """The prompt of these texts, if there is one, and the attention of a decoder that was made bidirectional."""
    prompt = retriever.layout.prompt(kind)
    both = getattr(retriever.config.get_text_config(), "is_causal", None) is False
    return {**({"prompt": prompt} if prompt else {}), **({"attention": "bidirectional"} if both else {})}


def packed_properties(retriever: Any, storage: str) -> dict[str, Any]:
    """The settings that determine representations other than one vector, for the summary."""
    return {
        **retriever.representation.about(),
        "dimension": retriever.dimension,
        "max_length": retriever.max_length,
        "title": retriever.titles.rule,
        "computed_in": str(retriever.dtype).removeprefix("torch."),
        "weights": weights_hash(retriever.modules()),
        "storage": storage,
    }
