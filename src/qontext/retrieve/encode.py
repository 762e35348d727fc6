"""`qontext encode`: passages (or queries) → vectors.

Texts are encoded in blocks of 16,384, one part each. A part only depends on its own texts, so a killed run
resumes after its last part, and several processes or machines can share the parts without changing them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from qontext.data.passage import TitleRule
from qontext.frame.config import ComputeConfig, Input, Machine
from qontext.frame.errors import QontextError
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.corpus.sentences import Counter
    from qontext.data.passage import Passage
    from qontext.models.folder import TextKind
    from qontext.models.packed import Packed
    from qontext.models.retriever import Retriever

BLOCK = 16_384
LEAST = 1 / 3
"""The share of a window below which the last one is added to the window before it."""


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

    def plan(self) -> list[Part]:
        config = self.config
        count = _count(config, check=self.work.rank == 0)
        if not count:
            raise QontextError("contains no texts to encode", place=config.texts)
        if config.kind == "query" and (config.window is not None or config.tokens):
            raise QontextError("--window and --tokens need --kind passage: a query has one vector")
        return slices(count, BLOCK, _name)

    def open(self) -> None:
        import numpy as np

        from qontext.data.load import PassageRows
        from qontext.models.folder import locate
        from qontext.models.precision import own_device, resolve_device, settle_precision
        from qontext.models.retriever import Retriever
        from qontext.models.tokenizer import settle_title
        from qontext.retrieve.reuse import Earlier, properties_of

        config = self.config
        device = own_device(config.device)
        self.dtype: np.dtype[Any] = np.dtype("float16" if config.storage == "fp16" else "float32")
        self.rows = _Queries(config.texts) if config.kind == "query" else PassageRows(config.texts)
        layout = locate(config.encoder).layout
        self.prompts = layout.given(config.prompts)
        settle_title(config.title, layout.title, config.encoder, says=self.work.rank == 0)
        self.retriever = Retriever(
            config.encoder,
            device=device,
            precision=settle_precision(self.work, config.precision, resolve_device(device)),
            max_length=config.max_length,
            batch_tokens=config.batch_tokens,
            title=config.title,
            prompts=config.prompts,
            pooling=config.pooling,
            dimensions=config.dimensions,
            packed=True,
        ).of(config.kind)
        self.between = self.retriever.titles.between
        self.encoder: Any = self.retriever
        if config.window is not None:
            self.encoder = WindowEncoder(self.retriever, config.window)
        if self.retriever.is_packed and (config.window or config.tokens or config.dimensions):
            raise QontextError(
                "--window, --tokens and --dimensions are only for encoders of one vector",
                place=config.encoder,
            )
        form: dict[str, Any] = {"window": config.window, "tokens": config.tokens, "kind": config.kind}
        self.properties = properties_of(self.retriever, config.storage, **form)
        self.earlier = Earlier(
            None if self.retriever.is_packed else config.reuse, config.kind, self.properties
        )

    def read(self, part: Part) -> _Block:
        from qontext.retrieve.reuse import text_hashes, title_lengths

        rows = self.rows.read(part.first, part.last)
        columns = {"hash": text_hashes([text.joined(self.between) for text in rows])}
        if self.config.window is not None:
            columns["title"] = title_lengths(rows, self.between)
        known = self.earlier.knows(columns["hash"], columns.get("title"))
        new = [text for text, is_known in zip(rows, known) if not is_known]
        whole = new if self.config.window is not None else [text.joined(self.between) for text in new]
        tokens = self.encoder.tokenize(whole, self.config.kind)
        return _Block([text.id for text in rows], columns, known, tokens)

    def make(self, part: Part, content: _Block) -> dict[str, int]:
        from qontext.retrieve.stored import write_bits, write_part

        reused = int(content.known.sum())
        self.advance(0, skipped=reused)
        texts, bits = self._encoded(content.tokens)
        earlier, earlier_bits = self.earlier.take(content.columns["hash"][content.known])
        if bits is not None:
            write_bits(self.work, part.number, _merged(bits, earlier_bits, content.known))
        texts = _merged(texts, earlier, content.known)
        form: Any = content.ids, texts, self.encoder.dimension, self.dtype
        write_part(self.work, part.number, *form, **content.columns)
        return {"encoded": len(content.tokens), "reused": reused}

    def _encoded(self, tokens: list[Any]) -> tuple[Any, Any]:
        """The representations of tokenized texts and, with --tokens, the bits of their tokens."""
        from qontext.retrieve.scorers import bits_of

        if not self.config.tokens:
            return self.encoder.encode_tokens(tokens, self.config.kind, advance=self.advance), None
        both: tuple[Any, Any] = self.encoder.encode_with_tokens(tokens, bits_of, advance=self.advance)
        return both

    def _entries(self, outcome: Outcome) -> dict[str, float]:
        """The lengths of packed representations and of texts in tokens."""
        from qontext.frame.files import read_array
        from qontext.retrieve.stored import BITS, VECTORS

        facts, texts = outcome.facts or {}, outcome.parts[-1].last
        measured = (("entries_per_text", VECTORS, "representation"), ("tokens_per_text", BITS, "token_bytes"))
        return {
            name: round(
                sum(
                    len(read_array(self.work.path / f"{file}-{part.number:05d}.npy", "fu", shape=None))
                    for part in outcome.parts
                )
                / texts,
                1,
            )
            for name, file, fact in measured
            if fact in facts
        }

    def facts(self) -> dict[str, Any]:
        return {**self.properties, **({"prompts": self.prompts} if self.prompts else {})}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.retrieve.stored import ids_name, write_numbers

        write_numbers(self.work, [ids_name(part.number) for part in outcome.parts], self.config.texts)
        encoded = outcome.counts["encoded"]
        return {
            "texts": outcome.parts[-1].last,
            **(outcome.facts or {}),
            **self._entries(outcome),
            "encoded_now": encoded,
            "reused": outcome.counts["reused"],
            "texts_per_second": round(encoded / outcome.seconds, 1) if encoded else None,
        }


def windows_of(text: str, most: int, count: Counter | None = None) -> list[str]:
    """The text in runs of sentences of at most `most` tokens with the special ones; the last run may be a third longer."""
    from qontext.corpus.sentences import SPECIAL_TOKENS, by_rules, count_words, group, pieces, shortened

    starts = shortened(text, by_rules(text, "en"), most - SPECIAL_TOKENS)
    sentences = pieces(text, starts)
    spans = group((count or count_words)(sentences), most)
    bounds = [span.first for span in spans[1:]]
    if bounds and spans[-1].tokens < LEAST * most:
        bounds.pop()
    runs = zip([0, *bounds], [*bounds, len(sentences)], strict=True)
    windows = ["".join(sentences[first:last]).strip() for first, last in runs]
    return [window for window in windows if window] or [text]


class WindowEncoder:
    """A retriever of one vector that encodes passages by their windows of at most `size` tokens.

        s(q, p) = max_{w in windows(p)} <e(q), e(title(p) + w)>

    The vector of a long text is an average of what its sentences say; a question asks for one of these things.
    """

    def __init__(self, retriever: Retriever, size: int) -> None:
        from qontext.corpus.sentences import counter

        if size > retriever.max_length:
            raise QontextError(
                f"a window of {size:,} tokens is longer than the {retriever.max_length:,} that the encoder reads",
                place=retriever.layout.transformer,
                remedy=f"Set --window to {retriever.max_length} or less.",
            )
        self.retriever, self.size = retriever, size
        self.dimension = retriever.dimension
        self.count = counter(str(retriever.layout.transformer))

    def tokenize(self, passages: Sequence[Passage], kind: TextKind) -> list[list[Any]]:
        """The token ids of each passage's windows."""
        cut = [windows_of(passage.text, self.size, self.count) for passage in passages]
        texts = [
            passage._replace(text=window).joined(self.retriever.titles.between)
            for passage, windows in zip(passages, cut)
            for window in windows
        ]
        tokens = iter(self.retriever.tokenize(texts, kind))
        return [[next(tokens) for _ in windows] for windows in cut]

    def encode_tokens(
        self, tokens: Sequence[list[Any]], kind: TextKind, *, advance: Callable[[float], None] | None = None
    ) -> Packed:
        """The vectors of each passage's windows."""
        from qontext.models.packed import Packed

        starts, windows, advanced = self._flat(tokens, advance)
        return Packed(starts, self.retriever.encode_tokens(windows, kind, advance=advanced))

    def encode_with_tokens(
        self,
        tokens: Sequence[list[Any]],
        form: Callable[[Any], Any],
        *,
        advance: Callable[[float], None] | None = None,
    ) -> tuple[Packed, Packed]:
        """The vectors of each passage's windows, and those of the tokens of all its windows."""
        from qontext.models.packed import Packed

        starts, windows, advanced = self._flat(tokens, advance)
        vectors, words = self.retriever.encode_with_tokens(windows, form, advance=advanced)
        return Packed(starts, vectors), Packed(words.starts[starts], words.values)

    def _flat(self, tokens: Sequence[list[Any]], advance: Any) -> tuple[Any, list[Any], Any]:
        """The starts of the passages' windows, all windows, and `advance` by windows, of each of which a passage advances
        by its share."""
        import numpy as np

        starts = np.cumsum([0, *map(len, tokens)])
        share = len(tokens) / max(1, int(starts[-1]))
        windows = [window for own in tokens for window in own]
        return starts, windows, advance and (lambda count: advance(count * share))


class _Block(NamedTuple):
    """The texts of a part: ids [N], columns [N] beside them, which are known [N], the tokens of the others."""

    ids: list[str]
    columns: dict[str, Any]
    known: Any
    tokens: Any


def _merged(new: Any, known: Any, is_known: Any) -> Any:
    """The rows of both, in the order of the texts."""
    import numpy as np

    from qontext.retrieve.stored import joined, rows_of

    if known is None:
        return new
    order = np.argsort(np.argsort(is_known, kind="stable"), kind="stable")
    return rows_of(joined([new, known] if len(new) else [known]), order)


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
