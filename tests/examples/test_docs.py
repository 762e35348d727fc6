"""Every block of code on a page of the documentation runs: commands, Python and recipes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.examples.collect import COMMAND, PAGES, ROOT, blocks, examples_in
from tests.examples.parsed import parse, why_not_executed, why_not_run
from tests.examples.workspace import Workspace


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page: Path, workspace: Workspace, tmp_path: Path) -> None:
    """One after the other, in one folder, where a recipe that is shown is recipe.toml from then on."""
    folder = workspace.copy(tmp_path / "workspace")
    for language, text in blocks(page):
        match language:
            case "bash":
                for example in examples_in(text):
                    parse(example)
                    if not why_not_run(example):
                        workspace.run(example, folder)
            case "python":
                compile(text, page.name, "exec")
                if not why_not_executed(text):
                    workspace.execute(text, folder)
            case "toml":
                (folder / "recipe.toml").unlink()  # it is the same file as the workspace's
                (folder / "recipe.toml").write_text(text)
            case _:
                assert not language, f"{page.name}: nothing runs blocks of {language}"
                assert not COMMAND.search(text), (
                    f"{page.name}: commands in a block that is not marked as bash"
                )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_exist(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert links or page.name != "README.md"
    for link in links:
        assert (page.parent / link).exists(), link
