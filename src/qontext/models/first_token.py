"""The last layer for the first token alone, where nothing else of its output is read.

    h = LN( h_1 + O · attention(Q h_1, K h, V h) )        one query row instead of T
    h^L_1 = LN( h + MLP(h) )                              one row instead of T

Keys and values are still those of all tokens, so the result is that of the whole layer, but for the order of sums: about
nine parts in ten of the last layer's work are not done. Vectors from [CLS] and the scores of cross-encoders read it so.

Shapes: N sequences, T tokens, H hidden size, A heads, D size of a head.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor, nn

from qontext.models.attention import takes_boolean_masks

LAYERS = {"BertLayer", "RobertaLayer", "XLMRobertaLayer", "CamembertLayer", "ElectraLayer"}
"""Those built alike: self-attention, its output, and a feed-forward part that looks at one row at a time."""


def compute_first_token_alone(backbone: Any) -> None:
    """Have the backbone's last layer return [N, 1, H], the output at the first token; other architectures stay whole."""
    encoder = getattr(backbone, "encoder", None)
    layers = getattr(encoder, "layer", None)
    if isinstance(layers, nn.ModuleList) and type(layers[-1]).__name__ in LAYERS:
        layers[-1].forward = MethodType(_first_token, layers[-1])


def _first_token(
    layer: Any, hidden_NTH: Tensor, attention_mask: Any = None, *rest: Any, **settings: Any
) -> Tensor:
    attention = layer.attention.self
    function = takes_boolean_masks(attention.config._attn_implementation)
    if function is None:
        whole: Tensor = type(layer).forward(layer, hidden_NTH, attention_mask, *rest, **settings)
        return whole[:, :1]

    def heads(x: Any) -> Any:
        return x.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)

    first_N1H = hidden_NTH[:, :1]
    out_N1AD, _ = function(
        attention,
        heads(attention.query(first_N1H)),
        heads(attention.key(hidden_NTH)),
        heads(attention.value(hidden_NTH)),
        None if attention_mask is None else attention_mask[:, :, :1],
        dropout=attention.dropout.p if attention.training else 0.0,
        scaling=attention.scaling,
    )
    out_N1H: Tensor = layer.feed_forward_chunk(layer.attention.output(out_N1AD.flatten(2), first_N1H))
    return out_N1H
