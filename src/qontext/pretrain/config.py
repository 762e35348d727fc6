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

    candidates: Annotated[int | None, Advanced()] = Field(None, ge=1)
    """Use only the first N queries of each passage. Default: all."""

    sampling: Annotated[Literal["uniform", "score"], Advanced()] = "uniform"
    """Sample a passage's queries uniformly, or weighted by the score from 'qontext filter'."""

    anchors: Annotated[Literal["passages", "documents"], Advanced()] = "passages"
    """An epoch visits every passage, or every document with one of its passages drawn (as in Gao & Callan and
    CoT-MAE)."""

    initial_share: Annotated[float, Advanced()] = Field(0.0, ge=0, lt=1)
    """Share of the initial encoder in the result, whose weights are the weighted mean of the initial and the trained ones
    (WiSE-FT, Wortsman et al. 2022): it forgets less of what the initial encoder knows."""

    gradient_cache: Annotated[Literal["auto", "on", "off"], Advanced()] = "auto"
    """Compute the contrastive gradient in two passes, with memory independent of the batch size. Auto: if a
    batch has more than 8 micro-batches."""

    snapshots: Annotated[int, Advanced()] = Field(0, ge=0, le=1000)
    """Keep the encoder this many times during training, at equal distances: snapshots/1, snapshots/2 … of the result;
    the last one is the encoder after the last step, before --initial-share."""

    workers: Annotated[int, Machine()] = Field(0, ge=0, le=1024)
    """Number of processes for tokenization; 0 means one per core."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.snapshots and self.minutes is not None:
            raise QontextError(
                "with --minutes, the number of steps is not known, so snapshots are not at equal distances",
                remedy="Remove --snapshots or --minutes.",
            )
        if self.initial_share and (self.lora_rank or self.encoder in PRESETS):
            raise QontextError("initial_share is for an encoder with weights, all of which are trained")
        return self

    def context_name(self) -> str:
        """The context, resolved."""
        default: str = METHODS.load(self.method).default_context
        return self.context or ("query" if self.queries else default)

    @property
    def reads_queries(self) -> bool:
        """True if contexts are, or may be, queries."""
        from qontext.contexts import rules_of

        return "query" in rules_of(self.context_name())

    def common(self) -> Common:
        """The settings that every method reads."""
        from qontext.pretrain.objectives.base import Common

        return Common(self.seed, self.vector, self.similarity, self.reads_queries, self.max_tokens)

    def layout(self) -> Any:
        """The rows that the method reads."""
        return METHODS.load(self.method).layout(self.options("method"), self.common())

    def objective(self, encoder: Any) -> Any:
        """The method, set up for this encoder."""
        return METHODS.load(self.method)(encoder, self.options("method"), self.common())
