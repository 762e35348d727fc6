"""The base class of representations: how texts are represented and compared, in training and in search.

Shapes: N texts, T tokens, Q queries, P passages, M texts of the whole batch; … the shape of one representation.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

from torch import Tensor, nn

from qontext.frame import config
from qontext.models.encoder import Encoder
from qontext.models.layout import Kind, Layout
from qontext.models.packed import Packed

Stored = Literal["vector", "sparse", "tokens", "matches"]
"""One vector [D]; or, of any number each, weights of terms, vectors [D], or vectors [D] of terms."""


class Lengths(NamedTuple):
    """Maximum tokens of a query and of a passage."""

    query: int
    passage: int


class Representation(nn.Module):
    """Texts → representations, and their similarity. What is trained besides the encoder are its parameters."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("new", "forward", "similarity", "save")
    """What a representation must define."""
    Options: ClassVar[type[config.Options]] = config.Options
    module: ClassVar[str] = ""
    """The class in modules.json by which a model folder is recognized. Default: ``module:Class`` of this class."""
    stored: ClassVar[Stored] = "vector"
    """What `encode` stores of a text."""
    index: ClassVar[str] = "qontext.retrieve.index.exact:ExactIndex"
    """The exact index over what is stored, as ``module:Class``."""
    card: ClassVar[str] = ""
    """The text of its model card; empty for the card of a dense retriever."""
    temperature = 1.0
    """Default temperature of the loss."""
    reads_first_token = False
    """Whether only the last layer's first token is read."""

    @classmethod
    def new(cls, encoder: Encoder, layout: Layout, options: config.Options, lengths: Lengths) -> Self:
        """For a training that starts from the encoder of a folder with this layout."""
        raise NotImplementedError

    @classmethod
    def load(cls, encoder: Encoder, layout: Layout) -> Self:
        """From a folder that `save` wrote. Only what `encode` packs needs it."""
        raise NotImplementedError

    def fill_up(self) -> None:
        """From now on, `forward` returns the same shape for all texts, as training needs."""

    def forward(self, encoder: Encoder, ids_NT: Tensor, mask_NT: Tensor, are_queries: bool) -> Tensor:
        """[N, …] in fp32; `mask_NT` is True at tokens."""
        raise NotImplementedError

    def similarity(self, queries: Tensor, passages: Tensor) -> Tensor:
        """[Q, P] of queries [Q, …] and passages [P, …]."""
        raise NotImplementedError

    def versions(self, texts: Tensor) -> list[Tensor]:
        """Versions of the representations [M, …], over which the loss is averaged."""
        return [texts]

    def regularize(
        self, texts: Tensor, is_query_M: Tensor, rows: slice, progress: float
    ) -> dict[str, Tensor]:
        """Losses of the representations [M, …] of the whole batch themselves: the share of these rows."""
        return {}

    def pack(self, texts: Tensor) -> Packed:
        """The representations [N, …], each as long as it is."""
        raise NotImplementedError

    def width(self, encoder: Encoder) -> int:
        """D of a packed representation: the size of what is compared."""
        raise NotImplementedError

    def longest(self, kind: Kind) -> int | None:
        """Maximum tokens of a text of this kind, if the folder says so."""
        return None

    def prompts(self) -> dict[Kind, str]:
        """What precedes each text of a kind."""
        return {}

    def about(self) -> dict[str, str]:
        """For the summary."""
        return {}

    def save(self, encoder: Encoder, folder: Path, lengths: Lengths, *, max_length: int) -> None:
        """Write the encoder into an existing folder, such that its layout names this representation."""
        raise NotImplementedError
