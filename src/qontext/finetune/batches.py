"""The batch of step t, as a pure function of (seed, t): queries, their passages, micro-batches. Texts are tokenized once.
Queries and passages are packed into separate micro-batches, sorted by length, by a token budget, so that queries are not
padded to the length of passages. Every rank has the same number of rows.

Shapes: N rows of a micro-batch, T tokens after padding, M rows of the whole batch, K known positives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qontext.finetune.examples import Examples
from qontext.frame.artifacts import Workdir
from qontext.models.batching import FINE, Grid, Ints, pack_by_tokens
from qontext.models.encoder import UNLIMITED
from qontext.models.folder import TextKind
from qontext.models.representations.base import Lengths
from qontext.models.tokenizer import Titles, lowered
from qontext.training.batch import Batch, Rows, Tensors
from qontext.training.randomness import EpochSampler, hashed
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
    most: int = UNLIMITED
    """The encoder's positions, beyond which nothing is padded."""

    def of(self, are_queries: bool) -> TokenizedTexts:
        return self.queries if are_queries else self.passages

    def pad(self, numbers: Ints, grid: Grid, are_queries: bool) -> Padded:
        return Padded(*self.of(are_queries).pad(numbers, self.pad_id, grid, self.most))


@dataclass(frozen=True)
class Reader:
    """The form in which a model reads texts: the prefix of each kind, the maximum length, and the rule for titles."""

    tokenizer: Any
    prompts: Mapping[TextKind, str]
    lengths: Lengths
    titles: Titles
    lower: bool = False
    most: int = UNLIMITED
    """The encoder's positions."""

    def prepared(self, texts: Iterable[tuple[int, str]], kind: TextKind) -> Iterator[tuple[int, str]]:
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
    return Tokenized(queries, passages, reader.tokenizer.pad_token_id, reader.most)


@dataclass(frozen=True)
class LabelKeys(Tensors):
    """Keys of the rows of a batch, [M] each. `query` is the query's position in the whole batch (for a
    passage, that of its query); `known` [M, K] has the text keys of a query's positives, -1 elsewhere;
    `teacher` a passage's score, NaN if it has none.
    """

    is_query: Tensor
    query: Tensor
    is_positive: Tensor
    text: Tensor
    teacher: Tensor
    known: Tensor


@dataclass(frozen=True)
class Texts(Rows):
    """Padded texts of one kind; `mask` is True at real tokens."""

    ids: Tensor
    mask: Tensor
    are_queries: bool = False
    teacher: Padded | None = None
    """The same texts as the second teacher reads them, if there is one."""


@dataclass(frozen=True)
class RetrieverPlan:
    """Everything that determines a batch, besides the step."""

    examples: Examples
    texts: Tokenized
    sampler: EpochSampler
    per_query: int
    micro_tokens: int
    grid: Grid = FINE
    teacher: Tokenized | None = None
    """The texts for the second teacher."""

    def __call__(self, step: int) -> Batch:
        numbers, epoch, first = self.sampler(step)
        seed = self.sampler.seed
        visits = [self.examples.visit(n, epoch, self.per_query, seed) for n in numbers.tolist()]
        passages = np.concatenate([ids for ids, _ in visits])
        teacher = np.concatenate([scores for _, scores in visits])
        place = first + np.arange(len(numbers))
        query = np.concatenate([place, np.repeat(place, self.per_query)])
        number = np.concatenate([np.zeros_like(place), np.arange(len(passages)) % self.per_query + 1])
        row_keys = hashed(seed, "dropout", step, query, number)
        # K: the most known positives of a query of the step, on any rank.
        everyone, _, _ = replace(self.sampler, rank=0, world=1)(step)
        most = max(len(self.examples.known[n]) for n in everyone.tolist())
        known = np.full((len(numbers) + len(passages), most), -1)
        for row, n in zip(known, numbers.tolist()):
            row[: len(self.examples.known[n])] = self.examples.known[n]
        columns = (
            np.repeat([True, False], [len(numbers), len(passages)]),
            query,
            number == 1,
            np.concatenate([np.full(len(numbers), -1), self.texts.passages.key[passages]]),
            np.concatenate([np.full(len(numbers), np.nan, np.float32), teacher]),
            known,
        )
        keys = LabelKeys(*map(torch.from_numpy, columns))
        micro, order = [], []
        for are_queries, of in ((True, numbers), (False, passages)):
            lengths = self.texts.of(are_queries).length[of]
            for rows in pack_by_tokens(lengths, None, self.micro_tokens, self.grid):
                order.append(rows if are_queries else rows + len(numbers))
                padded = self.texts.pad(of[rows], self.grid, are_queries)
                read = self.teacher.pad(of[rows], self.grid, are_queries) if self.teacher else None
                of_rows = row_keys[order[-1]]
                micro.append(Texts(padded.ids, padded.mask, are_queries, read, row_keys=of_rows))
        return Batch(micro, len(passages) * self.sampler.world, keys[torch.from_numpy(np.concatenate(order))])
