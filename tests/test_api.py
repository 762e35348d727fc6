"""Every verb as a Python function, with the settings of the command line."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import qontext
from qontext import api
from qontext.frame import stages
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs.jsonl").write_text('{"_id": "d", "text": "One. Two."}\n')
    return tmp_path / "docs.jsonl"


def test_every_verb_is_a_function() -> None:
    assert dir(api) == sorted(verb.replace("-", "_") for verb in stages.VERBS)
    assert api.train_tokenizer.__name__ == "train_tokenizer"
    assert api.split.__doc__ == "Split documents into passages."
    with pytest.raises(AttributeError, match="no function 'splitt'"):
        _ = api.splitt


def test_a_call_gives_the_artifact_that_the_next_call_takes(docs: Path, tmp_path: Path) -> None:
    passages = api.split(docs, out=tmp_path / "p", max_tokens=50)
    assert isinstance(passages, Artifact) and passages.config["max_tokens"] == 50
    shown = api.show(passages)
    assert shown["digest"] == passages.digest
    assert api.split(source=str(docs), out=str(tmp_path / "p"), max_tokens=50).meta == passages.meta


def test_overwrite(docs: Path, tmp_path: Path) -> None:
    api.split(docs, out=tmp_path / "p")
    with pytest.raises(QontextError, match="max_tokens was 144 and is now 50"):
        api.split(docs, out=tmp_path / "p", max_tokens=50)
    assert api.split(docs, out=tmp_path / "p", max_tokens=50, overwrite=True).config["max_tokens"] == 50


def test_calls_that_do_not_fit(docs: Path, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="split needs out="):
        api.split(docs)
    with pytest.raises(QontextError, match="split takes 1 positional arguments, got 2"):
        api.split(docs, tmp_path)
    with pytest.raises(
        QontextError, match=r"unknown setting of split 'max_token'.*Did you mean 'max_tokens'"
    ):
        api.split(docs, out=tmp_path / "p", max_token=3)
    with pytest.raises(QontextError, match="split: source: field required"):
        api.split(out=tmp_path / "p")


def test_errors_are_value_errors_too() -> None:
    assert issubclass(QontextError, ValueError)
    assert qontext.__version__.count(".") == 2


def test_the_stub_is_fresh() -> None:
    stubs = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "stubs.py"))
    assert stubs["STUB"].read_text() == stubs["stub"](), "write it again: python tools/stubs.py"


def test_artifacts_in_lists_stand_for_their_paths(docs: Path, tmp_path: Path) -> None:
    passages = api.split(docs, out=tmp_path / "p")
    with pytest.raises(QontextError, match=f"{tmp_path / 'p'}"):
        api.fuse([passages, passages], out=tmp_path / "f")


def test_the_package_has_the_module_of_verbs() -> None:
    code = "import qontext; print(qontext.api.split.__name__, 'api' in dir(qontext))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["split", "True"]


def test_an_artifact_is_shown_in_one_line(docs: Path, tmp_path: Path) -> None:
    passages = api.split(docs, out=tmp_path / "p")
    assert repr(passages) == f"Artifact(split, '{tmp_path / 'p'}', records=1, documents=1, passages=1)"
