"""What is shown of an answer, and where it stands: the sentence that answers, not the passage's beginning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.corpus import make
from typer.testing import CliRunner

from qontext import api, cli
from qontext.data.places import Place, TextPlace
from qontext.retrieve.ask.answers import captions
from qontext.retrieve.ask.evidence import snippet
from qontext.retrieve.searcher import Answer, Searcher

PUMP = [
    ["Safety first. Never operate the pump without water in it."],
    ["Replace the impeller every other year, with the tool in the box."],
    ["If the red lamp blinks five times, the filter is clogged."],
]
Index = Callable[[Path], Searcher]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """A searcher by BM25 alone over a folder or file, with settings of `split`."""

    def make_searcher(source: Path, **settings: Any) -> Searcher:
        root = tmp_path / "adapted"
        api.split(source, out=root / "index" / "passages", **settings)
        api.index(root / "index" / "passages", backend="bm25", out=root / "index" / "bm25")
        (root / "adapted.json").write_text(
            '{"format": 1, "index": "index", "system": "bm25", "weights": [1.0, 0.0], "read_tokens": 64}'
        )
        return Searcher(root)

    return make_searcher


def test_an_answer_of_a_pdf_is_cited_with_its_own_page(tmp_path: Path, index: Index) -> None:
    search = index(make.pdf(tmp_path / "pump.pdf", PUMP))
    for question, page in (("never operate", 1), ("replace the impeller", 2), ("red lamp blinks", 3)):
        (answer,) = search(question)
        assert (str(answer.place), answer.place.page) == (f"pump.pdf, p. {page}", page)
    assert answer.as_json()["place"] == "pump.pdf, p. 3" and "spans" not in answer.as_json()
    (row,) = pq.read_table(next((tmp_path / "adapted/index/passages").glob("*.parquet"))).to_pylist()
    assert [span["page"] for span in row["spans"]] == [1, 2, 3], "one entry a page"
    shown = CliRunner().invoke(cli.app, ["search", str(tmp_path / "adapted"), "red lamp blinks five times"])
    assert "pump.pdf, p. 3" in shown.stdout and "the filter is clogged" in shown.stdout


def test_a_passage_on_several_pages_says_so_where_no_word_matches() -> None:
    text = "One.\nTwo."
    place = Place("a.pdf", (), page=1, last_page=2, spans=(TextPlace(0, page=1), TextPlace(5, page=2)))
    found = snippet("xyzzy", text, (0, 5))
    assert str(place.within(text, found.begin, found.end)) == "a.pdf, pp. 1–2" == str(place)


def test_joined_sections_are_cited_with_their_own_heading(tmp_path: Path, index: Index) -> None:
    import docx

    document = docx.Document()
    for heading, text in (
        ("Daily allowance", "You get forty euros a day."),
        ("Lost luggage", "Report it at once."),
    ):
        document.add_heading(heading, 1)
        document.add_paragraph(text)
    document.save(tmp_path / "travel.docx")
    search = index(tmp_path / "travel.docx")
    (allowance,), (luggage,) = search("how many euros"), search("when to report it")
    assert str(allowance.place) == "travel.docx › Daily allowance"
    assert str(luggage.place) == "travel.docx › Lost luggage"
    assert (
        allowance.snippet == "Daily allowance\nYou get forty euros a day.\nLost luggage\nReport it at once."
    )


def test_records_of_one_document_are_cited_with_their_own_line(tmp_path: Path, index: Index) -> None:
    path = tmp_path / "corpus.jsonl"
    texts = ("Insert left\nof equal values.", "Insert right of equal values.", "Search in a list.")
    rows = [{"_id": f"b:{n}", "doc_id": "bisect", "title": "bisect", "text": t} for n, t in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    joined = index(path)
    assert [str(joined(q)[0].place) for q in ("insert left", "right", "a list")] == [
        f"corpus.jsonl, line {n}" for n in (1, 2, 3)
    ]
    shutil.rmtree(tmp_path / "adapted")
    kept = index(path, keep=True)
    assert {a.id: str(a.place) for a in kept("insert search list")} == {
        f"b:{n}": f"corpus.jsonl, line {n + 1}" for n in range(3)
    }
    captioned = captions(kept("insert equal values"))
    assert captioned == [("bisect", f"corpus.jsonl, line {n + 1}, b:{n}") for n in (0, 1)]


def test_equal_titles_are_told_apart_and_others_stay_short() -> None:
    answers = [Answer(n, 1.0, f"d#{n}", "d", title, "", Place("d")) for n, title in enumerate("aab")]
    assert captions(answers) == [("a", "d, d#0"), ("a", "d, d#1"), ("b", "d")]


def test_servers_and_frameworks_cite_the_same_place(tmp_path: Path, index: Index) -> None:
    pytest.importorskip("fastapi")
    from qontext.serve import api as http
    from qontext.serve import mcp, pages
    from qontext.serve.systems import Opener

    index(make.pdf(tmp_path / "pump.pdf", PUMP))
    path = str(tmp_path / "adapted" / "index" / "bm25")
    (system,) = Opener("cpu").open("words", path)
    question, cited = "why does the red lamp blink?", "pump.pdf, p. 3"
    hits = system.run({"q": question}, 1)["q"]
    (answer,) = system.answers(question, hits)
    served = http._hit(system, answer)
    assert (served.place, "red lamp blinks" in served.snippet) == (cited, True)
    assert mcp._results(system, question, hits, 0, 2_000)[0].place == cited
    result = pages._result(system, answer, question, None, set())
    assert str(result.answer.place) == cited and "lamp" in {
        part.text for part in result.text if part.is_marked
    }
    (one,) = Searcher(path)(question, 1)
    assert (one.metadata["place"], one.metadata["page"], one.metadata["author"]) == (cited, 3, "Eve")


FILLER = "It is a fine and quiet day by the wide river. "


def test_a_snippet_shows_the_sentence_that_answers() -> None:
    text = FILLER * 12 + "The red lamp blinks five times if the filter is clogged. " + FILLER * 12
    found = snippet("why does the lamp blink five times?", text)
    shown, begin, end = found.text, found.begin, found.end
    assert text[begin:end] == "The red lamp blinks five times if the filter is clogged."
    assert text[begin:end] in shown and len(shown) < 340
    assert shown.startswith("…") and shown.endswith("…") and " …" not in shown and "… " not in shown
    assert {*shown.strip("…").split()} <= {*text.split()}, "no word is cut"


def test_rare_words_decide_if_there_is_an_index() -> None:
    text = "How to start the engine on the boat on the river. The carburetor leaks."
    rarity = {"carburetor": 9.0}
    shown = snippet(
        "carburetor of the boat on the river",
        text,
        rarity=lambda term: rarity.get(term, 0.1),
    )
    assert text[shown.begin : shown.end] == "The carburetor leaks."


def test_code_keeps_its_lines() -> None:
    code = "def total(values):\n    result = 0\n    for value in values:\n        result += value\n    return result"
    assert snippet("sum of values", code, (0,)).text == code
    prose = "A text that is wrapped\nat some width, as\nin mail.\n\nAnother paragraph."
    assert (
        snippet("mail", prose).text == "A text that is wrapped at some width, as in mail.\nAnother paragraph."
    )
