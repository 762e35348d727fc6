"""What every way to search must keep, and what every server must, asked of a real Milvus server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.retrieve.server_contract import (  # noqa: F401
    Server,
    test_a_collection_that_exists_is_refused,
    test_a_killed_build_that_replaces_an_earlier_index,
    test_conditions_are_left_to_a_server_that_means_the_same,
    test_texts_are_stored,
    texts_of,
    written,
)
from tests.retrieve.test_index_contract import (  # noqa: F401
    index,
    parts,
    test_equal_passages_tie_by_id,
    test_no_more_than_there_is_and_no_stranger,
    test_the_nearest_are_found_in_order,
    test_the_nearest_of_some_passages_are_those_of_all_without_the_others,
    test_the_same_twice,
    vectors,
)
from tests.retrieve.test_milvus import milvus

from qontext.frame.errors import QontextError


@pytest.fixture(scope="module")
def backend() -> str:
    return "milvus-server"


@pytest.fixture
def server(milvus_server: str) -> Server:
    return milvus(milvus_server)


def test_the_index_has_the_parameters_that_were_asked_for(index: Any) -> None:  # noqa: F811
    described = index.client.describe_index("contract", "vector")
    assert (described["index_type"], described["M"], described["efConstruction"]) == ("HNSW", "8", "100")


def test_a_wrong_password_is_one_sentence(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILVUS_TOKEN", "root:s3cret")
    small = written(tmp_path / "vectors", texts_of(50))
    with pytest.raises(QontextError, match=r"Milvus refuses the login. Set MILVUS_TOKEN") as refused:
        server.index(small, tmp_path / "index", "secret")
    assert "s3cret" not in str(refused.value) and not (tmp_path / "index").exists()


def test_an_index_type_that_the_server_lacks(server: Server, tmp_path: Path) -> None:
    small = written(tmp_path / "vectors", texts_of(50))
    with pytest.raises(QontextError, match=r"Milvus refuses: .*invalid index type: NOPE"):
        server.index(small, tmp_path / "index", "lacks", kind="NOPE")
    assert not (tmp_path / "index").exists()
