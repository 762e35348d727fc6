"""`qontext export`: vectors or an encoder in the format of another tool.

| format | files |
|---|---|
| `parquet` | vectors with their passages, for every search engine that Qontext has no backend for |
| `onnx`, `onnx-int8` | onnx/model.onnx in fp32, onnx/model_quantized.onnx with weights of 8 bits |
| `openvino` | openvino/openvino_model.xml and .bin in fp32 |
| `static` | a table of token vectors, as model2vec and sentence-transformers read it |

A folder of a model is that of the original, with its tokenizer, modules, prompts and limits, and other weights. Graphs are

    input_ids [N, T], attention_mask [N, T] → last_hidden_state [N, T, H], sentence_embedding [N, D]

where the second output is pooled, projected and normalized as the folder says.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from qontext.frame import artifacts, config, log
from qontext.frame.artifacts import CARD, Artifact, InputEntry, Workdir
from qontext.frame.config import Input, StageConfig
from qontext.frame.errors import QontextError, missing_extra
from qontext.frame.inputs import find
from qontext.frame.kinds import Kind, Kinds
from qontext.frame.stages import Stage
from qontext.frame.workdir import scratch
from qontext.models.reference import TRAINING_ONLY

if TYPE_CHECKING:
    import numpy as np

    from qontext.models.retriever import Retriever

    Array = np.ndarray[Any, Any]

FORMATS = Kinds(
    "format",
    "qontext.formats",
    "qontext.release.export:Format",
    {
        "parquet": Kind("qontext.release.export:Parquet", "vectors with their passages"),
        "onnx": Kind("qontext.release.export:Onnx", "a model for ONNX Runtime, fastembed, TEI and transformers.js"),
        "onnx-int8": Kind("qontext.release.export:OnnxInt8", "the same with 8-bit weights: a quarter of the size"),
        "openvino": Kind("qontext.release.export:OpenVino", "a model for OpenVINO"),
        "static": Kind("qontext.release.static:Static", "a vector for each token (model2vec): much faster, less exact"),
    },
)  # fmt: skip
LEFT_OUT = (*TRAINING_ONLY, "snapshots")
"""Files and folders of a model folder that are not part of the model."""
SAMPLE = (
    "The mill grinds flour.",
    "A boat.",
    "Stones under the bridge carry the water of the river to the sea.",
)
LEAST_COSINE = 0.9999
"""Of the vectors of a graph in fp32 and of the original."""
LARGEST = 1_900_000_000
"""Bytes of weights up to which they are in the file of the graph; a protocol buffer has at most 2 GB."""
EXTRAS = {"onnxruntime": "onnx", "onnxscript": "onnx", "openvino": "openvino", "model2vec": "static"}
"""Package → the extra that installs it."""
_COPIED = (".json", ".txt", ".model", ".jinja")
Compute = Callable[["Array", "Array"], "Array"]
"""([N, T] token ids, [N, T] mask) → [N, D] vectors."""


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


class Format(ABC):
    """A format in which `export` writes."""

    Options: ClassVar[type[config.Options]] = config.Options

    @classmethod
    @abstractmethod
    def export(cls, source: str, work: Workdir, options: Any) -> dict[str, Any]:
        """Write what the source is in this format; returns the summary."""


class ParquetOptions(config.Options):
    passages: Annotated[str | None, Input()] = None
    """The passages, if those that were encoded are no longer there."""


class Parquet(Format):
    """One row per passage: id, document, title, text, vector (or vectors, of its windows), place and metadata. A part holds
    the passages of one part of the vectors, and is written once."""

    Options = ParquetOptions

    @classmethod
    def export(cls, source: str, work: Workdir, options: Any) -> dict[str, Any]:
        import pyarrow as pa

        from qontext.data import records
        from qontext.retrieve.index.servers.passage_texts import PassageTexts, TextRow
        from qontext.retrieve.stored import open_stored
        from qontext.retrieve.where import passages_of

        vectors = open_stored(_vectors(Path(source)), "vector", "windows")
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
    from qontext.retrieve.directory import index_of, is_adapted

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


class Onnx(Format):
    """An encoder of one vector as a graph. An untied pair has its query encoder in a folder of its own."""

    packages: ClassVar[tuple[str, ...]] = ("onnxruntime", "onnxscript")
    is_exact: ClassVar[bool] = True

    @classmethod
    def export(cls, source: str, work: Workdir, options: Any) -> dict[str, Any]:
        from qontext.models.folder import QUERY_FOLDER

        original = encoder_of(source, cls.packages)
        with work.write_folder(".") as folder:
            lowest = cls._write(original, folder, work)
            if (query := original.of("query")) is not original:
                (folder / QUERY_FOLDER).mkdir()
                lowest = min(lowest, cls._write(query, folder / QUERY_FOLDER, work))
            if cls.is_exact and lowest < LEAST_COSINE:
                raise QontextError(
                    f"the exported model differs from the original: a vector has a cosine of {lowest:.4f} with that of the "
                    "original, so nothing was written",
                    place=source,
                    remedy="Use another format, or another version of the package that converts.",
                )
        log.note(f"The vectors have a cosine of at least {lowest:.4f} with those of the original.")
        return {"dimension": original.width, "cosine_lowest": round(lowest, 6)}

    @classmethod
    def _write(cls, original: Retriever, folder: Path, work: Workdir) -> float:
        """Write one model; returns the lowest cosine of its vectors and those of the original."""
        import numpy as np

        from qontext.models.batching import pad

        copy_settings(original, folder)
        with scratch(work.path) as apart:
            write_graph(original, apart / "model.onnx")
            compute = cls.convert(apart / "model.onnx", folder)
        tokens = original.tokenize(SAMPLE, "passage")
        ids, mask = pad(tokens, original.tokenizer.pad_token_id or 0)
        pair = compute(ids, mask.astype(np.int64)), original.encode_tokens(tokens, "passage")
        a, b = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in pair)
        return float((a * b).sum(1).min())

    @classmethod
    def convert(cls, graph: Path, folder: Path) -> Compute:
        """Put the graph into the model's folder in this format; returns the function that computes with it."""
        return _moved(graph, folder / "onnx" / "model.onnx")


class OnnxInt8(Onnx):
    is_exact = False

    @classmethod
    def convert(cls, graph: Path, folder: Path) -> Compute:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        small = graph.with_name("model_quantized.onnx")
        # Seven bits: on processors without VNNI, sums of products of eight bits overflow.
        quantize_dynamic(graph, small, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
        return _moved(small, folder / "onnx" / small.name)


class OpenVino(Onnx):
    packages = ("openvino", *Onnx.packages)

    @classmethod
    def convert(cls, graph: Path, folder: Path) -> Compute:
        import openvino

        file = folder / "openvino" / "openvino_model.xml"
        file.parent.mkdir()
        openvino.save_model(openvino.convert_model(graph), file, compress_to_fp16=False)
        compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda ids, mask: compiled({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]


def _moved(graph: Path, file: Path) -> Compute:
    """Move a graph and its weights; returns the function that computes with it."""
    import onnxruntime

    file.parent.mkdir()
    for part in graph.parent.glob(f"{graph.name}*"):
        shutil.move(part, file.with_name(part.name))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[
        0
    ]


def encoder_of(source: str, packages: Sequence[str]) -> Retriever:
    """The encoder of one vector; of a directory of `adapt`, its model."""
    from qontext.models.folder import locate
    from qontext.models.retriever import Retriever
    from qontext.retrieve.directory import is_adapted, model_of

    for package in packages:
        if find_spec(package) is None:
            raise missing_extra(package, EXTRAS[package], "this format")
    path = Path(source).expanduser()
    name = model_of(path) if is_adapted(path) else source
    folder = locate(name)
    classes = str(folder.config.get("architectures"))
    if folder.layout.module is not None or "SequenceClassification" in classes:
        raise QontextError(
            f"is no encoder of one vector, but {folder.layout.representation or 'a cross-encoder'}",
            place=name,
        )
    return Retriever(name, device="cpu", precision="fp32")


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
    special = {name: str(token) for name, token in original.tokenizer.special_tokens_map.items()}
    (folder / "special_tokens_map.json").write_text(
        json.dumps(special), encoding="utf-8"
    )  # fastembed reads it
    if not (folder / "modules.json").is_file():
        modules = vector_modules(original.width, layout.pooling, normalize=layout.normalize)
        limits: Any = {"max_length": original.max_length, "similarity": layout.similarity}
        write_modules(folder, "SentenceTransformer", modules, **limits)


def write_graph(original: Retriever, file: Path) -> None:
    """Write the encoder's graph and weights, without the source lines of the program, which have paths of this machine."""
    import torch
    from torch import Tensor, nn

    from qontext.models.load import load_backbone
    from qontext.models.pooling import POOLINGS, read_dense

    layout = original.layout

    class Vectors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = load_backbone(layout.transformer)
            self.dense = nn.Sequential(*(read_dense(path) for path in layout.dense))

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
            hidden_NTH = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            vectors_ND = self.dense(POOLINGS[layout.pooling](hidden_NTH, attention_mask.bool()))
            return hidden_NTH, nn.functional.normalize(vectors_ND, dim=1) if layout.normalize else vectors_ND

    module = Vectors().eval()
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program: Any = torch.onnx.export(
        module,
        (torch.ones_like(mask), mask),
        dynamo=True,
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state", "sentence_embedding"],
        dynamic_shapes=(axes, axes),
        verbose=False,
    )
    graph = program.model.graph
    for node in graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
    for value in (*graph.inputs, *graph.outputs, *graph.initializers.values(), graph, program.model):
        value.metadata_props.clear()
    size = sum(weight.numel() * weight.element_size() for weight in module.state_dict().values())
    program.save(str(file), external_data=size > LARGEST)


STAGE = Stage(
    "export",
    ExportConfig,
    run,
    """
        qontext export vectors --to parquet --out exported
        qontext export runs/mine --to parquet --out exported
        qontext export retriever --to onnx --out exported
        qontext export retriever --to onnx-int8 --out exported
        qontext export retriever --to static --dimensions 128 --out exported
    """,
)
