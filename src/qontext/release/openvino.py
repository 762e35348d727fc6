"""A retriever for OpenVINO, in the layout that sentence-transformers and optimum-intel read:

openvino/openvino_model.xml, openvino/openvino_model.bin        fp32; inputs and outputs as in ONNX
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext.frame.artifacts import Workdir
from qontext.frame.errors import missing_extra
from qontext.frame.workdir import scratch
from qontext.release.model import ExportedEncoder, ModelFormat, copy_settings
from qontext.release.onnx import VECTOR, Onnx, write_graph

if TYPE_CHECKING:
    import numpy as np

    from qontext.models.retriever import Retriever

    Array = np.ndarray[Any, Any]

FILE = "openvino/openvino_model.xml"


class OpenVino(ModelFormat):
    is_exact = True

    @classmethod
    def require_packages(cls) -> None:
        if find_spec("openvino") is None:
            raise missing_extra("openvino", "openvino", "the export to OpenVINO")
        Onnx.require_packages()

    @classmethod
    def write(cls, original: Retriever, folder: Path, options: Any, work: Workdir) -> None:
        import openvino

        copy_settings(original, folder)
        (folder / FILE).parent.mkdir()
        with scratch(work.path) as apart:
            write_graph(original, apart / "model.onnx")
            model = openvino.convert_model(apart / "model.onnx")
            openvino.save_model(model, folder / FILE, compress_to_fp16=False)

    @classmethod
    def open(cls, folder: Path) -> ExportedEncoder:
        return ExportedEncoder(folder, _compiled)


def _compiled(folder: Path) -> Callable[[Array, Array], Array]:
    import openvino

    compiled = openvino.Core().compile_model(folder / FILE, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def compute(ids: Array, mask: Array) -> Array:
        vectors: Array = compiled({"input_ids": ids, "attention_mask": mask})[VECTOR]
        return vectors

    return compute
