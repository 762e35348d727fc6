"""The encoder that pre-training and fine-tuning share: a transformers model with access to its parts.

Methods speak of h^l, the output of layer l (h^0 = embeddings), of φ, the MLM head, and of heads made of more
layers of the backbone's type. This module provides these for every architecture in `families`.

Padding must be the tokenizer's padding id: RoBERTa and MPNet count positions by it.

Shapes: N sequences, T tokens, H hidden size, K gathered positions, V vocabulary.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.models.families import Family, Shared, family_of
from qontext.models.folder import locate
from qontext.models.load import load_mlm, new_model, seeded
from qontext.models.precision import keep_fp32
from qontext.models.prediction import weighted_cross_entropy
from qontext.models.presets import PRESETS, preset_config
from qontext.models.reference import shown_name
from qontext.models.save import Pooling, Similarity, save_weights, vector_modules, write_modules
from qontext.models.tokenizer import check_fit, check_tokenizer, load_tokenizer


class Encoder(nn.Module):
    """A backbone with its MLM head and tokenizer.

    `pooler` are weights of the checkpoint that no method uses: they are saved unchanged.
    """

    def __init__(self, model: Any, tokenizer: Any, *, pooler: dict[str, Tensor] | None = None) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.pooler = pooler or {}
        keep_fp32(self.backbone)
        self.family = family_of(model.config, model.config.model_type)
        self.hidden_size = int(model.config.hidden_size)
        self.num_layers = len(self._layers)
        self.vocab_size = int(model.config.vocab_size)
        reserved = self.family.reserved_positions(model.config)
        self.max_length = int(model.config.max_position_embeddings) - reserved

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def backbone(self) -> Any:
        """The model without its MLM head."""
        return self.model.base_model

    @property
    def _layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.backbone.get_submodule(self.family.layers)
        return layers

    @property
    def _shared(self) -> dict[str, nn.Module]:
        return {path.rpartition(".")[2]: self.backbone.get_submodule(path) for path in self.family.shared}

    def embed(self, ids_NT: Tensor) -> Tensor:
        """h^0: the full embedding output (word, position and type, norm, dropout; ELECTRA's projection)."""
        return self.family.embed(self.backbone, ids_NT)

    def freeze(self, layers: int) -> None:
        """Keep the embeddings and the first `layers` layers as they are. Nothing is back-propagated through them."""
        if layers >= self.num_layers:
            raise QontextError(
                f"frozen_layers = {layers}, but the encoder has {self.num_layers} layers, of which one must be trained"
            )
        # A position bias that all layers share is not trained: its gradient would come from the frozen ones, too.
        norms = [module for module in self._shared.values() if not isinstance(module, nn.Embedding)]
        trained = {id(p) for module in (*self._layers[layers:], *norms) for p in module.parameters()}
        for parameter in self.backbone.parameters() if layers else ():
            parameter.requires_grad_(id(parameter) in trained)

    def positions(self, length: int) -> Tensor | None:
        """[T, H] the position embeddings of the first tokens, before any norm; None if the backbone has no such table."""
        if self.family.positions is None:
            return None
        first = self.family.reserved_positions(self.config)
        return self.family.positions(self.backbone)[first : first + length]

    def forward(
        self, ids_NT: Tensor, mask_NT: Tensor | None, *, layers: tuple[int, ...] = (-1,)
    ) -> tuple[Tensor, ...]:
        """The requested hidden states h^l, [N, T, H] each, in that order: 0 = embeddings … L = last = -1.
        `mask_NT` is True at real tokens; None means no padding. Layers above the highest requested one are
        not run.
        """
        numbers = [layer % (self.num_layers + 1) for layer in layers]
        hidden = self.embed(ids_NT)
        states = {0: hidden}
        shared = self._shared
        step = self.family.prepare(self.config, shared, hidden, mask_NT)
        for number, layer in enumerate(self._layers[: max(numbers)], start=1):
            hidden = step(layer, hidden)
            if number == self.num_layers:
                hidden = self.family.finish(shared, hidden)
            if number in numbers:
                states[number] = hidden
        return tuple(states[number] for number in numbers)

    def mlm_logits(self, hidden_KH: Tensor) -> Tensor:
        """φ: vocabulary logits [K, V] of any gathered positions."""
        logits: Tensor = self.model.get_output_embeddings()(self.family.transform(self.model, hidden_KH))
        return logits

    def mlm_loss(self, hidden_KH: Tensor, labels_K: Tensor, weights_K: Tensor) -> Tensor:
        """Σ weight · CE(φ(h), label)."""
        transformed_KH = self.family.transform(self.model, hidden_KH)
        return weighted_cross_entropy(transformed_KH, self.model.get_output_embeddings(), labels_K, weights_K)

    def fresh_layers(self, n: int, copy_from: tuple[int, ...] | None = None, seed: int = 0) -> Layers:
        """`n` more layers of the backbone's type: newly initialized, or copies of the layers `copy_from`.

        Layers are counted from 0 here, as in the papers' ablations: (0, 1) are the first two, (10, 11) the
        last two of twelve. The backbone's initialization is used, seeded by `seed`.
        """
        if copy_from is None:
            with seeded(seed):
                new = [self.family.fresh(self._layers[0], self.config) for _ in range(n)]
                shared = {name: _fresh_like(module, self.config) for name, module in self._shared.items()}
                for module in (*new, *shared.values()):
                    module.apply(self.backbone._init_weights)
        else:
            if len(copy_from) != n or not all(0 <= number < self.num_layers for number in copy_from):
                wrong = ", ".join(map(str, copy_from))
                raise QontextError(
                    f"{n} new layers cannot be copies of layers {wrong}: the encoder has layers 0 to "
                    f"{self.num_layers - 1}",
                    remedy="Name one existing layer for each new one.",
                )
            new = [copy.deepcopy(self._layers[number]) for number in copy_from]
            shared = {name: copy.deepcopy(module) for name, module in self._shared.items()}
        like = next(self._layers.parameters())
        return Layers(self.family, self.config, new, shared).to(like.device, like.dtype)

    def save(
        self,
        directory: Path,
        *,
        max_length: int,
        pooling: Pooling = "cls",
        similarity: Similarity = "dot",
        mlm_head: bool = True,
        normalize: bool = False,
    ) -> None:
        """Write the encoder into an existing directory, for transformers and sentence-transformers to load.

        With the MLM head, training can continue from it; without, the file is smaller and AutoModel loads it
        without a warning. With `normalize`, sentence-transformers returns vectors of length one.
        """
        self.save_weights(directory, max_length=max_length, mlm_head=mlm_head)
        modules = vector_modules(self.hidden_size, pooling, normalize=normalize)
        write_modules(directory, "SentenceTransformer", modules, max_length=max_length, similarity=similarity)

    def save_weights(self, directory: Path, *, max_length: int, mlm_head: bool) -> None:
        """Write the transformer and its tokenizer."""
        assert max_length <= self.max_length, (
            f"max_length = {max_length}, but the encoder has {self.max_length} positions"
        )
        model = self.model if mlm_head else self.backbone
        prefix = f"{self.model.base_model_prefix}." if mlm_head else ""
        pooler = {f"{prefix}{name}": weight for name, weight in self.pooler.items()}
        save_weights(model, self.tokenizer, directory, max_length, more_weights=pooler)


class Layers(nn.Module):
    """Layers of a backbone's type, bidirectional. No position embeddings are added to their input.

    What the backbone's layers share (MPNet's relative position bias, ModernBERT's rotary table and closing
    norm) is copied into the stack, so that its state is complete and no weights are shared.
    """

    def __init__(self, family: Family, config: Any, layers: list[nn.Module], shared: Shared) -> None:
        super().__init__()
        self.family, self.config = family, config
        self.layers = nn.ModuleList(layers)
        self.shared = nn.ModuleDict(shared)

    def forward(self, hidden_NTH: Tensor, mask_NT: Tensor | None) -> Tensor:
        """[N, T, H] → [N, T, H]; `mask_NT` is True at real tokens, None if nothing is padded."""
        shared = dict(self.shared.items())
        step = self.family.prepare(self.config, shared, hidden_NTH, mask_NT)
        hidden = hidden_NTH
        for layer in self.layers:
            hidden = step(layer, hidden)
        return self.family.finish(shared, hidden)


def _fresh_like(module: nn.Module, config: Any) -> nn.Module:
    """A new module of the same type and shape, before initialization."""
    if isinstance(module, nn.Embedding):
        return nn.Embedding(module.num_embeddings, module.embedding_dim)
    if isinstance(module, nn.LayerNorm):
        return nn.LayerNorm(module.normalized_shape, module.eps, bias=module.bias is not None)
    return type(module)(config)


def load_encoder(
    name_or_path: str | os.PathLike[str],
    *,
    tokenizer: str | None = None,
    attention: str = "sdpa",
    seed: int = 42,
    dropout: float | None = None,
) -> Encoder:
    """Load an encoder by preset, directory or Hub name, in fp32 on the CPU, in evaluation mode. A preset is
    initialized from `seed` and needs `tokenizer`: a folder, a tokenizer.json or a Hub name. Other encoders
    have their own. `dropout` replaces every dropout rate of the backbone.

    >>> encoder = load_encoder("encoder")
    >>> encoder.training, next(encoder.parameters()).dtype
    (False, torch.float32)
    """
    name_or_path = os.fspath(name_or_path)
    if name_or_path in PRESETS:
        if tokenizer is None:
            raise QontextError(
                f"the preset {name_or_path!r} starts from scratch and needs a tokenizer",
                remedy="Set --tokenizer to a folder or a tokenizer.json.",
            )
        words = _usable_tokenizer(tokenizer)
        model = new_model(preset_config(name_or_path, words), attention, seed, dropout)
        log.detail(f"{name_or_path}: {sum(p.numel() for p in model.parameters()):,} new parameters")
        return Encoder(model, words).eval()
    directory = locate(name_or_path).transformer
    model, pooler = load_mlm(directory, attention, seed, dropout, shown_name(name_or_path))
    words = _usable_tokenizer(str(directory))
    if tokenizer is not None and _usable_tokenizer(tokenizer).get_vocab() != words.get_vocab():
        raise QontextError(
            f"the tokenizer does not fit the encoder: {name_or_path} was trained with another vocabulary",
            place=tokenizer,
            remedy=f"Remove --tokenizer, or start from scratch with a preset: {', '.join(PRESETS)}.",
        )
    encoder = Encoder(model, words, pooler=pooler).eval()
    check_fit(words, encoder.config, encoder.family.reserved_positions(encoder.config), directory)
    return encoder


def _usable_tokenizer(name: str) -> Any:
    path = Path(name).expanduser()
    tokenizer = load_tokenizer(path if path.exists() else locate(name).transformer)
    check_tokenizer(tokenizer, name)
    return tokenizer
