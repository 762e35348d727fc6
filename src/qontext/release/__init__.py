"""Vectors and models for other tools: what `export` writes, one file per format, and what `push` uploads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from qontext.frame import config
from qontext.frame.artifacts import Workdir
from qontext.frame.kinds import Kind, Kinds

FORMATS = Kinds(
    "format",
    "qontext.formats",
    "qontext.release:Format",
    {
        "parquet": Kind("qontext.release.export:Parquet", "vectors with their passages"),
        "onnx": Kind("qontext.release.onnx:Onnx", "a model for ONNX Runtime, fastembed, TEI and transformers.js"),
        "onnx-int8": Kind("qontext.release.onnx:OnnxInt8", "the same with 8-bit weights: a quarter of the size"),
        "openvino": Kind("qontext.release.openvino:OpenVino", "a model for OpenVINO"),
        "static": Kind("qontext.release.static:Static", "a vector for each token (model2vec): much faster, less exact"),
    },
)  # fmt: skip


class Format(ABC):
    """A format in which `export` writes."""

    Options: ClassVar[type[config.Options]] = config.Options

    @classmethod
    @abstractmethod
    def export(cls, source: str, work: Workdir, options: Any) -> dict[str, Any]:
        """Write what the source is in this format; returns the summary."""
