"""Attention on a CPU, and of the first token alone.

    softmax(q kᵀ · scale + bias, over visible positions) v

In bf16, the backward pass of PyTorch's fused attention takes four to seven times as long as the plain matrix products, and
without AMX units the forward pass 1.1 to 1.4 times; with them, and in fp32, the fused forward pass is faster. It does not
support dropout that only depends on the row, either.

Several heads of queries may share one of keys and values.

Vectors from [CLS] and the scores of cross-encoders read nothing but the last layer's first token:

    h = LN( h_1 + O · attention(Q h_1, K h, V h) )        one query row instead of T
    h^L_1 = LN( h + MLP(h) )                              one row instead of T

Keys and values are still those of all tokens, so the result is that of the whole layer, but for the order of sums: about
nine parts in ten of the last layer's work are not done.

Shapes: N rows, H hidden size, A heads, K heads of keys and values, T tokens, S places to attend to, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from qontext.models.precision import excluded_units

NAME = "cpu_attention"
LAYERS = {"BertLayer", "RobertaLayer", "XLMRobertaLayer", "CamembertLayer", "ElectraLayer"}
"""Those built alike: self-attention, its output, and a feed-forward part that looks at one row at a time."""
_BOOLEAN = {"sdpa"}
"""Names of attention functions whose masks are bools [N, A, T, T], True where seen."""

OWN = "MPNetSelfAttention"
"""The one attention in the library that asks nobody for its implementation."""
Drop = Callable[[Tensor, float], Tensor]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,  # the name that models call it by
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    drop: Drop = nn.functional.dropout,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention with transformers' signature: [N, A, T, D], then [N, K, S, D] twice → [N, T, A, D]; `attention_mask`
    is True where visible. Uses the library's fused attention where that is faster and there is no dropout.
    """
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    is_slow = query.dtype == torch.bfloat16 and (query.requires_grad or not fused_is_faster_in_bf16())
    if query.device.type != "cpu" or not (dropout or is_slow):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        rest |= {"is_causal": causal, "position_bias": position_bias}
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **rest)
        return out, None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    N, A, T, D = query.shape
    grouped = (N, key.shape[1], -1, D)  # the queries of all heads that share keys, as if of one head
    scores_NATS = (query * scale).reshape(grouped) @ key.transpose(-1, -2)
    scores_NATS = scores_NATS.view(N, A, T, -1)
    if position_bias is not None:
        scores_NATS = scores_NATS + position_bias
    if attention_mask is None and causal and query.shape[2] > 1:
        attention_mask = torch.ones(scores_NATS.shape[-2:], dtype=torch.bool).tril(key.shape[2] - T)
    if attention_mask is not None:
        # The lowest number, not -inf: a padded position that sees nothing must not become NaN. Added, because the mask is
        # smaller than the scores, and a sum is cheaper than a choice.
        lowest = torch.finfo(scores_NATS.dtype).min
        hidden = (~attention_mask).to(scores_NATS.dtype) * lowest
        scores_NATS = scores_NATS + hidden if scores_NATS.requires_grad else scores_NATS.add_(hidden)
    weights_NATS = scores_NATS.softmax(dim=-1).to(value.dtype)
    if dropout:
        weights_NATS = drop(weights_NATS, dropout)
    read_NATD = (weights_NATS.view(*grouped[:-1], key.shape[2]) @ value).view(N, A, T, D)
    return read_NATD.transpose(1, 2).contiguous(), None


@cache
def fused_is_faster_in_bf16() -> bool:
    """True if the forward pass of PyTorch's fused attention is, on this machine's CPU."""
    return "bf16" not in excluded_units() and getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()


def use(model: nn.Module, name: str = NAME, function: Any = attend) -> None:
    """Replace PyTorch's fused attention in a model by `function`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    _BOOLEAN.add(name)
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, sdpa_mask)
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) in ("sdpa", NAME):
            config._attn_implementation = name  # type: ignore[union-attr]
        if type(module).__name__ == OWN:
            module.forward = MethodType(_biased(function), module)


def _biased(function: Any) -> Callable[..., tuple[Tensor]]:
    """MPNet's self-attention by `function`, with the bias of distances and the mask in the scores' format."""

    def forward(
        module: Any,
        hidden_NTH: Tensor,
        attention_mask: Any = None,
        position_bias: Any = None,
        **settings: Any,
    ) -> tuple[Tensor]:
        shape = (*hidden_NTH.shape[:-1], -1, module.attention_head_size)
        query, key, value = (
            linear(hidden_NTH).view(shape).transpose(1, 2) for linear in (module.q, module.k, module.v)
        )
        added = [one for one in (position_bias, attention_mask) if one is not None]
        bias: Any = sum(added) if added else None
        if bias is not None:
            bias = bias.clamp(min=torch.finfo(query.dtype).min).to(query.dtype)
        dropout = module.dropout.p if module.training else 0.0
        read, _ = function(
            module, query, key, value, None, dropout=dropout, is_causal=False, position_bias=bias
        )
        return (module.o(read.flatten(2)),)

    return forward


def takes_boolean_masks(name: str) -> Any:
    """The attention function of this name if its masks are bools, which can be cut; else None."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS[name] if name in _BOOLEAN else None


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
