"""The base class of representations: how texts are represented and compared, in training and in search.

Shapes: N texts, T tokens, Q queries, P passages, M texts of the whole batch; … the shape of one representation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, get_args

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qontext.frame import config
from qontext.frame.errors import QontextError
from qontext.frame.files import opening, read_json
from qontext.models.encoder import Encoder
from qontext.models.folder import PROMPTS, FolderLayout, TextKind
from qontext.models.load import seeded
from qontext.models.packed import Packed
from qontext.models.representations import REPRESENTATIONS
from qontext.models.save import Card, ModuleFolder, write_modules
from qontext.models.tokenizer import prompt_length

SEED = 42
"""Of new parameters, unless a training names another one."""
WEIGHTS = "model.safetensors"
"""The parameters, in the folder of the module."""
Stored = Literal["vector", "sparse", "tokens", "matches"]
"""One vector [D]; or, of any number each, weights of terms, vectors [D], or vectors [D] of terms."""


class Lengths(NamedTuple):
    """Maximum tokens of a query and of a passage."""

    query: int
    passage: int

    def with_prompts(self, encoder: Encoder) -> Lengths:
        """These, and the tokens of the encoder's prompts."""
        more = (prompt_length(encoder.tokenizer, encoder.prompts[kind]) for kind in get_args(TextKind))
        return Lengths(*(length + tokens for length, tokens in zip(self, more)))


V = TypeVar("V", Tensor, np.ndarray[Any, Any])


class Representation(nn.Module):
    """Texts → representations, and their similarity. What is trained besides the encoder are its parameters."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("forward", "similarity")
    """The methods that a subclass must define."""
    Options: ClassVar[type[config.Options]] = config.Options
    module: ClassVar[str] = ""
    """The class in modules.json by which a model folder is recognized. Default: ``module:Class`` of this class."""
    stored: ClassVar[Stored] = "vector"
    """The format in which `encode` stores a text."""
    index: ClassVar[str] = "qontext.retrieve.index.exact:ExactIndex"
    """The exact index over what is stored, as ``module:Class``."""
    card: ClassVar[Card] = Card("Retriever", "Queries and passages in a representation of its own.")
    """The title and description of its model card."""
    options: Any
    """The options that it was created with, which `save` records."""
    temperature = 1.0
    """Default temperature of the loss."""
    reads_first_token = False
    """True if only the last layer's first token is read."""

    def __init__(self, encoder: Encoder | None = None, options: config.Options | None = None) -> None:
        """Layers after the encoder are made here, if there are any."""
        super().__init__()

    @classmethod
    def new(
        cls,
        encoder: Encoder,
        layout: FolderLayout,
        options: config.Options,
        lengths: Lengths,
        seed: int = SEED,
    ) -> Self:
        """For a training that starts from the encoder of a folder with this layout. Default: ``cls(encoder, options)``, with
        the parameters of a folder of the same representation, or new ones from the seed."""
        representation = cls._created(encoder, options, seed)
        if layout.representation == cls.name():
            representation.load_parameters(layout)
        return representation

    @classmethod
    def load(cls, encoder: Encoder, layout: FolderLayout) -> Self:
        """From a folder that `save` wrote. Default: ``cls(encoder, options)`` with the recorded options and parameters."""
        assert layout.module is not None
        file = layout.module / "config.json"
        recorded = read_json(file, dict[str, Any])
        with opening(file, f"options of {cls.__qualname__}"):
            options = cls.Options(**recorded)
        representation = cls._created(encoder, options)
        representation.load_parameters(layout)
        return representation

    @classmethod
    def _created(cls, encoder: Encoder, options: config.Options, seed: int = SEED) -> Self:
        create: Any = cls
        if cls.stored != "vector" and (cls.pack is Representation.pack or cls.index == Representation.index):
            raise QontextError(
                f"the representation {cls._class()!r} stores {cls.stored}: it must define pack and set index",
                remedy="See docs/extending.md.",
            )
        with seeded(seed):
            representation: Self = create(encoder, options)
        representation.options = options
        return representation

    @classmethod
    def name(cls) -> str:
        """The name under which it is chosen."""
        return REPRESENTATIONS.name_of(cls._class())

    @classmethod
    def _class(cls) -> str:
        return f"{cls.__module__}:{cls.__qualname__}"

    def load_parameters(self, layout: FolderLayout) -> None:
        """Read what `save_module` wrote."""
        if self.state_dict():
            assert layout.module is not None
            with opening(layout.module / WEIGHTS, "the weights of the layers after the encoder"):
                self.load_state_dict(load_file(layout.module / WEIGHTS))

    def fill_up(self) -> None:
        """From now on, `forward` returns the same shape for all texts, as training needs."""

    def forward(self, encoder: Encoder, ids_NT: Tensor, mask_NT: Tensor, are_queries: bool) -> Tensor:
        """[N, …] in fp32; `mask_NT` is True at tokens."""
        raise NotImplementedError

    def checked(self, values: V, encoder: Encoder) -> V:
        """Vectors [K, D], refused if D is not the width that the class says; others as they are."""
        found, width = values.shape[-1] if values.ndim else 0, self.width(encoder)
        if self.stored in ("vector", "tokens") and found != width:
            raise QontextError(
                f"the representation {self.name()!r} returns vectors of {found} numbers, and its width is {width}",
                remedy="Correct its method width, or what forward or pack returns.",
            )
        return values

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
        """D: the size of what is compared."""
        return encoder.hidden_size

    def longest(self, kind: TextKind) -> int | None:
        """Maximum tokens of a text of this kind, if the folder says so."""
        return None

    def prompts(self) -> dict[TextKind, str]:
        """The prompt of each kind of text, if it has prompts of its own: it then reads no others."""
        return {}

    def saved_prompts(self, encoder: Encoder) -> dict[str, str]:
        """The prompts that it is trained with, under sentence-transformers' names."""
        own = {PROMPTS[kind][0]: prompt for kind, prompt in self.prompts().items()}
        return own or encoder.saved_prompts()

    def about(self) -> dict[str, str]:
        """For the summary."""
        return {"representation": self.name()}

    def save(self, encoder: Encoder, folder: Path, lengths: Lengths, *, max_length: int) -> None:
        """Write the encoder into an existing folder, such that its layout names this representation."""
        self.save_module(encoder, folder, self.options.model_dump(mode="json"), max_length=max_length)

    def save_module(
        self,
        encoder: Encoder,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        max_length: int,
        similarity: str = "dot",
    ) -> None:
        """Write the encoder, and a module with these settings and the parameters."""
        encoder.save_weights(folder, max_length=max_length, mlm_head=False)
        path = f"1_{type(self).__name__}"
        own = ModuleFolder(self.module or self._class(), path, settings, "qontext")
        modules = [ModuleFolder("models.Transformer", ""), own]
        write_modules(
            folder,
            "MultiVectorEncoder",
            modules,
            max_length=max_length,
            similarity=similarity,
            prompts=self.saved_prompts(encoder),
        )
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()}
        if weights:
            save_file(weights, folder / path / WEIGHTS)
