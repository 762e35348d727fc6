"""The model cards of a fine-tuned retriever and of a reranker: description, training settings, how to load it."""

from __future__ import annotations

from typing import Any

from qontext.finetune.config import FinetuneConfig, LabeledConfig
from qontext.models.representations.base import Representation
from qontext.models.save import VECTOR_OF, how_it_was_made
from qontext.models.tokenizer import Titles

_RETRIEVER = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, dense-retrieval, qontext]
---

# Dense retriever

Queries and passages as vectors: {vector}, compared by {similarity}. Fine-tuned on labeled queries{how}.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
{load_queries}queries, passages = {ask}.encode(["a question"]), model.encode([{passage}])
scores = queries @ passages.T
```

`transformers.AutoModel` and `AutoTokenizer` load it too.
{history}"""

_RERANKER = """---
library_name: transformers
pipeline_tag: text-ranking
tags: [cross-encoder, reranker, qontext]
---

# Reranker

A cross-encoder: it reads a query and a passage together and returns a score, higher for better answers. Trained to put
a positive first among {candidates} candidates.

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = "path/to/this/folder"
model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
pair = tokenizer("a question", {passage}, truncation=True, max_length={max_length}, return_tensors="pt")
score = model(**pair).logits.item()
```

`qontext rerank RUN --reranker path/to/this/folder` does so for a whole run.
{history}"""


def retriever_card(
    config: FinetuneConfig, summary: dict[str, Any], representation: Representation, titles: Titles
) -> str:
    how = f" and a teacher's scores ({config.loss})" if config.teacher else ""
    history = how_it_was_made(config, summary, "encoder", "groups")
    if representation.card:
        return representation.card.format(how=how, passage=titles.example(), history=history)
    about = representation.about()
    return _RETRIEVER.format(
        vector=VECTOR_OF[about.get("pooling", "mean")],
        similarity="cosine" if about.get("similarity") == "cosine" else "dot product",
        how=how,
        load_queries='of_queries = SentenceTransformer("path/to/this/folder/query")\n'
        if config.untied
        else "",
        passage=titles.example(),
        ask="of_queries" if config.untied else "model",
        history=history,
    )


def reranker_card(
    config: LabeledConfig, summary: dict[str, Any], titles: Titles, *, candidates: int, max_length: int
) -> str:
    return _RERANKER.format(
        candidates=candidates,
        passage=titles.example(),
        max_length=max_length,
        history=how_it_was_made(config, summary, "encoder", "groups"),
    )
