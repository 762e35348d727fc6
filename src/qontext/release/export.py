"""`qontext export`: vectors or a model in the format of another tool; here, vectors with their passages as Parquet, for
every search engine that Qontext has no backend for.

One row per passage: id, document, title, text, vector (or vectors, of its windows), place and metadata. A part holds the
passages of one part of the vectors, and is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from qontext.frame import artifacts, config, log
from qontext.frame.artifacts import Artifact, InputEntry, Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.inputs import find
from qontext.frame.stages import Stage
from qontext.release import FORMATS, Format


class ExportConfig(StageConfig):
    kinds: ClassVar = {"to": FORMATS}

    source: Annotated[str, Input(positional=True)]
    """The source of the export. Parquet: vectors from `encode`, an index from `index`, or what `adapt` made. All other
    formats: a retriever, as a folder or Hub name, or what `adapt` made."""

    to: str = "parquet"
    """The format."""


def run(settings: ExportConfig, work: Workdir) -> dict[str, Any]:
    summary: dict[str, Any] = FORMATS.load(settings.to).export(settings.source, work, settings.options("to"))
    return summary


class ParquetOptions(config.Options):
    passages: Annotated[str | None, Input()] = None
    """The passages, if those that were encoded are no longer there."""


class Parquet(Format):
    Options = ParquetOptions

    @classmethod
    def export(cls, source: str, work: Workdir, options: Any) -> dict[str, Any]:
        import pyarrow as pa

        from qontext.data import records
        from qontext.retrieve.encoded.packed import open_stored
        from qontext.retrieve.encoded.passage_texts import PassageTexts, TextRow
        from qontext.retrieve.where import passages_of

        vectors = open_stored(_vectors(Path(source)))
        if vectors.artifact.config["kind"] != "passage":
            raise QontextError("holds vectors of queries, not of passages", place=source)
        vectors.check()
        texts = PassageTexts(vectors, options.passages or passages_of(vectors.artifact))
        names = [name for name in TextRow._fields if name not in ("place", "metadata")]
        with log.progress("export", len(vectors), "passages") as advance:
            parts: Sequence[Any] = vectors.parts
            for number, part in enumerate(parts):
                if not work.has(name := f"part-{number:05d}.parquet"):
                    rows = texts.read(number)
                    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in names}
                    columns |= _column(part, vectors.dimension)
                    columns |= {name: [getattr(row, name) for row in rows] for name in ("place", "metadata")}
                    with work.write(name) as path:
                        records.write_table(path, pa.table(columns))
                advance(len(part))
        return {"passages": len(vectors), "dimension": vectors.dimension}


def _column(part: Any, dimension: int) -> dict[str, Any]:
    """The vectors of a part in fp32: one of each passage, or a list of those of its windows."""
    import numpy as np
    import pyarrow as pa

    from qontext.models.packed import Packed

    values = part.values if isinstance(part, Packed) else part
    flat = pa.array(np.asarray(values, np.float32).ravel())
    vectors = pa.FixedSizeListArray.from_arrays(flat, dimension)
    if not isinstance(part, Packed):
        return {"vector": vectors}
    return {"vectors": pa.ListArray.from_arrays(pa.array(part.starts, pa.int32()), vectors)}


def _vectors(source: Path) -> Path:
    """The vectors of what is exported."""
    from qontext.retrieve.adapted import index_of, is_adapted

    if is_adapted(source):
        return index_of(source) / "vectors"
    artifact: Artifact = artifacts.open_artifact(source)
    if artifact.verb == "encode":
        return source
    if artifact.verb != "index" or artifact.config["backend"] == "bm25":
        raise QontextError(
            "holds no vectors",
            place=source,
            remedy="Give the output of 'qontext encode', of 'qontext index' or of 'qontext adapt'.",
        )
    entry = artifact.inputs.take("source", InputEntry)
    return Path(find(entry, source, "the vectors of the index", remedy="Give the vectors themselves."))


STAGE = Stage(
    "export",
    ExportConfig,
    run,
    """
        qontext export vectors --to parquet --out exported
        qontext export runs/mine --to parquet --out exported
        qontext export retriever --to onnx --out exported
        qontext export retriever --to onnx-int8 --check data --out exported
        qontext export retriever --to static --dimensions 128 --out exported
    """,
)
