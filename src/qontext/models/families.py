"""The differences between encoder architectures, in one table. An encoder is embeddings, then a sequence of
layers, then perhaps a final norm; an MLM head turns hidden states into vocabulary logits. The modules are the
library's, called one by one so that only the requested hidden states are kept.

Shapes: N sequences, T tokens, H hidden size, K gathered positions, V vocabulary, A attention heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from qontext.frame.errors import QontextError

Shared = Mapping[str, nn.Module]
Step = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Family:
    """The parts of an architecture, and how to call them."""

    layers: str
    """Path of the layer list in the backbone."""

    embed: Callable[[Any, Tensor], Tensor]
    """(backbone, ids_NT) → h^0, the full embedding output."""

    transform: Callable[[Any, Tensor], Tensor]
    """(model with MLM head, hidden_KH) → the input of its last layer, which has an output for each vocabulary entry."""

    prepare: Callable[[Any, Shared, Tensor, Tensor | None], Step]
    """(config, shared, h^0, mask_NT) → a function that applies one layer. Shared inputs of all layers are
    computed once here."""

    shared: tuple[str, ...] = ()
    """Paths of modules shared by layers: position biases, rotary tables, the final norm."""

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


def family_of(config: Any, place: str) -> Family:
    """The entry for a configuration; unknown and left-to-right architectures are refused."""
    if config.model_type not in FAMILIES or getattr(config, "is_decoder", False):
        decoder = " as a decoder" if config.model_type in FAMILIES else ""
        raise QontextError(
            f"{config.model_type!r}{decoder} is not a supported encoder architecture",
            place=place,
            remedy=f"Supported architectures: {', '.join(FAMILIES)}.",
        )
    return FAMILIES[config.model_type]


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


def _transform_distilbert(model: Any, hidden_KH: Tensor) -> Any:
    return model.vocab_layer_norm(model.activation(model.vocab_transform(hidden_KH)))


def _transform_roberta(model: Any, hidden_KH: Tensor) -> Any:
    return model.lm_head.layer_norm(nn.functional.gelu(model.lm_head.dense(hidden_KH)))


_ROBERTA = Family(
    layers="encoder.layer",
    embed=_embed,
    transform=_transform_roberta,
    prepare=_absolute,
    reserved_positions=lambda config: config.pad_token_id + 1,
)

FAMILIES: dict[str, Family] = {
    "bert": Family(
        layers="encoder.layer",
        embed=_embed,
        transform=lambda model, hidden: model.cls.predictions.transform(hidden),
        prepare=_absolute,
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
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
    "mpnet": Family(
        layers="encoder.layer",
        embed=_embed,
        transform=_transform_roberta,
        prepare=_relative,
        shared=("encoder.relative_attention_bias",),
        reserved_positions=lambda config: 2,  # MPNet's padding id is always 1
    ),
    "modernbert": Family(
        layers="layers",
        embed=_embed,
        transform=lambda model, hidden: model.head(hidden),
        prepare=_rotary,
        shared=("rotary_emb", "final_norm"),
        fresh=_fresh_modernbert,
        finish=lambda shared, hidden: shared["final_norm"](hidden),
        dropouts=("embedding_dropout", "mlp_dropout", "attention_dropout"),
        activation="hidden_activation",
        norm_eps="norm_eps",
        positions=None,
    ),
}
