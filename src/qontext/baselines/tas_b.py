"""TAS-B (Hofstätter et al. 2021): batches of similar queries, and a second teacher that scores every passage of the batch.

**Batches.** Each is from one of k clusters of the queries' vectors, those of k-means over the vectors of the encoder that is
fine-tuned, before the training. An epoch visits every query once: clusters in a random order, the queries of a cluster in a
random order, cut into batches, the batches in a random order. Only a batch at the border of two clusters has queries of
both. (The paper draws a cluster for each batch, and queries from it.)

**The second teacher.**

    L = L₁ + λ · L₂
    L₂ = mean over passages p of other queries of ( (s(q, p⁺) - s(q, p)) - (t(q, p⁺) - t(q, p)) )²

L₁ is the loss of `--loss`, such as the margin-MSE to a cross-encoder's scores of the query's own passages; s is as
there; t are the scores of a frozen retriever that is cheap for all pairs, such as ColBERT. L₂ is a mean over queries, too.
(Hofstätter et al. 2021; λ = 0.75, and no passage is left out, as in the released code.)

The teacher may be an encoder of one vector, of any size: t = <h_q, h_p> / τ with the student's τ. The student learns its
similarities, not its vectors, as LEAF does (Vujanic & Rueckstiess 2025), so that no layer between the two sizes is needed.

The teacher reads the texts with its own tokenizer. Its representations go with the student's, so that they are gathered over
ranks, too.

Shapes: N texts, M texts of the whole batch, Q queries, P passages, X numbers of both representations of a text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from qontext.finetune.batches import LabelKeys, Reader, Texts
from qontext.finetune.bi_encoder import BiEncoder, sides
from qontext.finetune.losses.margin_mse import margin_mse
from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import read_array
from qontext.models.batching import Ints
from qontext.models.folder import TextKind
from qontext.models.representations.base import Lengths
from qontext.models.representations.vector import Vector
from qontext.models.retriever import Retriever
from qontext.training.k_means import k_means
from qontext.training.randomness import EpochSampler, hashed, permuted

FILE = "cache/clusters.npy"


@dataclass(frozen=True)
class ClusteredSampler(EpochSampler):
    """The queries of each step for this rank; `clusters` [Q] are the numbers of their clusters."""

    clusters: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _orders: dict[int, Ints] = field(default_factory=dict)

    def order(self, places: Ints, epoch: int) -> Ints:
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self._order(epoch)
        return self._orders[epoch][places]

    def _order(self, epoch: int) -> Ints:
        """All queries of an epoch's whole batches."""
        cluster = hashed(self.seed, "cluster", self.clusters, epoch)
        query = hashed(self.seed, "query of cluster", np.arange(self.examples), epoch)
        count = self.examples // self.batch_size
        batches = np.lexsort((query, cluster))[: count * self.batch_size].reshape(count, -1)
        numbers: Ints = batches[permuted(np.arange(count), count, self.seed, epoch)].reshape(-1)
        return numbers


def query_clusters(
    encoder: str,
    queries: list[str],
    clusters: int,
    group: Any,
    work: Workdir,
    *,
    prompt: str | None,
    longest: int,
    seed: int,
) -> Ints:
    """[Q] the cluster of each query, computed by rank 0, read by all. `longest` counts the tokens of the prompt, too, which
    is that of the encoder's folder if None."""
    if clusters > len(queries):
        raise QontextError(
            f"clusters = {clusters:,}, but there are only {len(queries):,} queries",
            remedy=f"Set --clusters to at most {len(queries):,}.",
        )
    if group.is_first and not work.has(FILE):
        device = str(group.device)
        retriever = Retriever(encoder, device=device, max_length=longest, prompts={"query": prompt})
        vectors = torch.from_numpy(retriever.encode(queries, "query"))
        own = k_means(vectors, clusters, seed, group.device)[0].numpy()
        log.note(f"{len(np.unique(own)):,} clusters of {len(queries):,} queries.")
        with work.write(FILE) as path, path.open("wb") as file:
            np.save(file, own, allow_pickle=False)
    group.wait()
    return read_array(work.path / FILE, "i", shape=(len(queries),), mapped=False)


class BatchTeacher:
    """A frozen retriever, and the weight λ of what it teaches."""

    def __init__(self, model: Retriever, weight: float) -> None:
        self.model, self.weight = model, weight
        self.representation = model.representation or Vector()
        self.has_vector = model.representation is None
        self.representation.fill_up()

    @classmethod
    def open(cls, name: str, weight: float, device: str, precision: Any) -> Self:
        return cls(Retriever(name, device=device, precision=precision, packed=True), weight)

    def student(self, *parts: Any) -> TaughtInBatch:
        return TaughtInBatch(self, *parts)

    def reader(self) -> Reader:
        """The form in which it reads texts."""
        model, halves = self.model, {kind: self.model.of(kind) for kind in get_args(TextKind)}
        prompts = {kind: half.layout.prompt(kind) for kind, half in halves.items()}
        most = [half.max_length for half in halves.values()]
        longest = (self.representation.longest(kind) or length for kind, length in zip(halves, most))
        lengths = Lengths(*map(min, longest, most))
        positions = min(half.positions for half in halves.values())
        return Reader(model.tokenizer, prompts, lengths, model.titles, model.layout.lower, positions)

    @torch.no_grad()
    def represent(self, rows: Texts) -> Tensor:
        assert rows.teacher is not None
        ids_NT, mask_NT = rows.teacher.ids, rows.teacher.mask
        if self.has_vector:
            return self.model.of("query" if rows.are_queries else "passage").vectors_of(ids_NT, mask_NT)
        texts: Tensor = self.representation(self.model.model, ids_NT, mask_NT, rows.are_queries)
        return texts


class TaughtInBatch(BiEncoder):
    """A student of two teachers."""

    def __init__(self, teacher: BatchTeacher, *parts: Any) -> None:
        super().__init__(*parts)
        self.teacher = teacher  # no module: it is neither trained nor saved
        self.shapes = torch.Size(), torch.Size()
        """Those of a text's representations, the student's and the teacher's."""

    def represent(self, rows: Texts) -> Tensor:
        """[N, X]"""
        both = super().represent(rows), self.teacher.represent(rows)
        self.shapes = both[0].shape[1:], both[1].shape[1:]
        return torch.cat([texts.float().flatten(1) for texts in both], 1)

    def contrast(self, texts_MX: Tensor, keys: LabelKeys, rows: slice) -> dict[str, Tensor]:
        student_MX, teacher_MX = texts_MX.split([math.prod(shape) for shape in self.shapes], 1)
        student, teacher = (
            part.unflatten(1, shape) for part, shape in zip((student_MX, teacher_MX.detach()), self.shapes)
        )
        losses = super().contrast(student, keys, rows)
        taught_QP = self.teacher.representation.similarity(*sides(teacher, keys, rows))
        taught_QP = taught_QP / (self.temperature if self.teacher.has_vector else 1.0)
        queries, passages = sides(keys.query, keys, rows)
        own_QP = queries[:, None] == passages
        positive_QP = own_QP & keys.is_positive[~keys.is_query]
        versions = self.representation.versions(student)
        errors = [
            margin_mse(self._scores(part, keys, rows), taught_QP, ~own_QP, positive_QP) for part in versions
        ]
        weight = self.teacher.weight / (len(versions) * keys.is_query.sum())
        return losses | {"batch_teacher": weight * torch.stack(errors).sum()}

    def _scores(self, texts: Tensor, keys: LabelKeys, rows: slice) -> Tensor:
        return self.representation.similarity(*sides(texts, keys, rows)) / self.temperature
