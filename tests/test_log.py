"""Tables show what they are given, letter by letter."""

from __future__ import annotations

import pytest

from qontext import log


def test_brackets_and_colons_in_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    log.show_table("split → a[/b]", {"[red]name": "x[/y] :smile:"})
    log.show_rows("a[/b]", [{"[red]name": "x[/y] :smile:"}])
    shown = capsys.readouterr().out
    assert shown.count("a[/b]") == 2
    assert shown.count("[red]name") == 2
    assert shown.count("x[/y] :smile:") == 2
