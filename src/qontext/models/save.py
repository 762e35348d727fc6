"""An encoder's directory, as transformers and sentence-transformers (ST) expect it.

| file | read by |
|---|---|
| config.json, model.safetensors | transformers, ST |
| tokenizer.json, tokenizer_config.json | transformers, ST |
| modules.json, sentence_bert_config.json, config_sentence_transformers.json, 1_Pooling/ | ST |

The same encoder produces the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from qontext.models.load import quiet
from qontext.models.tokenizer import save_tokenizer

Pooling = Literal["cls", "mean"]
Similarity = Literal["dot", "cosine"]


def save_model(
    model: Any,
    tokenizer: Any,
    directory: Path,
    max_length: int,
    pooling: Pooling,
    similarity: Similarity,
    *,
    more_weights: Mapping[str, Tensor],
    normalize: bool = False,
) -> None:
    """Write a transformers model, with additional weights, and its tokenizer."""
    with quiet():
        model.save_pretrained(str(directory), state_dict={**model.state_dict(), **more_weights})
    save_tokenizer(tokenizer, directory, max_length)
    if normalize:
        (directory / "2_Normalize").mkdir(exist_ok=True)
    _write(directory / "modules.json", _modules(normalize))
    _write(directory / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    _write(
        directory / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": model.config.hidden_size,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    _write(
        directory / "config_sentence_transformers.json",
        {
            "__version__": {},
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": similarity,
        },
    )


def _modules(normalize: bool) -> list[dict[str, Any]]:
    # The names under which every version since 2 finds its modules; version 5 also has longer ones.
    paths = {"Transformer": "", "Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if normalize else {})
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(paths.items())
    ]


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
