"""Chromium, driven by Playwright: pages as people see them, and what must be true of every page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip
SHOTS = os.environ.get("QONTEXT_SHOTS")
"""A folder for screenshots, if a person wants to look at them."""


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; skips where it or what drives it is absent."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


class Person:
    """Someone with a browser window of their own; errors on the console are collected."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESK, **options})
        self.context.set_default_timeout(60_000)
        self.page, self.url, self.errors = self.context.new_page(), url, []  # type: ignore[var-annotated]
        self.page.on(
            "console", lambda message: self.errors.append(message.text) if message.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def go(self, path: str) -> Any:
        self.page.goto(self.url + path)
        return self.page

    def check(self, name: str) -> None:
        """No violations of accessibility, nothing wider than the window, nothing on the console."""
        from axe_playwright_python.sync_playwright import Axe

        if SHOTS:
            size = self.page.viewport_size["width"]
            self.page.screenshot(path=Path(SHOTS) / f"{name}-{size}.png", full_page=True)
        violations = Axe().run(self.page).response["violations"]
        faults = [(v["id"], [node["html"][:200] for node in v["nodes"]]) for v in violations]
        assert not faults, f"{name}: {faults}"
        wide = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, f"{name}: {wide} pixels wider than the window"
        assert not self.errors, f"{name}: {self.errors}"

    def close(self) -> None:
        self.context.close()
