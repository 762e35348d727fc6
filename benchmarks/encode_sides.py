"""One side of `encode.py`: a program that encodes texts, in a process of its own, with the packages of its interpreter.

    PYTHON encode_sides.py SIDE MODEL CACHE

It reads lines of JSON from its standard input and answers each with one: `{"texts": FILE, "out": FILE}` encodes a JSON list
of texts, writes their vectors as .npy, and answers with the seconds of both clocks. Only Qontext's own sides import
Qontext. Models in other formats are converted once, into the folder CACHE.

Every side encodes at the same length limit, that of the model's folder, sorts texts by length, and has its own default
batch, which for sentence-transformers and fastembed is 32 and 256.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Encode = Callable[[list[str]], Any]


def sentence_transformers(model: str, cache: Path, **settings: Any) -> Encode:
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(model, device="cpu", **settings)
    return lambda texts: loaded.encode(texts, show_progress_bar=False)


def st_bf16(model: str, cache: Path) -> Encode:
    import torch

    loaded = sentence_transformers(model, cache, model_kwargs={"dtype": torch.bfloat16})
    return lambda texts: np.asarray(loaded(texts), np.float32)


def st_onnx(model: str, cache: Path, file: str = "onnx/model.onnx") -> Encode:
    folder = converted(model, cache, "onnx")
    return sentence_transformers(str(folder), cache, backend="onnx", model_kwargs=onnx_settings(file))


def st_onnx_int8(model: str, cache: Path) -> Encode:
    """Dynamic quantization for processors with AVX512-VNNI, by sentence-transformers' own function."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    folder, file = converted(model, cache, "onnx"), "onnx/model_qint8_avx512_vnni.onnx"
    if not (folder / file).exists():
        plain = SentenceTransformer(
            str(folder), device="cpu", backend="onnx", model_kwargs=onnx_settings("onnx/model.onnx")
        )
        export_dynamic_quantized_onnx_model(plain, "avx512_vnni", str(folder))
    return st_onnx(model, cache, file)


def onnx_settings(file: str) -> dict[str, Any]:
    return {"file_name": file, "provider": "CPUExecutionProvider"}


def st_openvino(model: str, cache: Path, file: str = "openvino/openvino_model.xml") -> Encode:
    folder = converted(model, cache, "openvino")
    return sentence_transformers(str(folder), cache, backend="openvino", model_kwargs={"file_name": file})


def st_openvino_int8(model: str, cache: Path) -> Encode:
    """Weights and activations in 8 bits, calibrated on the texts in CACHE/calibration.json."""
    import nncf
    import openvino
    from transformers import AutoTokenizer

    folder, file = converted(model, cache, "openvino"), "openvino/openvino_model_int8.xml"
    if not (folder / file).exists():
        core = openvino.Core()
        plain = core.read_model(folder / "openvino" / "openvino_model.xml")
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        names = {port.get_any_name() for port in plain.inputs}
        texts = json.loads((cache / "calibration.json").read_text())
        length = min(tokenizer.model_max_length, 256)

        def inputs(text: str) -> dict[str, Any]:
            tokens = tokenizer(text, return_tensors="np", truncation=True, max_length=length)
            return {name: tokens[name] for name in names}

        data = nncf.Dataset(texts, inputs)
        kind = nncf.ModelType.TRANSFORMER
        openvino.save_model(
            nncf.quantize(plain, data, model_type=kind, subset_size=len(texts)), folder / file
        )
    return st_openvino(model, cache, file)


def fastembed(model: str, cache: Path, file: str = "onnx/model.onnx") -> Encode:
    """The converted model, which fastembed reads from a folder: nothing is downloaded."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    folder = converted(model, cache, "onnx")
    config = json.loads((folder / "config.json").read_text())
    pooling = json.loads((Path(model) / "1_Pooling" / "config.json").read_text())
    is_mean = pooling.get("pooling_mode_mean_tokens", pooling.get("pooling_mode") == "mean")
    TextEmbedding.add_custom_model(
        model="local/encoder",
        pooling=PoolingType.MEAN if is_mean else PoolingType.CLS,
        normalization=True,
        sources=ModelSource(url="http://127.0.0.1/none"),
        dim=config["hidden_size"],
        model_file=file,
    )
    loaded = TextEmbedding("local/encoder", specific_model_path=str(folder), local_files_only=True)
    return lambda texts: np.array([*loaded.embed(texts)], np.float32)


def fastembed_int8(model: str, cache: Path) -> Encode:
    st_onnx_int8(model, cache)
    return fastembed(model, cache, "onnx/model_qint8_avx512_vnni.onnx")


def qontext(model: str, cache: Path, precision: Any = "fp32") -> Encode:
    from qontext.models.retriever import Retriever

    loaded = Retriever(model, precision=precision)
    return lambda texts: loaded.encode(texts, "passage")


def qontext_bf16(model: str, cache: Path) -> Encode:
    return qontext(model, cache, "bf16")


SIDES: dict[str, Callable[[str, Path], Encode]] = {
    "sentence_transformers": sentence_transformers,
    "sentence_transformers_bf16": st_bf16,
    "onnx": st_onnx,
    "onnx_int8": st_onnx_int8,
    "openvino": st_openvino,
    "openvino_int8": st_openvino_int8,
    "fastembed": fastembed,
    "fastembed_int8": fastembed_int8,
    "qontext_fp32": qontext,
    "qontext_bf16": qontext_bf16,
}
_LIBRARIES = (
    "torch", "transformers", "sentence-transformers", "optimum", "onnxruntime", "openvino", "nncf", "fastembed",
)  # fmt: skip


def converted(model: str, cache: Path, backend: Any) -> Path:
    """The model's folder with its conversion, written when it is first asked for."""
    from sentence_transformers import SentenceTransformer

    folder = cache / f"{Path(model).name}-{backend}"
    if not (folder / backend).is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        plain = SentenceTransformer(model, device="cpu", backend=backend, model_kwargs={"export": True})
        plain.save_pretrained(str(folder))
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text())
        settings.pop("max_length", None)  # a shorter limit, which only fastembed reads
        file.write_text(json.dumps(settings))
    return folder


def main() -> None:
    side, model, cache = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    try:
        encode = SIDES[side](model, Path(cache))
    except Exception as error:
        print(json.dumps({"failed": said(error)}), file=answers, flush=True)
        return
    print(
        json.dumps({"versions": versions(), "cores": sorted(os.sched_getaffinity(0))}),
        file=answers,
        flush=True,
    )
    for line in sys.stdin:
        task = json.loads(line)
        texts = json.loads(Path(task["texts"]).read_text())
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            vectors = encode(texts)
        except Exception as error:
            print(json.dumps({"failed": said(error)}), file=answers, flush=True)
            continue
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        np.save(task["out"], np.asarray(vectors, np.float32), allow_pickle=False)
        print(json.dumps({"wall": wall, "cpu": cpu}), file=answers, flush=True)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[:1]}"


def versions() -> dict[str, str]:
    installed = {}
    for name in _LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


if __name__ == "__main__":
    main()
