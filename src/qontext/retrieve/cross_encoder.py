"""A cross-encoder: query and passage in one sequence, one number out.

Any directory that transformers loads for sequence classification with one logit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qontext.engine.load import quiet
from qontext.engine.locate import locate
from qontext.engine.precision import Precision, autocast, resolve_device, resolve_precision
from qontext.engine.tokenizer import load_tokenizer
from qontext.errors import QontextError
from qontext.retrieve.retriever import batches


class CrossEncoder:
    """``score(pairs) → [N]`` logits in fp32, computed in batches of pairs of about one length."""

    def __init__(
        self,
        name: str,
        *,
        device: str = "auto",
        precision: Precision = "auto",
        max_length: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        from transformers import AutoModelForSequenceClassification

        directory = locate(name)
        self.device = resolve_device(device)
        self.dtype = resolve_precision(precision, self.device)
        try:
            with quiet():
                model, found = AutoModelForSequenceClassification.from_pretrained(
                    str(directory),
                    use_safetensors=True,
                    trust_remote_code=False,
                    dtype=torch.float32,
                    output_loading_info=True,
                )
        except Exception as error:  # the library raises whatever its parsers raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise QontextError(f"cannot load the cross-encoder: {reason}", place=directory) from None
        if found["missing_keys"]:
            raise QontextError(
                f"is no cross-encoder: it has no weights for {min(found['missing_keys'])}",
                place=name,
                remedy="Give a model that was trained to score pairs.",
            )
        if model.config.num_labels != 1:
            raise QontextError(
                f"the cross-encoder gives {model.config.num_labels} numbers for a pair, expected one",
                place=name,
            )
        self.model = model.eval().to(self.device)
        self.tokenizer = load_tokenizer(directory)
        limits = (self.tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None))
        possible = int(min(limit for limit in limits if limit))
        if max_length and max_length > possible:
            raise QontextError(
                f"the cross-encoder reads at most {possible} tokens, not {max_length}", place=name
            )
        self.max_length = max_length or possible
        self.batch_tokens = batch_tokens or (65_536 if self.device.type != "cpu" else 4_096)

    def score(
        self, pairs: Sequence[tuple[str, str]], *, advance: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, Any]:
        """[N] the logit of each (query, passage); a long passage is cut, never the query if it fits."""
        encodings = encode_pairs(self.tokenizer, pairs, self.max_length)
        lengths = np.array([len(e.ids) for e in encodings])
        scores = np.empty(len(pairs), np.float32)
        with torch.inference_mode(), autocast(self.device, self.dtype):
            for rows in batches(lengths, self.batch_tokens):
                inputs = pad_pairs(self.tokenizer, [encodings[row] for row in rows])
                logits = self.model(**{name: t.to(self.device) for name, t in inputs.items()}).logits
                scores[rows] = logits.float().squeeze(1).cpu().numpy()
                if advance:
                    advance(len(rows))
        if not np.isfinite(scores).all():
            raise QontextError("the cross-encoder gives scores that are not finite numbers")
        return scores


def encode_pairs(tokenizer: Any, pairs: Sequence[tuple[str, str]], max_length: int) -> list[Any]:
    """Each (query, passage) as one sequence of at most `max_length` tokens; the longer of the two is cut."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(max_length, strategy="longest_first")
    found: list[Any] = backend.encode_batch_fast(list(pairs))
    return found


def pad_pairs(tokenizer: Any, encodings: Sequence[Any]) -> dict[str, torch.Tensor]:
    """What a sequence classifier takes, [N, T] each."""
    width = max(len(e.ids) for e in encodings)
    ids = np.full((len(encodings), width), tokenizer.pad_token_id or 0, np.int64)
    types, mask = np.zeros_like(ids), np.zeros_like(ids)
    for row, e in enumerate(encodings):
        ids[row, : len(e.ids)], types[row, : len(e.ids)], mask[row, : len(e.ids)] = e.ids, e.type_ids, 1
    arrays = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in tokenizer.model_input_names:
        arrays["token_type_ids"] = types
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
