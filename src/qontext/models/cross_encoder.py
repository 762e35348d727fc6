"""A cross-encoder: query and passage in one sequence, one score out.

Any directory that transformers loads for sequence classification with one logit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qontext.data.passage import Passage, TitleRule
from qontext.frame.errors import QontextError
from qontext.models.attention import compute_first_token_alone
from qontext.models.batching import grid_for, pad, run_batches
from qontext.models.encoder import UNLIMITED
from qontext.models.families import most_positions
from qontext.models.folder import locate, message_format
from qontext.models.load import load
from qontext.models.precision import Precision, autocast, keep_fp32, resolve_device, resolve_precision
from qontext.models.products import use_where_faster
from qontext.models.tokenizer import Titles, check_vocabulary, load_tokenizer


class CrossEncoder:
    """A loaded cross-encoder: pairs of query and passage → scores in fp32.

    >>> reranker = CrossEncoder("reranker")
    >>> reranker.score([("who grinds flour?", "The mill grinds flour."), ("who grinds flour?", "A boat.")]).shape
    (2,)

    Args:
        name: A model folder, or the name of a model on the Hugging Face Hub. device: auto, cpu, cuda, cuda:N
        or mps. precision: Number format of matrix products; auto is bf16 if the hardware supports it, else
        fp32. max_length: Maximum tokens of query and passage together. Default: the model's limit.
        batch_tokens: Tokens per batch, including padding. title: prepend, sep or leave: what is done with the titles of
        passages. Default: as the folder says, else prepend.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        device: str = "auto",
        precision: Precision = "auto",
        max_length: int | None = None,
        batch_tokens: int | None = None,
        title: TitleRule | None = None,
    ) -> None:
        name = os.fspath(name)
        folder = locate(name)
        directory = folder.transformer
        self.device = resolve_device(device)
        self.dtype = resolve_precision(precision, self.device)
        model, missing = load("AutoModelForSequenceClassification", directory, "cross-encoder")
        if missing:
            raise QontextError(
                f"is not a cross-encoder: it has no weights for {min(missing)}",
                place=name,
                remedy="Name a model that was trained to score pairs.",
            )
        if model.config.num_labels != 1:
            raise QontextError(
                f"the cross-encoder returns {model.config.num_labels} scores for a pair, expected one",
                place=name,
            )
        keep_fp32(model)
        self.model = model.eval().to(self.device)
        use_where_faster(self.model, self.device, self.dtype, keep=False)
        compute_first_token_alone(self.model.base_model)
        if message_format(directory):
            raise QontextError("scores messages of a chat template, which is not supported", place=name)
        self.tokenizer = load_tokenizer(directory)
        self.titles = Titles.of(title or folder.title or "prepend", self.tokenizer, name)
        check_vocabulary(self.tokenizer, model.get_input_embeddings().num_embeddings, name)
        limits = (self.tokenizer.model_max_length, most_positions(model.config), UNLIMITED)
        possible = int(min(limit for limit in limits if limit))
        if max_length and max_length > possible:
            raise QontextError(
                f"the cross-encoder's limit is {possible} tokens, got {max_length}", place=name
            )
        self.max_length, self.limit = max_length or possible, possible
        self.grid = grid_for(self.device, self.dtype, inference=True)
        self.batch_tokens = batch_tokens or (65_536 if self.device.type != "cpu" else 1_024)

    def score(
        self, pairs: Sequence[tuple[str, Passage | str]], *, advance: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, Any]:
        """[N] the logit of each query and passage (title and text, joined) or plain text; long passages are truncated, and
        queries only if they do not fit."""
        texts = [(q, p if isinstance(p, str) else p.joined(self.titles.between)) for q, p in pairs]
        encodings = encode_pairs(self.tokenizer, texts, self.max_length)
        scores = np.empty(len(pairs), np.float32)

        def store(rows: Any, logits_N: torch.Tensor) -> None:
            scores[rows] = logits_N.cpu().numpy()

        run_batches(
            lambda rows: self._forward([encodings[row] for row in rows]),
            store,
            np.array([len(e.ids) for e in encodings]),
            tokens=self.batch_tokens,
            device=self.device,
            grid=self.grid,
            config=self.model.config,
            advance=advance,
        )
        if not np.isfinite(scores).all():
            raise QontextError("the cross-encoder returns scores that are not finite")
        return scores

    def _forward(self, encodings: list[Any]) -> torch.Tensor:
        longest = max(len(e.ids) for e in encodings)
        width = None if self.grid.rows == 1 else min(self.grid.padded(longest), self.limit)
        inputs = pad_pairs(self.tokenizer, encodings, width)
        with autocast(self.device, self.dtype):
            logits_N1 = self.model(**{name: t.to(self.device) for name, t in inputs.items()}).logits
        logits_N: torch.Tensor = logits_N1.float().squeeze(1)
        return logits_N


def encode_pairs(tokenizer: Any, pairs: Sequence[tuple[str, str]], max_length: int) -> list[Any]:
    """Each (query, passage) as one sequence of at most `max_length` tokens; the longer of the two is truncated."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_length, strategy="longest_first")
    encodings: list[Any] = backend.encode_batch_fast(list(pairs))
    return encodings


def pad_pairs(tokenizer: Any, encodings: Sequence[Any], width: int | None = None) -> dict[str, torch.Tensor]:
    """The inputs of a sequence classifier, [N, T] each; T is the length of the longest pair by default."""
    ids, mask = pad([e.ids for e in encodings], tokenizer.pad_token_id or 0, width)
    arrays = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
    if "token_type_ids" in tokenizer.model_input_names:
        arrays["token_type_ids"], _ = pad([e.type_ids for e in encodings], 0, width)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
