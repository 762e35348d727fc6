"""A question is answered without the libraries that take seconds to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiny import write_lines

from qontext import api

HEAVY = {
    *("torch", "transformers", "bm25s", "numba", "scipy", "pandas", "pyarrow.dataset", "matplotlib"),
    "sentence_transformers",
}
ASKED = """
import json, sys
from qontext.cli import main
try:
    main()
finally:
    print(json.dumps(sorted(set(sys.modules) & set({heavy!r}))), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    texts = [
        "The mill grinds flour.",
        "A boat crosses the river.",
        "Bread rises in the oven.",
        "Moss grows on stones.",
    ]
    write_lines(folder / "docs.jsonl", [{"_id": str(n), "text": text * 6} for n, text in enumerate(texts)])
    api.adapt(
        str(folder / "docs.jsonl"), out=str(folder / "made"), encoder=str(minilm), budget="10s", yes=True
    )
    return folder / "made"


@pytest.mark.parametrize("system", ["bm25", "start", "hybrid-start", "tokens-start"])
def test_a_question_imports_nothing_heavy(adapted: Path, minilm: Path, system: str) -> None:
    about = json.loads((adapted / "adapted.json").read_text())
    (adapted / "adapted.json").write_text(json.dumps({**about, "system": system}))
    if system == "tokens-start":
        index = adapted / "index"
        about_vectors = json.loads((index / "vectors" / "meta.json").read_text())["config"]
        read = {"max_length": about["read_tokens"], "encoder": minilm, "window": about_vectors["window"]}
        api.encode(index / "passages", **read, tokens=True, out=index / "vectors", overwrite=True)
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            ASKED.format(heavy=HEAVY),
            "search",
            str(adapted),
            "who grinds flour?",
            "--json",
        ],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "mill" in json.loads(ran.stdout)["answers"][0]["text"]
    assert json.loads(ran.stderr.splitlines()[-1]) == []
