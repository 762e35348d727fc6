"""The folder of a pre-trained encoder: the encoder, its model card, and the head, from which later training can continue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.frame.files import opening
from qontext.models.encoder import Encoder
from qontext.models.folder import record_title
from qontext.models.save import VECTOR_OF, Pooling, how_it_was_made
from qontext.models.tokenizer import Titles
from qontext.pretrain.config import PretrainConfig
from qontext.pretrain.objectives.base import Objective

FILE = "head.safetensors"
_CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, dense-retrieval, qontext]
---

# {title}

A text encoder pre-trained for dense retrieval with `{method}`{context}. Its vector of a text is {vector},
compared by {similarity}. It was not fine-tuned on labeled queries: if you have any, fine-tune it before use.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["a passage", "a question"])
```

`transformers.AutoModel` and `AutoTokenizer` load it too. {head}
{history}"""


def save_encoder(config: PretrainConfig, encoder: Encoder, titles: Titles, folder: Path) -> None:
    """Write the encoder, with what it does with titles."""
    record_title(folder, titles.rule)
    pooling = encoder.pooling(config.vector)
    longest = config.max_tokens + encoder.longest_prompt
    encoder.save(folder, max_length=longest, pooling=pooling, similarity=config.similarity)


def save_head(objective: Objective, folder: Path) -> None:
    """Write the objective's head, if it has one, with its kind."""
    weights = {n: p.detach().cpu().contiguous() for n, p in objective.head_parameters()}
    if weights:
        # A single entry: several would be written in random order.
        save_file(weights, folder / FILE, {"kind": f"{objective.head_kind} of {objective.head_reads}"})


def load_head(objective: Objective, folder: Path) -> bool:
    """Load the objective's head from `folder`, if it has the same kind; returns True if loaded."""
    file, own = folder / FILE, dict(objective.head_parameters())
    if not own or not file.is_file():
        return False
    with opening(file, "a safetensors file with a head"), safe_open(file, framework="pt") as stored:
        kind = (stored.metadata() or {}).get("kind")
        weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if kind is None:
        raise QontextError(
            "is not a head written by Qontext", place=file, remedy="Remove it from the folder."
        )
    kind, _, reads = kind.partition(" of ")
    if kind != objective.head_kind:
        log.note(f"The head in {folder} is a {kind} head; a new {objective.head_kind} head is initialized.")
        return False
    if _shapes(weights) != _shapes(own):
        raise QontextError(
            "the shapes of this head differ from the configured ones",
            place=file,
            remedy="Set --decoder-layers to the value used for that head.",
        )
    if reads and reads != objective.head_reads:
        log.warn(
            f"The head in {folder} was trained on {reads} and continues on {objective.head_reads}: "
            "set --early-layer-number to the value used for that head."
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return True


def _shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(weights[name].shape) for name in sorted(weights)}


def model_card(config: PretrainConfig, summary: dict[str, Any], pooling: Pooling, *, has_head: bool) -> str:
    context = (
        f" on pairs of a passage and its context (`{summary['context']}`)" if "context" in summary else ""
    )
    return _CARD.format(
        title=f"Encoder pre-trained with {config.method}",
        method=config.method,
        vector=VECTOR_OF[pooling],
        similarity="dot product" if config.similarity == "dot" else "cosine",
        context=context,
        head="`head.safetensors` contains the training head; further pre-training continues from it."
        if has_head
        else "",
        history=how_it_was_made(config, summary, "encoder", "passages"),
    )
