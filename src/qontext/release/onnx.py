"""A retriever as ONNX, in the layout that sentence-transformers, fastembed, TEI and transformers.js read.

    onnx/model.onnx             fp32
    onnx/model_quantized.onnx   weights of 8 bits, one scale for each output; activations are quantized as they come

    input_ids [N, T], attention_mask [N, T] → last_hidden_state [N, T, H], sentence_embedding [N, D]

The second output is the finished vector: pooled, projected and normalized as the folder says.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.frame.artifacts import Workdir
from qontext.frame.errors import missing_extra
from qontext.frame.workdir import scratch
from qontext.release.model import ExportedEncoder, ModelFormat, copy_settings

if TYPE_CHECKING:
    import numpy as np

    from qontext.models.retriever import Retriever

    Array = np.ndarray[Any, Any]

PLAIN, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"
VECTOR = "sentence_embedding"
LARGEST = 1_900_000_000
"""Bytes of weights up to which they are in the file of the graph; a protocol buffer has at most 2 GB."""


class Onnx(ModelFormat):
    is_exact = True
    file = PLAIN

    @classmethod
    def require_packages(cls) -> None:
        for package in ("onnxruntime", "onnxscript"):
            if find_spec(package) is None:
                raise missing_extra(package, "onnx", "the export to ONNX")

    @classmethod
    def write(cls, original: Retriever, folder: Path, options: Any, work: Workdir) -> None:
        copy_settings(original, folder)
        (folder / "onnx").mkdir()
        write_graph(original, folder / cls.file)

    @classmethod
    def open(cls, folder: Path) -> ExportedEncoder:
        return ExportedEncoder(folder, opener(cls.file))


class OnnxInt8(Onnx):
    is_exact = False
    file = QUANTIZED

    @classmethod
    def write(cls, original: Retriever, folder: Path, options: Any, work: Workdir) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        copy_settings(original, folder)
        (folder / "onnx").mkdir()
        with scratch(work.path) as apart, _quiet():
            write_graph(original, apart / "model.onnx")
            # Seven bits: on processors without VNNI, sums of products of eight bits overflow.
            quantize_dynamic(
                apart / "model.onnx",
                folder / cls.file,
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=True,
            )


def write_graph(original: Retriever, file: Path) -> None:
    """Write the encoder's graph and weights."""
    import torch

    module = _vectors_module(original)
    ids = torch.ones(2, 8, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with _quiet():
        program: Any = torch.onnx.export(
            module,
            (ids, mask),
            dynamo=True,
            input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state", VECTOR],
            dynamic_shapes=(axes, axes),
            verbose=False,
        )
    _remove_traces(program.model)
    size = sum(weight.numel() * weight.element_size() for weight in module.state_dict().values())
    program.save(str(file), external_data=size > LARGEST)


def _vectors_module(original: Retriever) -> Any:
    """The encoder of one vector as a module of token ids and mask, without what is for this machine alone."""
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

    return Vectors().eval()


def _remove_traces(model: Any) -> None:
    """Remove the source lines of the program that made the graph: paths of this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the libraries' advice to those who write models."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)


def opener(file: str) -> Callable[[Path], Callable[[Array, Array], Array]]:
    """A folder → the function that computes vectors with this file of it."""

    def open(folder: Path) -> Callable[[Array, Array], Array]:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / file), providers=["CPUExecutionProvider"])

        def compute(ids: Array, mask: Array) -> Array:
            (vectors,) = session.run([VECTOR], {"input_ids": ids, "attention_mask": mask})
            return vectors  # type: ignore[no-any-return]

        return compute

    return open
