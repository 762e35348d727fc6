"""`qontext tokens`: passages (or queries) → the token store that training reads."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext.corpus import parallel, sentences
from qontext.data.passage import TitleRule
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, Machine
from qontext.frame.errors import QontextError
from qontext.frame.files import digest_of
from qontext.frame.parts import Outcome, Part, Parts, PartsConfig, slices
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

TEXTS_PER_CHUNK, TEXTS_PER_BLOCK = 65_536, 1024
TitledTexts = list[tuple[str, str, list[int]]]


class TokensConfig(PartsConfig):
    texts: Annotated[str, Input(positional=True)]
    """Passages from 'qontext split', or queries from 'qontext generate' (a directory or a Parquet file)."""

    tokenizer: Annotated[str, Input()]
    """The encoder's tokenizer: a model folder, a tokenizer.json or a Hub name."""

    title: TitleRule = "prepend"
    """The title of a passage: prepend it to the text, put it before the tokenizer's separator and the text (sep), or leave
    it out."""

    workers: Annotated[int, Machine()] = Field(0, ge=0, le=1024)
    """Number of processes; 0 means one per core. Does not affect the result."""


class Tokenization(Parts[TokensConfig]):
    unit = "texts"

    def __init__(self, config: TokensConfig, work: Workdir) -> None:
        from qontext.data import records
        from qontext.data.load import TableRows, check_generated

        super().__init__(config, work)
        self.kind = _kind(config.texts)
        check_generated(config.texts, "passages")
        columns = ["query"] if self.kind == "queries" else ["title", "text", "sentences"]
        schema = records.QUERIES if self.kind == "queries" else records.PASSAGES
        self.rows = TableRows(config.texts, schema, columns)

    def plan(self) -> list[Part]:
        if not len(self.rows):
            raise QontextError("has no rows: there is nothing to tokenize", place=self.config.texts)
        return slices(len(self.rows), TEXTS_PER_CHUNK, lambda number: f"chunk-{number:05}.npz")

    def open(self) -> None:
        sentences.load_tokenizer(self.config.tokenizer)  # raises errors here, not in a process
        self.tokenize = functools.partial(
            _tokenize, tokenizer=self.config.tokenizer, titled=self._reads_titles, separator=self._separator()
        )

    def make(self, part: Part, content: None) -> dict[str, int]:
        from qontext.corpus import store

        starts = range(part.first, part.last, TEXTS_PER_BLOCK)
        blocks = (self._texts(start, min(start + TEXTS_PER_BLOCK, part.last)) for start in starts)
        done: list[dict[str, NDArray[Any]]] = []
        for block in parallel.ordered_map(self.tokenize, blocks, self.config.workers):
            done.append(block)
            self.advance(len(block["lengths"]))
        store.save_chunk(self.work, part.name, _join(done))
        return {}

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        from qontext.corpus import store

        tokenizer = sentences.load_tokenizer(self.config.tokenizer)
        vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
        groups, names = _groups(self.config.texts, self.kind)
        chunks = [self.work.path / part.name for part in outcome.parts]
        store.write_store(self.work, chunks, groups, names, vocabulary)
        for part in outcome.parts:
            self.work.remove(part.name)
        stored = store.load_arrays(self.work.path)
        return {
            "kind": self.kind,
            "texts": len(stored),
            "groups": len(groups) - 1,
            "tokens": len(stored.ids) + len(stored.title_ids),
            "sentences": len(stored.sentences),
            "vocabulary": vocabulary,
            "vocabulary_hash": vocabulary_hash(tokenizer),
        }

    @property
    def _reads_titles(self) -> bool:
        return self.kind == "passages" and self.config.title != "leave"

    def _separator(self) -> int | None:
        """The id of the separator after titles, if there is one."""
        if not self._reads_titles or self.config.title != "sep":
            return None
        from qontext.models.folder import locate
        from qontext.models.tokenizer import Titles, load_tokenizer

        path = Path(self.config.tokenizer).expanduser()
        tokenizer = load_tokenizer(path if path.exists() else locate(self.config.tokenizer).transformer)
        Titles.of("sep", tokenizer, self.config.tokenizer)
        return int(tokenizer.sep_token_id)

    def _texts(self, first: int, last: int) -> TitledTexts:
        """Titles and texts of these rows with their sentence starts."""
        texts: TitledTexts = []
        for batch in self.rows.read(first, last):
            rows = batch.to_pydict()
            if self.kind == "queries":
                texts += [("", query, [0]) for query in rows["query"]]
            else:
                starts = [sentences or [0] for sentences in rows["sentences"]]
                texts += zip(rows["title"], rows["text"], starts)
        return texts


def vocabulary_hash(tokenizer: Any) -> str:
    """A hash of the vocabulary of a `tokenizers.Tokenizer`."""
    words = json.dumps(sorted(tokenizer.get_vocab(with_added_tokens=True).items()))
    return digest_of(words, 8).hex()


def _tokenize(
    texts: TitledTexts, tokenizer: str, titled: bool, separator: int | None
) -> dict[str, NDArray[Any]]:
    from qontext.corpus import store

    titles, bodies = [title for title, *_ in texts] if titled else [], [(text, s) for _, text, s in texts]
    return store.tokenize(bodies, sentences.load_tokenizer(tokenizer), titles, separator)


def _join(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    import numpy as np

    shifts = np.cumsum([0, *(len(part["ids"]) for part in parts)])
    for part, shift in zip(parts, shifts):
        part["sentences"] = part["sentences"] + shift
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _kind(texts: str) -> str:
    """ "passages" or "queries", by the columns."""
    from qontext.data import records

    part = records.parquet_parts(texts)[0]
    names = records.open_parquet(part).schema_arrow.names
    if {"passage", "query"} <= set(names):
        return "queries"
    if {"id", "doc", "text"} <= set(names):
        return "passages"
    raise QontextError(f"contains neither passages nor queries (its columns: {', '.join(names)})", place=part)


def _groups(texts: str, kind: str) -> tuple[NDArray[np.int64], pa.Array]:
    """The start of each document's passages (each passage's queries), and the names of the store."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from qontext.data import records

    schema = records.QUERIES if kind == "queries" else records.PASSAGES
    column = "passage" if kind == "queries" else "doc"
    name = "passage" if kind == "queries" else "id"
    cuts, names, count, last = [np.zeros(0, np.int64)], [], 0, None
    for batch in records.read_table(texts, schema, columns=sorted({column, name})):
        keys = batch.column(column).to_numpy(zero_copy_only=False)
        changed = np.concatenate([[last is None or keys[0] != last], keys[1:] != keys[:-1]])
        starts = np.flatnonzero(changed)
        cuts.append(starts + count)
        ids = batch.column(name)
        names.append(ids.take(pa.array(starts)) if kind == "queries" else ids)
        count, last = count + len(batch), keys[-1]
    joined = pa.chunked_array(names, pa.string()).combine_chunks()
    if kind == "queries" and pc.count_distinct(joined).as_py() < len(joined):
        raise QontextError(
            "the queries of a passage must be consecutive",
            place=texts,
            remedy="Sort by the column 'passage'.",
        )
    return np.concatenate([*cuts, [count]]), joined


STAGE = Stage(
    verb="tokens",
    config=TokensConfig,
    run=Tokenization,
    examples="""
        qontext tokens passages --tokenizer bert-base-uncased --out tokens
        qontext tokens queries --tokenizer tokenizer --out query-tokens
    """,
    format=3,
)
