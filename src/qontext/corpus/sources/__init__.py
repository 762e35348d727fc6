"""Where documents come from: `open_source` turns a path or URI into a stream; one file per format."""

from __future__ import annotations

from pathlib import Path

from qontext.corpus.sources import textfolder
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.jsonl import JsonLines
from qontext.corpus.sources.lines import check_encoding, ending, read_lines
from qontext.corpus.sources.parquet import Parquet
from qontext.corpus.sources.textfolder import TextFiles
from qontext.corpus.sources.tsv import Tsv
from qontext.errors import QontextError

__all__ = ["FieldNames", "Problem", "Source", "open_source"]

UNDERSTOOD = (
    "Give a file (.jsonl, .json, .tsv or .txt, also with .gz or .zst; .parquet, .md, .rst), "
    "a folder of such files, a BEIR folder, ir_datasets:NAME, hf:NAME or pydocs:."
)
_BEIR = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.jsonl.zst")
_SHARDS = (".jsonl", ".tsv", ".parquet")


def open_source(uri: str, *, fields: FieldNames, encoding: str = "utf-8") -> Source:
    """The documents that stand at a path or that a URI names. At most a first line is read yet."""
    check_encoding(encoding)
    scheme, _, name = uri.partition(":")
    if scheme == "pydocs":
        from qontext.corpus.pydocs import PyDocs

        return PyDocs(uri)
    if scheme == "ir_datasets":
        from qontext.corpus.sources.irds import IrDatasets

        return IrDatasets(uri, name)
    if scheme == "hf":
        from qontext.corpus.sources.hf import HuggingFace

        return HuggingFace(uri, name, fields)
    path = Path(uri).expanduser()
    if uri and path.is_dir():
        return _open_folder(path, fields, encoding)
    if not path.is_file():
        raise QontextError("no such file or folder", place=uri or "(empty name)", remedy=UNDERSTOOD)
    if ending(path) == ".txt" and not _is_table(path, encoding):
        return TextFiles(str(path), path, encoding)
    return _open_files(str(path), [path], fields, encoding)


def _open_folder(path: Path, fields: FieldNames, encoding: str) -> Source:
    """BEIR's corpus file, or shards of one kind, or text files. Hidden files do not count."""
    corpus = next((path / name for name in _BEIR if (path / name).is_file()), None)
    if corpus:
        return _open_files(str(path), [corpus], fields, encoding)
    files = sorted(f for f in path.iterdir() if f.is_file() and not f.name.startswith("."))
    kinds = sorted({ending(file) for file in files} & {*_SHARDS})
    if len(kinds) > 1:
        raise QontextError(
            f"holds files of several kinds ({', '.join(kinds)})",
            place=path,
            remedy="Name one of the files, or put those that belong together into a folder of their own.",
        )
    if kinds:
        return _open_files(str(path), [f for f in files if ending(f) == kinds[0]], fields, encoding)
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        raise QontextError("was saved by the datasets library", place=path, remedy=f"Name it hf:{path}.")
    if any(isinstance(f, Path) and ending(f) in textfolder.ENDINGS for f in textfolder.walk(path)):
        return TextFiles(str(path), path, encoding)
    raise QontextError("holds no file of a kind that can be read", place=path, remedy=UNDERSTOOD)


def _open_files(name: str, files: list[Path], fields: FieldNames, encoding: str) -> Source:
    kind = ending(files[0])
    if kind in (".jsonl", ".json"):
        return JsonLines(name, files, fields, encoding)
    if kind in (".tsv", ".txt"):
        return Tsv(name, files, fields, encoding)
    if kind == ".parquet":
        return Parquet(name, files, fields)
    if kind in textfolder.ENDINGS:
        return TextFiles(name, files[0], encoding)
    raise QontextError(f"cannot be read: its ending is {kind or 'missing'}", place=name, remedy=UNDERSTOOD)


def _is_table(path: Path, encoding: str) -> bool:
    """Whether a .txt file is tab-separated, rather than a text."""
    first = next((line for _, line in read_lines(path, encoding, lambda amount: None)), "")
    return isinstance(first, str) and "\t" in first
