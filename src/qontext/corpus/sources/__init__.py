"""Where documents come from: `open_source` turns a path or URI into a stream; one file per format."""

from __future__ import annotations

from pathlib import Path

from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.lines import check_encoding
from qontext.errors import QontextError

__all__ = ["FieldNames", "Problem", "Source", "open_source"]

UNDERSTOOD = (
    "Give a file (.jsonl, .json, .tsv, .txt, .md, .rst, each also .gz or .zst, or .parquet), "
    "a folder of such files, a BEIR folder, ir_datasets:NAME, hf:NAME or pydocs:."
)


def open_source(uri: str, *, fields: FieldNames, encoding: str = "utf-8") -> Source:
    """The documents that stand at a path or that a URI names. At most a first line is read yet."""
    check_encoding(encoding)
    path = Path(uri).expanduser()
    if not path.exists():
        raise QontextError("no such file or folder", place=uri or "(empty name)", remedy=UNDERSTOOD)
    return _open_files(str(path), [path], fields, encoding)


def _open_files(name: str, files: list[Path], fields: FieldNames, encoding: str) -> Source:
    from qontext.corpus.sources.jsonl import JsonLines

    return JsonLines(name, files, fields, encoding)
