"""The model card of a pre-trained encoder: description, training settings, how to load it."""

from __future__ import annotations

from typing import Any

from qontext.models.card import how_it_was_made
from qontext.pretrain.config import PretrainConfig

_TEMPLATE = """---
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


def model_card(config: PretrainConfig, summary: dict[str, Any], *, has_head: bool) -> str:
    context = (
        f" on pairs of a passage and its context (`{summary['context']}`)" if "context" in summary else ""
    )
    return _TEMPLATE.format(
        title=f"Encoder pre-trained with {config.method}",
        method=config.method,
        vector="the last layer's [CLS]"
        if config.vector == "cls"
        else "the mean of the last layer over its tokens",
        similarity="dot product" if config.similarity == "dot" else "cosine",
        context=context,
        head="`head.safetensors` contains the training head; further pre-training continues from it."
        if has_head
        else "",
        history=how_it_was_made(config, summary, "encoder", "passages"),
    )
