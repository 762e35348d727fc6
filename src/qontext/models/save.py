"""Writing an encoder's directory, as transformers and sentence-transformers (ST) expect it.

| file | read by |
|---|---|
| config.json, model.safetensors | transformers, ST |
| tokenizer.json, tokenizer_config.json | transformers, ST |
| modules.json, sentence_bert_config.json, config_sentence_transformers.json, 1_Pooling/ | ST |
| README.md | people: the model card |

The same encoder produces the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from torch import Tensor

import qontext
from qontext.frame.config import StageConfig
from qontext.models.load import quiet
from qontext.models.tokenizer import save_tokenizer
from qontext.training import adapters

Pooling = Literal["cls", "mean", "lasttoken"]
Similarity = Literal["dot", "cosine"]
VECTOR_OF: dict[str, str] = {
    "cls": "the last layer's [CLS]",
    "mean": "the mean of the last layer over the tokens",
    "lasttoken": "the last layer's last token",
}
"""Pooling → the vector of a text, in words."""
_CARD = """---
library_name: {library}
pipeline_tag: {task}
tags: [{library}, retrieval, qontext]
---

# {title}

{about}
{code}
## How it was made

| setting | value |
|---|---|
{settings}

| result | value |
|---|---|
{results}

Made with qontext {version}.
"""
_CODE = """
```python
from sentence_transformers import {kind}

model = {kind}("path/to/this/folder")
{use}
```
"""
_ENCODE = """{load}queries, passages = {ask}.encode_query(["a question"]), model.encode_document([{passage}])
scores = model.similarity(queries, passages)"""
_SCORE = """scores = model.predict([("a question", {passage})])"""
TASKS = {"SentenceTransformer": "sentence-similarity", "CrossEncoder": "text-ranking"}


class Card(NamedTuple):
    """The model card of a folder: its title, its description, and the class of sentence-transformers that loads it, if
    there is one."""

    title: str
    about: str
    kind: str = ""


class ModuleFolder(NamedTuple):
    """An entry of modules.json: its type in sentence-transformers or this package, its folder, and its settings there."""

    type: str
    path: str
    settings: Mapping[str, Any] | None = None
    package: str = "sentence_transformers"


def save_weights(
    model: Any, tokenizer: Any, directory: Path, max_length: int, *, more_weights: Mapping[str, Tensor]
) -> None:
    """Write a transformers model, with additional weights, and its tokenizer."""
    with quiet(), adapters.merged(model):
        model.save_pretrained(str(directory), state_dict={**model.state_dict(), **more_weights})
    save_tokenizer(tokenizer, directory, max_length)


def write_modules(
    directory: Path,
    model_type: str,
    modules: Sequence[ModuleFolder],
    *,
    max_length: int,
    similarity: str,
    prompts: Mapping[str, str] = MappingProxyType({}),
    transformer: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write what ST reads: which modules there are, and how they compute. `transformer` are settings of the first one."""
    listed = [
        {"idx": i, "name": str(i), "path": module.path, "type": f"{module.package}.{module.type}"}
        for i, module in enumerate(modules)
    ]
    _write(directory / "modules.json", listed)
    limits = {"max_seq_length": max_length, "do_lower_case": False}
    _write(directory / "sentence_bert_config.json", {**limits, **transformer})
    for module in modules:
        if module.path:
            (directory / module.path).mkdir(exist_ok=True)
        if module.settings is not None:
            _write(directory / module.path / "config.json", module.settings)
    _write(
        directory / "config_sentence_transformers.json",
        {
            "__version__": {},
            "model_type": model_type,
            "prompts": dict(prompts),
            "default_prompt_name": None,
            "similarity_fn_name": similarity,
        },
    )


def vector_modules(
    hidden_size: int, pooling: str, *, normalize: bool, dense: Iterable[Any] = ()
) -> list[ModuleFolder]:
    """The modules of an encoder of one vector, with the dense layers after its pooling. `pooling` is that of a
    layout."""
    settings = {
        "word_embedding_dimension": hidden_size,
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": pooling == "max",
        "pooling_mode_mean_sqrt_len_tokens": False,
        **({"pooling_mode_lasttoken": True} if pooling == "lasttoken" else {}),
    }
    # The names under which every version since 2 finds its modules; version 5 also has longer ones.
    modules = [ModuleFolder("models.Transformer", ""), ModuleFolder("models.Pooling", "1_Pooling", settings)]
    for layer in dense:
        modules.append(ModuleFolder("models.Dense", f"{len(modules)}_Dense", layer.settings()))
    return [*modules, ModuleFolder("models.Normalize", f"{len(modules)}_Normalize")] if normalize else modules


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def model_card(
    card: Card,
    config: StageConfig,
    summary: dict[str, Any],
    *inputs: str,
    passage: str = '"a passage"',
    untied: bool = False,
) -> str:
    """The model card of a training, with its settings and results. `inputs` names the fields whose paths are listed with
    the settings; `passage` is an example in Python; `untied` if the encoder of queries is in a folder of its own."""
    load = f'of_queries = {card.kind}("path/to/this/folder/query")\n' if untied else ""
    use = _SCORE if card.kind == "CrossEncoder" else _ENCODE
    use = use.format(passage=passage, load=load, ask="of_queries" if untied else "model")
    settings = {**{name: getattr(config, name) for name in inputs}, **config.identity()}
    return _CARD.format(
        title=card.title,
        about=card.about,
        code=_CODE.format(kind=card.kind, use=use) if card.kind else "",
        library="sentence-transformers" if card.kind else "transformers",
        task=TASKS.get(card.kind, "feature-extraction"),
        settings=_rows(settings),
        results=_rows(summary),
        version=qontext.__version__,
    )


def _rows(values: dict[str, Any], prefix: str = "") -> str:
    """Lines of a table; nested values have joined names, and times are omitted, so that the card is reproducible."""
    lines = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines.append(_rows(value, f"{prefix}{name} "))
        elif value is not None and "second" not in name:
            lines.append(f"| {prefix}{name} | {value} |")
    return "\n".join(line for line in lines if line)
