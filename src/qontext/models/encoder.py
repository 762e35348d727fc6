"""The encoder that pre-training and fine-tuning share: a transformers model with access to its parts.

Methods speak of h^l, the output of layer l (h^0 = embeddings), of φ, the MLM head, and of heads made of more
layers of the backbone's type. This module provides these for every architecture in `families` whose entry has them. A
decoder's φ is its language-model head; of a model without a head, φ are the word embeddings.

Padding must be the tokenizer's padding id: RoBERTa and MPNet count positions by it.

Shapes: N sequences, T tokens, H hidden size, K gathered positions, V vocabulary.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.models.families import Family, Predicts, Shared, family_of, make_bidirectional
from qontext.models.folder import PRESETS, PROMPTS, FolderLayout, TextKind, locate
from qontext.models.load import load_model, new_model, preset_config, read_config, seeded
from qontext.models.pooling import read_dense, save_dense
from qontext.models.precision import keep_fp32
from qontext.models.prediction import TiedOutput, weighted_cross_entropy
from qontext.models.reference import shown_name
from qontext.models.save import Pooling, Similarity, save_weights, vector_modules, write_modules
from qontext.models.tokenizer import check_fit, end_texts, in_lower_case, prompt_length, usable_tokenizer

PROMPT_NAMES = {name for names in PROMPTS.values() for name in names}
UNLIMITED = 1 << 20
"""Maximum tokens of a text of a model without a limit."""


class Encoder(nn.Module):
    """A backbone with its head and tokenizer, and what its folder does with a vector.

    `pooler` are weights of the checkpoint that no method uses: they are saved unchanged.
    """

    dense: Any
    """The folder's dense layers after the pooling."""
    prompts: dict[TextKind, str]
    """The prompt before each text of a kind."""
    lowers = False
    """True if the folder, and not its tokenizer, says that texts are read in lower case."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        pooler: dict[str, Tensor] | None = None,
        layout: FolderLayout | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.pooler = pooler or {}
        keep_fp32(self.backbone)
        self.family = family_of(model.config, model.config.model_type)
        text = model.config.get_text_config()
        self.hidden_size = int(self.family.output_size(model.config))
        self.num_layers = int(text.num_hidden_layers)
        self.vocab_size = int(text.vocab_size)
        reserved = self.family.reserved_positions(model.config)
        positions = getattr(text, "max_position_embeddings", None) or tokenizer.model_max_length + reserved
        self.max_length = min(int(positions) - reserved, UNLIMITED)
        self.dense = nn.ModuleList(read_dense(path) for path in (layout.dense if layout else ()))
        keep_fp32(self.dense)
        self.named_prompts = dict(layout.prompts) if layout else {}
        self.prompts = {kind: layout.prompt(kind) if layout else "" for kind in get_args(TextKind)}

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def backbone(self) -> Any:
        """The model without its head."""
        return self.model.base_model

    @property
    def predicts(self) -> Predicts:
        """The model's own prediction about the text that it reads: masked tokens, the next token, or nothing."""
        return self.family.predicts(self.config)

    @property
    def is_causal(self) -> bool:
        """True if a token sees only what stands before it, so that the last one sees the whole text."""
        return self.family.is_causal(self.config)

    @property
    def dimension(self) -> int:
        """D: the size of a vector after the dense layers."""
        return int(self.dense[-1].dimension) if len(self.dense) else self.hidden_size

    def project(self, vectors_NH: Tensor) -> Tensor:
        """[N, D] pooled vectors after the folder's dense layers, if there are any."""
        for layer in self.dense:
            vectors_NH = layer(vectors_NH)
        return vectors_NH

    @property
    def longest_prompt(self) -> int:
        """The number of tokens of the longer prompt, which are read beside the tokens of a text."""
        return max(prompt_length(self.tokenizer, prompt) for prompt in self.prompts.values())

    def pooling(self, chosen: Pooling) -> Pooling:
        """The pooling to use: of a decoder, whose first token sees nothing else, the last token instead of [CLS]."""
        return "lasttoken" if chosen == "cls" and self.is_causal else chosen

    @property
    def _layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.backbone.get_submodule(self.family.layers)
        return layers

    @property
    def _shared(self) -> dict[str, nn.Module]:
        names = {name for name, _ in self.backbone.named_modules()}
        shared = [path for path in self.family.shared if path in names]
        return {path.rpartition(".")[2]: self.backbone.get_submodule(path) for path in shared}

    def embed(self, ids_NT: Tensor) -> Tensor:
        """h^0: the full embedding output (word, position and type, norm, dropout; ELECTRA's projection)."""
        return self.family.embed(self.backbone, ids_NT)

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
        not run, except where the library runs them all.
        """
        numbers = [layer % (self.num_layers + 1) for layer in layers]
        if self.family.prepare is None or self.family.whole:
            return self._whole(ids_NT, mask_NT, numbers)
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

    def _whole(self, ids_NT: Tensor, mask_NT: Tensor | None, numbers: list[int]) -> tuple[Tensor, ...]:
        """The hidden states of these layers, from the library's own forward pass."""
        settings: dict[str, Any] = {"use_cache": False} if self.family.auto == "AutoModelForCausalLM" else {}
        are_more = any(number != self.num_layers for number in numbers)
        settings |= {"output_hidden_states": True} if are_more else {}
        out = self.backbone(
            input_ids=ids_NT, attention_mask=None if mask_NT is None else mask_NT.long(), **settings
        )
        return tuple(
            out.last_hidden_state if number == self.num_layers else out.hidden_states[number]
            for number in numbers
        )

    def continued(self, embeddings_NTH: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, T, H] a decoder's last hidden states over embeddings, each of which sees only what stands before it."""
        T = mask_NT.shape[1]
        before_TT = torch.ones(T, T, dtype=torch.bool, device=mask_NT.device).tril()
        attention_N1TT = mask_NT[:, None, None, :] & before_TT
        if self.config.get_text_config()._attn_implementation == "eager":
            lowest = torch.finfo(embeddings_NTH.dtype).min
            attention_N1TT = (~attention_N1TT).to(embeddings_NTH.dtype) * lowest
        out = self.backbone(inputs_embeds=embeddings_NTH, attention_mask=attention_N1TT, use_cache=False)
        last: Tensor = out.last_hidden_state
        return last

    def mlm_logits(self, hidden_KH: Tensor) -> Tensor:
        """φ: vocabulary logits [K, V] of any gathered positions."""
        logits: Tensor = self._output(self.family.transform(self.model, hidden_KH))
        limit = self._logit_limit
        return logits if limit is None else limit * torch.tanh(logits / limit)

    def mlm_loss(self, hidden_KH: Tensor, labels_K: Tensor, weights_K: Tensor) -> Tensor:
        """Σ weight · CE(φ(h), label)."""
        if self._logit_limit is not None:
            logits_KV = self.mlm_logits(hidden_KH).float()
            return (F.cross_entropy(logits_KV, labels_K, reduction="none") * weights_K).sum()
        transformed_KH = self.family.transform(self.model, hidden_KH)
        return weighted_cross_entropy(transformed_KH, self._output, labels_K, weights_K)

    @property
    def _output(self) -> Any:
        """The layer with an output for each vocabulary entry."""
        return self.model.get_output_embeddings() or TiedOutput(self.model.get_input_embeddings())

    @property
    def _logit_limit(self) -> float | None:
        """Gemma 2 squashes its logits: limit · tanh(z / limit)."""
        limit: float | None = getattr(self.config.get_text_config(), "final_logit_softcapping", None)
        return limit if self.family.auto == "AutoModelForCausalLM" else None

    def fresh_layers(self, n: int, copy_from: tuple[int, ...] | None = None, seed: int = 0) -> Layers:
        """`n` more layers of the backbone's type: newly initialized, or copies of the layers `copy_from`.

        Layers are counted from 0 here, as in the papers' ablations: (0, 1) are the first two, (10, 11) the
        last two of twelve. The backbone's initialization is used, seeded by `seed`.
        """
        if copy_from is None:
            assert self.family.has_layers, "checked by the objective"
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
            of = len(self._layers) / self.num_layers  # ALBERT's layers share weights
            new = [copy.deepcopy(self._layers[int(number * of)]) for number in copy_from]
            shared = {name: copy.deepcopy(module) for name, module in self._shared.items()}
        like = next(self._layers.parameters())
        layers = Layers(self.family, self.config, new, shared).to(like.device, like.dtype)
        return layers.requires_grad_()  # copies of frozen layers are trained

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
        modules = vector_modules(self.hidden_size, pooling, normalize=normalize, dense=self.dense)
        write_modules(
            directory,
            "SentenceTransformer",
            modules,
            max_length=max_length,
            similarity=similarity,
            prompts=self.saved_prompts(),
        )
        for layer, module in zip(self.dense, (module for module in modules if "Dense" in module.path)):
            save_dense(layer, directory / module.path)

    def saved_prompts(self) -> dict[str, str]:
        """Those of queries and passages under sentence-transformers' names, and the folder's others."""
        named = {PROMPTS[kind][0]: prompt for kind, prompt in self.prompts.items()}
        others = {name: prompt for name, prompt in self.named_prompts.items() if name not in PROMPT_NAMES}
        return {name: prompt for name, prompt in {**named, **others}.items() if prompt}

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
        assert self.family.prepare is not None
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
    return copy.deepcopy(module) if any(True for _ in module.parameters()) else type(module)(config)


def load_encoder(
    name_or_path: str | os.PathLike[str],
    *,
    tokenizer: str | None = None,
    attention: str = "sdpa",
    seed: int = 42,
    dropout: float | None = None,
    bidirectional: bool = False,
) -> Encoder:
    """Load an encoder by preset, directory or Hub name, in fp32 on the CPU, in evaluation mode. A preset is
    initialized from `seed` and needs `tokenizer`: a folder, a tokenizer.json or a Hub name. Other encoders
    have their own. `dropout` replaces every dropout rate of the backbone. With `bidirectional`, a decoder's tokens see the
    whole text.

    >>> encoder = load_encoder("encoder")
    >>> encoder.training, next(encoder.parameters()).dtype
    (False, torch.float32)
    """
    name_or_path = os.fspath(name_or_path)
    if name_or_path in PRESETS:
        if tokenizer is None:
            raise QontextError(
                f"the preset {name_or_path!r} starts from scratch and needs a tokenizer",
                remedy="Name a trained encoder, or begin with 'qontext pretrain' and --tokenizer FOLDER.",
            )
        words = usable_tokenizer(tokenizer, "masked")
        model = new_model(preset_config(name_or_path, words), attention, seed, dropout)
        log.detail(f"{name_or_path}: {sum(p.numel() for p in model.parameters()):,} new parameters")
        return Encoder(model, words).eval()
    found = locate(name_or_path)
    directory, layout = found.transformer, found.layout
    model, pooler = load_model(directory, attention, seed, dropout, shown_name(name_or_path))
    family = family_of(model.config, name_or_path)
    if bidirectional:
        if not family.is_causal(model.config):
            raise QontextError("the encoder reads in both directions already", place=name_or_path)
        make_bidirectional(model)
    predicts = family.predicts(model.config)
    words = usable_tokenizer(str(directory), predicts)
    if layout.is_bare and family.auto == "AutoModelForCausalLM":
        words = end_texts(words)
    own = words
    if layout.lower:
        words = in_lower_case(words)
    if tokenizer is not None and usable_tokenizer(tokenizer, predicts).get_vocab() != words.get_vocab():
        raise QontextError(
            f"the tokenizer does not fit the encoder: {name_or_path} was trained with another vocabulary",
            place=tokenizer,
            remedy=f"Remove --tokenizer, or start from scratch with a preset: {', '.join(PRESETS)}.",
        )
    encoder = Encoder(model, words, pooler=pooler, layout=layout).eval()
    encoder.lowers = words is not own
    check_fit(words, encoder.config, encoder.family.reserved_positions(encoder.config), directory)
    return encoder


def check_trainable(name: str) -> None:
    """Refuse an encoder of one vector that cannot be trained, without loading its weights."""
    found = locate(name)
    config = read_config(found.transformer)
    predicts = family_of(config, name).predicts(config)
    usable_tokenizer(str(found.transformer), predicts)
    if found.layout.pooling not in get_args(Pooling):
        raise QontextError(f"training with the pooling {found.layout.pooling!r} is not supported", place=name)
