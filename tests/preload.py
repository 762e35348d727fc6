"""Imports everything that a command may import, for processes that start commands as forks of themselves.

Forks share what was imported. What each of them imports again, such as pandas, which pyarrow imports when it first makes
Python objects of a table, would take most of the time of a small command.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import pkgutil

import qontext

LIBRARIES = (
    "PIL.Image", "Stemmer", "bm25s", "faiss", "ir_measures", "matplotlib.backends.backend_agg", "matplotlib.pyplot",
    "pandas", "pyarrow.compute", "pyarrow.parquet", "pytrec_eval", "rich.progress", "rich.table", "safetensors.torch",
    "sentencex", "sqlite3", "tokenizers", "tomllib", "torch", "torch._dynamo", "transformers",
    "transformers.models.auto.tokenization_auto", "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert", "transformers.modeling_utils",
    "transformers.models.t5.modeling_t5", "typer.completion", "typer.rich_utils", "zstandard",
)  # fmt: skip
"""Imported by functions of the package or by each other, not when a module of the package is imported."""


def preload() -> None:
    """Import the package and the libraries; some of these are optional. Forks then leave the memory as it is."""
    for module in pkgutil.walk_packages(qontext.__path__, "qontext."):
        importlib.import_module(module.name)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # the garbage collector of a fork does not write to the pages that it shares
