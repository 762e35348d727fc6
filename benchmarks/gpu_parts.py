"""The other measurements of `gpu.py`: packed rows against rectangles, encoding, exact search."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_training import MAX_TOKENS, VOCABULARY, Setting
from torch import Tensor, nn

from qontext.models import attention
from qontext.models.batching import grid_for, pack_by_tokens
from qontext.models.precision import autocast
from qontext.retrieve.index.exact import ExactIndex
from qontext.retrieve.stored import ArrayVectors

REPEATS = 5


def timed(action: Callable[[], Any], device: torch.device) -> float:
    """The median of a few repetitions, after two that do not count, in seconds."""
    seconds = []
    for repeat in range(REPEATS + 2):
        started = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if repeat > 1:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def packing(setting: Setting) -> dict[str, Any]:
    """Forward and backward of the backbone over the same texts: all padded to 144 tokens, in rectangles as in training, and
    packed into one row, in which each text only attends to itself."""
    from transformers import BertModel

    dice = np.random.default_rng(0)
    lengths = dice.integers(
        8, MAX_TOKENS, max(4, setting.micro_tokens // 80 if setting.on_gpu else setting.batch)
    )
    texts = [torch.from_numpy(dice.integers(1000, VOCABULARY, n)) for n in lengths]
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertModel(setting.bert(**rates), add_pooling_layer=False).to(setting.device)
    grid = grid_for(setting.device, setting.low)
    cuts = pack_by_tokens(lengths, None, setting.micro_tokens, grid)
    rectangles = [rectangle([texts[row] for row in cut], setting.device) for cut in cuts]
    wide = [rectangle(texts, setting.device, MAX_TOKENS)]
    seconds: dict[str, float] = {}
    sums: dict[str, Tensor] = {}

    def run(name: str, inputs: list[dict[str, Tensor]]) -> None:
        def action() -> None:
            model.zero_grad(set_to_none=True)
            for one in inputs:
                with autocast(setting.device, setting.low):
                    hidden = model(
                        **{key: value for key, value in one.items() if key != "real"}
                    ).last_hidden_state
                hidden.float()[one["real"]].square().mean().mul(
                    float(one["real"].sum()) / lengths.sum()
                ).backward()

        seconds[name] = timed(action, setting.device)
        sums[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).cpu()

    run("padded to 144", wide)
    run("rectangles", rectangles)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    attention.use(
        model, "packed", Packed(torch.from_numpy(offsets).to(setting.device, torch.int32), int(lengths.max()))
    )
    places = torch.cat([torch.arange(n) for n in lengths])[None].to(setting.device)
    ids = torch.cat(texts)[None].to(setting.device)
    run(
        "packed", [{"input_ids": ids, "position_ids": places, "real": torch.ones_like(ids, dtype=torch.bool)}]
    )
    base = sums["padded to 144"]
    return {
        "texts": len(texts),
        "tokens": int(lengths.sum()),
        "format": str(setting.low).removeprefix("torch."),
        "tokens/s": {name: round(int(lengths.sum()) / t) for name, t in seconds.items()},
        "difference of gradients": {
            name: float(f"{(s - base).norm() / base.norm():.2g}") for name, s in sums.items()
        },
    }


def rectangle(texts: list[Tensor], device: torch.device, width: int | None = None) -> dict[str, Tensor]:
    width = width or max(map(len, texts))
    ids = torch.stack([nn.functional.pad(text, (0, width - len(text))) for text in texts])
    real = torch.arange(width) < torch.tensor([len(text) for text in texts])[:, None]
    return {"input_ids": ids.to(device), "attention_mask": real.long().to(device), "real": real.to(device)}


@dataclass
class Packed:
    """Attention of several texts in one row: `offsets` [N + 1] are where they begin and end."""

    offsets: Tensor
    longest: int

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **rest: Any
    ) -> tuple[Tensor, None]:
        """[1, A, T, D] three times → [1, T, A, D]."""
        if query.device.type == "cuda":
            from torch.nn.attention.varlen import varlen_attn

            rows = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
            out = varlen_attn(*rows, self.offsets, self.offsets, self.longest, self.longest)
            return out[None], None  # type: ignore[index]
        ends = self.offsets.tolist()
        parts = [
            nn.functional.scaled_dot_product_attention(*(x[:, :, a:b] for x in (query, key, value)))
            for a, b in itertools.pairwise(ends)
        ]
        return torch.cat(parts, 2).transpose(1, 2), None


def encoding(options: argparse.Namespace) -> dict[str, Any]:
    """Texts per second of both programs in bf16, on random words."""
    from sentence_transformers import SentenceTransformer, __version__

    from qontext.models.retriever import Retriever

    device = torch.device(options.device)
    ours = Retriever(options.model, device=options.device, precision="bf16")
    dice = np.random.default_rng(0)
    words = sorted(word for word in ours.tokenizer.get_vocab() if word.isalpha())
    texts = [" ".join(dice.choice(words, n)) for n in dice.integers(20, 200, options.texts)]
    theirs = SentenceTransformer(options.model, device=options.device, model_kwargs={"dtype": torch.bfloat16})
    best: dict[str, float] = {}
    for batch in (32, 128, 512):
        name = f"sentence-transformers {__version__}, batch {batch}"
        best[name] = timed(lambda size=batch: theirs.encode(texts, batch_size=size), device)  # type: ignore[misc]
    best["qontext"] = timed(lambda: ours.encode(texts, "passage"), device)
    fastest = min(seconds for name, seconds in best.items() if name != "qontext")
    return {
        "texts": len(texts),
        "texts/s": {name: round(len(texts) / seconds, 1) for name, seconds in best.items()},
        "ratio to the fastest": round(fastest / best["qontext"], 3),
    }


def searching(
    count: int, device: torch.device, queries: int = 1_024, dimensions: int = 384, k: int = 100
) -> dict[str, Any]:
    """Seconds for all queries at once; the vectors are copied from memory to the device each time, unless by faiss."""
    dice = np.random.default_rng(0)
    vectors, questions = (dice.standard_normal((n, dimensions), np.float32) for n in (count, queries))
    formats = {"fp32": torch.float32, "bf16": torch.bfloat16}
    indexes = {
        name: ExactIndex(ArrayVectors([vectors]), device=str(device), scoring=form)
        for name, form in formats.items()
    }
    seconds = {
        f"qontext {name}": timed(lambda i=index: i.search(questions, k), device)
        for name, index in indexes.items()
    }  # type: ignore[misc]
    numbers = [index.search(questions, k)[0] for index in indexes.values()]
    same = float(np.mean([{*a} == {*b} for a, b in zip(*numbers)]))
    try:
        import faiss

        flat = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, faiss.IndexFlatIP(dimensions))
        flat.add(vectors)
        seconds["faiss-gpu, vectors on the device"] = timed(lambda: flat.search(questions, k), device)
    except (ImportError, AttributeError):
        pass
    about = {"vectors": count, "queries": queries, "dimensions": dimensions, "k": k}
    return {
        **about,
        "seconds": {name: round(t, 4) for name, t in seconds.items()},
        "same results in bf16": same,
    }
