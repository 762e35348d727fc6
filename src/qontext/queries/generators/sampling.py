"""Sampling from a language model: C queries per passage from one pass over the passage.

Nucleus sampling: of the k most likely tokens, the smallest set with cumulative probability p; then the token
at which the cumulative probability passes u. The number u is a pure function of (seed, passage, sample,
step), so a passage's queries do not depend on batch, part or process. Batching only changes the last bits of
the logits: a token changes if u is within that error of a boundary, about once in 10^5 tokens in fp32 and
more often in bf16.

Shapes: B passages, C samples of each, R = live rows (of B·C), L passage tokens or tokens of a padded prompt, V vocabulary.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qontext.queries.generators import Task
from qontext.training.randomness import key_of, uniform


@dataclass(frozen=True)
class Sampler:
    """Sampling parameters."""

    samples: int = 5
    top_k: int = 25
    top_p: float = 0.95
    temperature: float = 1.0
    max_new_tokens: int = 64
    seed: int = 42

    @classmethod
    def of(cls, options: Any, task: Task) -> Sampler:
        """From a generator's options."""
        drawn = options.top_k, options.top_p, options.temperature
        return cls(task.per_passage, *drawn, options.max_new_tokens, task.seed)

    def dice(self, ids: Sequence[str]) -> np.ndarray[Any, Any]:
        """[B·C, steps] uniform numbers; row b·C + c belongs to sample c of passage b."""
        keys = np.array([key_of(id) for id in ids], dtype=np.uint64)[:, None, None]
        sample, step = np.ogrid[: self.samples, : self.max_new_tokens]
        return uniform(self.seed, "sample", keys, sample, step).reshape(-1, self.max_new_tokens)

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


class Decoder(ABC):
    """A model with the cache of the rows that it continues; row b·C + c is sample c of passage b."""

    def __init__(self, model: Any, mask: Tensor) -> None:
        self.model, self.mask = model, mask
        self.cache: Any = None

    @abstractmethod
    def read(self) -> Tensor:
        """Read the passages; returns the logits [B, V] of the first token, which is the same for all samples."""

    @abstractmethod
    def step(self, tokens_R: Tensor) -> Tensor:
        """Append a token to each row; returns the logits [R, V] of the next one."""

    def repeat(self, samples: int) -> None:
        """From now on, a row for each sample."""
        self.cache.batch_repeat_interleave(samples)
        self.mask = self.mask.repeat_interleave(samples, 0)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows of the cache but these."""
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]


@torch.inference_mode()
def draw(
    decoder: Decoder, passages: Sequence[str], sampler: Sampler, ends: Tensor, lasts: Tensor | None = None
) -> list[list[list[int]]]:
    """For each passage (`passages` are their ids), C lists of token ids.

    A row is complete before a token of `ends`, or after one of `lasts`. It then leaves the batch.
    """
    dice = torch.from_numpy(sampler.dice(passages)).float().to(ends.device)
    tokens_of: list[list[int]] = [[] for _ in range(len(dice))]
    rows = torch.arange(len(dice), device=ends.device)
    logits = decoder.read().repeat_interleave(sampler.samples, 0)
    decoder.repeat(sampler.samples)
    for step in range(sampler.max_new_tokens):
        tokens = sampler.pick(logits, dice[rows, step])
        going = ~torch.isin(tokens, ends)
        for row, token, goes in zip(rows.tolist(), tokens.tolist(), going.tolist()):
            if goes:
                tokens_of[row].append(token)
        if lasts is not None:
            going &= ~torch.isin(tokens, lasts)
        if step + 1 == sampler.max_new_tokens or not going.any():
            break
        if not going.all():
            keep = going.nonzero()[:, 0]
            decoder.keep(keep)
            rows, tokens = rows[keep], tokens[keep]
        logits = decoder.step(tokens)
    return [tokens_of[i : i + sampler.samples] for i in range(0, len(tokens_of), sampler.samples)]


def end_tokens(model: Any, device: torch.device) -> Tensor:
    """The tokens that end a text."""
    ends = model.generation_config.eos_token_id
    return torch.tensor(ends if isinstance(ends, list) else [ends], device=device)


class Seq2SeqDecoder(Decoder):
    """The passages are in the encoder's output."""

    def __init__(self, model: Any, ids_BL: Tensor, mask_BL: Tensor) -> None:
        super().__init__(model, mask_BL)
        self.hidden = model.get_encoder()(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state

    def read(self) -> Tensor:
        return self.step(torch.full((len(self.mask),), start_token(self.model), device=self.mask.device))

    def repeat(self, samples: int) -> None:
        super().repeat(samples)
        self.hidden = self.hidden.repeat_interleave(samples, 0)

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.hidden = self.hidden[rows]

    def step(self, tokens_R: Tensor) -> Tensor:
        from transformers.modeling_outputs import BaseModelOutput

        out = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self.hidden),
            attention_mask=self.mask,
            decoder_input_ids=tokens_R[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = out.past_key_values
        logits: Tensor = out.logits[:, -1]
        return logits


def start_token(model: Any) -> int:
    """The decoder start token, which is there: it was checked when the model was loaded."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    tokens = (
        getattr(config, name, None) for config in (model.generation_config, model.config) for name in names
    )
    return next(int(token) for token in tokens if token is not None)


class CausalDecoder(Decoder):
    """Decoder of a decoder-only model for `prompts`, all after the same `head`, which is computed once.

    Prompts are padded on the left; positions count real tokens only, so the padding changes nothing but rounding.
    """

    def __init__(self, model: Any, head: LanguageHead, prompts: Sequence[Sequence[int]]) -> None:
        width = max(map(len, prompts))
        rows = [[*[0] * (width - len(ids)), *ids] for ids in prompts]
        mask = [[*[1] * head.length, *[0] * (width - len(ids)), *[1] * len(ids)] for ids in prompts]
        super().__init__(model, torch.tensor(mask, device=model.device))
        self.ids = torch.tensor(rows, device=model.device)
        self.cache = head.repeated(len(prompts))

    def read(self) -> Tensor:
        return self._forward(self.ids)

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


class LanguageHead:
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
