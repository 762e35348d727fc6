"""The pages of the reference, generated from the code when the site is built: `mkdocs.yml` names `docs/hooks.py`, which
adds them.
"""

from __future__ import annotations

from . import kinds, names, recipes, verbs


def pages() -> dict[str, str]:
    """Path below docs/ → Markdown, of all generated pages."""
    return {**verbs.pages(), **kinds.pages(), **names.pages(), **recipes.pages()}


def nav() -> list[object]:
    """The navigation of the reference, as mkdocs.yml would list it."""
    return [
        "reference/index.md",
        {"Commands": verbs.nav()},
        *kinds.nav(),
        {"Recipes": "reference/recipes.md"},
        {"Python API": "reference/python.md"},
        {"Environment and exit codes": "reference/environment.md"},
    ]
