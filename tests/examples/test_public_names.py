"""The examples in the docstrings of the library's public names run, and print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.examples.workspace import Workspace

import qontext

WITHOUT_EXAMPLE = {"Answer", "Hit", "Passage", "QontextError"}
"""Records and an error: what they hold is in their docstrings."""

RUN = """
import doctest, qontext
names = {{name: getattr(qontext, name) for name in qontext.__all__}}
test = doctest.DocTestParser().get_doctest({text!r}, names, {name!r}, {name!r}, 0)
failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
raise SystemExit(failed or not tried)
"""


def documented() -> dict[str, str]:
    """Name → the docstring, with those of a class's own public methods."""
    texts = {"qontext": qontext.__doc__ or ""}
    for name in qontext.__all__:
        value = getattr(qontext, name)
        texts[name] = value.__doc__ or ""
        if isinstance(value, type):
            for method, own in vars(value).items():
                text = getattr(getattr(own, "__func__", own), "__doc__", None) or ""
                if not method.startswith("_") and ">>>" in text:
                    texts[f"{name}.{method}"] = text
    return texts


TEXTS = documented()


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if name not in WITHOUT_EXAMPLE])
def test_the_example_of_a_public_name_runs(name: str, workspace: Workspace, tmp_path: Path) -> None:
    folder = workspace.copy(tmp_path / "workspace")
    workspace.execute(RUN.format(text=TEXTS[name], name=name), folder)
