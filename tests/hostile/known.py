"""Cases that are known to fail: patterns of ids, by what is missing. Remove an entry with the change that makes it pass.

`HOSTILE_KNOWN=0` tries them like all others.
"""

from __future__ import annotations

import fnmatch
import os

KNOWN: dict[str, tuple[str, ...]] = {}


def is_known(case: str) -> bool:
    """True if the case is expected to fail for now."""
    patterns = (pattern for entry in KNOWN.values() for pattern in entry)
    return os.environ.get("HOSTILE_KNOWN") != "0" and any(fnmatch.fnmatchcase(case, p) for p in patterns)
