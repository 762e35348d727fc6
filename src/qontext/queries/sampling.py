"""Sampling from a sequence-to-sequence model: C queries per passage from one pass through the encoder.

Nucleus sampling: of the k likeliest tokens, those that together hold the share p of the probability; then
the token at which the cumulative probability passes u. The number u is a pure function of (seed, passage,
sample, step), so a passage gets the same queries in whatever batch, part or process it is. What batching
still changes is the last bits of the logits: a token flips where u falls within that error of a boundary,
about once in 10^5 tokens in fp32 and more often in bf16.

Shapes: B passages, C samples of each, R = live rows (of B·C), L passage tokens, V vocabulary.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qontext.engine.precision import autocast
from qontext.engine.randomness import uniform


@dataclass(frozen=True)
class Sampler:
    """How to draw a query."""

    samples: int = 5
    top_k: int = 25
    top_p: float = 0.95
    temperature: float = 1.0
    max_new_tokens: int = 64
    seed: int = 42

    def dice(self, ids: Sequence[str]) -> np.ndarray[Any, Any]:
        """[B·C, steps] uniform numbers; row b·C + c belongs to sample c of passage b."""
        keys = np.array([zlib.crc32(id.encode()) for id in ids], dtype=np.uint64)
        sample = np.arange(self.samples)[None, :, None]
        step = np.arange(self.max_new_tokens)[None, None, :]
        return uniform(self.seed, "sample", keys[:, None, None], sample, step).reshape(
            -1, self.max_new_tokens
        )

    def pick(self, logits_RV: Tensor, u_R: Tensor) -> Tensor:
        """The drawn token of each row."""
        k = min(self.top_k or logits_RV.shape[-1], logits_RV.shape[-1])
        best_RK, token_RK = (logits_RV.float() / self.temperature).topk(k)
        # top-p counts probability over the whole vocabulary's top k, as transformers does after top-k.
        p_RK = best_RK.softmax(-1)
        p_RK = p_RK * (p_RK.cumsum(-1) - p_RK < self.top_p)
        # In order of token number, so that two tokens that swap ranks by rounding do not change the draw.
        token_RK, order_RK = token_RK.sort(-1)
        cumulative_RK = p_RK.gather(-1, order_RK).cumsum(-1)
        goal_R1 = (u_R.clamp(max=1 - 2**-24) * cumulative_RK[:, -1])[:, None]
        place_R1 = (cumulative_RK <= goal_R1).sum(-1, keepdim=True).clamp(max=k - 1)
        return token_RK.gather(-1, place_R1)[:, 0]


@torch.inference_mode()
def sample(
    model: Any, ids_BL: Tensor, mask_BL: Tensor, passages: Sequence[str], sampler: Sampler, dtype: torch.dtype
) -> list[list[list[int]]]:
    """For each passage (`passages` are their ids), C lists of token ids without special tokens at their ends.

    The first decoder step is the same for all samples of a passage: it is made once, then its cache is
    repeated C times. Rows that are done leave the batch.
    """
    config = model.generation_config
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    dice = torch.from_numpy(sampler.dice(passages)).float().to(ids_BL.device)
    made: list[list[int]] = [[] for _ in range(len(dice))]
    with autocast(ids_BL.device, dtype):
        hidden = model.get_encoder()(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
        start = torch.full((len(ids_BL), 1), start_token(model), device=ids_BL.device)
        out = _step(model, start, hidden, mask_BL, None)
        cache = out.past_key_values
        cache.batch_repeat_interleave(sampler.samples)
        logits = out.logits[:, -1].repeat_interleave(sampler.samples, 0)
        hidden, mask = (x.repeat_interleave(sampler.samples, 0) for x in (hidden, mask_BL))
        rows = torch.arange(len(dice), device=ids_BL.device)
        is_end = torch.tensor(ends, device=ids_BL.device)
        for step in range(sampler.max_new_tokens):
            tokens = sampler.pick(logits, dice[rows, step])
            going = ~torch.isin(tokens, is_end)
            for row, token, goes in zip(rows.tolist(), tokens.tolist(), going.tolist()):
                if goes:
                    made[row].append(token)
            if step + 1 == sampler.max_new_tokens or not going.any():
                break
            if not going.all():
                keep = going.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                rows, tokens, hidden, mask = rows[keep], tokens[keep], hidden[keep], mask[keep]
            out = _step(model, tokens[:, None], hidden, mask, cache)
            logits = out.logits[:, -1]
    return [made[i : i + sampler.samples] for i in range(0, len(made), sampler.samples)]


def _step(model: Any, tokens: Tensor, hidden: Tensor, mask: Tensor, cache: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return model(
        encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
        attention_mask=mask,
        decoder_input_ids=tokens,
        past_key_values=cache,
        use_cache=True,
    )


def start_token(model: Any) -> int:
    """What the decoder begins with."""
    for config in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            if (token := getattr(config, name, None)) is not None:
                return int(token)
    raise AssertionError("checked when the model was loaded")


def token_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Numbers of sequences, longest first, in batches of at most `budget` padded tokens (or of one)."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = 0
    while start < len(order):
        size = max(1, budget // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size
