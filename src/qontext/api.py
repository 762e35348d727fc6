"""Every verb of the command line as a Python function, with the same settings.

``api.split("docs.jsonl", out="passages")`` does what ``qontext split docs.jsonl --out passages`` does,
and returns the finished :class:`~qontext.frame.artifacts.Artifact`, which the next call takes as its input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., Any]:
    from qontext.frame import execution, stages

    if name.startswith("_") or name not in stages.names():
        raise AttributeError(f"module 'qontext.api' has no function {name!r}")
    return execution.function(name)


def __dir__() -> list[str]:
    from qontext.frame import stages

    return stages.names()
