"""A small labeled collection."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny import write_collection


@pytest.fixture
def labeled(tmp_path: Path) -> Path:
    rows = [{"_id": f"p{i}", "title": "", "text": f"passage {i} of a river"} for i in range(4)]
    queries = [{"_id": "q", "text": "passage 2"}]
    return write_collection(tmp_path / "labeled", rows, queries, {"test": {"q": "p2"}})
