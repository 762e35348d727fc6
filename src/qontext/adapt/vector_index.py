"""The index of an adapted directory's vectors: exactly, or an index; and what a question costs with exact search
and an index."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from qontext.frame import artifacts
from qontext.frame.config import Options
from qontext.frame.errors import QontextError
from qontext.frame.kinds import Kind, Kinds
from qontext.retrieve.directory import DENSE, STEPS
from qontext.retrieve.index import BACKENDS, check_found

SLOW = 0.1
"""Seconds for a question above which an index is recommended. Exact search takes that long for 300,000 vectors of 384
dimensions on two old, busy cores, and for 3 million on two fast ones (docs/results/retrieval.md)."""
QUESTIONS, DEPTH = 100, 100
"""Held-out questions to measure with at most, and results that are compared."""


class Exact:
    """No index: the vectors are searched."""

    Options = Options


CHOICES = Kinds(
    "index",
    BACKENDS.group,
    BACKENDS.base,
    {
        "exact": Kind("qontext.adapt.vector_index:Exact", "the vectors themselves"),
        **{name: kind for name, kind in BACKENDS.own.items() if name not in ("bm25", "residual")},
    },
)


class Choice(NamedTuple):
    """The backend and those of its options that were given."""

    backend: str
    options: dict[str, Any]

    @classmethod
    def of(cls, config: Any) -> Choice | None:
        """The choice in the configuration; None if there is none."""
        if config.index is None:
            return None
        read = CHOICES.options(config.index).model_fields
        settings = {name: getattr(config, name) for name in read if name in config.model_fields_set}
        if reserved := settings.keys() & {"replace", "texts"}:
            raise QontextError(f"{min(reserved)} is set by adapt itself", remedy="Leave it out.")
        return cls(config.index, settings)

    @classmethod
    def of_step(cls, settings: dict[str, Any]) -> Choice:
        """The choice in the step of a recipe."""
        left_out = ("source", "backend", "replace")
        options = {name: value for name, value in settings.items() if name not in left_out}
        return cls(str(settings["backend"]), options)

    @property
    def is_exact(self) -> bool:
        return self.backend == "exact"

    def settings(self, earlier: Path | None) -> dict[str, Any]:
        """The settings of the step; `earlier` is the folder of the index that it replaces, if there is one."""
        is_server = self.backend == "postgres" or (self.backend == "milvus" and self.options.get("uri"))
        is_replaced = earlier is not None and is_server and artifacts.is_artifact(earlier / DENSE)
        replaced = {"replace": str(earlier / DENSE)} if earlier is not None and is_replaced else {}
        return {"source": "@vectors", "backend": self.backend, **self.options, **replaced}


def measure(
    root: Path, folder: Path, model: str, split: str, read_tokens: int, device: str
) -> dict[str, Any]:
    """Recall of the index in this folder against exact search, and seconds for a question of both, one at a time, with the
    held-out questions of a split, if they still exist."""
    import numpy as np

    from qontext.data.collection import load_collection
    from qontext.models.retriever import Retriever
    from qontext.retrieve.index.flat import FlatIndex
    from qontext.retrieve.index.load import open_index
    from qontext.retrieve.stored import open_stored, prompts_of

    held_out = root / STEPS / "holdout" / "measured"
    if not held_out.is_dir():
        return {}
    questions = list(load_collection(held_out).queries(split).values())
    questions = questions[:: max(1, len(questions) // QUESTIONS)][:QUESTIONS]
    exact = FlatIndex(open_stored(folder / "vectors"))
    place = folder / DENSE
    prompts = prompts_of(artifacts.open_artifact(folder / "vectors"))
    retriever = Retriever(model, device=device, max_length=read_tokens, prompts=prompts)
    queries = retriever.encode(questions, "query")
    best, exact_seconds = _timed(exact, queries)
    about: dict[str, Any] = {
        "backend": "exact",
        "questions": len(questions),
        "vectors": len(exact.ids),
        "exact_seconds": exact_seconds,
    }
    if not artifacts.is_artifact(place):
        return {**about, "sentences": _sentences(about)}
    index, _ = open_index(place)
    numbers, seconds = _timed(index, queries)
    recalls = {
        str(k): round(
            float(np.mean([len({*a[:k]} & {*b[:k]}) / min(k, len(b)) for a, b in zip(numbers, best)])), 4
        )
        for k in (10, DEPTH)
    }
    backend = artifacts.open_artifact(place).config["backend"]
    about |= {"backend": backend, "recall": recalls, "seconds": seconds}
    return {**about, "sentences": _sentences(about)}


def _timed(index: Any, questions_QD: Any) -> tuple[list[list[int]], float]:
    """The numbers of the best passages for each question, and the median of the seconds."""
    import numpy as np

    answers, seconds = [], []
    check_found(index.search(questions_QD[:1], DEPTH), index, 1, DEPTH)  # this loads what is loaded once
    for question in questions_QD:
        started = time.perf_counter()
        numbers, _ = index.search(question[None], DEPTH)
        seconds.append(time.perf_counter() - started)
        answers.append([int(number) for number in numbers[0] if number >= 0])
    return answers, round(float(np.median(seconds)), 5)


def _sentences(about: dict[str, Any]) -> list[str]:
    """The measured recall and latency as sentences; recommends an index if exact search is slow."""
    exact = _shown(about["exact_seconds"])
    if "recall" in about:
        ten, more = (f"{share:.1%}" for share in about["recall"].values())
        return [
            f"Vectors are searched by {about['backend']}, in {_shown(about['seconds'])} for a question instead of {exact}: "
            f"it returns {ten} of the best 10 passages of exact search and {more} of the best {DEPTH} "
            f"({about['questions']:,} held-out questions)."
        ]
    if about["exact_seconds"] <= SLOW:
        return []
    return [
        f"Exact search of {about['vectors']:,} vectors takes {exact} for a question: for an index, add --index "
        "faiss-hnsw, milvus or postgres to the same command."
    ]


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
