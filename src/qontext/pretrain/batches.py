"""The batch of step t, as a pure function of (seed, t): anchors → rows → micro-batches of padded, masked texts.

A *row* is an input of the encoder and, for methods with a decoder, of the decoder. A method defines the rows
of an anchor and its context with a `Layout`; this module knows nothing else about methods. Rows are sorted by
length and packed into micro-batches by a token budget, so that queries are not padded to the length of
passages.

Shapes: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from qontext.contexts import Context, Ints, Slices, Sources
from qontext.models.batching import FINE, Grid, pack_by_tokens
from qontext.models.families import Predicts
from qontext.pretrain.masking import Vocabulary
from qontext.pretrain.texts import Bag, Bags, FlatTexts, Prepared, Text
from qontext.training.batch import Batch, Rows, Tensors
from qontext.training.randomness import U64, below, hashed, permuted


@dataclass(frozen=True)
class Layout:
    """The rows that a method reads, and what it predicts in them.

    `encode`: the anchor alone, or both members of the pair, each a row. `decode`: nothing, the encoded text
    itself, or the pair's other member. What the decoder predicts (`target`): its masked tokens, at their places; the
    next token, at every place, with nothing masked; or every token at its place, with nothing masked. With `restored`,
    the encoder and the decoder both predict every token, masked or not, and what the encoder masks, the decoder masks too.
    A batch's loss is the mean over its predicted tokens. `bag`: a row's vector predicts the bag of words of nothing, of
    the encoded text itself, of the pair's other member, or of both members; with `bag_rows`, only the anchors' do.
    """

    encode: Literal["anchor", "both"]
    decode: Literal["nothing", "self", "other"]
    encoder_rate: float
    decoder_rate: float = 0.0
    target: Literal["masked", "next", "every", "restored"] = "masked"
    bag: Literal["nothing", "self", "other", "pair"] = "nothing"
    bag_rows: Literal["encoded", "anchors"] = "encoded"

    @property
    def needs_context(self) -> bool:
        return self.encode == "both" or self.decode == "other" or self.bag in ("other", "pair")


@dataclass(frozen=True)
class MicroBatch(Rows):
    """Rows: the encoder's texts, and the decoder's and the bags of words, if any."""

    encoder: Text
    decoder: Text | None
    bag: Bag | None = None

    def scaled(self, shares: Tensor) -> MicroBatch:
        encoder, decoder, bag = shares
        return replace(
            self,
            encoder=replace(self.encoder, weights=self.encoder.weights * encoder),
            decoder=self.decoder and replace(self.decoder, weights=self.decoder.weights * decoder),
            bag=self.bag and replace(self.bag, weights=self.bag.weights * bag),
        )


@dataclass(frozen=True)
class Keys(Tensors):
    """Keys of the rows of the whole batch, [M] each.

    `pair` is the same for the two rows of a pair; `text` is a hash of the text before masking, and `partner` that of the
    pair's other text, to detect false negatives. A row without a partner is its own.
    """

    pair: Tensor
    text: Tensor
    partner: Tensor


@dataclass(frozen=True)
class BatchPlan:
    """Everything that determines a batch, besides the step.

    An epoch visits the passages `anchors`; or, with `documents` [documents + 1] (the start of each document's
    slice of `anchors`), the documents, drawing one anchor of a document at each visit.
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
    grid: Grid = FINE
    predicts: Predicts = "masked"
    """The encoder's own prediction about the texts that it reads."""

    @property
    def epoch_size(self) -> int:
        """The number of passages or documents."""
        return len(self.anchors if self.documents is None else self.documents[1:])

    @property
    def steps_per_epoch(self) -> int:
        return self.epoch_size // self.batch_size

    def __call__(self, step: int) -> Batch:
        anchors, visit, first = self._anchors(step)
        members = [Slices.of_passages(self.sources.passages, anchors)]
        if self.context is not None and self.layout.needs_context:
            members.append(self.context.draw(anchors, np.full(len(anchors), visit), self.seed, step))
        repeat = 2 if self.layout.encode == "both" else 1
        # A member's crop is the same where it is encoded and where it is decoded; its masks are not. A passage that
        # is paired with itself is two members.
        keys = [hashed(self.seed, "row", visit, anchors, number) for number in range(len(members))]
        encoded = Slices.join(members[:repeat])
        encoder = self._encoded(encoded, np.concatenate(keys[:repeat]))
        decoder = None
        if self.layout.decode != "nothing":
            order = -1 if self.layout.decode == "other" else 1
            decoded, own = Slices.join(members[::order][:repeat]), np.concatenate(keys[::order][:repeat])
            if self.layout.target in ("masked", "restored"):
                decoder = self._masked(decoded, own, "decoder", self.layout.decoder_rate)
            else:
                flat = self._flatten(decoded, own)
                decoder = flat.whole(next_token=self.layout.target == "next", words=self.words)
        bags = self._bags(members, keys) if self.layout.bag != "nothing" else None
        pair = np.tile(first + np.arange(len(anchors)), repeat)
        member = np.repeat(np.arange(repeat), len(anchors))
        row_keys = hashed(self.seed, "dropout", step, pair, member)
        return self._cut(encoder, decoder, bags, pair, row_keys)

    def _anchors(self, step: int) -> tuple[Ints, int, int]:
        """This rank's anchors, the epoch (the number of earlier visits), and the position of the first one in
        the batch."""
        epoch, within = divmod(step, self.steps_per_epoch)
        first, last = (self.batch_size * r // self.world for r in (self.rank, self.rank + 1))
        places = np.arange(first, last) + within * self.batch_size
        numbers = permuted(places, self.epoch_size, self.seed, epoch)
        if self.documents is not None:
            begin, end = self.documents[numbers], self.documents[numbers + 1]
            numbers = begin + below(end - begin, self.seed, "anchor", numbers, epoch)
        return self.anchors[numbers], epoch, first

    def _encoded(self, slices: Slices, keys: U64) -> Prepared:
        """The texts that the encoder reads, with what it predicts of them itself."""
        rate = self.layout.encoder_rate
        if self.predicts == "next" and rate > 0:
            return self._flatten(slices, keys).whole(next_token=True, words=self.words, decoded=False)
        return self._masked(slices, keys, "encoder", rate if self.predicts == "masked" else 0.0)

    def _masked(self, slices: Slices, keys: U64, stream: str, rate: float) -> Prepared:
        """Texts with this share of masked tokens; draws are independent for each stream."""
        flat = self._flatten(slices, keys)
        if self.layout.target == "restored":
            return flat.restored(rate, self.seed, self.words)
        return flat.masked(stream, rate, self.seed, self.words)

    def _bags(self, members: list[Slices], keys: list[U64]) -> Bags:
        """The bags that each row predicts, of texts before masking, as they are cropped."""
        rows = len(keys[0]) * (2 if self.layout.encode == "both" else 1)
        repeat = 2 if self.layout.bag_rows == "encoded" and self.layout.encode == "both" else 1
        orders = {"self": (1,), "other": (-1,), "pair": (1, -1)}[self.layout.bag]
        texts = [
            self._flatten(Slices.join(members[::order][:repeat]), np.concatenate(keys[::order][:repeat]))
            for order in orders
        ]
        return Bags.of(texts, rows, self.words)

    def _flatten(self, slices: Slices, keys: U64) -> FlatTexts:
        """The tokens of the slices with their titles, concatenated. A slice that does not fit beside its title is cropped
        once; the title stays before what is left."""
        passages, queries, limit = self.sources.passages, self.sources.queries, self.sources.max_tokens
        title_begin, titles = self._titles(slices)
        excess = np.maximum(slices.lengths + titles - limit, 0)
        begin = slices.begin + below(excess + 1, self.seed, "crop", keys)
        bodies = slices.lengths - excess
        lengths = titles + bodies
        at = np.cumsum(lengths) - lengths
        ids, starts = np.empty(lengths.sum(), np.int64), np.empty(lengths.sum(), bool)
        ragged = [(passages.title_ids, passages.title_starts, title_begin, titles, at)]
        for store, is_here in ((passages, ~slices.is_query), (queries, slices.is_query)):
            if store is not None:
                rows = begin[is_here], bodies[is_here], (at + titles)[is_here]
                ragged.append((store.ids, store.word_starts, *rows))
        for store_ids, store_starts, first, count, to in ragged:
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            place, target = np.repeat(first, count) + within, np.repeat(to, count) + within
            ids[target], starts[target] = store_ids[place], store_starts[place]
        starts[(at + titles)[(titles > 0) & (bodies > 0)]] = True  # a cropped text may begin inside a word
        return FlatTexts(ids, starts, lengths, keys, slices.is_query)

    def _titles(self, slices: Slices) -> tuple[Ints, Ints]:
        """[N] where the titles of the slices begin, and [N] how many of their tokens are read: all, or of a long one as many
        as leave half of the limit to the text."""
        store, limit = self.sources.passages, self.sources.max_tokens
        if not len(store.title_ids):
            return np.zeros((2, len(slices)), np.int64)  # type: ignore[return-value]
        own = np.where(slices.is_query, 0, slices.begin)
        passages = np.minimum(np.searchsorted(store.offsets, own, "right"), len(store)) - 1
        most = np.maximum(limit - slices.lengths, limit // 2)
        titles = np.where(slices.is_query, 0, np.minimum(store.title_lengths[passages], most))
        return store.title_offsets[passages], titles

    def _cut(
        self,
        encoder: Prepared,
        decoder: Prepared | None,
        bags: Bags | None,
        pair: Ints,
        row_keys: U64,
    ) -> Batch:
        """The batch, from all rows' texts, their pairs and `row_keys`."""
        beside = decoder.widths(self.words) if decoder else None
        cuts = pack_by_tokens(encoder.widths(self.words), beside, self.micro_tokens, self.grid)
        widest = self.sources.max_tokens + max(map(len, self.words.frames()))
        micro = [
            MicroBatch(
                encoder.pad(rows, self.words, widest, self.grid),
                decoder.pad(rows, self.words, widest, self.grid) if decoder else None,
                bags.cut(rows) if bags else None,
                row_keys=row_keys[rows],
            )
            for rows in cuts
        ]
        order = np.concatenate(cuts)
        text = encoder.hashes()
        # All anchors, then the contexts in the same order, if they are encoded.
        partner = np.roll(text, len(text) // 2 if self.layout.encode == "both" else 0)
        columns = (pair, text, partner)
        totals = (part.total if part else 1.0 for part in (encoder, decoder, bags))
        own = Keys(*(torch.from_numpy(column[order]) for column in columns))
        return Batch(micro, self.batch_size, own, tuple(totals))
