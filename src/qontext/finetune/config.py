"""What can be set in fine-tuning: what all labelled trainings share, and what a retriever's needs besides."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from qontext.config import Input, Machine
from qontext.engine.config import TrainingConfig
from qontext.errors import QontextError


class LabelledConfig(TrainingConfig):
    """Settings of any training on queries with positives and negatives."""

    groups: Annotated[str, Input(positional=True)]
    """Training groups from 'qontext mine', or a BEIR folder, whose queries then have positives only."""

    passages: Annotated[str | None, Input()] = None
    """Where the groups' passages are: what `split` wrote, Parquet, a BEIR folder or corpus file. A BEIR folder given
    as groups brings its own."""

    split: str = "train"
    """The judgements to train on, if groups are a BEIR folder."""

    encoder: Annotated[str, Input()] = "bert-base-uncased"
    """Where to start: a folder, such as 'qontext pretrain' writes, or a hub name."""

    epochs: float = Field(3.0, gt=0)
    """Passes over the queries, when no steps are given."""

    batch_size: int = Field(64, ge=1)
    """Queries per step, over all GPUs together."""

    lr: float = Field(2e-5, gt=0)
    """Highest learning rate (AdamW)."""


class FinetuneConfig(LabelledConfig):
    passages_per_query: int = Field(16, ge=1)
    """Passages that come with each query: a positive and hard negatives. A query with fewer negatives gets others at
    random; if no query has so many, all get fewer."""

    query_length: int = Field(32, ge=3)
    """Longest query in tokens, special tokens included."""

    passage_length: int = Field(144, ge=3)
    """Longest passage in tokens, title and special tokens included."""

    untied: bool = False
    """Train an encoder of its own for queries. Both start as `encoder`, and the queries' one is saved in the folder
    query/ of the result, which `search` and `encode --kind query` take by themselves."""

    pooling: Literal["auto", "cls", "mean"] = "auto"
    """What stands for a text: the last layer's [CLS], or the mean over its tokens. Auto: as the encoder's folder
    says; [CLS] where it says nothing."""

    similarity: Literal["auto", "dot", "cosine"] = "auto"
    """What vectors are compared by. Auto: as the encoder's folder says; dot product where it says nothing."""

    temperature: float | None = Field(None, gt=0)
    """Divides the similarities. Default: 1 for dot products, as published; 0.05 for cosines, which lie close together."""

    teacher: Annotated[str | None, Input()] = None
    """Distil from these scores of the groups' passages: a run, as 'qontext rerank GROUPS' writes it. Passages
    without a score are left out."""

    distill: Literal["kl", "margin-mse"] = "kl"
    """How: match the teacher's distribution over a query's own passages, or its score differences to the positive."""

    gradient_cache: Literal["auto", "on", "off"] = "auto"
    """Compute the gradient in two passes, in memory that does not grow with the batch. Auto: when a batch takes more
    than 8 micro-batches."""

    compile: Annotated[Literal["auto", "on", "off"], Machine()] = "auto"
    """Compile the encoder with torch.compile. Auto: on GPUs."""

    dev: Annotated[str | None, Input()] = None
    """A BEIR folder on whose queries retrieval is measured as training goes on: MRR@10 among their relevant passages
    and 2,000 others."""

    dev_split: str = "dev"
    """The split whose queries are measured."""

    dev_queries: int = Field(500, ge=1)
    """At most so many queries of that split."""

    dev_every: int | None = Field(None, ge=1)
    """Steps between two measurements. Default: a tenth of the run."""

    patience: int | None = Field(None, ge=1)
    """Stop when so many measurements in a row were no better than the best before them. Default: never."""

    keep: Literal["best", "last"] = "best"
    """With --dev: which weights are kept, those that measured best or the last ones."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.patience and not self.dev:
            raise QontextError("patience needs --dev, on which to measure")
        if self.teacher and self.passages_per_query < 2:
            raise QontextError(
                "distillation compares passages of a query: set passages_per_query to 2 or more"
            )
        return self
