"""The batch of step t, as a pure function of (seed, t): anchors → rows → micro-batches of padded, masked texts.

A *row* is what the encoder reads, and for methods with a decoder what the decoder reads. A method says which
rows an anchor and its context make (`Layout`); this module knows nothing else of it. Rows are sorted by length
and cut into micro-batches by a budget of tokens, so that a query is never padded to a passage's length.

Shapes: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from qontext.contexts import Context
from qontext.contexts.base import Ints, Slices, Sources
from qontext.engine.randomness import U64, below, hashed, permuted
from qontext.engine.rectangles import cut_by_budget
from qontext.pretrain.masking import Vocabulary
from qontext.pretrain.texts import FlatTexts, Prepared, Text


@dataclass(frozen=True)
class Layout:
    """Which rows a method reads, and what it predicts in them.

    `encode`: the anchor alone, or both members of the pair, each a row. `decode`: nothing, the encoded text
    itself, or the pair's other member. What the decoder predicts (`target`): its masked tokens, at their places; the
    next token, at every place, with nothing masked; or every token at its place, with nothing masked.
    `average`: a batch's loss is the mean over predicted tokens, or over rows of the mean over the row's tokens.
    """

    encode: Literal["anchor", "both"]
    decode: Literal["nothing", "self", "other"]
    encoder_rate: float
    decoder_rate: float = 0.0
    target: Literal["masked", "next", "every"] = "masked"
    average: Literal["tokens", "spans"] = "tokens"

    @property
    def needs_context(self) -> bool:
        return self.encode == "both" or self.decode == "other"


@dataclass(frozen=True)
class MicroBatch:
    """Some rows: the encoder's texts, and the decoder's if the method has one.

    `pair` [N] is the same for the two rows of a pair; `text` [N] hashes the text before masking and `document` [N]
    names its document, for telling false negatives. `seed` fixes the dropout of this micro-batch.
    """

    encoder: Text
    decoder: Text | None
    pair: Tensor
    text: Tensor
    document: Tensor
    seed: int

    def to(self, device: torch.device) -> MicroBatch:
        decoder = self.decoder.to(device) if self.decoder else None
        pair, text, document = (
            t.to(device, non_blocking=True) for t in (self.pair, self.text, self.document)
        )
        return MicroBatch(self.encoder.to(device), decoder, pair, text, document, self.seed)

    def scaled(self, encoder: Tensor, decoder: Tensor) -> MicroBatch:
        """With the predictions' weights times a factor each: a rank's share of the whole batch."""
        mine = replace(self.encoder, weights=self.encoder.weights * encoder)
        other = self.decoder and replace(self.decoder, weights=self.decoder.weights * decoder)
        return replace(self, encoder=mine, decoder=other)


@dataclass(frozen=True)
class Batch:
    """A rank's micro-batches of one step. `weights` are what its predictions weigh before normalisation (of the
    encoder's and the decoder's): across ranks, a rank's share of the loss is its part of their sum."""

    micro: list[MicroBatch]
    weights: tuple[float, float]
    passages: int


@dataclass(frozen=True)
class BatchPlan:
    """Everything a batch is a function of, besides the step.

    An epoch goes through the passages `anchors`; or with `documents`, which says where each document's stretch of
    `anchors` begins [documents + 1], through the documents, and draws one of the document's anchors at each visit.
    What is shuffled is runs of `neighbours` of them: passages of one document are each other's hard negatives.
    """

    sources: Sources
    layout: Layout
    context: Context | None
    words: Vocabulary
    anchors: Ints
    documents: Ints | None
    batch_size: int
    micro_tokens: int
    seed: int
    rank: int = 0
    world: int = 1
    neighbours: int = 1

    @property
    def choices(self) -> int:
        """How many passages or documents there are to go through."""
        return len(self.anchors if self.documents is None else self.documents[1:])

    @property
    def epoch_size(self) -> int:
        """How many of them an epoch goes through: what does not fill a run is left out, each time at other ends."""
        return self.choices - self.choices % self.neighbours

    @property
    def steps_per_epoch(self) -> int:
        return self.epoch_size // self.batch_size

    def __call__(self, step: int) -> Batch:
        anchors, visit, first = self._anchors(step)
        members = [Slices.of_passages(self.sources.passages, anchors)]
        if self.context is not None and self.layout.needs_context:
            members.append(self.context.draw(anchors, np.full(len(anchors), visit), self.seed))
        repeat = 2 if self.layout.encode == "both" else 1
        # A member's crop is the same where it is encoded and where it is decoded; its masks are not. A passage that
        # is paired with itself is two members.
        keys = [hashed(self.seed, "row", visit, anchors, number) for number in range(len(members))]
        encoded = Slices.join(members[:repeat])
        encoder = self._flatten(encoded, np.concatenate(keys[:repeat])).masked(
            "encoder", self.layout.encoder_rate, self.seed, self.words
        )
        decoder = None
        if self.layout.decode != "nothing":
            order = -1 if self.layout.decode == "other" else 1
            decoded = Slices.join(members[::order][:repeat])
            flat = self._flatten(decoded, np.concatenate(keys[::order][:repeat]))
            if self.layout.target == "masked":
                decoder = flat.masked("decoder", self.layout.decoder_rate, self.seed, self.words)
            else:
                decoder = flat.whole(next_token=self.layout.target == "next", words=self.words)
        pair = np.tile(first + np.arange(len(anchors)), repeat)
        document = np.tile(self.sources.passages.group_of[anchors].astype(np.int64), repeat)
        return self._cut(step, encoder, decoder, pair, document)

    def _anchors(self, step: int) -> tuple[Ints, int, int]:
        """This rank's anchors, the epoch (= how often each was visited before), the first one's place in the batch."""
        epoch, within = divmod(step, self.steps_per_epoch)
        first, last = (self.batch_size * r // self.world for r in (self.rank, self.rank + 1))
        places = np.arange(first, last) + within * self.batch_size
        run, place = np.divmod(places, self.neighbours)
        chosen = permuted(run, self.epoch_size // self.neighbours, self.seed, epoch) * self.neighbours + place
        chosen += epoch % (self.choices - self.epoch_size + 1)
        if self.documents is not None:
            begin, end = self.documents[chosen], self.documents[chosen + 1]
            chosen = begin + below(end - begin, self.seed, "anchor", chosen, epoch)
        return self.anchors[chosen], epoch, first

    def _flatten(self, slices: Slices, keys: U64) -> FlatTexts:
        """The tokens of the slices, one after the other; what is longer than the limit is cropped, once."""
        limit = self.sources.max_tokens
        excess = np.maximum(slices.lengths - limit, 0)
        begin = slices.begin + below(excess + 1, self.seed, "crop", keys)
        lengths = np.minimum(slices.lengths, limit)
        place = np.repeat(begin - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        from_query = np.repeat(slices.is_query, lengths)
        ids, starts = np.empty(len(place), np.int64), np.empty(len(place), bool)
        for store, chosen in ((self.sources.passages, ~from_query), (self.sources.queries, from_query)):
            if store is not None and chosen.any():
                ids[chosen], starts[chosen] = store.ids[place[chosen]], store.word_starts[place[chosen]]
        return FlatTexts(ids, starts, lengths, keys, self.layout.average)

    def _cut(
        self, step: int, encoder: Prepared, decoder: Prepared | None, pair: Ints, document: Ints
    ) -> Batch:
        cuts = cut_by_budget(encoder.widths(), decoder.widths() if decoder else None, self.micro_tokens)
        text = encoder.hashes()
        micro = [
            MicroBatch(
                encoder.pad(rows, self.words, self.sources.max_tokens + 2),
                decoder.pad(rows, self.words, self.sources.max_tokens + 2) if decoder else None,
                torch.from_numpy(pair[rows]),
                torch.from_numpy(text[rows]),
                torch.from_numpy(document[rows]),
                int(hashed(self.seed, "dropout", step, self.rank, number) >> np.uint64(1)),
            )
            for number, rows in enumerate(cuts)
        ]
        return Batch(micro, (encoder.total, decoder.total if decoder else 1.0), self.batch_size)


def pin(batch: Batch) -> Batch:
    """Page-locked copies, so that the transfer to a GPU overlaps with computing."""

    def pinned(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.pin_memory()
        if isinstance(value, Text | MicroBatch):
            return replace(value, **{f.name: pinned(getattr(value, f.name)) for f in fields(value)})
        return value

    return replace(batch, micro=[pinned(micro) for micro in batch.micro])
