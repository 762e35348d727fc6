"""A file where the output directory should be: one sentence with its name, and the file stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from qontext import api
from qontext.frame.errors import QontextError

RECIPE = """
[split]
source = "{0}"
max_tokens = 16
[evaluate]
run = "{1}"
qrels = "{2}"
"""


@pytest.mark.parametrize("inside", [False, True], ids=["the file", "in the file"])
@pytest.mark.parametrize("verb", ["split", "run", "adapt", "demo", "evaluate"])
def test_a_file_in_place_of_the_directory(tmp_path: Path, verb: str, inside: bool) -> None:
    documents, recipe, file = tmp_path / "docs.jsonl", tmp_path / "recipe.toml", tmp_path / "precious"
    documents.write_text('{"_id": "a", "text": "Some words."}\n')
    run, qrels = tmp_path / "run.trec", tmp_path / "qrels.txt"
    run.write_text("q Q0 a 1 1.0 mine\n")
    qrels.write_text("q 0 a 1\n")
    recipe.write_text(RECIPE.format(documents, run, qrels))
    file.write_text("kept")
    arguments = {
        "run": (recipe,),
        "demo": (),
        "evaluate": (documents, documents),
    }
    with pytest.raises(QontextError) as error:
        getattr(api, verb)(*arguments.get(verb, (documents,)), out=str(file / "made" if inside else file))
    assert "precious" in str(error.value) and "Errno" not in str(error.value)
    assert file.read_text() == "kept"
