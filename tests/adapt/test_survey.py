"""What is looked at and timed before anything is planned stands for the whole, however the documents are ordered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qontext import api
from qontext.adapt import rates, recipes, starts
from qontext.adapt.config import AdaptConfig, Request
from qontext.adapt.prepare import _notes
from qontext.adapt.survey import fertility, spread, survey, words_in
from qontext.data.collection import Passage
from qontext.retrieve.analyzer import CODE
from qontext.retrieve.language import language_of

REQUEST = Request(
    documents="d", labels=None, splits=(), labeled=0, encoder="", generate={}, pretrain={}, max_tokens=144,
    read_tokens=256, budget=0, device="cpu", keep=False, language="en", tokenizer="words",
)  # fmt: skip


def request(encoder: str) -> Request:
    pretrain = {"method": "cocondenser", "encoder": encoder, "max_tokens": 32}
    return replace(
        REQUEST, encoder=encoder, pretrain=pretrain, generate={"generator": "keyphrase"}, read_tokens=64
    )


def test_texts_that_are_timed_are_as_long_as_the_whole_source_has_them(
    write_documents: Callable[..., Path],
    small_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first half of the source has long texts, the second short ones."""
    words = [120] * 500 + [12] * 500
    documents = write_documents(
        [
            {"_id": str(n), "text": " ".join(f"w{n + i}" for i in range(count))}
            for n, count in enumerate(words)
        ]
    )
    sample = survey(str(documents)).sample
    timed: dict[str, list[int]] = {}
    write = rates._write

    def noted(folder: Path, passages: list[Passage]) -> Path:
        timed[folder.name] = [len(passage.text.split()) for passage in passages]
        return write(folder, passages)

    monkeypatch.setattr(rates, "_write", noted)
    speeds = rates.measure(sample, request(str(small_encoder)), tmp_path)
    assert {name: len(counts) for name, counts in timed.items()} == {
        "encoded-1": 1, "encoded-12": 12, "encoded-192": 192, "trained": 64
    }  # fmt: skip
    for counts in (timed["trained"], timed["encoded-192"]):
        assert sum(counts) / len(counts) == pytest.approx(sum(words) / len(words), rel=0.1)
    assert speeds.trained > 0 and speeds.encoded > 0


def test_on_a_slow_machine_little_is_timed(
    write_documents: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = write_documents(
        [{"_id": str(n), "text": f"The mill number {n} grinds flour."} for n in range(300)]
    )
    encoded: list[int] = []

    def encode(texts: Path, **_: Any) -> Any:
        encoded.append(len((texts / "corpus.jsonl").read_text().splitlines()))
        return SimpleNamespace(summary={"texts_per_second": 0.5})

    monkeypatch.setattr(rates.api, "encode", encode)
    speeds = rates.measure(survey(str(documents)).sample, request("none"), tmp_path)
    assert encoded == [1, 12], "it would take minutes to encode more"
    assert speeds.trained == pytest.approx(0.27 * 0.5), "not timed"


def test_the_survey_counts_what_split_leaves_out(write_documents: Callable[..., Path]) -> None:
    documents = write_documents(
        [
            {"_id": "a", "text": "A mill. " * 200},
            {"_id": "a", "text": "The mill again. " * 200},
            {"_id": "b", "text": " "},
            {"_id": "c", "text": "A lone surrogate \ud800. " * 200},
        ]
    )
    source = survey(str(documents))
    assert source.documents == 1 and source.unusable == 3
    left_out = api.split(str(documents), on_error="skip", out=documents.parent / "passages").summary[
        "skipped"
    ]
    assert {name.replace(" ", "_"): count for name, count in source.problems.items()} == left_out


def test_fewer_than_are_wanted_are_all_there_once(write_documents: Callable[..., Path]) -> None:
    documents = write_documents([{"_id": str(n), "text": f"text number {n}"} for n in range(7)])
    sample = survey(str(documents)).sample
    assert spread(sample, 200) == list(sample) and len(spread(sample, 3)) == 3


def test_a_sample_with_an_id_twice_is_timed(
    write_documents: Callable[..., Path], small_encoder: Path, tmp_path: Path
) -> None:
    documents = write_documents(
        [{"_id": str(n % 20), "text": f"The bridge over the river {n} was rebuilt."} for n in range(30)]
    )
    sample = survey(str(documents)).sample
    assert rates.measure(sample, request(str(small_encoder)), tmp_path / "out").encoded > 0
    assert not (tmp_path / "out").exists()


def test_files_of_formats_count_as_documents_and_others_as_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<title>A</title><nav>Home</nav><p>The mill grinds flour.</p>")
    (tmp_path / "b.md").write_text("# B\n\nA boat.")
    (tmp_path / "c.png").write_bytes(b"x")
    (tmp_path / "d.txt").write_bytes(b"\xff")
    source = survey(str(tmp_path))
    assert (source.documents, source.keep, dict(source.unread)) == (2, False, {".png": 1})
    assert (source.unusable, source.problems) == (1, {"wrong encoding": 1})
    assert [passage.text for passage in source.sample] == ["The mill grinds flour.", "A boat."]


@pytest.mark.parametrize("read", [2, 9])
def test_a_part_of_the_source_has_a_part_of_the_unusable_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    """The plan does not say that fewer documents are left out than the run leaves out."""
    monkeypatch.setattr("qontext.adapt.survey.SAMPLE_DOCUMENTS", read)
    for name, content in (
        ("a", b"\xff"),
        ("b", b"A mill."),
        ("c", b"A boat."),
        ("d", b"A leaf."),
        ("e", b"\xff"),
    ):
        (tmp_path / f"{name}.txt").write_bytes(content)
    number = "at least 1 document is" if read == 2 else "2 documents are"
    count = 1 if read == 2 else 2
    assert survey(str(tmp_path)).left_out == f"{number} left out: {count} × wrong encoding."


def test_rows_of_a_large_table_are_not_overestimated(tmp_path: Path) -> None:
    """Only 5,000 rows are read, which are no whole number of what is decoded together."""
    file = tmp_path / "docs.parquet"
    rows = {"_id": [str(n) for n in range(12_000)], "text": ["The mill grinds flour."] * 12_000}
    pq.write_table(pa.table(rows), file)
    found = survey(str(file))
    assert not found.exact and found.documents == pytest.approx(12_000, rel=0.01)


@pytest.mark.parametrize(
    ("text", "language", "analyzer"),
    [
        ('def get_file_name(path):\n    """The name of a file."""\n    return baseName(path)', CODE, "code"),
        ("O'Brien's mRNA. " + "The miller of the mill grinds flour, and the boat floats. " * 3, "en", None),
        ("Der Müller und die Mühle, das ist getFileName für ein file_name und nicht für die Mühle", "de", "german"),
    ],
)  # fmt: skip
def test_words_of_source_code_are_searched_by_the_parts_of_names(
    text: str, language: str, analyzer: str | None
) -> None:
    assert language_of([text]) == language
    request = replace(REQUEST, language=language)
    assert request.words == {"analyzer": analyzer}
    recipe = recipes.serving_recipe(request, None, {}, None, tokens=False)
    assert recipe.steps[0].settings.get("language") == ("de" if language == "de" else None)


def test_the_default_encoder_of_source_code_is_that_of_english(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("def get_file_name(path):\n    return base_name(path)\n")
    monkeypatch.setattr(starts, "encoder_for", lambda language: language)
    config, _ = starts.settled(AdaptConfig(documents=str(tmp_path), encoder=()), None, tmp_path)
    assert (survey(str(tmp_path)).language_name, config.encoder) == ("source code", ("en",))


def test_many_tokens_for_a_name_do_not_say_that_a_vocabulary_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def get_file_name(path):\n    return base_name(path)\n")
    found = survey(str(tmp_path))

    def tokenizer(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [5] * len(text)}  # a token for each character

    tokenizer.unk_token_id, tokenizer.all_special_ids = 0, []  # type: ignore[attr-defined]
    assert _notes(found, *fertility(found.sample, tokenizer)) == []
    (note,) = _notes(replace(found, language="en"), *fertility(found.sample, tokenizer))
    assert "does not fit this language" in note


@pytest.mark.parametrize(
    ("text", "words"), [("天地玄黃宇宙洪荒，日月盈昃辰宿列張。", 10), ("ภาษาไทยไม่มีวรรค", 4)]
)
def test_scripts_without_spaces_have_words(
    write_documents: Callable[..., Path], text: str, words: int
) -> None:
    assert words_in(text) == words and words_in(f"two words {text}") == words + 2
    documents = [{"_id": str(n), "text": text * 200} for n in range(20)]
    source = survey(str(write_documents(documents)))
    assert not source.keep, "too long to be read as they are"
    assert source.words_per_document == pytest.approx(200 * words, rel=0.1)
    assert source.passages(144) > 20 * 200 * words / 144
    assert max(words_in(passage.text) for passage in source.sample) == 80
    assert fertility(source.sample, TokenPerCharacter())[0] == pytest.approx(len(text) / words, rel=0.1)


class TokenPerCharacter:
    unk_token_id = 0

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": [1] * len(text)}
