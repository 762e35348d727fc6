"""`qontext encode`: passages (or queries) → vectors.

Texts are encoded in blocks of 16,384, one part each. A part only depends on its own texts, so a killed run
resumes after its last part, and several processes or machines can share the parts without changing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from qontext.data.passage import TitleRule
from qontext.frame.artifacts import Workdir
from qontext.frame.config import ComputeConfig, Input, Machine
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.data.passage import Passage
    from qontext.models.folder import TextKind
    from qontext.models.packed import Packed

BLOCK = 16_384


class EncodeConfig(PartsConfig, ComputeConfig):
    texts: Annotated[str, Input(positional=True)]
    """Passages: output of `split`, a BEIR folder or corpus file, Parquet, or id<tab>text. With --kind query,
    queries: a BEIR folder or queries file, or id<tab>text."""

    encoder: Annotated[str, Input()]
    """Retriever: a directory written by Qontext, sentence-transformers or transformers, or a Hub name. Its
    pooling, normalization, prompts and length limit apply."""

    kind: Literal["passage", "query"] = "passage"
    """Type of the texts; selects the encoder's prompt."""

    max_length: int | None = Field(None, ge=3, le=100_000)
    """Maximum length of a text in tokens; longer texts are truncated. Default: the encoder's limit."""

    pooling: Literal["cls", "mean", "max", "lasttoken"] | None = None
    """Pooling of tokens to a vector. Default: from the encoder's folder, else CLS."""

    window: int | None = Field(None, ge=16, le=100_000)
    """Cut each passage into windows of at most this many tokens, at ends of sentences, and store a vector for each: a
    search compares the query with a passage's best window. Default: one vector for each passage."""

    tokens: bool = False
    """Beside the vectors, and from the same forward pass, store the signs of the vectors of all tokens, a bit for each
    dimension: 'qontext rerank --tokens' compares the best passages of a search with the query token by token. The encoder
    needs no training for it."""

    dimensions: int | None = Field(None, ge=1)
    """Keep only the first dimensions of the vectors: smaller, for an encoder trained with 'finetune --dimensions'.
    Queries are cut alike in search. Default: all."""

    title: TitleRule | None = None
    """The title of a passage: prepend it to the text, put it before the tokenizer's separator and the text (sep), or leave
    it out. Default: as the encoder was trained, else prepend."""

    query_prompt: str | None = None
    """Text before each query, such as "query: ", or the name of one of the encoder's prompts. With passages, it is
    recorded for those who search them. Default: as the encoder's folder says, else nothing."""

    passage_prompt: str | None = None
    """Text before each passage. Default: as the encoder's folder says, else nothing."""

    storage: Literal["fp16", "fp32"] = "fp32"
    """Number format on disk; fp16 halves the size and changes scores in the fourth digit."""

    reuse: Annotated[str | None, Machine()] = None
    """Earlier vectors: those of unchanged texts are reused, if encoder and settings are the same."""

    batch_tokens: Annotated[int | None, Machine()] = Field(None, ge=1)
    """Tokens per batch. Default: chosen for the device."""

    @property
    def prompts(self) -> dict[TextKind, str | None]:
        """The prompts that are set."""
        return {"query": self.query_prompt, "passage": self.passage_prompt}


class Encode(Parts[EncodeConfig]):
    unit = "texts"
    packed: Any = None
    """The encoder, if a text does not become one vector."""

    def plan(self) -> list[Part]:
        count = _count(self.config, check=self.work.rank == 0)
        if not count:
            raise QontextError("contains no texts to encode", place=self.config.texts)
        if self.config.window is not None and self.config.kind == "query":
            raise QontextError(
                "--window needs --kind passage: a query has one vector", remedy="Remove --window."
            )
        if self.config.tokens and self.config.kind == "query":
            raise QontextError(
                "--tokens needs --kind passage", remedy="Remove --tokens; 'rerank' encodes queries."
            )
        return slices(count, BLOCK, _name)

    def open(self) -> None:
        import numpy as np

        from qontext.models.folder import locate
        from qontext.models.precision import own_device, resolve_device, settle_precision
        from qontext.models.retriever import Retriever
        from qontext.models.tokenizer import settle_title
        from qontext.retrieve.encoded.reuse import Earlier, packed_properties, properties_of
        from qontext.retrieve.encoded.windows import WindowEncoder

        config = self.config
        device = own_device(config.device)
        self.dtype: np.dtype[Any] = np.dtype("float16" if config.storage == "fp16" else "float32")
        self.rows = _Queries(config.texts) if config.kind == "query" else _Passages(config.texts)
        settings: dict[str, Any] = {
            "device": device,
            "precision": settle_precision(self.work, config.precision, resolve_device(device)),
            "max_length": config.max_length,
            "batch_tokens": config.batch_tokens,
            "title": config.title,
        }
        layout = locate(config.encoder).layout
        self.prompts = layout.given(config.prompts)
        settle_title(config.title, layout.title, config.encoder, says=self.work.rank == 0)
        if layout.module is not None:
            _check_representation(config, layout.representation, layout.representation_class().stored)
        settings |= {
            "prompts": config.prompts,
            "pooling": config.pooling,
            "dimensions": config.dimensions,
            "packed": True,
        }
        self.retriever = Retriever(config.encoder, **settings).of(config.kind)
        self.between = self.retriever.titles.between
        if self.retriever.is_packed:
            self.packed = self.retriever
            self.properties = packed_properties(self.packed, config.storage)
            self.earlier = Earlier(None, config.kind, self.properties)
            return
        if config.window is not None:
            self.packed = WindowEncoder(self.retriever, config.window)
        settings = {"storage": config.storage, "window": config.window, "tokens": config.tokens}
        settings["kind"] = config.kind
        self.properties = properties_of(self.retriever, **settings)
        self.earlier = Earlier(config.reuse, config.kind, self.properties)

    def read(self, part: Part) -> _Block:
        from qontext.retrieve.encoded.reuse import text_hashes, title_lengths

        rows = self.rows.read(part.first, part.last)
        hashes = text_hashes([text.joined(self.between) for text in rows])
        titles = None if self.config.window is None else title_lengths(rows, self.between)
        known, vectors = self.earlier.rows(hashes, titles)
        new = [text for text, there in zip(rows, known) if not there]
        encoder: Any = self.retriever if self.packed is None else self.packed
        whole = new if self.config.window is not None else [text.joined(self.between) for text in new]
        tokens = encoder.tokenize(whole, self.config.kind)
        bits = self.earlier.bits_of(hashes[known])
        return _Block([text.id for text in rows], hashes, titles, known, vectors, bits, tokens)

    def make(self, part: Part, content: _Block) -> dict[str, int]:
        import numpy as np

        from qontext.retrieve.encoded.packed import write_bits

        self.advance(0, skipped=int(content.known.sum()))
        encoded, bits = self._encoded(content.tokens)
        if bits is not None:
            write_bits(self.work, part.number, _merged(bits, content.bits, content.known))
        if self.packed is not None:
            return self._make_packed(part, content, encoded)
        vectors = np.empty((len(content.ids), self.retriever.dimension), self.dtype)
        vectors[~content.known] = encoded.astype(self.dtype)
        if content.known.any():
            vectors[content.known] = content.vectors.astype(self.dtype)
        _write(self.work, part.number, content.ids, content.hashes, vectors, self.config.texts)
        return {"encoded": len(content.tokens), "reused": int(content.known.sum())}

    def _encoded(self, tokens: list[Any]) -> tuple[Any, Packed | None]:
        """The representations of tokenized texts and, with --tokens, the bits of their tokens."""
        from qontext.retrieve.encoded.token_bits import bits_of

        encoder: Any = self.retriever if self.packed is None else self.packed
        if not self.config.tokens:
            return encoder.encode_tokens(tokens, self.config.kind, advance=self.advance), None
        both: tuple[Any, Packed] = encoder.encode_with_tokens(tokens, bits_of, advance=self.advance)
        return both

    def _entries(self, outcome: Outcome) -> dict[str, float]:
        """The lengths of packed representations and of texts in tokens."""
        from qontext.frame.files import read_array
        from qontext.retrieve.encoded.packed import BITS

        facts, texts = outcome.facts or {}, outcome.parts[-1].last
        entries = {}
        if "representation" in facts:
            entries["entries_per_text"] = [part.name for part in outcome.parts]
        if "token_bytes" in facts:
            entries["tokens_per_text"] = [f"{BITS}-{part.number:05d}.npy" for part in outcome.parts]
        return {
            name: round(
                sum(len(read_array(self.work.path / file, "fu", shape=None)) for file in files) / texts, 1
            )
            for name, files in entries.items()
        }

    def _make_packed(self, part: Part, content: _Block, texts: Packed) -> dict[str, int]:
        from qontext.retrieve.encoded.packed import write_part

        reused = int(content.known.sum())
        texts = _merged(texts, content.vectors, content.known)
        _check_finite(texts.values.astype(self.dtype), self.config.texts)
        _write_ids(self.work, part.number, content.ids, content.hashes, content.titles)
        write_part(self.work, part.number, texts, self.packed.dimension, self.dtype)
        return {"encoded": len(content.tokens), "reused": reused}

    def facts(self) -> dict[str, Any]:
        return {**self.properties, **({"prompts": self.prompts} if self.prompts else {})}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.retrieve.encoded.vectors import write_numbers

        write_numbers(self.work, [_ids_name(part.number) for part in outcome.parts], self.config.texts)
        encoded = outcome.counts["encoded"]
        return {
            "texts": outcome.parts[-1].last,
            **(outcome.facts or {}),
            **self._entries(outcome),
            "encoded_now": encoded,
            "reused": outcome.counts["reused"],
            "texts_per_second": round(encoded / outcome.seconds, 1) if encoded else None,
        }


class _Block(NamedTuple):
    """The texts of a part: ids [N], hashes [N], lengths of titles [N] with windows, which are known [N], the vectors and
    bits of these, the tokens of the others."""

    ids: list[str]
    hashes: Any
    titles: Any
    known: Any
    vectors: Any
    bits: Any
    tokens: Any


def _merged(new: Packed, known: Packed | None, is_known: Any) -> Packed:
    """The rows of both, in the order of the texts."""
    import numpy as np

    from qontext.models.packed import Packed

    if not is_known.any():
        return new
    assert known is not None
    order = np.argsort(np.argsort(is_known, kind="stable"), kind="stable")
    return Packed.join([new, known] if len(new) else [known]).take(order)


class _Passages:
    def __init__(self, source: str) -> None:
        from qontext.data.load import PassageRows

        self.rows = PassageRows(source)

    def read(self, first: int, last: int) -> list[Passage]:
        return self.rows.read(first, last)


class _Queries:
    def __init__(self, source: str) -> None:
        from qontext.data.collection import read_queries
        from qontext.data.passage import Passage

        self.rows = [Passage(id, "", text, id) for id, text in read_queries(source).items()]

    def read(self, first: int, last: int) -> list[Passage]:
        return self.rows[first:last]


def _count(config: EncodeConfig, *, check: bool) -> int:
    """The number of texts. With `check`, duplicate ids are refused first."""
    from qontext.data.collection import read_queries
    from qontext.data.load import PassageRows, refuse_repeated_ids

    if config.kind == "query":
        return len(read_queries(config.texts))
    return refuse_repeated_ids(config.texts) if check else PassageRows(config.texts).count()


def _check_representation(config: EncodeConfig, representation: str, stored: str) -> None:
    """Refuse what is not for a representation with a module of its own."""
    for name in (
        ("pooling",) if stored == "vector" else ("pooling", "window", "tokens", "dimensions", "reuse")
    ):
        if getattr(config, name):
            raise QontextError(
                f"{name} is only for encoders of one vector, not of the representation {representation!r}",
                place=config.encoder,
                remedy=f"Remove --{name}.",
            )


def _write(work: Workdir, number: int, ids: list[str], hashes: Any, vectors: Any, source: str) -> None:
    """One block: its ids with the hashes of their texts, then its vectors."""
    import numpy as np

    _check_finite(vectors, source)
    _write_ids(work, number, ids, hashes)
    with work.write(_name(number)) as path, path.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)


def _check_finite(vectors: Any, source: str) -> None:
    import numpy as np

    if not np.isfinite(vectors).all():
        raise QontextError("a vector does not fit fp16", place=source, remedy="Use --storage fp32.")


def _write_ids(work: Workdir, number: int, ids: list[str], hashes: Any, titles: Any = None) -> None:
    import pyarrow as pa

    from qontext.data import records

    with work.write(_ids_name(number)) as path:
        records.write_table(
            path, pa.table({"id": ids, "hash": hashes} | ({} if titles is None else {"title": titles}))
        )


def _ids_name(number: int) -> str:
    return f"ids-{number:05d}.parquet"


def _name(number: int) -> str:
    return f"vectors-{number:05d}.npy"


STAGE = Stage(
    "encode",
    EncodeConfig,
    Encode,
    """
        qontext encode data --encoder retriever --out vectors
        qontext encode passages --encoder sentence-transformers/all-MiniLM-L6-v2 --storage fp16 --out vectors
        qontext encode data --encoder retriever --window 64 --out vectors
        qontext encode data --encoder retriever --window 64 --tokens --out vectors-and-tokens
        torchrun --nproc-per-node 8 -m qontext encode data --encoder retriever --out vectors
        qontext encode data --encoder retriever --shard 0/4 --out vectors
        qontext encode data --encoder retriever --on ray --out vectors
    """,
    format=2,
)
