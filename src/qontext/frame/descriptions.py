"""The schema of `meta.json` and `claim.json`, validated when they are read.

claim.json   what is being written: the verb, the settings, the inputs with their fingerprints
meta.json    the same for a finished directory, with its summary, its parts and how it was computed
"""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import NonNegativeFloat, NonNegativeInt
from typing_extensions import TypedDict


class InputEntry(TypedDict):
    """An input: its path or name as passed, its fingerprint, and its path relative to the artifact."""

    path: str
    digest: str
    beside: NotRequired[str]


class PartEntry(TypedDict):
    bytes: NonNegativeInt
    hash: str


class MachineEntry(TypedDict):
    gpus: NotRequired[list[str]]
    versions: NotRequired[dict[str, str]]


class MadeEntry(TypedDict):
    by: str
    python: str
    finished: str
    seconds: NonNegativeFloat
    machine: NotRequired[MachineEntry]


class ClaimShape(TypedDict):
    verb: str
    key: str
    config: dict[str, Any]
    inputs: dict[str, InputEntry]
    launch: NotRequired[str | None]


class MetaShape(ClaimShape):
    digest: str
    summary: dict[str, Any]
    parts: dict[str, PartEntry]
    made: MadeEntry
