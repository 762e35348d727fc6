"""Document sources: `open_source` turns a path or URI into a stream. A URI is ``scheme:rest``. The scheme is a name in
`SOURCES`, an entry point in the group ``qontext.sources``, or ``module:Class`` for a custom source.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.data.lines import SUFFIXES, check_encoding, ending, open_bytes
from qontext.frame.artifacts import is_artifact
from qontext.frame.errors import QontextError, printable
from qontext.frame.files import readable_errors, require_regular
from qontext.frame.inputs import fingerprint as content_fingerprint
from qontext.frame.inputs import stamp as content_stamp
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
        "ir_datasets": Kind("qontext.corpus.sources.hub:IrDatasets", "a data set of ir_datasets"),
        "hf": Kind("qontext.corpus.sources.hub:HuggingFace", "a data set of the Hugging Face Hub or the datasets library"),
        "https": Kind("qontext.corpus.sources.web:Https", "a page or a sitemap, over the network"),
        "http": Kind("qontext.corpus.sources.web:Http", "the same without encryption"),
        "sources": Kind("qontext.corpus.sources.several:Several", "several sources, as a file names them"),
    },
)  # fmt: skip
_OWN = re.compile(r"(?P<kind>[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)(?::(?P<rest>.*))?", re.ASCII)
_BEIR = tuple(f"corpus.jsonl{suffix}" for suffix in ("", *SUFFIXES))
_SHARDS = (".jsonl", ".tsv", ".parquet")
_RECORDS = (*_SHARDS, ".json")


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
    """The documents at a path or URI. At most the first lines are read. `read_as` has ENDING=FORMAT pairs."""
    from qontext.corpus.sources.formats import endings

    check_encoding(encoding)
    if scheme := scheme_of(uri):
        kind, rest = scheme
        how = {"read_as": read_as} if kind == "sources" else {}  # there may be files among them
        source: Source = SOURCES.load(kind).open(uri, rest, fields, **how)
        return source
    path, chosen = Path(uri).expanduser(), endings(read_as)
    if uri and path.is_dir():
        return _open_folder(path, fields, encoding, chosen)
    if not uri or not path.exists():
        raise QontextError("no such file or folder", place=uri or "(empty name)", remedy=UNDERSTOOD)
    with readable_errors(), require_regular(path).open("rb"):
        pass  # an input that cannot be opened is an error, not a skipped document
    is_record = ending(path) in _RECORDS or (ending(path) == ".txt" and _is_table(path))
    if is_record and ending(path) not in chosen:
        return _open_records(path, [path], fields, encoding)
    return _open_documents(path, encoding, chosen)


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
    from qontext.corpus.sources.files import walk
    from qontext.corpus.sources.formats import format_of

    if corpus := next((path / name for name in _BEIR if (path / name).is_file()), None):
        return _open_records(path, [corpus], fields, encoding)
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        raise QontextError("was saved by the datasets library", place=path, remedy=f"Use hf:{path}.")
    files = [file for file in walk(path) if isinstance(file, Path) and file.is_file()]
    shards = [f for f in files if f.parent == path and ending(f) in {*_SHARDS} - {*read_as}]
    documents = [file for file in files if format_of(file, read_as) is not None]
    if not shards or _size(shards) < _size(documents):
        return _open_documents(path, encoding, read_as)
    if len(kinds := sorted({ending(file) for file in shards})) > 1:
        message = f"contains files of several formats ({', '.join(kinds)})"
        raise QontextError(message, place=path, remedy="Name one of the files.")
    source = _open_records(path, shards, fields, encoding)
    others = Counter(printable(ending(file)) or "no ending" for file in files if file not in {*shards})
    source.unread = dict(others.most_common())
    return source


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _open_records(path: Path, files: list[Path], fields: FieldNames, encoding: str) -> Source:
    from qontext.corpus.sources.records import JsonLines, ParquetRecords, Tsv

    kinds = {".parquet": ParquetRecords, ".tsv": Tsv, ".txt": Tsv}
    return kinds.get(ending(files[0]), JsonLines)(str(path), files, fields, encoding)


def _open_documents(path: Path, encoding: str, read_as: Mapping[str, str]) -> Source:
    from qontext.corpus.sources.files import Files, unread

    source = Files(str(path), path, encoding, read_as)
    if not source.items:
        left = f": {unread(source.unread)}" if source.unread else ""
        raise QontextError(f"contains no document in a supported format{left}", place=path, remedy=UNDERSTOOD)
    return source


def _is_table(path: Path) -> bool:
    """True if a .txt file is tab-separated, rather than a text, which may have a tab somewhere."""
    with open_bytes(path) as file:
        lines = [line.rstrip() for line in islice(file, 20) if line.strip()]
    with_tab = [b"\t" in line.lstrip() for line in lines]
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
    if scheme := scheme_of(source):
        digest: str | None = SOURCES.load(scheme[0]).fingerprint(scheme[1])
        return digest
    folder = Path(source).expanduser()
    is_read_below = folder.is_dir() and not is_artifact(folder) and reads_below(folder)
    return content_fingerprint(folder, _is_read) if is_read_below else None


def stamp(source: str) -> str:
    """A stamp of documents, which changes with their content, and for which they are not read. Empty if there is none."""
    if scheme := scheme_of(source):
        return str(SOURCES.load(scheme[0]).stamp(scheme[1]))
    return content_stamp(Path(source).expanduser(), _is_read)
