"""Trainings of `gpu.py` on random token ids of realistic lengths, and the operations that they need."""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from qontext.contexts import Context, Sources
from qontext.corpus.store import TokenStore
from qontext.models.batching import grid_for
from qontext.models.encoder import Encoder
from qontext.pretrain.batches import BatchPlan
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.masking import Vocabulary
from qontext.training.distributed import RankGroup
from qontext.training.loop import Prefetched
from qontext.training.optimizer import Optimizer
from qontext.training.step import Stepper

VOCABULARY, MAX_TOKENS = 30_522, 144
WARM_UP = 3


@dataclass(frozen=True)
class Setting:
    """The measurement and its device. `low` is the format with fewer bits, `checked_batch` the pairs of a step in
    checks."""

    device: torch.device
    sources: Sources
    layers: int
    hidden: int
    batch: int
    micro_tokens: int
    steps: int
    methods: list[str]
    low: torch.dtype
    compiles: bool
    peak_tflops: float

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def bert(self, **more: Any) -> Any:
        """The configuration of the encoder."""
        from transformers import BertConfig

        h = self.hidden
        size = {"hidden_size": h, "num_attention_heads": h // 64, "intermediate_size": 4 * h}
        return BertConfig(vocab_size=VOCABULARY, num_hidden_layers=self.layers, **size, **more)

    @property
    def checked_batch(self) -> int:
        return min(self.batch, 64)


def setting_of(options: argparse.Namespace) -> Setting:
    return Setting(
        torch.device(options.device),
        random_sources(options.passages),
        options.layers,
        options.hidden,
        options.batch,
        options.micro_tokens,
        options.steps,
        options.methods,
        torch.bfloat16,
        not options.no_compile,
        options.peak_tflops,
    )


def configured(method: str, batch: int) -> PretrainConfig:
    settings = {"passages": "p", "method": method, "queries": "q", "batch_size": batch}
    return PretrainConfig.make(settings, where="benchmark")


def objective_of(method: str, setting: Setting, *, dropout: float = 0.1, seed: int = 0) -> Any:
    from transformers import BertForMaskedLM

    torch.manual_seed(seed)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = BertForMaskedLM(setting.bert(**rates))
    return configured(method, setting.batch).objective(Encoder(model, tokenizer=None)).train()


def batches(method: str, setting: Setting, batch: int, micro_tokens: int | None = None) -> BatchPlan:
    words = Vocabulary(VOCABULARY, mask=103, cls=101, sep=102, pad=0, special=(0, 100, 101, 102, 103))
    return BatchPlan(
        sources=setting.sources,
        layout=configured(method, batch).layout(),
        context=Context("query", setting.sources),
        words=words,
        anchors=np.arange(len(setting.sources.passages)),
        documents=None,
        batch_size=batch,
        micro_tokens=micro_tokens or setting.micro_tokens,
        seed=42,
        grid=grid_for(setting.device, torch.float32),
    )


def stepper_of(
    objective: Any, setting: Setting, device: Any, dtype: torch.dtype, *, cache: Any = "auto"
) -> Stepper:
    group = RankGroup(0, 1, torch.device(device))
    objective = objective.to(group.device)
    config = configured("cot-mae", setting.batch)
    return Stepper(
        objective, Optimizer(objective, config, 10_000, dtype, group.device), group, dtype, cache=cache
    )


def measure(
    method: str, form: str, setting: Setting, *, compiled: bool, cache: Any = "auto"
) -> dict[str, Any]:
    """The median step of a training."""
    objective = objective_of(method, setting)
    dtype = {"fp32": torch.float32, "bf16": setting.low}[form]
    run = stepper_of(objective, setting, setting.device, dtype, cache=cache)
    if compiled:
        objective.encoder.compile(dynamic=True)
    plan = batches(method, setting, setting.batch)
    if setting.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times, flops, shares = [], [], []
    pinned = (lambda step: plan(step).pin()) if setting.on_gpu else plan
    with Prefetched(pinned, 0, setting.steps + WARM_UP) as coming:
        started = time.perf_counter()
        for step, batch in coming:
            run.step(step, batch)
            if setting.on_gpu:
                torch.cuda.synchronize()
            now = time.perf_counter()
            if step >= WARM_UP:
                times.append(now - started)
                flops.append(needed_flops(batch, objective.encoder, 1 if method == "cot-mae" else 2))
                shares.append(padding(batch))
            started = now
    seconds = statistics.median(times)
    rate = statistics.median(f / t for f, t in zip(flops, times))
    peak = torch.cuda.max_memory_allocated() / 2**30 if setting.on_gpu else None
    return {
        "method": f"query-as-context {method}",
        "format": form,
        "compiled": compiled,
        "gradient cache": cache,
        "pairs per step": setting.batch,
        "steps/s": round(1 / seconds, 3),
        "passages/s": round(setting.batch / seconds, 1),
        "TFLOP/s": round(rate / 1e12, 3),
        "MFU": round(rate / 1e12 / setting.peak_tflops, 4),
        "padding": round(statistics.mean(shares), 4),
        "peak memory GiB": None if peak is None else round(peak, 2),
        "seconds per step": [round(t, 3) for t in times],
    }


def padding(batch: Any) -> float:
    """The share of padded places among all."""
    masks = [text.mask for one in batch.micro for text in (one.encoder, one.decoder) if text is not None]
    return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)


def needed_flops(batch: Any, encoder: Encoder, predictions: int) -> float:
    """The operations that `gpu`'s head counts, over the real tokens of a batch (head or decoder: 2 layers)."""
    h, total = encoder.hidden_size, 0.0
    for one in batch.micro:
        for text, layers in ((one.encoder, encoder.num_layers + (0 if one.decoder else 2)), (one.decoder, 2)):
            if text is not None:
                lengths = text.mask.sum(1).double()
                total += layers * float((24 * h * h * lengths + 4 * h * lengths**2).sum())
                total += predictions * len(text.labels) * (2 * h * h + 2 * h * VOCABULARY)
    return 3 * total


def random_sources(passages: int) -> Sources:
    """Passages of 100 to 142 tokens and one query of 6 to 20 for each."""
    dice = np.random.default_rng(0)

    def store(low: int, high: int) -> TokenStore:
        offsets = np.concatenate([[0], np.cumsum(dice.integers(low, high, passages))])
        total = int(offsets[-1])
        ids = dice.integers(1000, VOCABULARY, total).astype(np.uint16)
        starts = dice.random(total) < 0.8
        names = pa.array([str(n) for n in range(passages)])
        return TokenStore(ids, starts, offsets[:-1], offsets, np.arange(passages + 1), names)

    return Sources(store(100, MAX_TOKENS - 1), MAX_TOKENS - 2, store(6, 21), np.arange(passages))
