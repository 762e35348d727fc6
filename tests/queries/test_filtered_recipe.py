"""Generate, filter, pre-train by score: as the recipe `filtered` does it, from the command line's own settings."""

import json

import pyarrow.parquet as pq
import pytest

from qontext import api
from qontext.frame.artifacts import open_artifact

SUBJECTS = [
    "bees",
    "glaciers",
    "bread",
    "lighthouses",
    "rivers",
    "moss",
    "clocks",
    "bridges",
    "owls",
    "salt",
    "kites",
    "wool",
]


@pytest.fixture
def documents(tmp_path):
    """Twelve documents of three passages or so."""
    path = tmp_path / "docs.jsonl"
    with path.open("w") as file:
        for name in SUBJECTS:
            sentences = [
                f"In chapter {n} we learn that {name} were studied by Ada Finch in {1800 + n}."
                for n in range(15)
            ]
            file.write(json.dumps({"_id": name, "title": name.title(), "text": " ".join(sentences)}) + "\n")
    return path


def test_queries_are_drawn_by_their_score(documents, tmp_path, tiny_encoder):
    def run():
        settings = (
            f"inputs.documents={documents}", f"inputs.encoder={tiny_encoder}", f"inputs.retriever={tiny_encoder}",
            "filter.top=2", "split.max_tokens=64", "pretrain.steps=3", "pretrain.batch_size=12",
            "pretrain.precision=fp32", "pretrain.decoder_layers=1",
        )  # fmt: skip
        return api.run("filtered", out=str(tmp_path / "run"), set=settings, until="pretrain")

    steps = {row["step"]: row["state"] for row in run()["steps"]}
    assert set(steps.values()) == {"done now"} and list(steps) == ["split", "generate", "filter", "pretrain"]
    generated, kept = (open_artifact(tmp_path / "run" / name) for name in ("generate", "filter"))
    rows = [row for part in kept.parts(".parquet") for row in pq.read_table(part).to_pylist()]
    # Some go, none of the passages is lost, and what is left has weights to draw by.
    assert generated.summary["queries"] > len(rows) == kept.summary["kept"] >= kept.summary["passages"]
    assert {row["passage"] for row in rows} == {
        row["passage"] for row in pq.read_table(generated.parts()[0]).to_pylist()
    }
    assert len({row["score"] for row in rows}) > 1 and all(0 <= row["score"] <= 1 for row in rows)
    by_score = open_artifact(tmp_path / "run" / "pretrain")
    assert by_score.config["sampling"] == "score"
    assert by_score.meta["inputs"]["queries"]["digest"] == kept.digest
    assert {row["state"] for row in run()["steps"]} == {"done before"}
