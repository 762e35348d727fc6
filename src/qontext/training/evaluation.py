"""Evaluations during training: a quick measure of retrieval, keeping the best weights, and early stopping.

A probe searches with some queries of a labeled set among their relevant passages and about 2,000 others. Its measures
show a trend and compare states of one encoder; they differ from those of the whole collection.

The history is stored beside the checkpoints, so that a resumed run decides as if it had not been interrupted:
evaluations after the checkpoint's step are repeated, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qontext.data.collection import load_collection
from qontext.frame import log
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.files import opening, read_json
from qontext.models.batching import Ints, pad, run_batches
from qontext.training.adapters import trained
from qontext.training.batch import TrainableModel
from qontext.training.distributed import RankGroup
from qontext.training.metrics import Metrics

OTHERS, QUERY_TOKENS = 2000, 64
Vectors = Callable[[Tensor, Tensor], Tensor]
"""Tokens [N, T] and mask [N, T] → vectors [N, H]; or of queries and passages, their similarity."""
Keep = Literal["best", "last"]


@dataclass(frozen=True)
class Schedule:
    """The steps to evaluate at (every n and the last one), the weights to keep, and the patience before stopping."""

    every: int
    keep: Keep
    patience: int | None = None


class Evaluations:
    """Evaluates on rank 0. `watch` is the deciding measure; with `minimize`, lower is better."""

    def __init__(
        self,
        measure: Callable[[], dict[str, float]],
        model: TrainableModel,
        group: RankGroup,
        work: Workdir,
        schedule: Schedule,
        *,
        phase: str,
        watch: str = "MRR@10",
        minimize: bool = False,
    ) -> None:
        self.measure, self.model, self.group, self.work = measure, model, group, work
        self.schedule, self.watch, self.minimize = schedule, watch, minimize
        self.folder = f"checkpoints/{phase}/best"
        self.before: dict[str, float] = {}
        """The evaluation before the first step."""

    def begin(self) -> None:
        """Evaluate before the first step, on rank 0; not repeated on resume."""
        file = f"{self.folder}/before.json"
        if self.group.is_first and not self.work.has(file):
            self.work.write_json(file, self.measure())
        if self.group.is_first:
            self.before = read_json(self.work.path / file, dict[str, float])

    def after(self, step: int, metrics: Metrics | None, *, is_last: bool) -> bool:
        """Called after each step, on every rank. Returns True if the training should stop."""
        if step % self.schedule.every and not is_last:
            return False
        stop = torch.zeros((), device=self.group.device)
        if self.group.is_first:
            measured = self.measure()
            if metrics is not None:
                metrics.write(step, {"dev": measured})
            log.note(f"step {step:,}: " + ", ".join(f"{k} {v:.4f}" for k, v in measured.items()))
            stop += self._record(step, measured)
        if not self.group.sum(stop).item():
            return False
        if self.group.is_first:
            log.note(
                f"No improvement in {self.schedule.patience} evaluations; stopping early at step {step:,}."
            )
        return True

    def _record(self, step: int, measured: dict[str, float]) -> bool:
        """Extend the history, keep the weights if they are the best so far; returns True if patience is exhausted."""
        history = [*(row for row in self.history() if row["step"] < step), {"step": step, **measured}]
        best = self._best(history)
        if best == step and self.schedule.keep == "best":
            weights = {n: p.detach().cpu().contiguous() for n, p in trained(self.model).items()}
            with self.work.write(f"{self.folder}/weights.safetensors") as path:
                save_file(weights, path)
        self.work.write_json(f"{self.folder}/dev.json", history)
        patience = self.schedule.patience
        return patience is not None and sum(row["step"] > best for row in history) >= patience

    def history(self) -> list[dict[str, Any]]:
        path = self.work.path / self.folder / "dev.json"
        history: list[dict[str, Any]] = read_json(path, list[dict[str, float]]) if path.exists() else []
        return history

    def finish(self) -> dict[str, Any]:
        """Load the best weights on every rank, if they are to be kept; returns the summary."""
        self.group.wait()
        history = self.history()
        best = self._best(history)
        if self.schedule.keep == "best":
            path = self.work.path / self.folder / "weights.safetensors"
            with opening(path, "the weights of this model"), torch.no_grad():
                weights = load_file(path)
                for name, parameter in trained(self.model).items():
                    parameter.copy_(weights[name])
        step = history[-1]["step"] if self.schedule.keep == "last" else best
        row = next(row for row in history if row["step"] == step)
        stopped_at = history[-1]["step"]
        return {
            "dev_before": self.before,
            "dev": {"kept": self.schedule.keep, **row, "best_step": best, "stopped_at": stopped_at},
            "history": history,
        }

    def _best(self, history: list[dict[str, Any]]) -> int:
        """The best step; the first of equal ones."""
        sign = -1 if self.minimize else 1
        best: int = max(history, key=lambda row: (sign * row[self.watch], -row["step"]))["step"]
        return best


class Probe:
    """The sample of a labeled set, tokenized once."""

    def __init__(
        self,
        folder: Path | str,
        split: str,
        tokenizer: Any,
        max_tokens: int,
        *,
        queries: int = 200,
        query_tokens: int = QUERY_TOKENS,
        prompts: tuple[str, str] = ("", ""),
        between: str | None = " ",
    ) -> None:
        collection = load_collection(folder)
        judged = collection.qrels(split)
        texts = collection.queries(split)
        ids = sorted(texts)[:: max(1, len(texts) // queries)][:queries]
        relevant = {p for q in ids for p, grade in judged[q].items() if grade > 0}
        step = max(1, sum(1 for _ in collection.passages()) // OTHERS)  # read twice, and kept in part
        pool = {
            passage.id: passage.joined(between)
            for number, passage in enumerate(collection.passages())
            if passage.id in relevant or number % step == 0
        }
        if not ids or not relevant & pool.keys():
            raise QontextError(
                "no judged query of the probe has its passages in the collection", place=folder
            )
        place = {name: n for n, name in enumerate(pool)}
        self.relevant = [
            [place[p] for p, grade in judged[q].items() if grade > 0 and p in place] for q in ids
        ]
        self.pad_id = tokenizer.pad_token_id
        of_query, of_passage = prompts
        self.queries = _tokens(tokenizer, [of_query + texts[q] for q in ids], query_tokens)
        self.passages = _tokens(tokenizer, [of_passage + text for text in pool.values()], max_tokens)

    def measure(
        self,
        model: nn.Module,
        vectors: Vectors,
        device: torch.device,
        of_queries: Vectors | None = None,
        similarity: Vectors = lambda queries, passages: queries @ passages.T,
    ) -> dict[str, float]:
        """MRR@10 and R@100 by the similarity of `vectors`, a method of `model`. `of_queries` computes the
        queries' vectors, if they differ.
        """
        training = model.training
        model.eval()
        queries = self._encode(of_queries or vectors, self.queries, device)
        passages = self._encode(vectors, self.passages, device)
        model.train(training)
        order = np.argsort(-similarity(queries, passages).numpy(), axis=1, kind="stable")[:, :100]
        reciprocal, recall = [], []
        for row, relevant in zip(order, self.relevant):
            hits = np.isin(row, relevant)
            first = int(np.argmax(hits)) if hits[:10].any() else None
            reciprocal.append(0.0 if first is None else 1 / (first + 1))
            recall.append(hits.sum() / len(relevant) if relevant else 0.0)
        return {"MRR@10": round(float(np.mean(reciprocal)), 4), "R@100": round(float(np.mean(recall)), 4)}

    def _encode(
        self, vectors: Vectors, texts: list[list[int]], device: torch.device, tokens: int = 16_384
    ) -> Tensor:
        """[texts, H] vectors, in the order of the texts."""
        parts: list[Tensor] = []
        places: list[Ints] = []

        def compute(rows: Ints) -> Tensor:
            ids, mask = (torch.from_numpy(a).to(device) for a in pad([texts[n] for n in rows], self.pad_id))
            return vectors(ids, mask).float()

        def store(rows: Ints, vectors: Tensor) -> None:
            parts.append(vectors.cpu())
            places.append(rows)

        lengths = np.array([len(text) for text in texts])
        run_batches(compute, store, lengths, tokens=tokens, device=device, most=1)
        return torch.cat(parts)[np.concatenate(places).argsort()]


def _tokens(tokenizer: Any, texts: list[str], limit: int) -> list[list[int]]:
    ids: Any = tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
    return list(ids)
