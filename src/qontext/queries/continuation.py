"""Sampling from a decoder-only model: the prompts' common head is computed once, each passage once for all its samples.

Prompts are padded on the left; positions count real tokens only, so the padding changes nothing but rounding.

Shapes: B passages, R live rows, L tokens of a padded prompt, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Continuation:
    """Continues `prompts`, each after the same `head`; see `sampling.Decoder`."""

    def __init__(self, model: Any, head: Head, prompts: Sequence[Sequence[int]]) -> None:
        self.model, self.device = model, model.device
        width = max(map(len, prompts))
        rows = [[*[0] * (width - len(ids)), *ids] for ids in prompts]
        mask = [[*[1] * head.length, *[0] * (width - len(ids)), *[1] * len(ids)] for ids in prompts]
        self.ids = torch.tensor(rows, device=self.device)
        self.mask = torch.tensor(mask, device=self.device)
        self.cache = head.repeated(len(prompts))

    def start(self, samples: int) -> Tensor:
        logits = self._forward(self.ids).repeat_interleave(samples, 0)
        self.cache.batch_repeat_interleave(samples)
        self.mask = self.mask.repeat_interleave(samples, 0)
        return logits

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def step(self, tokens_R: Tensor) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], 1)
        return self._forward(tokens_R[:, None])

    def _forward(self, ids_RT: Tensor) -> Tensor:
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -ids_RT.shape[1] :]
        out = self.model(
            input_ids=ids_RT,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[:, -1]
        return logits


class Head:
    """The tokens with which all prompts begin, and the model's cache after them."""

    def __init__(self, model: Any, ids: Sequence[int]) -> None:
        from transformers import DynamicCache

        new: Any = DynamicCache
        self.length = len(ids)
        self.cache = new(config=model.config)
        if ids:
            with torch.inference_mode():
                model(
                    input_ids=torch.tensor([list(ids)], device=model.device),
                    past_key_values=self.cache,
                    use_cache=True,
                    logits_to_keep=1,
                )

    def repeated(self, times: int) -> Any:
        """A cache that continues the head in this many rows."""
        cache = copy.deepcopy(self.cache)
        if self.length:
            cache.batch_repeat_interleave(times)
        return cache
