"""The cost of each representation: a step of its training, its encoding, its disk space and a search.

    python benchmarks/representations.py DATA/squad_pool --encoder MODEL [--passages 400] [--questions 50] [--steps 8]

The first passages of a labeled set in BEIR's layout and the questions about them. Every case is fine-tuned for a few
steps from the same encoder, on the same batches of 8 questions with their passage and a negative; encodes the passages;
and is searched exactly with the encoded questions, all at once. Steps are medians without the first two, searches medians
of three without the first; encoding is one run, with loading. Bytes are those of vectors or weights, and of their
places. Beside the representations stand two kinds of fine-tuning that read a teacher. Writes representations.json beside
this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch

from qontext import api
from qontext.data.collection import load_collection
from qontext.data.runs import write_run
from qontext.finetune.negatives.groups import candidates_of
from qontext.frame import log, machine
from qontext.models.retriever import Retriever
from qontext.retrieve.index import How
from qontext.retrieve.index.load import open_index
from qontext.training.metrics import read

CASES: dict[str, dict[str, Any]] = {
    "vector": {},
    "first-tokens": {"representation": "first-tokens"},
    "sparse": {"representation": "sparse"},
    "matches": {"representation": "matches"},
    "matches as weights": {
        "representation": "matches",
        "token_dimensions": 1,
        "cls_dimensions": 0,
        "token_relu": True,
    },
    "tokens": {"representation": "tokens"},
}
"""Label → settings of `finetune`."""
TAUGHT: dict[str, dict[str, Any]] = {
    "vector, margin-MSE": {"loss": "margin-mse"},
    "vector, margin-MSE and a second teacher": {"loss": "margin-mse", "batch_teacher": "tokens"},
}
"""The same with a teacher; a second one is the retriever of a case."""
BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--name", default="MiniLM", help="of the encoder")
    parser.add_argument("--passages", type=int, default=400)
    parser.add_argument(
        "--questions", type=int, default=50, help="that are searched; the others are trained on"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    options = parser.parse_args()
    log.show(log.SILENT)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options)
    result = {
        "what": "training, encoding, disk space and exact search of each representation",
        "setting": {
            "data": options.data.name,
            "passages": options.passages,
            "questions": options.questions,
            "steps": options.steps,
            "batch": BATCH,
            "encoder": options.name,
            "precision": options.precision,
            "threads": 1,
        },
        "machine": machine.describe(),
        "rows": rows,
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    data = write_corner(folder / "data", options)
    found = api.search(bm25=True, data=data, split="train", k=20, out=folder / "bm25")
    groups = api.mine(found, data, data=data, per_query=1, split="train", out=folder / "groups")
    teacher = folder / "teacher.trec"
    write_run(candidates_of(groups), teacher)
    common = {
        "passages": data,
        "encoder": options.encoder,
        "steps": options.steps,
        "batch_size": BATCH,
        "passages_per_query": 2,
        "log_every": 1,
        "precision": options.precision,
        "device": "cpu",
    }
    rows: list[dict[str, Any]] = []
    for name, settings in CASES.items():
        retriever = api.finetune(groups, **common, **settings, out=folder / name)
        rows.append({"case": name, "step_seconds": step_seconds(retriever.path)})
        rows[-1] |= costs(folder, name, retriever, data, options)
        rows[-1]["relative_step"] = round(rows[-1]["step_seconds"] / rows[0]["step_seconds"], 2)
        print(rows[-1], flush=True)
    for name, settings in TAUGHT.items():
        second = {key: folder / value for key, value in settings.items() if key == "batch_teacher"}
        trained = api.finetune(groups, teacher=teacher, **common, **{**settings, **second}, out=folder / name)
        seconds = step_seconds(trained.path)
        rows.append({"case": name, "step_seconds": seconds})
        rows[-1]["relative_step"] = round(seconds / rows[0]["step_seconds"], 2)
        print(rows[-1], flush=True)
    return rows


def write_corner(folder: Path, options: argparse.Namespace) -> Path:
    """The first passages of the set, with the questions about them."""
    whole = load_collection(options.data)
    passages = {passage.id: passage for passage in islice(whole.passages(), options.passages)}
    queries, judged = whole.queries(), dict[str, list[str]]()
    for name, grades in whole.qrels("train").items():
        judged[name] = [id for id, grade in grades.items() if grade > 0 and id in passages]
    names = [name for name, ids in judged.items() if ids]
    folder.mkdir()
    with (folder / "corpus.jsonl").open("w") as file:
        for passage in passages.values():
            file.write(json.dumps({"_id": passage.id, "title": passage.title, "text": passage.text}) + "\n")
    with (folder / "queries.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": name, "text": queries[name]}) + "\n" for name in names)
    (folder / "qrels").mkdir()
    for split, some in (("test", names[: options.questions]), ("train", names[options.questions :])):
        with (folder / "qrels" / f"{split}.tsv").open("w") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            file.writelines(f"{name}\t{id}\t1\n" for name in some for id in judged[name])
    return folder


def step_seconds(trained: Path) -> float:
    """The median step, without the first two."""
    ends = [row["seconds"] for row in read(trained / "logs" / "metrics.jsonl")]
    return round(statistics.median(after - before for before, after in pairwise(ends[1:])), 3)


def costs(folder: Path, name: str, trained: Any, data: Path, options: argparse.Namespace) -> dict[str, Any]:
    how = {"precision": options.precision, "device": "cpu"}
    vectors = api.encode(data, encoder=trained, **how, out=folder / f"{name} vectors")
    size = sum(
        file.stat().st_size for kind in ("vectors", "rows") for file in vectors.path.glob(f"{kind}-*.npy")
    )
    questions = list(load_collection(data).queries("test").values())
    retriever = Retriever(str(trained.path), device="cpu", precision=options.precision, packed=True)
    texts, (index, _) = retriever.encode(questions, "query"), open_index(vectors.path, How("cpu"))
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        index.search(texts, 100)
        seconds.append(time.perf_counter() - started)
    return {
        "texts_per_second": vectors.summary["texts_per_second"],
        "bytes_per_passage": round(size / options.passages),
        "questions_per_second": round(len(questions) / statistics.median(seconds[1:]), 1),
    }


if __name__ == "__main__":
    main()
