"""The differences between architectures, in one table. An encoder is embeddings, then a sequence of layers, then perhaps a
final norm; a head turns hidden states into vocabulary logits. The modules are the library's, called one by one so that only
the requested hidden states are kept.

Of an architecture without an entry, and of those whose entry names no layers, the library runs the whole backbone, and only
its output is used: for encoding, fine-tuning, and the pre-training methods that read nothing else.

Decoders see what stands before a token (`is_causal`), unless their configuration says ``is_causal = false``, with which the
library makes them bidirectional, as LLM2Vec does (BehnamGhader et al. 2024).

Shapes: N sequences, T tokens, H hidden size, K gathered positions, V vocabulary, A attention heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from qontext.frame.errors import QontextError

Shared = Mapping[str, nn.Module]
Step = Callable[[nn.Module, Tensor], Tensor]
Predicts = Literal["masked", "next", "nothing"]
"""The prediction that a model is trained for: masked tokens of the text that it reads, the next token, or nothing."""


@dataclass(frozen=True)
class Family:
    """The parts of an architecture, and how to call them."""

    auto: str = "AutoModelForMaskedLM"
    """transformers' class by which the model is read, with its head if it has one."""

    layers: str = ""
    """Path of the layer list in the backbone; empty if only its output is used."""

    whole: bool = False
    """The library runs the backbone, which does more than layer after layer; only new layers are called one by one."""

    embed: Callable[[Any, Tensor], Tensor] = lambda backbone, ids_NT: backbone.get_input_embeddings()(ids_NT)
    """(backbone, ids_NT) → h^0, the full embedding output."""

    transform: Callable[[Any, Tensor], Tensor] = lambda model, hidden_KH: hidden_KH
    """(model with its head, hidden_KH) → the input of its last layer, which has an output for each vocabulary entry."""

    prepare: Callable[[Any, Shared, Tensor, Tensor | None], Step] | None = None
    """(config, shared, h^0, mask_NT) → a function that applies one layer. Shared inputs of all layers are
    computed once here."""

    shared: tuple[str, ...] = ()
    """Paths of modules shared by layers, where they exist: position biases, rotary tables, the final norm."""

    fresh: Callable[[nn.Module, Any], nn.Module] = lambda like, config: type(like)(config)
    """(a layer, config) → a new layer of its type, before initialization."""

    finish: Callable[[Shared, Tensor], Tensor] = lambda shared, hidden: hidden
    """The modules after the last layer."""

    reserved_positions: Callable[[Any], int] = lambda config: 0
    """Rows of the position table that no token can have (RoBERTa counts from after the padding id)."""

    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    """Configuration keys of the dropout rates: hidden states first, attention last."""

    activation: str = "hidden_act"
    """Configuration key of the feed-forward activation."""

    width: str = "intermediate_size"
    """Configuration key of the feed-forward width."""

    norm_eps: str = "layer_norm_eps"
    """Configuration key of the norms' epsilon. DistilBERT's is fixed to BERT's value."""

    positions: Callable[[Any], Tensor] | None = lambda backbone: (
        backbone.embeddings.position_embeddings.weight
    )
    """backbone → the whole position table, in the hidden size; None where positions are not embedded."""

    output_size: Callable[[Any], int] = lambda config: config.get_text_config().hidden_size
    """The size of the backbone's output."""

    @property
    def has_layers(self) -> bool:
        """True if new layers can be made, and hidden states of any layer are read."""
        return self.prepare is not None

    def predicts(self, config: Any) -> Predicts:
        """The prediction of a model with this configuration."""
        if self.auto == "AutoModelForMaskedLM":
            return "masked"
        return "next" if self.is_causal(config) else "nothing"

    def is_causal(self, config: Any) -> bool:
        """True if a token sees nothing but itself and what stands before it."""
        text = config.get_text_config()
        both = getattr(text, "is_causal", None) is False or getattr(text, "use_bidirectional_attention", None)
        return self.auto == "AutoModelForCausalLM" and not both


def family_of(config: Any, place: str) -> Family:
    """The entry for a configuration; without one, that of decoders or of models of which only the output is used. BERT's
    relatives that read left to right, and halves of models without an entry, cannot be trained and are refused."""
    if config.model_type in FAMILIES:
        if getattr(config, "is_decoder", False) and not config.is_encoder_decoder:
            raise QontextError(
                f"{config.model_type!r} as a decoder is not a supported encoder architecture",
                place=place,
                remedy="Set is_decoder to false in its config.json, or choose another model.",
            )
    elif config.is_encoder_decoder:
        raise QontextError(
            f"the encoder of {config.model_type!r} cannot be trained apart from its decoder",
            place=place,
            remedy=f"Supported architectures: {', '.join(FAMILIES)}, and other encoders or decoders of transformers.",
        )
    return find_family(config)


def find_family(config: Any) -> Family:
    """The entry for what is read, if not trained: of any model that transformers knows."""
    from transformers.models.auto import modeling_auto as auto

    if config.model_type in FAMILIES:
        return FAMILIES[config.model_type]
    names = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    is_encoder = config.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return DECODER if config.model_type in names and not is_encoder else OUTPUT


def is_decoder(config: Any) -> bool:
    """True for a model that reads from left to right."""
    return find_family(config).is_causal(config)


def most_positions(config: Any) -> int | None:
    """The maximum tokens of a text by the position table, without its reserved rows; None if there is no limit."""
    positions: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions and positions - find_family(config).reserved_positions(config)


def make_bidirectional(model: Any) -> None:
    """Let every token of a decoder see the whole text, here and wherever its folder is loaded."""
    model.config.get_text_config().is_causal = False
    for module in model.modules():
        if getattr(module, "is_causal", None) is True:
            module.is_causal = False


def full_mask(config: Any, hidden_NTH: Tensor, mask_NT: Tensor | None) -> Any:
    """Every position sees every real token, in the form that the attention implementation takes."""
    if mask_NT is not None and _ready_made(config, mask_NT):
        return mask_NT[:, None, None, :].expand(-1, -1, mask_NT.shape[1], -1)
    return create_bidirectional_mask(config=config, inputs_embeds=hidden_NTH, attention_mask=mask_NT)


def local_mask(config: Any, hidden_NTH: Tensor, mask_NT: Tensor | None) -> Any:
    """Every position sees the real tokens at most `config.sliding_window` away."""
    if mask_NT is not None and _ready_made(config, mask_NT):
        places = torch.arange(mask_NT.shape[1], device=mask_NT.device)
        near_TT = (places[:, None] - places[None, :]).abs() <= config.sliding_window
        return mask_NT[:, None, None, :] & near_TT
    return create_bidirectional_sliding_window_mask(
        config=config, inputs_embeds=hidden_NTH, attention_mask=mask_NT
    )


def _ready_made(config: Any, mask_NT: Tensor) -> bool:
    """Skip the library's check of the mask, which drops a mask without padding. The check pays off
    on a CPU; on a GPU it makes the host wait for the device at every call.
    """
    return bool(config._attn_implementation == "sdpa" and mask_NT.device.type != "cpu")


def _absolute(config: Any, shared: Shared, hidden_NTH: Tensor, mask_NT: Tensor | None) -> Step:
    attention = full_mask(config, hidden_NTH, mask_NT)
    return lambda layer, hidden: layer(hidden, attention)


def _relative(config: Any, shared: Shared, hidden_NTH: Tensor, mask_NT: Tensor | None) -> Step:
    """MPNet: a learned bias per head and bucketed distance, added to every layer's attention scores."""
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    bucket_of: Any = MPNetEncoder.relative_position_bucket
    attention = full_mask(config, hidden_NTH, mask_NT)
    places = torch.arange(hidden_NTH.shape[1], device=hidden_NTH.device)
    buckets_TT = bucket_of(places[None, :] - places[:, None])
    bias_1ATT = shared["relative_attention_bias"](buckets_TT).permute(2, 0, 1)[None]
    return lambda layer, hidden: layer(hidden, attention, bias_1ATT)[0]


def _rotary(config: Any, shared: Shared, hidden_NTH: Tensor, mask_NT: Tensor | None) -> Step:
    """ModernBERT: rotary positions; global and local layers each with their own mask and frequencies."""
    places = torch.arange(hidden_NTH.shape[1], device=hidden_NTH.device)[None]
    kinds = {
        kind: (mask(config, hidden_NTH, mask_NT), shared["rotary_emb"](hidden_NTH, places, kind))
        for kind, mask in (("full_attention", full_mask), ("sliding_attention", local_mask))
        if kind in config.layer_types
    }

    def step(layer: nn.Module, hidden: Tensor) -> Tensor:
        mask, rotation = kinds[str(layer.attention_type)]
        out: Tensor = layer(hidden, attention_mask=mask, position_embeddings=rotation)
        return out

    return step


def _rotated(config: Any, shared: Shared, hidden_NTH: Tensor, mask_NT: Tensor | None) -> Step:
    """Rotary positions, the same in all layers."""
    attention = full_mask(config, hidden_NTH, mask_NT)
    places = torch.arange(hidden_NTH.shape[1], device=hidden_NTH.device)[None]
    rotation = shared["rotary_emb"](hidden_NTH, places)
    return lambda layer, hidden: layer(hidden, attention_mask=attention, position_embeddings=rotation)


def _disentangled(config: Any, shared: Shared, hidden_NTH: Tensor, mask_NT: Tensor | None) -> Step:
    """DeBERTa-v2: a table of bucketed distances, to which queries and keys attend, too."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

    most = (
        config.max_relative_positions if config.max_relative_positions > 0 else config.max_position_embeddings
    )
    places = build_relative_position(hidden_NTH, hidden_NTH, config.position_buckets, most)
    table: Any = shared["rel_embeddings"].weight
    table = shared["LayerNorm"](table) if "LayerNorm" in shared else table
    seen_NT = hidden_NTH.new_ones(hidden_NTH.shape[:2]) if mask_NT is None else mask_NT.long()
    attention = seen_NT[:, None, None] * seen_NT[:, None, :, None]
    return lambda layer, hidden: layer(hidden, attention, relative_pos=places, rel_embeddings=table)[0]


def _fresh_modernbert(like: nn.Module, config: Any) -> nn.Module:
    """A global layer, because a head must see [CLS] from everywhere. The layer 0 alone has no first norm."""
    every_layer_global = type(config).from_dict(
        {**config.to_dict(), "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    )
    every_layer_global._attn_implementation = config._attn_implementation
    return type(like)(every_layer_global, layer_idx=1)


def _embed(backbone: Any, ids_NT: Tensor) -> Tensor:
    out: Tensor = backbone.embeddings(input_ids=ids_NT)
    return out


def _embed_projected(backbone: Any, ids_NT: Tensor) -> Tensor:
    hidden = _embed(backbone, ids_NT)
    return backbone.embeddings_project(hidden) if hasattr(backbone, "embeddings_project") else hidden


def _positions_projected(backbone: Any) -> Tensor:
    table: Tensor = backbone.embeddings.position_embeddings.weight
    return backbone.embeddings_project(table) if hasattr(backbone, "embeddings_project") else table


def _embed_albert(backbone: Any, ids_NT: Tensor) -> Tensor:
    out: Tensor = backbone.encoder.embedding_hidden_mapping_in(_embed(backbone, ids_NT))
    return out


def _transform_albert(model: Any, hidden_KH: Tensor) -> Any:
    head = model.predictions
    return head.LayerNorm(head.activation(head.dense(hidden_KH)))


def _transform_distilbert(model: Any, hidden_KH: Tensor) -> Any:
    return model.vocab_layer_norm(model.activation(model.vocab_transform(hidden_KH)))


def _transform_roberta(model: Any, hidden_KH: Tensor) -> Any:
    return model.lm_head.layer_norm(nn.functional.gelu(model.lm_head.dense(hidden_KH)))


def _finish_with(name: str) -> Callable[[Shared, Tensor], Tensor]:
    return lambda shared, hidden: shared[name](hidden)


_BERT = Family(
    layers="encoder.layer",
    embed=_embed,
    transform=lambda model, hidden: model.cls.predictions.transform(hidden),
    prepare=_absolute,
)
_ROBERTA = replace(
    _BERT, transform=_transform_roberta, reserved_positions=lambda config: config.pad_token_id + 1
)
_ROTATED = replace(_BERT, layers="layers", prepare=_rotated, shared=("rotary_emb",), positions=None)
DECODER = Family(
    auto="AutoModelForCausalLM",
    dropouts=("attention_dropout", "resid_dropout", "embd_dropout", "attn_dropout"),
    norm_eps="rms_norm_eps",
    positions=None,
)
"""Any decoder."""
OUTPUT = Family(auto="AutoModel", positions=None, dropouts=("dropout_rate", "dropout", "hidden_dropout_prob"))
"""Any other model of texts."""
_HALF = replace(OUTPUT, auto="AutoModelForTextEncoding")

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "ernie": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "xlm-roberta-xl": replace(_ROBERTA, shared=("encoder.LayerNorm",), finish=_finish_with("LayerNorm")),
    "distilbert": Family(
        layers="transformer.layer",
        embed=_embed,
        transform=_transform_distilbert,
        prepare=_absolute,
        dropouts=("dropout", "attention_dropout"),
        activation="activation",
        width="hidden_dim",
    ),
    "electra": Family(
        layers="encoder.layer",
        embed=_embed_projected,
        transform=lambda model, hidden: model.generator_predictions(hidden),
        prepare=_absolute,
        positions=_positions_projected,
    ),
    "albert": replace(
        _BERT,
        layers="encoder.albert_layer_groups",
        whole=True,
        embed=_embed_albert,
        transform=_transform_albert,
        positions=None,
    ),
    "mpnet": Family(
        layers="encoder.layer",
        embed=_embed,
        transform=_transform_roberta,
        prepare=_relative,
        shared=("encoder.relative_attention_bias",),
        reserved_positions=lambda config: 2,  # MPNet's padding id is always 1
    ),
    "deberta": replace(_BERT, whole=True, prepare=None, positions=None),
    "deberta-v2": replace(
        _BERT,
        whole=True,
        prepare=_disentangled,
        shared=("encoder.rel_embeddings", "encoder.LayerNorm"),
        positions=None,
    ),
    "modernbert": Family(
        layers="layers",
        embed=_embed,
        transform=lambda model, hidden: model.head(hidden),
        prepare=_rotary,
        shared=("rotary_emb", "final_norm"),
        fresh=_fresh_modernbert,
        finish=_finish_with("final_norm"),
        dropouts=("embedding_dropout", "mlp_dropout", "attention_dropout"),
        activation="hidden_activation",
        norm_eps="norm_eps",
        positions=None,
    ),
    "nomic_bert": _ROTATED,
    "gte": replace(_ROTATED, transform=_transform_roberta),
    "jina_embeddings_v3": replace(_ROTATED, transform=_transform_roberta),
    "eurobert": replace(
        _ROTATED,
        embed=DECODER.embed,
        transform=DECODER.transform,
        shared=("rotary_emb", "norm"),
        finish=_finish_with("norm"),
        fresh=lambda like, config: type(like)(config, layer_idx=0),
        dropouts=("attention_dropout",),
        norm_eps="rms_norm_eps",
    ),
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text"), DECODER),
    "granite": replace(DECODER, transform=lambda model, hidden: hidden / model.config.logits_scaling),
    **dict.fromkeys(("t5", "mt5", "umt5"), _HALF),
    "t5gemma2_encoder": OUTPUT,
    "embedding_gemma2": replace(
        OUTPUT,
        output_size=lambda config: config.text_config.embedding_dim,
        transform=lambda model, hidden: hidden @ model.language_model.embedding_projection.weight,
    ),
}
