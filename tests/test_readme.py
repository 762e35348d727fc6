"""The README's marked code blocks run, one after the other, in one folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qontext.workflow.recipe import SHIPPED, read_recipe

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"<!-- runs in the tests -->\n```(bash|python)\n(.*?)```", (ROOT / "README.md").read_text(), re.S
)


def test_every_marked_block_runs(tmp_path: Path) -> None:
    assert [kind for kind, _ in BLOCKS] == ["bash", "bash", "python", "bash"]
    words = [
        "rivers",
        "carry",
        "water",
        "to",
        "the",
        "sea",
        "while",
        "engines",
        "turn",
        "heat",
        "into",
        "motion",
    ]
    with (tmp_path / "docs.jsonl").open("w") as file:
        for n in range(60):
            text = " ".join(f"Sentence {k} of {n} says that {' '.join(words[k % 7 :])}." for k in range(12))
            file.write(json.dumps({"_id": str(n), "title": f"Document {n}", "text": text}) + "\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for kind, code in BLOCKS:
        command = ["bash", "-euc", code] if kind == "bash" else [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{code}\n{done.stderr}"
    from qontext.artifacts import open_artifact

    for name in ("passages", "queries", "tokenizer", "encoder"):
        assert open_artifact(tmp_path / name).summary


def test_links_of_the_readme_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("recipe", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(recipe: Path, tmp_path: Path) -> None:
    import tomllib

    inputs = tomllib.loads(recipe.read_text()).get("inputs", {})
    changes = tuple(f'inputs.{name}="{value or "x"}"' for name, value in inputs.items())
    read = read_recipe(str(recipe), changes)
    for step in read.steps:
        step.configure(tmp_path)
    (tmp_path / "again.toml").write_text(read.dump())
    assert read_recipe(str(tmp_path / "again.toml")).steps == read.steps, (
        "what is written down is the same recipe"
    )
