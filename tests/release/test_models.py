"""Exported models: their own libraries load them and return the vectors of the original."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny import save_bert

from qontext import Retriever, api
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError
from qontext.models.batching import pad
from qontext.release import export as released

TEXTS = [
    "The mill grinds flour.",
    "A boat.",
    "Stones under the bridge carry the water of the river to the sea.",
]


def vectors(folder: Path) -> np.ndarray[Any, Any]:
    return Retriever(folder, device="cpu", precision="fp32").encode_passages(TEXTS)


@pytest.fixture(scope="module")
def onnx(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    return api.export(encoder, to="onnx", out=tmp_path_factory.mktemp("onnx") / "out")


def test_onnx_has_the_vectors_of_the_original(onnx: Artifact, encoder: Path) -> None:
    assert onnx.summary["cosine_lowest"] > 1 - 1e-6
    assert not list(onnx.path.rglob("*.safetensors")), "the weights are in the graph"
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx.path / "onnx" / "model.onnx"))
    assert [one.name for one in session.get_inputs()] == ["input_ids", "attention_mask"]
    assert [one.name for one in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    made = Retriever(encoder, device="cpu", precision="fp32")
    ids, mask = pad(made.tokenize(TEXTS, "passage"), 0)
    (_, exported) = session.run(None, {"input_ids": ids, "attention_mask": mask.astype(np.int64)})
    assert np.abs(exported - vectors(encoder)).max() < 1e-6


def test_a_graph_names_no_path_of_this_machine(onnx: Artifact, encoder: Path) -> None:
    content = (onnx.path / "onnx" / "model.onnx").read_bytes()
    assert (
        b"site-packages" not in content
        and str(encoder).encode() not in content
        and b"/qontext/" not in content
    )


def test_fastembed_loads_onnx(onnx: Artifact, encoder: Path) -> None:
    fastembed: Any = pytest.importorskip("fastembed", reason="fastembed is not installed")
    from fastembed.common.model_description import ModelSource, PoolingType

    fastembed.TextEmbedding.add_custom_model(
        "exported",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="exported"),
        dim=16,
        model_file="onnx/model.onnx",
    )
    loaded = fastembed.TextEmbedding("exported", specific_model_path=str(onnx.path))
    assert np.abs(np.stack(list(loaded.embed(TEXTS))) - vectors(encoder)).max() < 1e-5


def test_sentence_transformers_loads_onnx(onnx: Artifact, encoder: Path) -> None:
    pytest.importorskip("optimum.onnxruntime", reason="optimum's ONNX back end is not installed")
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(onnx.path), backend="onnx", device="cpu")
    assert np.abs(loaded.encode(TEXTS) - vectors(encoder)).max() < 1e-5


SCRIPT = """
const { pipeline, env } = require("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = process.argv[2];
(async () => {
  const encode = await pipeline("feature-extraction", process.argv[3], { dtype: "fp32" });
  const out = await encode(JSON.parse(process.argv[4]), { pooling: "mean", normalize: true });
  console.log(JSON.stringify(out.tolist()));
})();
"""


def test_transformers_js_loads_onnx(onnx: Artifact, encoder: Path, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    # NODE_PATH says where: npm install --ignore-scripts --prefix FOLDER @huggingface/transformers
    found = subprocess.run([node, "-e", 'require.resolve("@huggingface/transformers")'], capture_output=True)
    if found.returncode:
        pytest.skip("the package @huggingface/transformers is not on NODE_PATH")
    (tmp_path / "encode.cjs").write_text(SCRIPT)
    command = [node, str(tmp_path / "encode.cjs"), str(onnx.path.parent), onnx.path.name, json.dumps(TEXTS)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NODE_OPTIONS": ""})
    assert ran.returncode == 0, ran.stderr
    assert np.abs(np.array(json.loads(ran.stdout)) - vectors(encoder)).max() < 1e-5


@pytest.fixture
def converted(onnx: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is that of `onnx`, which takes seconds to make."""

    def copy(original: Retriever, file: Path) -> None:
        shutil.copyfile(onnx.path / "onnx" / "model.onnx", file)

    monkeypatch.setattr(released, "write_graph", copy)


@pytest.mark.usefixtures("converted")
def test_eight_bits_are_close_and_a_quarter_of_the_size(
    onnx: Artifact, encoder: Path, tmp_path: Path
) -> None:
    made = api.export(encoder, to="onnx-int8", out=tmp_path / "out")
    assert made.summary["cosine_lowest"] > 0.95
    sizes = [
        (made.path / "onnx/model_quantized.onnx").stat().st_size,
        (onnx.path / "onnx/model.onnx").stat().st_size,
    ]
    assert sizes[0] < 0.35 * sizes[1]


@pytest.mark.usefixtures("converted")
def test_openvino_has_the_vectors_of_the_original(encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    made = api.export(encoder, to="openvino", out=tmp_path / "out")
    assert made.summary["cosine_lowest"] > 1 - 1e-5
    assert {path.name for path in (made.path / "openvino").iterdir()} == {
        "openvino_model.xml",
        "openvino_model.bin",
    }


@pytest.mark.usefixtures("converted")
def test_a_model_that_differs_is_not_written(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(released, "LEAST_COSINE", 1.1)
    with pytest.raises(QontextError, match=r"the exported model differs .* cosine of 1\.0000"):
        api.export(encoder, to="onnx", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_static_models_load_in_model2vec_and_sentence_transformers(encoder: Path, tmp_path: Path) -> None:
    model2vec: Any = pytest.importorskip("model2vec", reason="model2vec is not installed")
    from sentence_transformers import SentenceTransformer

    made = api.export(encoder, to="static", dimensions=8, out=tmp_path / "out")
    loaded = model2vec.StaticModel.from_pretrained(made.path)
    assert loaded.embedding.shape == (30522, 8) and made.summary["dimension"] == 8
    expected = loaded.encode(TEXTS)
    assert np.abs(SentenceTransformer(str(made.path), device="cpu").encode(TEXTS) - expected).max() < 1e-5
    ids = loaded.tokenizer.encode("boat", add_special_tokens=False).ids
    row = loaded.embedding[ids[0]]
    assert len(ids) == 1 and np.allclose(loaded.encode(["boat"])[0], row / np.linalg.norm(row), atol=1e-6)


def test_a_static_model_of_two_encoders_is_refused(encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("model2vec", reason="model2vec is not installed")
    pair = Path(shutil.copytree(encoder, tmp_path / "pair"))
    shutil.copytree(encoder, pair / "query")
    with pytest.raises(QontextError, match="a half for queries and one for passages"):
        api.export(pair, to="static", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_as_a_model(minilm: Path, encoder: Path, tmp_path: Path) -> None:
    reranker = save_bert(tmp_path / "reranker", minilm, num_labels=1)
    with pytest.raises(QontextError, match="is no encoder of one vector"):
        api.export(reranker, to="onnx", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_snapshots_of_the_training_are_no_part_of_an_export(encoder: Path, tmp_path: Path) -> None:
    shutil.copytree(encoder, tmp_path / "trained")
    shutil.copytree(encoder, tmp_path / "trained" / "snapshots" / "1")
    (tmp_path / "out").mkdir()
    original = Retriever(tmp_path / "trained", device="cpu", precision="fp32")
    released.copy_settings(original, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file() and not (tmp_path / "out" / "snapshots").exists()
