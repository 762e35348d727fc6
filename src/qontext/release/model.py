"""The common part of formats of models: a folder that other tools load, checked against the original model before it is
released.

The folder is that of the original, with its tokenizer, modules, pooling, prompts and limits, and with the weights of the
format in place of its own. Both encode the same passages and queries, of a labeled set or, without one, of the
documentation of Python on this machine. A format that is exact must have the same vectors.
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from qontext.frame import config, log
from qontext.frame.artifacts import CARD, Workdir
from qontext.frame.config import Input
from qontext.frame.errors import QontextError
from qontext.frame.workdir import scratch
from qontext.models.reference import TRAINING_ONLY
from qontext.release import Format

if TYPE_CHECKING:
    import numpy as np

    from qontext.data.collection import Passage, Qrels
    from qontext.models.folder import FolderLayout, TextKind
    from qontext.models.retriever import Retriever
    from qontext.retrieve.rankers import Encodes

    Array = np.ndarray[Any, Any]

LEFT_OUT = (*TRAINING_ONLY, "snapshots")
"""Files and folders of a model folder that are not part of the model."""
LEAST_COSINE = 0.9999
"""Of the vectors of an exact format and of the original."""
MEASURE = "nDCG@10"
PASSAGES, QUERIES = 2_000, 300
"""The most passages and queries of a check: those of the judgments first."""
GENERATED = "pydocs:json,email,http,logging,argparse,unittest,collections,concurrent"
_COPIED = (".json", ".txt", ".model", ".jinja")


class ModelOptions(config.Options):
    check: Annotated[str | None, Input()] = None
    """A labeled folder in BEIR's layout, to compare the exported model with the original: cosine of their vectors and
    nDCG@10, with at most 2,000 passages and 300 queries. Default: summaries and texts of Python's documentation."""

    check_split: str = Field("test", min_length=1)
    """The split of that folder."""


class ModelFormat(Format):
    """A format of an encoder of one vector."""

    Options: ClassVar[type[config.Options]] = ModelOptions
    is_exact: ClassVar[bool] = False
    """True if the vectors are those of the original, up to rounding."""

    @classmethod
    def export(cls, source: str, work: Workdir, options: Any) -> dict[str, Any]:
        """Write the model, and the query encoder of an untied pair into its folder, and compare them with the original."""
        from qontext.models.folder import QUERY_FOLDER
        from qontext.models.retriever import Retriever

        cls.require_packages()
        name = encoder_of(source)
        refuse_packed(name)
        original = Retriever(name, device="cpu", precision="fp32")
        with work.write_folder(".") as folder:
            cls.write(original, folder, options, work)
            if (query := original.of("query")) is not original:
                (folder / QUERY_FOLDER).mkdir()
                cls.write(query, folder / QUERY_FOLDER, options, work)
            compared = compare(original, cls.open(folder), read_sample(options, work))
            if cls.is_exact and compared["cosine_lowest"] < LEAST_COSINE:
                raise QontextError(
                    f"the exported model differs from the original: a vector has a cosine of "
                    f"{compared['cosine_lowest']:.4f} with that of the original",
                    place=name,
                    remedy="Nothing was written. Use another format, or another version of the package that converts.",
                )
        kept = 100 * compared["exported"] / compared["original"] if compared["original"] else 100.0
        log.note(f"{MEASURE} {compared['original']:.4f} → {compared['exported']:.4f} ({kept:.1f} %).")
        return {"dimension": compared.pop("dimension"), "check": compared}

    @classmethod
    @abstractmethod
    def require_packages(cls) -> None:
        """Raise an error if an optional package is missing."""

    @classmethod
    @abstractmethod
    def write(cls, original: Retriever, folder: Path, options: Any, work: Workdir) -> None:
        """Write the model into an existing folder."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path) -> Encodes:
        """The encoder in a folder that `write` wrote, run by the library for which the format is."""


def encoder_of(source: str) -> str:
    """The encoder: of a directory of `adapt`, its model."""
    from qontext.retrieve.adapted import is_adapted, model_of

    path = Path(source).expanduser()
    return model_of(path) if is_adapted(path) else source


def refuse_packed(name: str) -> None:
    """Refuse an encoder whose texts do not become one pooled vector, and a cross-encoder."""
    from qontext.models.folder import locate

    folder = locate(name)
    if folder.layout.module is not None:
        raise QontextError(
            f"is an encoder of the representation {folder.layout.representation!r}, which only has the format of its folder",
            place=name,
            remedy="Export an encoder of one vector.",
        )
    if any("SequenceClassification" in str(kind) for kind in folder.config.get("architectures") or ()):
        raise QontextError(
            "is a cross-encoder, not a retriever", place=name, remedy="Export an encoder of one vector."
        )


def copy_settings(original: Retriever, folder: Path) -> None:
    """Copy what is read beside the weights: tokenizer, modules, prompts, limits. A folder of transformers alone gets the
    modules by which it is read here."""
    from qontext.models.folder import QUERY_FOLDER
    from qontext.models.save import vector_modules, write_modules
    from qontext.models.tokenizer import save_tokenizer

    layout, transformer = original.layout, original.layout.transformer
    root = transformer if (transformer / "config.json").is_file() else transformer.parent
    left_out = {*LEFT_OUT, QUERY_FOLDER, "onnx", "openvino", "adapter", CARD}
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root)
        is_dense = any(file.is_relative_to(dense) for dense in layout.dense)
        is_setting = file.suffix in _COPIED and not file.name.endswith(".index.json")
        if file.is_file() and not left_out & {*name.parts} and (is_setting or is_dense):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / name)
    save_tokenizer(original.tokenizer, folder, original.max_length)
    (folder / "special_tokens_map.json").write_text(_special_tokens(original.tokenizer), encoding="utf-8")
    if not (folder / "modules.json").is_file():
        modules = vector_modules(original.width, layout.pooling, normalize=layout.normalize)
        write_modules(
            folder,
            "SentenceTransformer",
            modules,
            max_length=original.max_length,
            similarity=layout.similarity,
        )


def _special_tokens(tokenizer: Any) -> str:
    """special_tokens_map.json, which fastembed reads."""
    import json

    return json.dumps({name: str(token) for name, token in tokenizer.special_tokens_map.items()
                       if isinstance(token, str)}, indent=2, ensure_ascii=False) + "\n"  # fmt: skip


class Sample:
    """Passages and queries with judgments."""

    def __init__(self, passages: Sequence[Passage], queries: dict[str, str], qrels: Qrels) -> None:
        self.passages, self.queries, self.qrels = passages, queries, qrels


def read_sample(options: Any, work: Workdir) -> Sample:
    """At most `PASSAGES` and `QUERIES` of the labeled set, or of one that is built from documentation."""
    from qontext.corpus import docset
    from qontext.frame.artifacts import Workdir

    if options.check is not None:
        return _sample(options.check, options.check_split)
    with scratch(work.path) as folder:
        settings = docset.DocsetConfig(source=GENERATED, passages=PASSAGES // 4, queries=QUERIES)
        docset.run(settings, Workdir(folder))
        return _sample(str(folder), "test")


def _sample(source: str, split: str) -> Sample:
    from qontext.data.collection import load_collection

    collection = load_collection(source)
    queries = dict(list(collection.queries(split).items())[:QUERIES])
    judged = collection.qrels(split)
    qrels = {id: judged[id] for id in queries if any(grade > 0 for grade in judged[id].values())}
    needed = {passage for grades in qrels.values() for passage, grade in grades.items() if grade > 0}
    passages, others = [], max(0, PASSAGES - len(needed))
    for passage in collection.passages():
        if passage.id in needed:
            passages.append(passage)
        elif others:
            passages.append(passage)
            others -= 1
    if not qrels or not passages:
        raise QontextError(f"has no relevant passage in the split {split}", place=source)
    return Sample(passages, {id: queries[id] for id in qrels}, qrels)


def compare(original: Retriever, exported: Encodes, sample: Sample) -> dict[str, Any]:
    """The lowest and the mean cosine of the vectors of both, where they have the same dimension; the correlation of the
    similarities of all queries and passages; and the measure of each."""
    import numpy as np

    texts = [passage.joined(original.titles.between) for passage in sample.passages]
    asked = list(sample.queries.values())
    found: list[tuple[Array, Array]] = []
    for encoder in (original, exported):
        vectors = encoder.encode(asked, "query"), encoder.encode(texts, "passage")
        found.append(vectors)
    ids = np.array([passage.id for passage in sample.passages], dtype=object)
    values = [_measure(queries, passages, ids, sample) for queries, passages in found]
    first, second = (queries @ passages.T for queries, passages in found)
    result: dict[str, Any] = {
        "dimension": int(found[1][1].shape[1]),
        "passages": len(texts),
        "queries": len(asked),
        "measure": MEASURE,
        "original": values[0],
        "exported": values[1],
        "correlation": round(float(np.corrcoef(first.ravel(), second.ravel())[0, 1]), 6),
    }
    if found[0][0].shape == found[1][0].shape:
        cosines = np.concatenate([_cosines(*pair) for pair in zip(*found)])
        result |= {"cosine_lowest": float(cosines.min()), "cosine_mean": float(cosines.mean())}
    return result


def _cosines(first: Array, second: Array) -> Array:
    import numpy as np

    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines: Array = (first.astype(np.float64) * second).sum(1) / np.maximum(lengths, 1e-30)
    return cosines


def _measure(queries: Array, passages: Array, ids: Array, sample: Sample) -> float:
    """The mean of the measure, with exact search."""
    import numpy as np

    from qontext.data.runs import Run
    from qontext.evaluation.measures import measure, parse

    scores = queries @ passages.T
    top = np.argsort(-scores, axis=1, kind="stable")[:, :100]
    rows = np.repeat(np.arange(len(queries)), top.shape[1])
    run = Run.from_columns(
        [list(sample.queries)[row] for row in rows],
        ids[top.ravel()].tolist(),
        np.take_along_axis(scores, top, 1).ravel(),
    )
    return float(measure(run, sample.qrels, parse(MEASURE)).means[MEASURE])


class ExportedEncoder:
    """Texts → vectors with the tokenizer, prompts and limits of an exported folder, and a function that computes. The query
    encoder of an untied pair is in its folder.

    Args:
        compute: ([N, T] token ids, [N, T] mask) → [N, D]. open: Opens a folder.
    """

    def __init__(self, folder: Path, open: Callable[[Path], Callable[[Array, Array], Array]]) -> None:
        from qontext.models.folder import QUERY_FOLDER, read_layout
        from qontext.models.tokenizer import load_tokenizer

        self.layout: FolderLayout = read_layout(folder)
        self.tokenizer = load_tokenizer(folder)
        self.compute = open(folder)
        half = folder / QUERY_FOLDER
        self.queries = ExportedEncoder(half, open) if half.is_dir() else self

    def encode(self, texts: Sequence[str], kind: TextKind) -> Array:
        """[N, D] vectors of the texts, in their order."""
        import numpy as np

        from qontext.models.batching import batches_by_length, pad
        from qontext.models.tokenizer import token_ids

        if kind == "query" and self.queries is not self:
            return self.queries.encode(texts, kind)
        limits = (self.layout.max_length, self.tokenizer.model_max_length)
        tokens = token_ids(self.tokenizer, self.layout, texts, kind, int(min(n for n in limits if n)))
        vectors: list[Any] = [None] * len(texts)
        for rows in batches_by_length(np.array([len(ids) for ids in tokens]), 2_048):
            ids, mask = pad([tokens[row] for row in rows], self.tokenizer.pad_token_id or 0)
            for row, vector in zip(rows, self.compute(ids, mask.astype(np.int64))):
                vectors[row] = vector
        return np.stack(vectors)
