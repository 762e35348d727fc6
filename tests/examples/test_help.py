"""Every example in a help text and at the head of a recipe runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.examples.collect import Example, in_help, in_recipes
from tests.examples.parsed import parse, why_not_run
from tests.examples.workspace import Workspace


@pytest.mark.parametrize("verb", in_help())
def test_the_examples_of_a_help_text_run(verb: str, workspace: Workspace, tmp_path: Path) -> None:
    examples = in_help()[verb]
    assert examples
    folder = workspace.copy(tmp_path / "workspace")
    for example in examples:
        if why_not_run(example):
            parse(example)
        else:
            workspace.run(example, folder)


@pytest.mark.parametrize("recipe", [name for name, examples in in_recipes().items() if examples])
def test_the_command_at_the_head_of_a_recipe_is_ready_to_run(
    recipe: str, workspace: Workspace, tmp_path: Path
) -> None:
    """Its recipe and inputs exist, and its settings are valid: a dry run refuses anything else."""
    folder = workspace.copy(tmp_path / "workspace")
    for example in in_recipes()[recipe]:
        assert example.argv[:2] == ["run", recipe]
        assert "will run" in workspace.run(Example(f"{example.text} --dry-run"), folder)
