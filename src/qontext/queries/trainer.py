"""The loop that trains a generator: AdamW, a linear schedule, early stop, checkpoints without pickles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from qontext.engine.precision import autocast
from qontext.engine.randomness import torch_seed
from qontext.queries.pairs import Encoded, Pair
from qontext.queries.sampling import Sampler, sample

if TYPE_CHECKING:
    from qontext.queries.train_generator import TrainGeneratorConfig


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    best: float = math.inf
    best_step: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    looked: bool = False
    """Whether this step ended with a look at the dev pairs."""


class Trainer:
    """Model, optimiser and best weights so far."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        train: Encoded,
        dev: Encoded,
        config: TrainGeneratorConfig,
        dtype: torch.dtype,
    ) -> None:
        self.model, self.tokenizer, self.train, self.dev, self.config = model, tokenizer, train, dev, config
        self.device, self.dtype = next(model.parameters()).device, dtype
        self.named = dict(model.named_parameters())
        decayed = [p for p in self.named.values() if p.ndim > 1]
        others = [p for p in self.named.values() if p.ndim <= 1]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": config.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=config.lr,
        )
        self.best: dict[str, torch.Tensor] = {}

    def go(self, progress: Progress) -> Iterator[Progress]:
        """Train on from `progress`; gives it after every step."""
        config = self.config
        while progress.step < config.steps and not self._stalled(progress):
            self._step(progress.step)
            progress.step += 1
            progress.looked = progress.step % config.evaluate_every == 0 or progress.step == config.steps
            if progress.looked:
                loss = self.dev_loss()
                progress.history.append((progress.step, loss))
                if loss < progress.best:
                    progress.best, progress.best_step = loss, progress.step
                    self.best = {name: p.detach().clone() for name, p in self.named.items()}
            yield progress

    def _stalled(self, progress: Progress) -> bool:
        return sum(step > progress.best_step for step, _ in progress.history) >= self.config.patience

    def _step(self, step: int) -> None:
        config = self.config
        torch.manual_seed(torch_seed(config.seed, "generator dropout", step))
        for group in self.optimiser.param_groups:
            group["lr"] = config.lr * schedule(step, config.steps, config.warmup)
        self.model.train()
        rows = self.train.rows_of(step, config.batch, config.seed)
        loss, count = self._loss(rows, self.train, config.label_smoothing)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss / count)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()

    def _loss(self, rows: list[int], pairs: Encoded, smoothing: float = 0.0) -> tuple[torch.Tensor, int]:
        """Summed over the query tokens of the rows, and how many they are."""
        batch = pairs.batch(rows, self.tokenizer.pad_token_id, self.device)
        with autocast(self.device, self.dtype):
            logits = self.model(**batch).logits
        labels = batch["labels"].flatten()
        loss = cross_entropy(
            logits.float().flatten(0, 1),
            labels,
            ignore_index=-100,
            reduction="sum",
            label_smoothing=smoothing,
        )
        return loss, int((labels != -100).sum())

    @torch.inference_mode()
    def dev_loss(self) -> float:
        """Mean over the tokens of all dev queries."""
        self.model.eval()
        order = sorted(range(len(self.dev)), key=lambda i: len(self.dev.passages[i]))
        size = self.config.batch
        sums = [self._loss(order[i : i + size], self.dev) for i in range(0, len(order), size)]
        return float(sum(loss.item() for loss, _ in sums) / sum(count for _, count in sums))

    def samples(self, pairs: list[Pair], source: Callable[[Pair], str]) -> list[str]:
        """One drawn query for each pair."""
        self.model.eval()
        limit = self.config.max_passage_tokens
        tokens = self.tokenizer(
            [source(pair) for pair in pairs],
            truncation=True,
            max_length=limit,
            padding=True,
            return_tensors="pt",
        )
        ids, mask = tokens["input_ids"].to(self.device), tokens["attention_mask"].to(self.device)
        sampler = Sampler(samples=1, max_new_tokens=self.config.max_query_tokens, seed=self.config.seed)
        drawn = sample(self.model, ids, mask, [str(i) for i in range(len(pairs))], sampler, self.dtype)
        return [self.tokenizer.decode(queries[0], skip_special_tokens=True) for queries in drawn]

    def use_best(self, progress: Progress) -> Self:
        """Put the best weights in place."""
        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(self.best[name])
        return self

    def save(self, path: Path, progress: Progress) -> None:
        """Weights, moments, best weights and progress, in one file."""
        tensors = {f"now.{name}": p.detach() for name, p in self.named.items()}
        tensors |= {f"best.{name}": p for name, p in self.best.items()}
        for name, parameter in self.named.items():
            for key, value in self.optimiser.state[parameter].items():
                tensors[f"{key}.{name}"] = value
        stand = {
            "step": progress.step,
            "best": progress.best,
            "best_step": progress.best_step,
            "history": progress.history,
        }
        save_file(
            {k: v.contiguous().clone() for k, v in tensors.items()}, path, {"progress": json.dumps(stand)}
        )

    def load(self, path: Path) -> Progress:
        """Go on from a checkpoint."""
        from safetensors import safe_open

        with safe_open(path, "pt") as file, torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(file.get_tensor(f"now.{name}"))
                self.best[name] = file.get_tensor(f"best.{name}").to(self.device)
                self.optimiser.state[parameter] = {
                    key: file.get_tensor(f"{key}.{name}").to("cpu" if key == "step" else self.device)
                    for key in ("step", "exp_avg", "exp_avg_sq")
                }
            stand = json.loads(file.metadata()["progress"])
        stand["history"] = [(step, loss) for step, loss in stand["history"]]
        return Progress(**stand)


def schedule(step: int, steps: int, warmup: float) -> float:
    """Linear up, then linear down to zero."""
    rising = max(1, round(steps * warmup))
    return (step + 1) / rising if step < rising else max(0.0, (steps - step) / max(1, steps - rising))
