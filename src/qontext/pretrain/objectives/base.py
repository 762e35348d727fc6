"""The base class of objectives: the interface to the training loop, the terms that methods share, and the options of these.

An objective is a `TrainableModel`: it returns named losses for a micro-batch, and, if it is contrastive,
their vectors, too.

Shapes: N rows, T tokens, H hidden size, K predicted positions, M rows of the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from qontext.frame import config, log
from qontext.frame.errors import QontextError
from qontext.frame.files import opening
from qontext.models.encoder import Encoder
from qontext.models.pooling import POOLINGS
from qontext.pretrain.batches import Keys as Keys
from qontext.pretrain.batches import Layout, MicroBatch
from qontext.pretrain.objectives import METHODS
from qontext.pretrain.texts import Text
from qontext.training.batch import Output as Output
from qontext.training.batch import TrainableModel

HEAD = "head.safetensors"


@dataclass(frozen=True)
class Common:
    """The settings of `qontext pretrain` that every method reads. `has_queries` means that contexts are, or
    may be, queries.
    """

    seed: int = 42
    vector: Literal["cls", "mean", "lasttoken"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    has_queries: bool = False
    max_tokens: int | None = None
    """Maximum tokens of a text and the prompt before it. Default: the encoder's limit."""


class Masks(config.Options):
    """Options of methods whose encoder reads texts masked at 30 %."""

    encoder_mask: float = Field(0.30, ge=0, le=1)
    """Share of masked tokens in the encoder (at least one token). 0 disables the encoder's own predictions."""


class HeadLayers(config.Options):
    """Options of methods whose head consists of layers like the encoder's."""

    decoder_layers: int | None = Field(None, ge=1, le=24)
    """Number of layers of the condenser head or the decoder. Default: 2, or 1 for the autoregressive decoder."""

    decoder_init: str = "random"
    """Initialization of the head's layers: random, or copies of encoder layers, such as 0,1 or 10,11."""

    def layers(self, default: int) -> int:
        """The number of layers of the head."""
        copied = self.copied_layers()
        return self.decoder_layers or (len(copied) if copied else default)

    def copied_layers(self) -> tuple[int, ...] | None:
        """The encoder layers to copy into the head, counted from 0; None for new ones."""
        if self.decoder_init == "random":
            return None
        return tuple(int(part) for part in self.decoder_init.split(","))


Needs = Literal["output", "prediction", "masked", "layers", "next"]
_NEEDED = {
    "prediction": "with these weights a language model",
    "masked": "a masked language model",
    "layers": "a masked language model whose layers can be repeated",
    "next": "a language model that predicts the next token",
}


class Phase(NamedTuple):
    """A phase of a training: the method's name in metrics and checkpoints, its class, its optimizer steps."""

    name: str
    objective: type[Objective]
    steps: int


class Objective(TrainableModel):
    """Base class of the methods. Modules trained besides the encoder are registered under `head`."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("layout", "forward")
    """The methods that an objective must define."""
    Options: ClassVar[type[config.Options]] = config.Options
    """The options of the method, besides `Common`."""
    default_context: ClassVar[str] = "rand"
    """The default context, if neither a context nor queries are set."""
    head_kind = ""
    head: Any
    """The modules that are trained besides the encoder, of methods that have them."""

    def __init__(self, encoder: Encoder, options: Any, common: Common) -> None:
        super().__init__()
        self.encoder = encoder
        self.options = options
        self.common = common

    @staticmethod
    def needs(options: Any) -> Needs:
        """The kind of prediction that an encoder must have."""
        return "masked"

    @classmethod
    def check_encoder(cls, encoder: Encoder, options: Any) -> None:
        """Refuse an encoder without what the method needs."""
        needs, family = cls.needs(options), encoder.family
        has = {
            "output": True,
            "prediction": encoder.predicts != "nothing",
            "masked": encoder.predicts == "masked",
            "layers": encoder.predicts == "masked" and family.has_layers,
            "next": family.auto == "AutoModelForCausalLM",
        }
        if not has[needs]:
            name = METHODS.name_of(f"{cls.__module__}:{cls.__qualname__}")
            raise QontextError(
                f"the method {name} needs {_NEEDED[needs]}, which {encoder.config.model_type!r} does not have",
                remedy="Methods for every encoder: cocondenser --head-weight 0, and bow.",
            )

    @staticmethod
    def layout(options: Any, common: Common) -> Layout:
        """The rows that the method reads."""
        raise NotImplementedError

    @classmethod
    def phases(cls, name: str, options: Any, steps: int) -> list[Phase]:
        """The consecutive phases of the method; the encoder and the head pass through all of them."""
        return [Phase(name, cls, steps)]

    def missing_head(self) -> str | None:
        """A warning for an encoder without a trained head, if the method expects one."""
        return None

    def forward(self, rows: MicroBatch) -> Output:
        raise NotImplementedError

    def vector(self, last_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        """h_x [N, H]: the last layer's [CLS] as it is, the mean over the text's tokens, or its last token."""
        return POOLINGS[self.common.vector](last_NTH, mask_NT)

    def read(self, text: Text) -> Tensor:
        """[N, T] the tokens that the encoder and the decoder read."""
        return text.ids

    def encode(self, text: Text) -> tuple[Tensor, Tensor]:
        """h^L [N, T, H], the last layer, and h_x [N, H]."""
        (last,) = self.encoder(self.read(text), text.mask)
        return last, self.vector(last, text.mask)

    def mlm(self, name: str, last_NTH: Tensor, text: Text) -> dict[str, Tensor]:
        """w · CE(φ(h^L), label) under this name, with w = `late_mlm_weight` or 1; nothing if w is 0. A decoder's
        labels are the next tokens."""
        weight, predicts = getattr(self.options, "late_mlm_weight", 1.0), self.encoder.predicts
        if weight == 0 or predicts == "nothing":
            return {}
        name = name if predicts == "masked" else name.replace("mlm", "lm")
        return {name: weight * self.predict(last_NTH, text)}

    def decode(
        self, name: str, vector_NH: Tensor, text: Text, rest_NTH: Tensor | None = None
    ) -> dict[str, Tensor]:
        """w · CE(φ(head([h_x ; rest[1..n]])), label) under this name, with w = `head_weight` or 1; nothing if w is 0. The
        rest is E(x), the embeddings, unless it is given."""
        weight = getattr(self.options, "head_weight", 1.0)
        if weight == 0:
            return {}
        rest_NTH = self.encoder.embed(self.read(text)) if rest_NTH is None else rest_NTH
        decoded = self.head(with_first(vector_NH, rest_NTH), text.mask)
        return {name: weight * self.predict(decoded, text)}

    def represent(self, rows: MicroBatch) -> Tensor:
        """The vectors of texts [N, D] that the contrastive loss compares, after the dense layers of the folder."""
        _, vector_NH = self.encode(rows.encoder)
        return self.encoder.project(vector_NH)

    def head_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The modules trained besides the encoder, by name."""
        return [(n.removeprefix("head."), p) for n, p in self.named_parameters() if n.startswith("head.")]

    def predict(self, hidden_NTH: Tensor, text: Text) -> Tensor:
        """Σ weight · CE(φ(h), label) over the predicted positions; φ is only computed there."""
        gathered_KH = hidden_NTH.flatten(0, 1)[text.positions]
        return self.encoder.mlm_loss(gathered_KH, text.labels, text.weights)


def save_head(objective: Objective, folder: Path) -> None:
    """Write the objective's head, if it has one, with its kind, so that later training can continue from it."""
    weights = {n: p.detach().cpu().contiguous() for n, p in objective.head_parameters()}
    if weights:
        save_file(weights, folder / HEAD, {"kind": objective.head_kind})


def load_head(objective: Objective, folder: Path) -> bool:
    """Load the objective's head from `folder`, if it has the same kind; returns True if loaded."""
    file, own = folder / HEAD, dict(objective.head_parameters())
    if not own or not file.is_file():
        return False
    with opening(file, "a safetensors file with a head"), safe_open(file, framework="pt") as stored:
        kind = (stored.metadata() or {}).get("kind")
        weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if kind != objective.head_kind:
        log.note(f"The head in {folder} is a {kind} head; a new {objective.head_kind} head is initialized.")
        return False
    if {n: p.shape for n, p in weights.items()} != {n: p.shape for n, p in own.items()}:
        raise QontextError(
            "the shapes of this head differ from the configured ones",
            place=file,
            remedy="Set --decoder-layers to the value used for that head.",
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return True


def with_first(first_NH: Tensor, rest_NTH: Tensor) -> Tensor:
    """[first ; rest₁ … restₙ]: the sequence with its first vector replaced."""
    return torch.cat([first_NH[:, None], rest_NTH[:, 1:]], dim=1)
