"""``hf:NAME[:CONFIG][/SPLIT]``: a Hugging Face data set, streamed from the Hub, or read from a local folder.

NAME is ORGANISATION/NAME or a folder, saved by the datasets library or with data files. The default split is
the only one, or `train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.corpus.sources import fields
from qontext.corpus.sources.base import FieldNames, Problem, Source
from qontext.corpus.sources.fields import Fields, Record
from qontext.data.records import Document
from qontext.frame import log
from qontext.frame.errors import QontextError, choose, missing_extra
from qontext.frame.files import json_digest
from qontext.frame.fingerprint import fingerprint, stamp
from qontext.models import hub

_PLAIN = ("string", "large_string", "bool", "int8", "int16", "int32", "int64", "float32", "float64")
"""Column types that are read as metadata."""


class HuggingFace(Source):
    """The rows of one split."""

    def __init__(self, uri: str, name: str, names: FieldNames) -> None:
        super().__init__(uri, has_passages=True)
        self.fields = Fields(names)
        path, config, split = parse(name)
        try:
            splits = _load(uri, path, config)
        except QontextError:
            raise
        except Exception as error:  # any error of the library about names, configurations and files
            raise QontextError(f"cannot be opened: {_first_line(error)}", place=uri) from error
        if not split:
            if len(splits) > 1 and "train" not in splits:
                raise QontextError(
                    f"has several splits ({', '.join(splits)})", place=uri, remedy="Name one: hf:NAME/SPLIT."
                )
            split = "train" if "train" in splits else next(iter(splits))
        self.rows = splits[choose(split, splits, f"split of {path}")]
        columns = self.rows.column_names
        if columns:  # a streamed data set may not know its columns
            self.fields.check(columns, uri)
            kinds = self.rows.features or {}
            self.rows = self.rows.select_columns(
                [n for n in columns if n in self.fields.all or getattr(kinds.get(n), "dtype", "") in _PLAIN]
            )

    @classmethod
    def open(cls, uri: str, rest: str, fields: FieldNames) -> HuggingFace:
        return cls(uri, rest, fields)

    @classmethod
    def fingerprint(cls, rest: str) -> str | None:
        folder = Path(parse(rest)[0])
        return json_digest([rest, fingerprint(folder)]) if folder.is_dir() else None

    @classmethod
    def stamp(cls, rest: str) -> str:
        folder = Path(parse(rest)[0])
        return stamp(folder) if folder.is_dir() else ""

    def documents(self) -> Iterator[Document | Problem]:
        return fields.documents(self._records())

    def _records(self) -> Iterator[Record | Problem]:
        number = 0
        rows = iter(self.rows)
        while True:
            number += 1
            try:
                row = next(rows, None)
            except Exception as error:
                message = f"row {number} cannot be read: {_first_line(error)}"
                raise QontextError(message, place=self.name) from error
            if row is None:
                break
            yield self.fields.read(row, f"{self.name}: row {number}")


def parse(name: str) -> tuple[str, str | None, str | None]:
    """The part after ``hf:`` → (name or folder, configuration, split)."""
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser()), None, None
    path, colon, rest = name.rpartition(":")
    if colon:
        config, _, split = rest.partition("/")
        return str(Path(path).expanduser()), config or None, split or None
    above, _, last = name.rpartition("/")
    if (Path(above).expanduser().is_dir() and above) or above.count("/") == 1:
        return str(Path(above).expanduser()), None, last
    return name, None, None


def _load(uri: str, path: str, config: str | None) -> dict[str, Any]:
    """split → rows, streamed; memory-mapped if the files are local."""
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "datasets", uri) from None
    folder = Path(path)
    if (folder / "dataset_dict.json").is_file():
        return dict(datasets.load_from_disk(path))
    if (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file():
        return {"train": datasets.load_from_disk(path)}
    if folder.is_dir() or hub.online():
        if not folder.is_dir():
            log.note(f"Reading the data set {path} from the Hugging Face Hub …")
        return dict(datasets.load_dataset(path, config, streaming=True))
    if datasets.config.HF_HUB_OFFLINE:
        return dict(datasets.load_dataset(path, config))  # from the cache
    raise QontextError(
        f"{path!r} is not a local folder, and the Hugging Face Hub cannot be reached",
        place=uri,
        remedy="Pass the folder of a downloaded data set, or set HF_HUB_OFFLINE=1 to read it from the cache.",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
