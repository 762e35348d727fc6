"""What can be set in pre-training: every ablation of the papers is a field."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from qontext.config import Input, Machine
from qontext.contexts.names import check_context
from qontext.engine.config import TrainingConfig
from qontext.errors import QontextError, choose
from qontext.pretrain.objectives import METHODS

_HEADS = ("condenser", "cocondenser", "cot-mae")
READ_BY = {
    "decoder_mask": ("cot-mae", "retromae"),
    "decoder": ("cot-mae",),
    "decoder_layers": _HEADS,
    "decoder_init": _HEADS,
    "window": ("cot-mae",),
    "early_layer_number": ("condenser", "cocondenser"),
    "mask_same_document": ("cocondenser",),
    "directions": ("cot-mae",),
    "condenser_steps": ("cocondenser",),
}
"""The settings that only some methods read; set for another method, they are a mistake."""


class PretrainConfig(TrainingConfig):
    passages: Annotated[str, Input(positional=True)]
    """Passages from 'qontext split', or their token store from 'qontext tokens'."""

    method: str = "cocondenser"
    """mlm, condenser, cocondenser, cot-mae or retromae."""

    context: str | None = None
    """A passage's partner: near, olap, rand, any of them joined by +, query, or mixed. Default: query if queries are
    given; else rand for cocondenser and near+olap+rand for cot-mae."""

    queries: Annotated[str | None, Input()] = None
    """Queries of the passages, from 'qontext generate' or 'qontext filter', or a Parquet file with the columns
    passage and query."""

    encoder: Annotated[str, Input()] = "bert-base-uncased"
    """Where to start: a model folder, a hub name, or from scratch with tiny, mini, small or base."""

    tokenizer: Annotated[str | None, Input()] = None
    """Tokenizer for an encoder from scratch, as 'qontext train-tokenizer' makes it."""

    epochs: float = Field(1.0, gt=0)
    """Passes over the passages, when no steps are given."""

    batch_size: int = Field(256, ge=2)
    """Pairs (or single passages) per step, over all GPUs together. Published: 1,024 to 16,384."""

    lr: float = Field(1e-4, gt=0)
    """Highest learning rate (AdamW)."""

    max_tokens: int = Field(144, ge=8)
    """Longest passage or context in tokens, special tokens included; longer ones are cropped at random."""

    encoder_mask: float | None = Field(None, ge=0, le=1)
    """Share of the encoder's tokens that is masked. Default: 0.15, for cot-mae and retromae 0.30. With 0 the encoder
    predicts nothing itself."""

    decoder_mask: float | None = Field(None, ge=0, le=1)
    """Share of the decoder's tokens that is masked (cot-mae: 0.45) or hidden from each position (retromae: 0.50)."""

    decoder: Literal["mlm", "autoregressive"] = "mlm"
    """cot-mae's decoder: as its paper says, or as the released query-as-context code runs it."""

    decoder_layers: int | None = Field(None, ge=1, le=24)
    """Layers of the condenser head or the decoder. Default: 2; for the autoregressive decoder 1."""

    decoder_init: str = "random"
    """Where the head's layers start: random, or copies of the encoder's layers, as in 0,1 or 10,11."""

    window: int = Field(3, ge=1, le=100_000)
    """Tokens that a position of the autoregressive decoder sees, itself included; it sees [CLS] besides."""

    early_layer_number: int | None = Field(None, ge=1)
    """The layer M that the condenser head reads. Default: half of the layers."""

    late_mlm_weight: float = Field(1.0, ge=0)
    """Weight of the encoder's own masked language model loss; 0 switches it off."""

    head_weight: float = Field(1.0, ge=0)
    """Weight of the loss of the condenser head or the decoder; 0 switches it off."""

    contrastive_weight: float = Field(1.0, ge=0)
    """Weight of cocondenser's contrastive loss; 0 switches it off."""

    vector: Literal["cls", "mean"] = "cls"
    """What stands for a text: the last layer's [CLS], as in the papers, or the mean over its tokens, for going on from
    an encoder that was trained so."""

    similarity: Literal["dot", "cosine"] = "dot"
    """What the contrastive loss compares vectors by."""

    temperature: float = Field(1.0, gt=0)
    """Divides the similarities in the contrastive loss."""

    mask_same_document: bool = False
    """Do not take other passages of the same document for negatives."""

    mlm_average: Literal["method", "tokens", "spans"] = "method"
    """A batch's MLM loss: mean over masked tokens, or over texts of each one's mean. cocondenser averages over texts."""

    directions: Literal["auto", "both", "forward"] = "auto"
    """cot-mae: rebuild each member of a pair from the other, or the context from the passage alone. Auto: both,
    unless contexts are queries."""

    query_share: float = Field(0.5, ge=0, le=1)
    """Share of queries among the contexts of 'mixed'; the rest are 'rand'."""

    candidates: int | None = Field(None, ge=1)
    """Use only the first so many queries of each passage. Default: all."""

    sampling: Literal["uniform", "score"] = "uniform"
    """Draw a passage's queries with equal chances, or in proportion to the weight that 'qontext filter' gave them."""

    anchors: Literal["passages", "documents"] = "passages"
    """What an epoch goes through: every passage, or every document with one of its passages drawn (as in 002)."""

    neighbours: int = Field(1, ge=1)
    """How many passages that follow each other in the documents stand together in a batch, each the others' negatives.
    1: every passage is drawn by itself."""

    condenser_steps: int = Field(0, ge=0)
    """cocondenser: train as condenser first, for so many steps, to give the contrastive phase a trained head."""

    gradient_cache: Literal["auto", "on", "off"] = "auto"
    """Compute the contrastive gradient in two passes, in memory that does not grow with the batch. Auto: when a
    batch takes more than 8 micro-batches."""

    probe: Annotated[str | None, Input()] = None
    """A labelled set (BEIR folder) on which retrieval without fine-tuning is measured as training goes on."""

    probe_every: Annotated[int, Machine()] = Field(500, ge=1)
    """Steps between two probes."""

    probe_split: str = "dev"
    """The split whose queries the probe asks."""

    compile: Annotated[Literal["auto", "on", "off"], Machine()] = "auto"
    """Compile the encoder with torch.compile. Auto: on GPUs."""

    workers: Annotated[int, Machine()] = Field(0, ge=0)
    """Processes that tokenise; 0 means one per core."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        choose(self.method, METHODS, "method")
        for name, methods in READ_BY.items():
            if self.method not in methods and getattr(self, name) != type(self).model_fields[name].default:
                raise QontextError(
                    f"{name} is not read by the method {self.method!r}, only by {', '.join(methods)}"
                )
        if self.context is not None:
            check_context(self.context)
        self.copied_layers()
        weights = (self.late_mlm_weight, self.head_weight, self.contrastive_weight)
        if self.method == "cocondenser" and not any(weights):
            raise QontextError("all three loss weights are 0, so there is nothing to train on")
        by_prediction = self.method in ("cot-mae", "condenser", "retromae")
        if (by_prediction or self.condenser_steps) and not any(weights[:2]):
            raise QontextError("late_mlm_weight and head_weight are both 0, so there is nothing to train on")
        if self.encoder_mask == 0 and self.method in ("mlm", "condenser"):
            raise QontextError("encoder_mask is 0, so there is nothing to predict")
        if self.decoder == "autoregressive" and self.decoder_init != "random":
            raise QontextError(
                "the autoregressive decoder has blocks of its own kind, so it cannot start from the encoder's layers",
                remedy="Leave --decoder-init out.",
            )
        return self

    def context_name(self) -> str:
        """The context, resolved."""
        if self.context is not None:
            return self.context
        return "query" if self.queries else "near+olap+rand" if self.method == "cot-mae" else "rand"

    def encoder_rate(self, default: float) -> float:
        return default if self.encoder_mask is None else self.encoder_mask

    def decoder_rate(self, default: float) -> float:
        return default if self.decoder_mask is None else self.decoder_mask

    def average(self, default: Literal["tokens", "spans"]) -> Literal["tokens", "spans"]:
        return default if self.mlm_average == "method" else self.mlm_average

    def decoder_layers_or(self, default: int) -> int:
        copied = self.copied_layers()
        return self.decoder_layers or (len(copied) if copied else default)

    def both_directions(self) -> bool:
        if self.directions == "auto":
            return self.context_name() not in ("query", "mixed")
        return self.directions == "both"

    def copied_layers(self) -> tuple[int, ...] | None:
        """The encoder's layers that the head starts from, counted from 0; None for new ones."""
        if self.decoder_init == "random":
            return None
        try:
            numbers = tuple(int(part) for part in self.decoder_init.split(","))
        except ValueError:
            raise QontextError(
                f"decoder_init = {self.decoder_init!r} is neither 'random' nor layer numbers such as '10,11'"
            ) from None
        if self.decoder_layers is not None and len(numbers) != self.decoder_layers:
            raise QontextError(
                f"decoder_init names {len(numbers)} layers, decoder_layers asks for {self.decoder_layers}"
            )
        return numbers

    def early_layer(self, layers: int) -> int:
        """M, for an encoder of so many layers."""
        number = self.early_layer_number or max(1, layers // 2)
        if number > layers:
            raise QontextError(f"early_layer_number = {number}, but the encoder has only {layers} layers")
        return number
