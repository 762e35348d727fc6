"""The model card of a pre-trained encoder: what it is, how it was made, how to load it."""

from __future__ import annotations

from typing import Any

import qontext
from qontext.pretrain.config import PretrainConfig

_TEMPLATE = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, dense-retrieval, qontext]
---

# {title}

A text encoder pre-trained for dense retrieval with `{method}`{context}. Its vector of a text is {vector},
compared by {similarity}. It was not fine-tuned on labelled queries: fine-tune it before use where there
are any.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["a passage", "a question"])
```

`transformers.AutoModel` and `AutoTokenizer` load it too. {head}

## How it was made

| setting | value |
|---|---|
{settings}

| result | value |
|---|---|
{results}

Made with qontext {version}.
"""


def model_card(config: PretrainConfig, summary: dict[str, Any], *, has_head: bool) -> str:
    context = (
        f" on pairs of a passage and its context (`{summary['context']}`)" if "context" in summary else ""
    )
    settings = {"encoder": config.encoder, "passages": config.passages, **config.identity()}
    return _TEMPLATE.format(
        title=f"Encoder pre-trained with {config.method}",
        method=config.method,
        vector="the last layer's [CLS]"
        if config.vector == "cls"
        else "the mean of the last layer over its tokens",
        similarity="dot product" if config.similarity == "dot" else "cosine",
        context=context,
        head="`head.safetensors` holds the training head; further pre-training takes it up."
        if has_head
        else "",
        settings=table_rows(settings),
        results=table_rows(summary),
        version=qontext.__version__,
    )


def table_rows(values: dict[str, Any]) -> str:
    """Lines of a Markdown table; nested values by joined names, times left out, so that the card is reproducible."""

    def flat(values: dict[str, Any], prefix: str = "") -> list[str]:
        lines = []
        for name, value in values.items():
            if isinstance(value, dict):
                lines += flat(value, f"{prefix}{name} ")
            elif value is not None and "second" not in name:
                lines.append(f"| {prefix}{name} | {value} |")
        return lines

    return "\n".join(flat(values))
