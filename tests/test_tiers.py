"""The rules of `tests/tiers.py` are about tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import tiers

HERE = Path(__file__).parent
NAMES = [name for names in tiers.SLOW.values() for name in names]


@pytest.mark.parametrize("name", [*NAMES, *tiers.CASES])
def test_a_rule_is_about_tests(name: str) -> None:
    path, _, function = name.partition("::")
    assert (HERE / path).is_dir() if not path.endswith(".py") else (HERE / path).is_file()
    assert not function or f"\ndef {function}(" in (HERE / path).read_text("utf-8")


def test_a_fixture_that_makes_tests_slow_exists() -> None:
    defined = {
        name for path in HERE.rglob("*.py") for name in re.findall(r"\ndef (\w+)\(", path.read_text("utf-8"))
    }
    assert set(tiers.FIXTURES) <= defined


def test_no_rule_is_listed_twice() -> None:
    assert len(NAMES) == len(set(NAMES))


class Item:
    def __init__(self, nodeid: str, *fixtures: str) -> None:
        self.nodeid, self.fixturenames, self.reason = nodeid, fixtures, ""

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.reason = str(mark.kwargs["reason"])


def test_folders_files_functions_fixtures_and_numbers_of_cases() -> None:
    whole = "tests/workflow/test_small.py::test_a_sweep_runs_whole_and_ends_with_a_table"
    slow = [
        Item("tests/kills/test_new.py::test_x[1]"),
        Item("tests/cluster/test_ray.py::test_x"),
        Item("tests/workflow/test_recipe.py::test_an_interrupted_step_resumes"),
        Item("tests/serve/test_new.py::test_x", "tmp_path", "browser"),
    ]
    fast = [
        Item("tests/workflow/test_recipe.py::test_x"),
        Item(f"{whole}[a]"),
        Item("tests/test_cli.py::test_x"),
    ]
    tiers.mark_slow([*fast, *slow, second := Item(f"{whole}[b]")])  # type: ignore[list-item]
    assert all(item.reason for item in [*slow, second]) and not any(item.reason for item in fast)
    assert "browser" in slow[3].reason and all(item.reason in tiers.describe() for item in slow)
