"""Published encoders as they come, without training: nDCG@10 on labeled sets, beside BM25 and fused with it.

    python benchmarks/encoders.py --encoder MiniLM=FOLDER --encoder SPLADE=FOLDER --set scifact=DATA --set xquad_de=DATA:de

FOLDER is a model in sentence-transformers' layout; a masked language model alone is read as SPLADE reads one. A set is in
BEIR's layout, its test split is asked, and a language after the colon selects BM25's analyzer. Each text has one vector, at
the encoder's own length limit; the fusion is that of z-scores with the weights 0.6 and 0.4, as `adapt` uses without labels,
and besides with equal weights, as for sub-queries (`words:` and `meaning:`), and of reciprocal ranks.
Vectors of the first passages are compared with those of sentence-transformers. With `--passages`, a set is cut to about so
many, which hold the answers of `--questions` questions, and its name gets their number: figures of parts are higher than
those of the whole set. Nothing here depends on the load of the machine. A row that is there is not measured again. Writes
encoders.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from adapt import write_set
from qontext import api
from qontext.data.collection import load_collection, read_passages
from qontext.frame import log, machine
from qontext.models.retriever import Retriever
from qontext.retrieve.analyzer import LANGUAGES

OUT = Path(__file__).with_suffix(".json")
COMPARED = 32
"""Passages whose vectors are compared with sentence-transformers."""
MEASURE = "nDCG@10"
FORM: dict[str, Any] = {"device": "cpu", "precision": "fp32"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", action="append", default=[], help="NAME=FOLDER")
    parser.add_argument("--set", action="append", required=True, help="NAME=FOLDER or NAME=FOLDER:LANGUAGE")
    parser.add_argument("--passages", type=int, help="cut each set to about so many")
    parser.add_argument(
        "--questions", type=int, default=100, help="with --passages: questions that are asked"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the passages without an answer")
    options = parser.parse_args()
    log.show(log.SILENT)
    done = json.loads(OUT.read_text()) if OUT.exists() else {"rows": []}
    for text in options.set:
        name, _, place = text.partition("=")
        data, _, language = place.partition(":")
        name += f"-{options.passages}" if options.passages else ""
        for encoder in ("BM25=", *options.encoder):
            label, _, folder = encoder.partition("=")
            if any((row["set"], row["encoder"]) == (name, label) for row in done["rows"]):
                continue
            with tempfile.TemporaryDirectory() as root:
                part = Path(root, "data") if options.passages else Path(data)
                if options.passages:
                    write_set(Path(data), part, options)
                row = measured(Path(root), str(part), LANGUAGES.get(language), folder)
            done["rows"].append({"set": name, "encoder": label, **row})
            done["machine"] = machine.describe()
            OUT.write_text(json.dumps(done, indent=1) + "\n", "utf-8")
            print(done["rows"][-1], flush=True)


def measured(root: Path, data: str, analyzer: str | None, folder: str) -> dict[str, Any]:
    """The scores of an encoder and of its fusion with BM25; without a folder, of BM25."""
    asked = {"data": data, "split": "test", "k": 100}
    reading = {"analyzer": analyzer} if analyzer else {}
    words = api.retrieve(bm25=True, out=root / "bm25", **reading, **asked)
    collection = load_collection(data)
    about: dict[str, Any] = {"questions": len(collection.queries("test"))}
    if not folder:
        return {**about, "alone": score(words, data)}
    place = str(as_splade(Path(folder), root / "splade"))
    vectors = api.encode(data, encoder=place, out=root / "vectors", **FORM)
    dense = api.retrieve(vectors, out=root / "dense", precision="fp32", device="cpu", **asked)
    both = api.fuse([words, dense], method="zscore", weights=[0.6, 0.4], k=100, out=root / "both")
    equal = api.fuse([words, dense], method="zscore", weights=[0.5, 0.5], k=100, out=root / "equal")
    ranks = api.fuse([words, dense], method="rrf", k=100, out=root / "ranks")
    return {
        **about,
        "passages": vectors.summary["texts"],
        "tokens": vectors.summary["max_length"],
        "alone": score(dense, data),
        "with_bm25": score(both, data),
        "equal_weights": score(equal, data),
        "reciprocal_ranks": score(ranks, data),
        "difference": difference(place, data),
    }


def score(run: Any, data: str) -> float:
    """nDCG@10 of a run."""
    return round(float(api.evaluate(run, data, split="test").means[MEASURE]), 4)


def as_splade(folder: Path, root: Path) -> Path:
    """The folder; of a masked language model without modules, one that lists those of SPLADE."""
    if (folder / "modules.json").exists():
        return folder
    (root / "1_SpladePooling").mkdir(parents=True)
    for file in folder.glob("*.*"):
        if file.suffix in (".json", ".safetensors"):
            (root / file.name).symlink_to(file.resolve())
    pooling = {"pooling_strategy": "max", "activation_function": "relu"}
    (root / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling))
    package = "sentence_transformers.sparse_encoder.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.MLMTransformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": f"{package}.SpladePooling"},
    ]
    (root / "modules.json").write_text(json.dumps(modules))
    (root / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256}))
    return root


def difference(folder: str, data: str) -> float:
    """The greatest difference of a value from sentence-transformers' vectors."""
    from itertools import islice

    from sentence_transformers import SentenceTransformer, SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    passages = [passage.content for passage in islice(read_passages(data), COMPARED)]
    retriever = Retriever(folder, **FORM, packed=True)
    own: Any = retriever.encode_passages(passages)
    if retriever.is_packed:
        rows = np.zeros((len(passages), retriever.dimension), np.float32)
        for row, (start, end) in enumerate(zip(own.starts, own.starts[1:])):
            rows[row, own.terms[start:end]] = own.values[start:end]
        modules = [MLMTransformer(folder, max_seq_length=retriever.max_length), SpladePooling("max")]
        other = SparseEncoder(modules=modules, device="cpu").encode_document(passages)
        return float(np.abs(rows - other.to_dense().numpy()).max())
    return float(np.abs(own - SentenceTransformer(folder, device="cpu").encode_document(passages)).max())


if __name__ == "__main__":
    main()
