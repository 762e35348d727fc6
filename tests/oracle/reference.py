"""Every method's losses, written from its equations in plain PyTorch: one text at a time, unpadded, in float64.

Nothing of Qontext is used here, so that a wrong average, activation or sign there cannot hide here, too. Weights have
the names that BERT's have in transformers, those of a head begin with "head.".

A text's row: `ids` with [CLS] and [SEP], masked as the encoder reads them; `predict`, the (place, original id) of what is
masked; `pair`; and what the decoder reads as `context`, again with `ids` and `predict`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Row = Mapping[str, Any]
HEADS, EPS = 2, 1e-12


def draw(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Tensor]:
    """Weights of these shapes, in fp32: norms near 1, all others N(0, 0.15²)."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in sorted(shapes.items()):
        noise = 0.15 * torch.randn(*shape, generator=generator)
        is_norm = re.search(r"(norm|LayerNorm|after_\w+|before_\w+)\.weight$", name)
        weights[name] = 1 + noise if is_norm else noise
    return weights


# BERT


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    return centered / torch.sqrt(variance + EPS) * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def attention(query: Tensor, key: Tensor, value: Tensor, sees: Callable[[int, int], bool]) -> Tensor:
    """Position i of the queries over the positions j that it sees."""
    visible = torch.tensor([[sees(i, j) for j in range(len(key))] for i in range(len(query))])
    heads = []
    for q, k, v in zip(*(part.chunk(HEADS, -1) for part in (query, key, value)), strict=True):
        scores = (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
        heads.append(scores.softmax(-1) @ v)
    return torch.cat(heads, -1)


def everything(i: int, j: int) -> bool:
    return True


def layer(w: Weights, name: str, x: Tensor) -> Tensor:
    a = f"{name}.attention"
    query, key, value = (linear(w, f"{a}.self.{part}", x) for part in ("query", "key", "value"))
    x = norm(
        w,
        f"{a}.output.LayerNorm",
        x + linear(w, f"{a}.output.dense", attention(query, key, value, everything)),
    )
    inner = gelu(linear(w, f"{name}.intermediate.dense", x))
    return norm(w, f"{name}.output.LayerNorm", x + linear(w, f"{name}.output.dense", inner))


def layers(w: Weights, prefix: str, x: Tensor) -> list[Tensor]:
    """x and the output of each layer."""
    states = [x]
    while f"{prefix}.{len(states) - 1}.output.dense.weight" in w:
        states.append(layer(w, f"{prefix}.{len(states) - 1}", states[-1]))
    return states


def embed(w: Weights, ids: Sequence[int], types: Sequence[int] | None = None) -> Tensor:
    name = "bert.embeddings"
    x = w[f"{name}.word_embeddings.weight"][list(ids)]
    x = x + w[f"{name}.position_embeddings.weight"][: len(ids)]
    x = x + w[f"{name}.token_type_embeddings.weight"][list(types or [0] * len(ids))]
    return norm(w, f"{name}.LayerNorm", x)


def encode(w: Weights, ids: Sequence[int], types: Sequence[int] | None = None) -> list[Tensor]:
    """h^0 … h^L."""
    return layers(w, "bert.encoder.layer", embed(w, ids, types))


def surprise(w: Weights, hidden: Tensor, predict: Iterable[Sequence[int]]) -> list[Tensor]:
    """-log softmax(φ(h_place))[label], φ being BERT's MLM head."""
    values = []
    for place, label in predict:
        x = gelu(linear(w, "cls.predictions.transform.dense", hidden[place]))
        x = norm(w, "cls.predictions.transform.LayerNorm", x)
        logits = w["bert.embeddings.word_embeddings.weight"] @ x + w["cls.predictions.bias"]
        values.append(logits.logsumexp(0) - logits[label])
    return values


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean()


def with_first(first: Tensor, rest: Tensor) -> Tensor:
    return torch.cat([first[None], rest[1:]])


# Pre-training: weights and the batch's rows → named losses


def mlm(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """L = CE(φ(h^L), x), the mean over all masked tokens."""
    return {
        "mlm": mean([one for row in rows for one in surprise(w, encode(w, row["ids"])[-1], row["predict"])])
    }


def condenser(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Head([h^L[CLS]; h^M[1..n]]) and h^L both predict what is masked; M is half of the layers."""
    head, late = [], []
    for row in rows:
        hidden = encode(w, row["ids"])
        short_circuit = with_first(hidden[-1][0], hidden[(len(hidden) - 1) // 2])
        head += surprise(w, layers(w, "head.layers", short_circuit)[-1], row["predict"])
        late += surprise(w, hidden[-1], row["predict"])
    return {"head_mlm": mean(head), "late_mlm": mean(late)}


def cocondenser(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Condenser's losses, and -log exp<h_i, h_i'> / Σ_{k ≠ i} exp<h_i, h_k>, the mean over all rows."""
    vectors = [encode(w, row["ids"])[-1][0] for row in rows]
    losses = []
    for i, row in enumerate(rows):
        (partner,) = (k for k, other in enumerate(rows) if k != i and other["pair"] == row["pair"])
        scores = torch.stack([vectors[i] @ vectors[k] for k in range(len(rows)) if k != i])
        losses.append(scores.logsumexp(0) - vectors[i] @ vectors[partner])
    return {**condenser(w, rows), "contrastive": mean(losses)}


def cot_mae(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """h^L predicts the masked tokens of A; Layers([h^L_A[CLS]; E(B)[1..n]]) those of B."""
    own, other = [], []
    for row in rows:
        last = encode(w, row["ids"])[-1]
        decoded = layers(w, "head.layers", with_first(last[0], embed(w, row["context"]["ids"])))[-1]
        own += surprise(w, last, row["predict"])
        other += surprise(w, decoded, row["context"]["predict"])
    return {"encoder_mlm": mean(own), "context_mlm": mean(other)}


def autoregressive(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """One pre-norm block reads [h^L_A[CLS]; E(B)[1..n]] and predicts each next token of B; it sees [CLS] and 3 tokens."""
    own, other = [], []
    for row in rows:
        ids = row["context"]["ids"]
        last = encode(w, row["ids"])[-1]
        x = with_first(last[0], embed(w, ids))
        query, key, value = linear(
            w, "head.blocks.0.qkv", norm(w, "head.blocks.0.before_attention", x)
        ).chunk(3, -1)
        attended = attention(query, key, value, lambda i, j: j == 0 or i - 3 < j <= i)
        x = x + linear(w, "head.blocks.0.out", attended)
        inner = gelu(linear(w, "head.blocks.0.up", norm(w, "head.blocks.0.before_ffn", x)))
        x = norm(w, "head.norm", x + linear(w, "head.blocks.0.down", inner))
        own += surprise(w, last, row["predict"])
        other += surprise(w, x, enumerate(ids[1:]))
    return {"encoder_mlm": mean(own), "context_mlm": mean(other)}


def retromae(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Position i asks with [CLS] + p_i, sees the text but not itself (no other token is hidden here), and predicts x_i."""
    own, every = [], []
    for row in rows:
        ids = row["context"]["ids"]
        last = encode(w, row["ids"])[-1]
        content = with_first(last[0], embed(w, ids))
        stream = last[0] + w["bert.embeddings.position_embeddings.weight"][: len(ids)]
        parts = (
            linear(w, f"head.{name}", x)
            for name, x in (("query", stream), ("key", content), ("value", content))
        )
        attended = attention(*parts, lambda i, j: j == 0 or i != j)
        x = norm(w, "head.after_attention", stream + linear(w, "head.out", attended))
        x = norm(w, "head.after_ffn", x + linear(w, "head.down", gelu(linear(w, "head.up", x))))
        own += surprise(w, last, row["predict"])
        every += surprise(w, x, [(place, ids[place]) for place in range(1, len(ids) - 1)])
    return {"encoder_mlm": mean(own), "decoder_mlm": mean(every)}


def bow(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """h^L predicts what is masked; φ(h^L[CLS]) each distinct token of its bags, the mean per bag and then over bags."""
    own, bags = [], []
    for row in rows:
        last = encode(w, row["ids"])[-1]
        own += surprise(w, last, row["predict"])
        bags += [mean(surprise(w, last, [(0, token) for token in bag])) for bag in row["bags"]]
    return {"encoder_mlm": mean(own), "bow": mean(bags)}


# Fine-tuning: rows are queries (`query`, its number, and `known`, the texts of its positives) and passages (the `query`
# they came with, whether `positive`, their `text` as a number, the `teacher`'s score or None)


def scored(w: Weights, rows: Sequence[Row]) -> Iterable[tuple[Row, list[Row], Tensor]]:
    """Each query, all passages, and their scores <h_q, h_p>."""
    passages = [row for row in rows if not row["is_query"]]
    vectors = torch.stack([encode(w, row["ids"])[-1][0] for row in passages])
    for row in rows:
        if row["is_query"]:
            yield row, passages, vectors @ encode(w, row["ids"])[-1][0]


def belongs(query: Row, passage: Row) -> bool:
    return bool(passage["query"] == query["query"])


def counted(query: Row, passages: list[Row], scores: Tensor) -> Tensor:
    """log Σ exp over all passages that say something else than the query's positives, and its positive."""
    kept = [
        (belongs(query, p) and p["positive"]) or p["text"] not in query["known"] for p in passages
    ]  # fmt: skip
    return scores[kept].logsumexp(0)


def infonce(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """-log exp s(q, p⁺) / Σ_p exp s(q, p) over all passages of the batch, the mean over queries."""
    losses = []
    for query, passages, scores in scored(w, rows):
        (best,) = (n for n, p in enumerate(passages) if belongs(query, p) and p["positive"])
        losses.append(counted(query, passages, scores) - scores[best])
    return {"contrastive": mean(losses)}


def distillation(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """KL(T ‖ S), T over the query's own scored passages, S over all passages of the batch, the mean over queries."""
    losses = []
    for query, passages, scores in scored(w, rows):
        own = [n for n, p in enumerate(passages) if belongs(query, p) and p["teacher"] is not None]
        target = torch.tensor([passages[n]["teacher"] for n in own], dtype=scores.dtype).softmax(0)
        student = scores[own] - counted(query, passages, scores)
        losses.append((target * (target.log() - student)).sum())
    return {"kl": mean(losses)}


def margin_mse(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """((s(q, p⁺) - s(q, p)) - (t(p⁺) - t(p)))², the mean over a query's scored negatives, then over queries."""
    losses = []
    for query, passages, scores in scored(w, rows):
        own = [n for n, p in enumerate(passages) if belongs(query, p) and p["teacher"] is not None]
        (best,) = (n for n in own if passages[n]["positive"])
        teacher = {n: passages[n]["teacher"] for n in own}
        errors = [(scores[best] - scores[n]) - (teacher[best] - teacher[n]) for n in own if n != best]
        losses.append(mean([error**2 for error in errors]))
    return {"margin_mse": mean(losses)}


def rank(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """max(0, s(q, p') - s(q, p)), the mean over pairs of which the teacher prefers p, then over queries."""
    losses = []
    for query, passages, scores in scored(w, rows):
        own = [n for n, p in enumerate(passages) if belongs(query, p) and p["teacher"] is not None]
        pairs = [(a, b) for a in own for b in own if passages[a]["teacher"] > passages[b]["teacher"]]
        losses.append(mean([(scores[b] - scores[a]).relu() for a, b in pairs]))
    return {"rank": mean(losses)}


def listwise(w: Weights, rows: Sequence[Row]) -> dict[str, Tensor]:
    """-log exp g(q, p⁺) / Σ exp g(q, p) over each list, its positive first, the mean over lists."""
    losses = []
    for row in rows:
        logits = []
        for pair in row["pairs"]:
            pooled = torch.tanh(linear(w, "bert.pooler.dense", encode(w, pair["ids"], pair["types"])[-1][0]))
            logits.append(linear(w, "classifier", pooled)[0])
        losses.append(torch.stack(logits).logsumexp(0) - logits[0])
    return {"listwise": mean(losses)}


def gradients(
    loss: Callable[[Weights, Sequence[Row]], dict[str, Tensor]], weights: Weights, rows: Sequence[Row]
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The named losses, and the gradient of their sum, 0 where a weight is not used."""
    exact = {name: value.double().requires_grad_() for name, value in weights.items()}
    losses = loss(exact, rows)
    torch.stack(list(losses.values())).sum().backward()
    return (
        {name: value.item() for name, value in losses.items()},
        {name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in exact.items()},
    )
