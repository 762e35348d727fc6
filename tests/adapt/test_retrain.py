"""Training again: a directory answers with what it has until the new model and its index are complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.adapt.calls import adapt
from tests.adapt.test_update import answers, indexes

from qontext.adapt import run, state
from qontext.frame.artifacts import Workdir, open_artifact
from qontext.frame.errors import QontextError
from qontext.retrieve.directory import (
    index_of,
    model_of,
    next_generation,
    read_adapted,
    verify_model,
    write_adapted,
)
from qontext.retrieve.searcher import Searcher


def models(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.name.startswith("model"))


def end(*args: Any, **settings: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def trained(adapted: Any, small_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The directory with the trained encoder, whatever the verdict is."""
    judge = run._judge
    monkeypatch.setattr(
        run, "_judge", lambda *given: replace(judge(*given), system="hybrid", encoder="adapted")
    )
    adapt(adapted.documents, adapted.out, small_encoder)
    assert models(adapted.out) == ["model"] and read_adapted(adapted.out)["system"] == "hybrid"
    return adapted


def test_a_directory_answers_while_it_is_trained_again_and_if_that_is_ended(
    trained: Any, small_encoder: Path, write_documents: Callable[..., Path], report: Callable[..., Any]
) -> None:
    out, before, about = trained.out, answers(trained.out), read_adapted(trained.out)
    changed = write_documents([report(number) for number in range(2, 32)], "docs.jsonl")
    searcher = Searcher(out)  # which reads its parts when they are first needed
    for place in ("qontext.cluster.torchrun.run_steps", "qontext.adapt.vector_index.measure"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, end)
            with pytest.raises(KeyboardInterrupt):
                adapt(changed, out, small_encoder, retrain=True)
        assert read_adapted(out) == about and answers(out) == before
        planned = state.read_planned(out)
        assert planned is not None and planned.is_pending
    assert models(out) == ["model", "model-2"] and indexes(out)[-2:] == ["index-2", "index-3"]
    plan = (out / "plan.json").read_text()
    adapt(changed, out, small_encoder, retrain=True)
    # The same plan was carried out, not another one.
    assert json.loads((out / "plan.json").read_text())["plan"] == json.loads(plan)["plan"]
    assert read_adapted(out)["model_digest"] != about["model_digest"]
    vectors = open_artifact(index_of(out) / "vectors").summary
    assert vectors["encoded_now"] == 0, "those with which the new encoder was measured"
    assert list(searcher.search("Which year was the bell of Corrie 12 repaired?", k=5)) == before
    assert "report-31" in {answer.document for answer in Searcher(out).search("lighthouse", k=500)}
    verify_model(out)
    assert (models(out), indexes(out)) == (["model", "model-2"], ["index-2", "index-3"])
    assert model_of(out) == str(out / "model-2") and answers(out)


def test_of_each_folder_the_named_generation_and_the_one_before_stay(tmp_path: Path) -> None:
    for name in ("model", "model-2", "model-3", "index", "index-2", "index-10"):
        (tmp_path / name).mkdir()
    about = {"system": "start", "weights": [1, 1], "read_tokens": 64}
    write_adapted(tmp_path, {**about, "index": "index-10", "model_folder": "model-2"})
    assert models(tmp_path) == ["model", "model-2"] and indexes(tmp_path) == ["index-10", "index-2"]
    assert next_generation(index_of(tmp_path)).name == "index-11"


def test_a_directory_with_a_plan_to_carry_out_is_not_refreshed(adapted: Any) -> None:
    from qontext import api

    planned = state.read_planned(adapted.out)
    assert planned is not None
    replace(planned, is_pending=True).write(Workdir(adapted.out))
    with pytest.raises(QontextError, match="has a plan that is not carried out"):
        api.refresh(adapted.out)
