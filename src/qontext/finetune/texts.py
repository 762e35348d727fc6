"""The queries and passages of a training as a model reads them: tokenized once, padded batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from qontext.finetune.examples import Examples
from qontext.frame.artifacts import Workdir
from qontext.models.layout import Kind
from qontext.models.packing import Grid, Ints
from qontext.models.representations.base import Lengths
from qontext.models.titles import Titles
from qontext.models.tokenizer import lowered
from qontext.training.batch import Tensors
from qontext.training.texts import TokenizedTexts, tokenize


@dataclass(frozen=True)
class Padded(Tensors):
    """Token ids [N, T]; `mask` is True at real tokens."""

    ids: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Tokenized:
    """All queries and passages, tokenized for one model."""

    queries: TokenizedTexts
    passages: TokenizedTexts
    pad_id: int

    def of(self, are_queries: bool) -> TokenizedTexts:
        return self.queries if are_queries else self.passages

    def pad(self, numbers: Ints, grid: Grid, are_queries: bool) -> Padded:
        return Padded(*self.of(are_queries).pad(numbers, self.pad_id, grid))


@dataclass(frozen=True)
class Reader:
    """How a model reads texts: what precedes each of a kind, the maximum number of tokens, and what is done with titles."""

    tokenizer: Any
    prompts: Mapping[Kind, str]
    lengths: Lengths
    titles: Titles
    lower: bool = False

    def prepared(self, texts: Iterable[tuple[int, str]], kind: Kind) -> Iterator[tuple[int, str]]:
        prompt = self.prompts.get(kind, "")
        for number, text in texts:
            yield number, lowered(prompt + text, self.tokenizer) if self.lower else prompt + text


def tokenized(
    examples: Examples, source: str, reader: Reader, cache: str, group: Any, work: Workdir
) -> Tokenized:
    """All texts as the model reads them. Passages are tokenized by rank 0 into the folder `cache`, read by all."""
    count, longest = len(examples.texts), reader.lengths
    texts = reader.prepared(enumerate(examples.texts), "query")
    queries = tokenize(texts, count, reader.tokenizer, longest.query)
    if group.is_first and not work.has(cache):
        contents = reader.prepared(examples.contents(source, reader.titles.between), "passage")
        passages = tokenize(contents, len(examples.number), reader.tokenizer, longest.passage)
        with work.write_folder(cache) as folder:
            passages.save(folder)
    group.wait()
    passages = TokenizedTexts.load(work.path / cache)
    return Tokenized(queries, passages, reader.tokenizer.pad_token_id)
