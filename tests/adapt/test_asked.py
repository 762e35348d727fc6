"""adapt with real questions that have no labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapt.calls import adapt
from tests.adapt.conftest import NAMES, PARTS
from tests.adapt.test_judgments import judge

from qontext import api
from qontext.adapt.judgments import pools
from qontext.data.collection import load_collection, read_queries
from qontext.data.runs import read_run
from qontext.frame.artifacts import open_artifact
from qontext.frame.errors import QontextError


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "asked.log"
    lines = [f"when was the {part} of {NAMES[n % 10]} {n} repaired" for n in range(10) for part in PARTS[:4]]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_real_questions_are_learned_from_imitated_and_judged(
    reports: Path, small_encoder: Path, tmp_path: Path, log: Path
) -> None:
    out = tmp_path / "made"
    result = adapt(reports, out, small_encoder, questions=log, budget="10s")
    steps = out / "steps"
    assert open_artifact(steps / "generate").inputs["like"]["path"] == str(log)
    holdout = open_artifact(steps / "holdout")
    assert holdout.summary["asked_questions"] == {"train": 20, "asked": 20}
    collection, found = (
        load_collection(steps / "holdout" / "measured"),
        read_run(steps / "asked-answers-by-tokens"),
    )
    asked, texts = collection.qrels("asked"), read_queries(log)
    assert all(judged == {found[id.removeprefix("asked:")][0].passage: 1} for id, judged in asked.items())
    held = {passage for judged in collection.qrels("generated").values() for passage in judged}
    training = set(read_queries(steps / "holdout" / "queries").values())
    measured = {texts[id.removeprefix("asked:")] for id in asked}
    taught = {texts[id] for id in found if f"asked:{id}" not in asked and found[id][0].passage not in held}
    assert taught and taught <= training and not measured & training, "what is judged is not learned from"
    # Until people have judged, the generated questions decide; then, those of the log.
    assert result["verdict"]["split"] == "generated" and set(result["verdict"]["scores"]) == {"generated"}
    systems = list(result["verdict"]["scores"]["generated"])
    best = read_run(steps / "bm25-asked")
    judge(out, 20, lambda question, passage: passage == best[question][0].passage)
    assert {one.id for one in pools(out, "asked", systems, 20)} == set(asked)
    verdict = api.adapt(
        reports, encoder=small_encoder, questions=log, budget="10s", out=out, yes=True
    ).verdict
    assert verdict.split == "judged" and verdict.queries["judged"] == 20 and verdict.asked_split == "asked"
    scores = {name: values["nDCG@10"] for name, values in verdict.scores["judged"].items()}
    assert scores["bm25"] == max(scores.values())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("few.txt", b"only one\n", r"has too few questions: 1\. Add some: 10 are needed"),
        ("repeated.tsv", b"".join(b"q%d\tOnly  one\n" % n for n in range(20)), r"has too few questions: 1\."),
        ("empty.txt", b"", "contains no queries"),
        ("missing.txt", None, "cannot read queries"),
        ("cut-off.jsonl", b'{"_id": "q1", "text": "when?"}\n{"_id": "q2", "te', "2: is not JSON"),
        ("folder", "", "has no queries.jsonl"),
    ],
)
def test_unusable_questions_end_before_any_work(
    name: str, content: bytes | str | None, message: str, reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.mkdir()
    with pytest.raises(QontextError, match=message) as refused:
        adapt(reports, tmp_path / "made", small_encoder, questions=file)
    assert str(refused.value).startswith(str(file)) and "\n" not in str(refused.value)
    assert not (tmp_path / "made").exists()


def test_too_few_questions_are_refused_after_a_dry_run_without_them_too(
    reports: Path, small_encoder: Path, tmp_path: Path
) -> None:
    out, few = tmp_path / "made", tmp_path / "few.txt"
    few.write_text("how high is the lamp?\nwho repaired the bell?\n")
    adapt(reports, out, small_encoder, dry_run=True)
    with pytest.raises(QontextError, match=r"few.txt: has too few questions: 2\."):
        adapt(reports, out, small_encoder, questions=few, dry_run=True)
