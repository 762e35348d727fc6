"""Every stage that is made of parts: the same result from one process, several shards, and ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cluster.conftest import COMMANDS, Inputs
from tests.tiny import Server

from qontext import api
from qontext.data import records
from qontext.data.collection import read_passages
from qontext.data.load import PassageRows, refuse_repeated_ids
from qontext.frame import artifacts
from qontext.frame.artifacts import Workdir
from qontext.frame.errors import QontextError
from qontext.frame.stages import load
from qontext.retrieve import stored


@pytest.mark.parametrize("name", COMMANDS)
def test_shards_make_what_one_process_makes(inputs: Inputs, tmp_path: Path, name: str) -> None:
    stage = load(name.split()[0])
    config = stage.config.make(inputs.settings(name), where=name)
    planned = stage.run(config, Workdir(tmp_path / "planned", world=3)).plan()
    assert len(planned) >= 3, "too few parts to share"
    for number in (2, 0, 1):
        artifact = inputs.make(name, tmp_path / "out", shard=f"{number}/3")
    assert artifact.digest == inputs.digest(name) and not artifact.verify()
    hidden = {path.name for path in artifact.path.iterdir() if path.name.startswith(".")}
    assert all(name.startswith(".lock") for name in hidden), "scratch is left"


def test_ranks_make_what_one_process_makes(inputs: Inputs, tmp_path: Path, warm: Server) -> None:
    for name in ("encode", "tokens", "retrieve", "split"):
        warm.run(inputs.argv(name, tmp_path / name), tmp_path / "said", ranks=2)
        assert artifacts.open_artifact(tmp_path / name).digest == inputs.digest(name)


def test_a_shard_says_how_much_is_still_to_come(
    inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs.make("generate", tmp_path / "out", shard="0/3")
    assert "parts are missing and belong to other processes" in capsys.readouterr().err
    with pytest.raises(QontextError, match="not finished"):
        artifacts.open_artifact(tmp_path / "out")


def test_shards_write_a_directory_not_a_file(inputs: Inputs, tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="several processes can only write a directory"):
        inputs.make("rerank", tmp_path / "run.trec", shard="0/2")


def test_a_resumed_stage_knows_its_model_without_making_a_part(inputs: Inputs, tmp_path: Path) -> None:
    """Where all parts were made before, the model is opened for the summary alone."""
    artifact = inputs.make("encode", tmp_path / "out")
    (tmp_path / "out" / "meta.json").rename(tmp_path / "meta.json")
    claim = artifacts.read_description(tmp_path / "meta.json")
    Workdir(tmp_path / "out").write_json(
        "claim.json", {key: claim[key] for key in ("verb", "format", "config", "inputs", "key", "computed")}
    )
    again = inputs.make("encode", tmp_path / "out")
    assert again.digest == artifact.digest and again.summary["encoded_now"] == 0
    assert again.summary["weights"] == artifact.summary["weights"]


@pytest.mark.parametrize("on", ["cloud", "10.0.0.1", "ray://", "http://10.0.0.1:80", "10.0.0.1:123456"])
def test_a_place_that_does_not_exist_is_refused(inputs: Inputs, tmp_path: Path, on: str) -> None:
    with pytest.raises(QontextError, match="expected local, ray, HOST:PORT"):
        inputs.make("tokens", tmp_path / "out", on=on)


@pytest.mark.parametrize("source", ["passages", "labeled"])
def test_rows_are_read_from_any_place(inputs: Inputs, source: str) -> None:
    passages = list(read_passages(inputs.folder / source))
    rows = PassageRows(inputs.folder / source)
    assert rows.count() == len(passages) > 50
    for first, last in ((0, 7), (7, 30), (40, 50), (3, 5), (len(passages) - 1, len(passages)), (0, 60)):
        assert rows.read(first, last) == passages[first:last]


def test_files_before_a_part_are_not_read(inputs: Inputs, tmp_path: Path) -> None:
    """With damaged pages in the first files, the rows of the last one are still there."""
    files = records.parquet_parts(inputs.folder / "passages")
    for file in files:
        content = bytearray(file.read_bytes())
        if file != files[-1]:
            content[4:200] = bytes(196)
        (tmp_path / file.name).write_bytes(content)
    rows = PassageRows(tmp_path)
    count, last = rows.count(), pq.read_metadata(files[-1]).num_rows
    assert len(rows.read(count - last, count)) == last
    with pytest.raises(QontextError, match="damaged"):
        rows.read(0, 1)


def test_ids_of_a_foreign_table_are_compared(inputs: Inputs, tmp_path: Path) -> None:
    assert refuse_repeated_ids(inputs.folder / "passages") == records.count_rows(inputs.folder / "passages")
    table = pq.read_table(records.parquet_parts(inputs.folder / "passages")[0])
    for number in range(2):
        records.write_table(tmp_path / f"{number}.parquet", table)
    with pytest.raises(QontextError, match="occurs twice"):
        api.encode(tmp_path, encoder=inputs.folder / "encoder", out=tmp_path / "out")


def test_the_order_of_ids_is_stored_once(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = inputs.make("encode", tmp_path / "out")
    ids = [id for part in artifact.parts(".parquet") for id in pq.read_table(part)["id"].to_pylist()]
    opened = stored.open_vectors(artifact)
    assert ids != sorted(ids) == list(opened.ids)
    assert [opened.ids[n] for numbers, _ in opened.blocks() for n in numbers] == ids

    def sort(part_ids: object) -> None:
        raise AssertionError("sorted again")

    monkeypatch.setattr(stored, "numbers_of", sort)
    assert list(stored.open_vectors(artifact).ids) == sorted(ids)


def test_names_read_only_the_parts_in_which_they_are(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = inputs.make("encode", tmp_path / "out")
    ids = sorted(stored.open_vectors(artifact).ids)
    opened = stored.open_vectors(artifact)
    numbers = np.array([7, 0, len(ids) - 1, 7])
    assert opened.names(numbers).tolist() == [ids[n] for n in numbers]
    assert opened.names(np.arange(len(ids))).tolist() == ids
    opened, read, ids_of = stored.open_vectors(artifact), list[int](), stored.Encoded.ids_of

    def reading(self: stored.Encoded, part: int) -> pa.Array:
        read.append(part)
        return ids_of(self, part)

    monkeypatch.setattr(stored.Encoded, "ids_of", reading)
    last = opened.part_numbers[2][-1:]
    assert opened.names(last).tolist() == [ids[last[0]]] == opened.names(last).tolist()
    assert read == [2] and len(opened.parts) > 3


@pytest.mark.parametrize(
    "ids", [["b", "a", "c"], ["é", "z", "\U0001f600", "\uffee", "a", "Z", ""], ["a", "b", "a"], ["x"]]
)
def test_ids_are_ordered_as_python_orders_them(ids: list[str]) -> None:
    numbers, repeated = stored.numbers_of([pa.array(ids[:2]), pa.array(ids[2:], pa.string())])
    assert (repeated == "a") == (len(set(ids)) < len(ids))
    if repeated is None:
        assert [sorted(ids)[n] for n in numbers] == ids
