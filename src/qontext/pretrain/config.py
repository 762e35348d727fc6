"""The settings of pre-training, including every ablation of the papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from qontext.data.passage import TitleRule
from qontext.frame.config import Advanced, Input, Machine
from qontext.frame.errors import QontextError
from qontext.models.folder import PRESETS
from qontext.pretrain.objectives import METHODS
from qontext.training.config import EncoderConfig

if TYPE_CHECKING:
    from qontext.pretrain.objectives.base import Common


class PretrainConfig(EncoderConfig):
    kinds: ClassVar = {"method": METHODS}

    passages: Annotated[str, Input(positional=True)]
    """Passages from 'qontext split', or their token store from 'qontext tokens'."""

    method: str = "cocondenser"
    """Pre-training method."""

    context: str | None = None
    """Context of a passage: near, olap, rand, query, or several joined by +; mixed is query+rand. Default: query if
    queries are passed; else rand for cocondenser and near+olap+rand for cot-mae."""

    queries: Annotated[str | None, Input()] = None
    """Queries of the passages: output of 'qontext generate' or 'qontext filter', or a Parquet file with the
    columns passage and query."""

    encoder: Annotated[str, Input()] = "bert-base-uncased"
    """Initial encoder: a model folder, a Hub name, or tiny, mini, small or base to train from scratch."""

    tokenizer: Annotated[str | None, Input()] = None
    """Tokenizer for an encoder from scratch, such as the output of 'qontext train-tokenizer'."""

    epochs: float = Field(1.0, gt=0)
    """Passes over the passages, if --steps is not set."""

    batch_size: int = Field(256, ge=2)
    """Pairs (or single passages) per step, across all GPUs. Published: 512 to 16,384."""

    lr: float = Field(1e-4, gt=0)
    """Peak learning rate (AdamW)."""

    max_tokens: int = Field(144, ge=8, le=100_000)
    """Maximum length of a passage or context in tokens, including special tokens; longer ones are cropped at random."""

    title: TitleRule | None = None
    """The title of a passage: prepend it to the text, put it before the tokenizer's separator and the text (sep), or leave
    it out. Recorded in the result. Default: as the tokens were made or the encoder was trained, else prepend."""

    vector: Literal["cls", "mean", "lasttoken"] = "cls"
    """Vector of a text: the last layer's [CLS], as in the papers, which of a decoder is the last token; the mean over its
    tokens, to continue from an encoder trained with mean pooling; or the last token."""

    similarity: Literal["dot", "cosine"] = "dot"
    """Similarity in the contrastive loss."""

    query_share: Annotated[float, Advanced()] = Field(0.5, ge=0, le=1)
    """Share of the steps whose contexts are queries, with query+…; in the others, the other rules apply."""

    candidates: Annotated[int | None, Advanced()] = Field(None, ge=1)
    """Use only the first N queries of each passage. Default: all."""

    sampling: Annotated[Literal["uniform", "score"], Advanced()] = "uniform"
    """Sample a passage's queries uniformly, or weighted by the score from 'qontext filter'."""

    anchors: Annotated[Literal["passages", "documents"], Advanced()] = "passages"
    """An epoch visits every passage, or every document with one of its passages drawn (as in Gao & Callan and
    CoT-MAE)."""

    neighbors: Annotated[int, Advanced()] = Field(1, ge=1)
    """Number of consecutive passages of a document to put into the same batch, as negatives of each other. 1:
    passages are drawn independently."""

    frozen_layers: Annotated[int, Advanced()] = Field(0, ge=0, le=1000)
    """Keep the embeddings and this many of the first layers as they are, which saves their part of the backward pass. 0:
    all is trained."""

    initial_share: Annotated[float, Advanced()] = Field(0.0, ge=0, lt=1)
    """Share of the initial encoder in the result, whose weights are the weighted mean of the initial and the trained ones
    (WiSE-FT, Wortsman et al. 2022): it forgets less of what the initial encoder knows."""

    gradient_cache: Annotated[Literal["auto", "on", "off"], Advanced()] = "auto"
    """Compute the contrastive gradient in two passes, with memory independent of the batch size. Auto: if a
    batch has more than 8 micro-batches."""

    snapshots: Annotated[int, Advanced()] = Field(0, ge=0, le=1000)
    """Keep the encoder this many times during training, at equal distances: snapshots/1, snapshots/2 … of the result;
    the last one is the encoder after the last step, before --keep best and --initial-share."""

    probe: Annotated[str | None, Input()] = None
    """A labeled set (BEIR folder) on which retrieval without fine-tuning is evaluated during training."""

    probe_every: Annotated[int, Advanced()] = Field(500, ge=1)
    """Steps between evaluations of the probe."""

    probe_split: Annotated[str, Advanced()] = "dev"
    """Split of the probe's queries."""

    patience: Annotated[int | None, Advanced()] = Field(None, ge=1)
    """With --probe: stop after this many evaluations without a better MRR@10. Default: never."""

    keep: Annotated[Literal["best", "last"], Advanced()] = "last"
    """With --probe: keep the weights with the best MRR@10, or the last ones, as published."""

    compile: Annotated[Literal["auto", "on", "off"], Machine()] = "auto"
    """Compile the encoder with torch.compile. Auto: on GPUs."""

    workers: Annotated[int, Machine()] = Field(0, ge=0, le=1024)
    """Number of processes for tokenization; 0 means one per core."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.patience or self.keep == "best") and not self.probe:
            raise QontextError("patience and keep = best need --probe")
        if self.snapshots and self.minutes is not None:
            raise QontextError(
                "with --minutes, the number of steps is not known, so snapshots are not at equal distances",
                remedy="Remove --snapshots or --minutes.",
            )
        if self.initial_share and (self.lora_rank or self.encoder in PRESETS):
            raise QontextError(
                "initial_share is for an encoder with weights, all of which are trained",
                remedy="With adapters, lower --lora-alpha." if self.lora_rank else "Remove --initial-share.",
            )
        if self.context is not None:
            from qontext.contexts import rules_of

            rules_of(self.context)
        return self

    def context_name(self) -> str:
        """The context, resolved."""
        if self.context is not None:
            return self.context
        default: str = METHODS.load(self.method).default_context
        return "query" if self.queries else default

    def common(self) -> Common:
        """The settings that every method reads."""
        from qontext.contexts import reads_queries
        from qontext.pretrain.objectives.base import Common

        has_queries = reads_queries(self.context_name())
        return Common(self.seed, self.vector, self.similarity, has_queries, self.max_tokens)

    def layout(self) -> Any:
        """The rows that the method reads."""
        return METHODS.load(self.method).layout(self.options("method"), self.common())

    def objective(self, encoder: Any) -> Any:
        """The method, set up for this encoder."""
        return METHODS.load(self.method)(encoder, self.options("method"), self.common())
