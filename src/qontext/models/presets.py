"""Encoders from scratch: BERT's architecture in four sizes, over the vocabulary of a given tokenizer."""

from __future__ import annotations

from typing import Any, NamedTuple


class Preset(NamedTuple):
    """Layers, hidden size and attention heads; the feed-forward layer is four times as wide."""

    layers: int
    hidden: int
    heads: int


PRESETS = {
    "tiny": Preset(2, 128, 2),
    "mini": Preset(4, 256, 4),
    "small": Preset(6, 384, 6),
    "base": Preset(12, 768, 12),
}

POSITIONS = 512


def preset_config(name: str, tokenizer: Any) -> Any:
    """BERT's configuration of a preset. Heads have 64 dimensions, which fused attention kernels like best."""
    from transformers import BertConfig

    layers, hidden, heads = PRESETS[name]
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
    )
