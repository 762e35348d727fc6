"""The contexts' names, for checking a configuration without importing what draws them."""

from __future__ import annotations

from qontext.errors import choose

RULE_NAMES = ("near", "olap", "rand", "query")


def check_context(name: str) -> str:
    """`name` if it is a rule, a mixture of rules, or 'mixed'; else an error that lists them."""
    if name != "mixed":
        for part in name.split("+"):
            choose(part, [*RULE_NAMES, "mixed"] if part == name else RULE_NAMES, "context")
    return name
