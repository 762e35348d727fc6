"""The study's modules, and a study in miniature."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import save_bert, write_inputs

MODULES = (
    "study", "claims", "steps", "sets", "clusters", "record", "run", "systems", "differences", "controls", "page", "depth",
    "curves", "isotropy",
)  # fmt: skip
HERE = Path(__file__).resolve().parents[2] / "evidence"


@pytest.fixture(scope="module")
def modules() -> Any:
    """The study's modules, which are scripts beside each other."""
    sys.path.insert(0, str(HERE))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def begun(modules: Any, tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Any:
    folder = tmp_path_factory.mktemp("study")
    write_inputs(folder, "stories", {"train": range(20), "test": range(20, 30)})
    write_inputs(folder, "others", {"test": range(20, 30)})
    model = save_bert(folder / "bert", minilm)
    scale = modules["study"].SCALES["small"]
    documents = str(folder / "docs.jsonl")
    return modules["run"].Study.begin(scale, str(model), documents, folder, folder / "work", folder / "cells")
