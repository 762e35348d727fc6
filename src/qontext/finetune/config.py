"""The settings of fine-tuning: those shared by all labeled trainings, and those of a retriever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from qontext.data.passage import TitleRule
from qontext.finetune.losses import LOSSES
from qontext.frame.config import Advanced, Input
from qontext.frame.errors import QontextError
from qontext.models.representations import REPRESENTATIONS
from qontext.training.config import AdaptedConfig, EncoderConfig

if TYPE_CHECKING:
    from qontext.models.tokenizer import Titles
    from qontext.training.evaluation import Schedule


DEV_QUERIES = 500
"""Maximum number of queries to evaluate on during training."""


class LabeledConfig(AdaptedConfig):
    """Settings of any training on queries with positives and negatives."""

    groups: Annotated[str, Input(positional=True)]
    """Training groups from 'qontext mine', or DPR's biencoder-nq-train.json, or a BEIR folder, whose queries only have
    positives."""

    passages: Annotated[str | None, Input()] = None
    """Passages of the groups: output of `split`, Parquet, a BEIR folder or corpus file. Not needed if groups
    are a BEIR folder."""

    split: str = "train"
    """Split to train on, if groups are a BEIR folder."""

    encoder: Annotated[str, Input()] = "bert-base-uncased"
    """Initial encoder: a folder, such as the output of 'qontext pretrain', or a Hub name."""

    title: TitleRule | None = None
    """The title of a passage: prepend it to the text, put it before the tokenizer's separator and the text (sep), or leave
    it out. Recorded in the result. Default: as the encoder was trained, else prepend."""

    epochs: float = Field(3.0, gt=0)
    """Passes over the queries, if --steps is not set."""

    batch_size: int = Field(64, ge=1)
    """Queries per step, across all GPUs."""

    lr: float = Field(2e-5, gt=0)
    """Peak learning rate (AdamW)."""

    dev: Annotated[str | None, Input()] = None
    """Labeled data to evaluate on during training."""

    dev_split: Annotated[str, Advanced()] = "dev"
    """Split to evaluate on, if dev is a BEIR folder."""

    dev_every: Annotated[int | None, Advanced()] = Field(None, ge=1)
    """Steps between evaluations. Default: a tenth of the run."""

    patience: Annotated[int | None, Advanced()] = Field(None, ge=1)
    """With --dev: stop after this many evaluations without a better MRR@10. Default: never."""

    keep: Annotated[Literal["best", "last"], Advanced()] = "best"
    """With --dev: keep the weights with the best MRR@10, or the last ones."""

    def titles(self, tokenizer: Any, *, says: bool) -> Titles:
        """The rule for passages' titles."""
        from qontext.models.folder import locate
        from qontext.models.tokenizer import Titles, settle_title

        rule = settle_title(self.title, locate(self.encoder).title, self.encoder, says=says)
        return Titles.of(rule, tokenizer, self.encoder)

    def schedule_of(self, steps: int) -> Schedule:
        """The evaluation schedule of a training with this number of steps."""
        from qontext.training.evaluation import Schedule

        return Schedule(self.dev_every or max(1, steps // 10), self.keep, self.patience)


class FinetuneConfig(LabeledConfig, EncoderConfig):
    kinds: ClassVar = {"representation": REPRESENTATIONS, "loss": LOSSES}

    passages_per_query: int = Field(16, ge=1)
    """Passages per query: one positive and hard negatives. A query with fewer negatives gets random ones; if
    no query has enough, the number is reduced."""

    query_length: int = Field(32, ge=3, le=100_000)
    """Maximum query length in tokens, including special tokens."""

    passage_length: int = Field(144, ge=3, le=100_000)
    """Maximum passage length in tokens, including title and special tokens."""

    untied: bool = False
    """Train a separate encoder for queries. Both are initialized from `encoder`; the query encoder is saved
    in the folder query/ of the result, where `search` and `encode --kind query` find it."""

    representation: str = "vector"
    """The representation of texts, which also defines their similarity."""

    loss: str = "contrastive"
    """Loss between queries and passages."""

    temperature: float | None = Field(None, gt=0)
    """Temperature of the loss. Default: 1 for dot products and sums of them, as published; 0.05 for cosines."""

    teacher: Annotated[str | None, Input()] = None
    """For a --loss that distills: scores of the groups' passages, a run, such as the output of 'qontext rerank GROUPS'.
    Passages without a score are skipped."""

    clusters: Annotated[int | None, Advanced()] = Field(None, ge=2)
    """Fill each batch from one of this many clusters of similar queries (TAS-B), whose passages are hard negatives of each
    other's queries."""

    gradient_cache: Annotated[Literal["auto", "on", "off"], Advanced()] = "auto"
    """Compute the gradient in two passes, with memory independent of the batch size. Auto: if a batch has
    more than 8 micro-batches."""

    dev: Annotated[str | None, Input()] = None
    """A BEIR folder on whose queries retrieval is evaluated during training: MRR@10 among their relevant passages and
    2,000 others."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if LOSSES.load(self.loss).reads_teacher != bool(self.teacher):
            readers = [name for name in LOSSES.own if LOSSES.load(name).reads_teacher]
            raise QontextError(f"--teacher is for --loss {' or '.join(readers)}, which need it")
        if self.untied and self.representation != "vector":
            raise QontextError("--untied needs --representation vector")
        return self
