"""Document sources: `open_source` turns a path or URI into a stream; one file per format. A URI is
``scheme:rest``. The scheme is a name in `SOURCES`, an entry point in the group ``qontext.sources``, or
``module:Class`` for a custom source.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.data.lines import SUFFIXES
from qontext.frame.artifacts import is_artifact
from qontext.frame.errors import QontextError, missing_extra, printable
from qontext.frame.files import readable_errors, require_regular
from qontext.frame.fingerprint import fingerprint as content_fingerprint
from qontext.frame.kinds import Kind, Kinds
from qontext.frame.trust import Demand

__all__ = ["FieldNames", "Problem", "Source", "open_source"]

UNDERSTOOD = (
    "Pass a file (records: .jsonl, .json, .tsv, .parquet; documents: .txt, .md, .rst, .html, .pdf, .docx, .epub, .ipynb, "
    ".eml, .mbox, source code; also with .gz, .zst or .xz), a folder of such files, a BEIR folder, "
    "ir_datasets:NAME, hf:NAME, pydocs: or module:Class."
)
SOURCES = Kinds(
    "source",
    "qontext.sources",
    "qontext.corpus.sources.base:Source",
    {
        "pydocs": Kind("qontext.corpus.sources.pydocs:PyDocs", "the documentation of the installed Python packages"),
        "ir_datasets": Kind("qontext.corpus.sources.irds:IrDatasets", "a data set of ir_datasets"),
        "hf": Kind("qontext.corpus.sources.hf:HuggingFace", "a data set of the Hugging Face Hub or the datasets library"),
        "https": Kind("qontext.corpus.sources.web:Https", "a page or a sitemap, over the network"),
        "http": Kind("qontext.corpus.sources.web:Http", "the same without encryption"),
        "sources": Kind("qontext.corpus.sources.several:Several", "several sources, as a file names them"),
    },
)  # fmt: skip
_OWN = re.compile(r"(?P<kind>[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)(?::(?P<rest>.*))?", re.ASCII)
_BEIR = tuple(f"corpus.jsonl{suffix}" for suffix in ("", *SUFFIXES))
_SHARDS = (".jsonl", ".tsv", ".parquet")
_FIRST_LINES = 20
"""Lines of a .txt file that say whether it is a table."""


def _normalized(pairs: tuple[str, ...]) -> tuple[str, ...]:
    if not pairs:
        return ()
    from qontext.corpus.sources.formats import endings

    return tuple(sorted(f"{suffix[1:]}={name}" for suffix, name in endings(pairs).items()))


ReadAs = Annotated[tuple[str, ...], AfterValidator(_normalized)]
"""A setting: ENDING=FORMAT pairs."""


def open_source(
    uri: str, *, fields: FieldNames, encoding: str = "utf-8", read_as: Iterable[str] = ()
) -> Source:
    """The documents at a path or URI. At most the first line is read. `read_as` has ENDING=FORMAT pairs."""
    from qontext.corpus.sources.formats import endings
    from qontext.corpus.sources.lines import check_encoding, ending

    check_encoding(encoding)
    chosen = endings(read_as)
    if scheme := scheme_of(uri):
        kind, rest = scheme
        is_listing = kind == "sources"  # there may be files among them
        if chosen and not is_listing:
            raise QontextError("has no files", place=uri, remedy="Remove --read-as.")
        if codecs.lookup(encoding).name != "utf-8":
            raise QontextError("has no files of a chosen encoding", place=uri, remedy="Remove --encoding.")
        how = {"read_as": [f"{suffix[1:]}={name}" for suffix, name in chosen.items()]} if is_listing else {}
        source: Source = SOURCES.load(kind).open(uri, rest, fields, **how)
        return source
    path = Path(uri).expanduser()
    if uri and path.is_dir():
        return _open_folder(path, fields, encoding, chosen)
    if not uri or not path.exists():
        raise QontextError("no such file or folder", place=uri or "(empty name)", remedy=UNDERSTOOD)
    with readable_errors(), require_regular(path).open("rb"):
        pass  # an input that cannot be opened is an error, not a skipped document
    if ending(path) in chosen or (ending(path) == ".txt" and not _is_table(path, encoding)):
        return _open_document(str(path), path, encoding, chosen)
    return _open_files(str(path), [path], fields, encoding)


def scheme_of(uri: str) -> tuple[str, str] | None:
    """(source class, rest of the URI); None for a file or folder."""
    scheme, colon, rest = uri.partition(":")
    if not colon:
        return None
    if scheme in SOURCES.names():
        return scheme, rest
    own = _OWN.fullmatch(uri)
    if own is None or Path(uri).expanduser().exists():
        return None
    return own["kind"], own["rest"] or ""


def demands(values: Mapping[str, Any]) -> Iterator[Demand]:
    """The demands of a file that names this `source`."""
    if isinstance(uri := values.get("source"), str) and (scheme := scheme_of(uri)):
        yield from SOURCES.demands(scheme[0])


def _open_folder(path: Path, fields: FieldNames, encoding: str, read_as: Mapping[str, str]) -> Source:
    """BEIR's corpus file, or shards of one format, or documents of any format: whichever of the last two have more bytes.
    Hidden files are ignored."""
    from qontext.corpus.sources.files import Files, walk
    from qontext.corpus.sources.formats import format_of, is_installed
    from qontext.corpus.sources.lines import ending

    corpus = next((path / name for name in _BEIR if (path / name).is_file()), None)
    if corpus:
        return _open_files(str(path), [corpus], fields, encoding)
    others = [file for file in walk(path, read_as) if isinstance(file, Path) and file.is_file()]
    shards = {*_SHARDS} - {*read_as}
    files = sorted(
        f for f in path.iterdir() if f.is_file() and not f.name.startswith(".") and ending(f) in shards
    )
    documents = [file for file in others if format_of(file, read_as) is not None]
    if files and _size(files) >= _size(documents):
        return _open_shards(path, files, others, fields, encoding)
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        raise QontextError("was saved by the datasets library", place=path, remedy=f"Use hf:{path}.")
    formats = {format_of(file, read_as) for file in documents}
    if any(is_installed(name) for name in formats if name is not None):
        return Files(str(path), path, encoding, read_as)
    if formats:
        raise missing_extra("pypdfium2", "docs", "Reading PDF files")
    raise QontextError("contains no file in a supported format", place=path, remedy=UNDERSTOOD)


def _open_shards(
    path: Path, files: list[Path], others: list[Path], fields: FieldNames, encoding: str
) -> Source:
    """Files of records, and the number of the other files in their folder."""
    from qontext.corpus.sources.lines import ending

    kinds = sorted({ending(file) for file in files})
    if len(kinds) > 1:
        raise QontextError(
            f"contains files of several formats ({', '.join(kinds)})",
            place=path,
            remedy="Name one of the files, or move files of the same format into their own folder.",
        )
    source = _open_files(str(path), files, fields, encoding)
    read = {*files}
    source.unread = dict(
        Counter(printable(ending(f)) or "no ending" for f in others if f not in read).most_common()
    )
    return source


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _open_files(name: str, files: list[Path], fields: FieldNames, encoding: str) -> Source:
    from qontext.corpus.sources.lines import ending
    from qontext.corpus.sources.records import JsonLines, ParquetRecords, Tsv

    kind = ending(files[0])
    if kind in (".jsonl", ".json"):
        return JsonLines(name, files, fields, encoding)
    if kind in (".tsv", ".txt"):
        return Tsv(name, files, fields, encoding)
    if kind == ".parquet":
        return ParquetRecords(name, files, fields)
    return _open_document(name, files[0], encoding, {})


def _open_document(name: str, file: Path, encoding: str, read_as: Mapping[str, str]) -> Source:
    from qontext.corpus.sources.files import Files
    from qontext.corpus.sources.formats import format_of, is_installed
    from qontext.corpus.sources.lines import ending

    kind = format_of(file, read_as)
    if kind is None:
        raise QontextError(
            f"unsupported file extension: {ending(file) or 'none'}", place=name, remedy=UNDERSTOOD
        )
    if not is_installed(kind):
        raise missing_extra("pypdfium2", "docs", "Reading PDF files")
    return Files(name, file, encoding, read_as)


def _is_table(path: Path, encoding: str) -> bool:
    """True if a .txt file is tab-separated, rather than a text, which may have a tab somewhere."""
    from qontext.corpus.sources.lines import read_lines

    lines = islice(read_lines(path, encoding, lambda amount: None), _FIRST_LINES)
    texts = [line.rstrip() for _, line in lines if isinstance(line, str) and line.strip()]
    with_tab = ["\t" in line.lstrip() for line in texts]
    return with_tab[:1] == [True] and 2 * sum(with_tab) >= len(with_tab)


def reads_below(folder: Path) -> bool:
    """True if all documents below a folder are read, and not only a corpus file."""
    return not any((folder / name).is_file() for name in _BEIR)


def _is_read(entry: os.DirEntry[str]) -> bool:
    """True for what `walk` reads below a folder, whatever its format."""
    from qontext.corpus.sources.files import is_entered, is_shown

    return is_entered(entry) if Path(entry.path).is_dir() else is_shown(entry)


def fingerprint(source: str) -> str | None:
    """A hash of documents that are not a file, in a folder without what is hidden; None if it is that of the content."""
    scheme = scheme_of(source)
    if scheme is None:
        folder = Path(source).expanduser()
        is_read_below = folder.is_dir() and not is_artifact(folder) and reads_below(folder)
        return content_fingerprint(folder, _is_read) if is_read_below else None
    kind, rest = scheme
    digest: str | None = SOURCES.load(kind).fingerprint(rest)
    return digest


def stamp(source: str) -> str:
    """A stamp of documents that are not a file or folder: it changes with their content, and they are not read for it. Empty
    if there is none."""
    scheme = scheme_of(source)
    return SOURCES.load(scheme[0]).stamp(scheme[1]) if scheme is not None else ""
