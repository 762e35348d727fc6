"""Attention on a CPU, and of the first or the last token alone.

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

Vectors of decoders read the last layer's last token alike (`LastToken`). Texts are padded after their ends, where no token
of theirs looks: attention is causal, without a mask of padding. Keys and values of a prompt do not depend on the text after
it, so they are computed once.

Shapes: N rows, H hidden size, A heads, K heads of keys and values, T tokens, S places to attend to, D size of a head.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qontext.models.precision import excluded_units

NAME = "cpu_attention"
LAYERS = {"BertLayer", "RobertaLayer", "XLMRobertaLayer", "CamembertLayer", "ElectraLayer"}
"""Those built alike: self-attention, its output, and a feed-forward part that looks at one row at a time."""
CAUSAL_LAYERS = {
    f"{name}DecoderLayer"
    for name in ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma", "Gemma2", "Gemma3", "Granite")
}
"""Those built alike: rotated keys, perhaps with a norm, and a feed-forward part that looks at one row at a time."""
LEAST = 8
"""Tokens of a prompt whose keys and values are worth keeping."""
PromptIds = tuple[int, ...]
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


class LastToken:
    """A decoder as ids → its output at each text's last token, [N, 1, H]."""

    def __init__(self, model: Any) -> None:
        self.model = model
        model.layers[-1].forward = MethodType(_last_token, model.layers[-1])
        self._kept: dict[PromptIds, list[tuple[Tensor, Tensor]]] = {}

    @staticmethod
    def fits(model: Any) -> bool:
        """True for an architecture that is known, with an attention whose masks can be cut."""
        layers = getattr(model, "layers", None)
        is_known = isinstance(layers, nn.ModuleList) and type(layers[-1]).__name__ in CAUSAL_LAYERS
        return is_known and takes_boolean_masks(model.config._attn_implementation) is not None

    def shared(self, tokens: Sequence[Any], prompt: PromptIds) -> PromptIds:
        """The beginning of the prompt that all texts share, computed if it is not kept yet; empty if it is short. A text
        keeps at least one token for itself."""
        length = min([len(prompt), *(len(ids) - 1 for ids in tokens)])
        before = np.array(prompt)
        for ids in tokens:
            if length < LEAST:
                return ()
            differs = np.flatnonzero(np.asarray(ids[:length]) != before[:length])
            length = int(differs[0]) if len(differs) else length
        shared = prompt[:length] if length >= LEAST else ()
        if shared and shared not in self._kept:
            ids_1T = torch.tensor([shared], device=self.model.device)
            kept = _cache()
            self._run(ids_1T, torch.zeros_like(ids_1T[:, 0]), kept)
            self._kept[shared] = [(layer.keys, layer.values) for layer in kept.layers]
        return shared

    def __call__(self, ids_NT: Tensor, mask_NT: Tensor, prompt: PromptIds) -> Tensor:
        """Of texts after the prompt; `mask_NT` is True at their own tokens."""
        before = None
        if prompt:
            rows = (len(ids_NT), -1, -1, -1)
            before = _cache([(key.expand(rows), value.expand(rows)) for key, value in self._kept[prompt]])
        out: Tensor = self._run(ids_NT, mask_NT.sum(1).clamp(min=1) - 1, before).last_hidden_state
        return out

    def _run(self, ids_NT: Tensor, last_N: Tensor, before: Any) -> Any:
        return self.model(input_ids=ids_NT, last_N=last_N, past_key_values=before, use_cache=False)


def _cache(pairs: Any = None) -> Any:
    """A cache of keys and values. It keeps all of them, those of local attention, too: masks are narrow."""
    from transformers import DynamicCache

    return DynamicCache(pairs)


class _Given:
    """Keys and values of all tokens, for an attention that reads those of one token: it asks a cache for the others."""

    def __init__(self, *pair: Tensor) -> None:
        self.pair = pair

    def update(self, key: Tensor, value: Tensor, layer: int, *rest: Any) -> tuple[Tensor, ...]:
        return self.pair


def _last_token(layer: Any, hidden_NTH: Tensor, *, last_N: Tensor | None = None, **settings: Any) -> Tensor:
    """The layer of all tokens, or of the last ones alone."""
    out: Tensor
    if last_N is None:
        out = type(layer).forward(layer, hidden_NTH, **settings)
        return out
    attention_mask, past_key_values = settings["attention_mask"], settings["past_key_values"]
    position_embeddings = settings["position_embeddings"]
    attention = layer.self_attn
    rotate = sys.modules[type(attention).__module__].apply_rotary_pos_emb
    normed_NTH = layer.input_layernorm(hidden_NTH)
    key, value = (
        product(normed_NTH).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for product in (attention.k_proj, attention.v_proj)
    )
    key = attention.k_norm(key) if hasattr(attention, "k_norm") else key
    key, _ = rotate(key, key, *position_embeddings)
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, attention.layer_idx)
    rows = torch.arange(len(last_N), device=last_N.device)
    places_S = torch.arange(key.shape[2], device=last_N.device)
    seen_NS = places_S <= last_N[:, None] + (key.shape[2] - hidden_NTH.shape[1])
    if attention_mask is not None:  # which is narrower where attention is local
        seen_NS = seen_NS & attention_mask[:, 0].expand(len(rows), -1, -1)[rows, last_N]
    settings |= {
        "attention_mask": seen_NS[:, None, None],
        "position_embeddings": tuple(
            x.expand(len(rows), -1, -1)[rows, last_N][:, None] for x in position_embeddings
        ),
        "past_key_values": _Given(key, value),
    }
    out = type(layer).forward(layer, hidden_NTH[rows, last_N][:, None], **settings)
    return out
