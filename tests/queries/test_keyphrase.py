"""Pseudo-queries without a model."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qontext.data.collection import Passage, read_passages
from qontext.queries.generators import Task
from qontext.queries.generators.keyphrase import Keyphrase, TitleOptions, _heaviest
from qontext.queries.generators.questions import ask, stands_alone
from qontext.queries.words import Rarity, TokenArrays

WORLD = [
    Passage("a", "Aldermoor", "The lighthouse of Aldermoor was built in 1834. It stands on a granite cliff near the sea. "
            "Many ships were saved because the keeper rang a bell in fog.", "d"),
    Passage("b", "Bees", "A waggle dance tells other bees the direction of flowers. The dance was decoded by Karl Frisch. "
            "Honey is stored in combs of wax.", "d"),
    Passage("c", "", "Bread rises because yeast turns sugar into carbon dioxide. The gas is trapped by gluten.", "d"),
]  # fmt: skip


def generator(per_passage=5, seed=1, title="prepend"):
    return Keyphrase(TitleOptions(title=title), Task("-", per_passage, seed), Rarity(WORLD))


def over(rarity):
    return Keyphrase(TitleOptions(), Task("-", 5, 1), rarity)


def generated(passages, **settings):
    return {passages[i].id: queries for i, queries in generator(**settings)(passages)}


def test_queries_of_a_passage_differ_and_use_its_words():
    for id, queries in generated(WORLD).items():
        assert len(queries) == len(set(queries)) == 5
        text = next(f"{p.title} {p.text}" for p in WORLD if p.id == id).lower()
        for query in queries:
            content = [w for w in TokenArrays.of([query]).words if len(w) > 4]
            assert content and sum(word in text for word in content) >= len(content) - 1


def test_the_same_whatever_stands_beside_it():
    together = generated(WORLD)
    assert together == {p.id: generated([p])[p.id] for p in WORLD} == generated(WORLD[::-1])


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        # The words number 2 and 7 weigh the same, and one of them is the fourth that is taken.
        ("The harbor froze.", "amber bramble cobalt dahlia ember falcon Granite Harbor", ""),
        # A date that follows a sentence is no part of it.
        (
            "",
            "The largest city was Billings with an increase of 14,323 from 2000-2010.",
            "In 1940 it rained.",
        ),
    ],
    ids=["equal weights", "what follows"],
)
def test_neighbors_decide_nothing(before: str, text: str, after: str) -> None:
    alone, *beside = (Passage(str(n), "", t, "d") for n, t in enumerate((text, before, after)))
    together = [p for p in (beside[0], alone, beside[1]) if p.text]
    assert generated(together)[alone.id] == generated([alone])[alone.id] != []


def test_the_heaviest_are_told_apart_in_any_part() -> None:
    weight, group = np.array([1.0, 1.0 + 1e-9]), np.array([3, 3])
    assert all(_heaviest(group + far, weight, 1).tolist() == [1] for far in (0, 1 << 20, 1 << 40))
    assert _heaviest(group, np.ones(2), 1).tolist() == [0]


def test_more_queries_begin_with_the_same_ones():
    few, many = generated(WORLD, per_passage=3), generated(WORLD, per_passage=9)
    assert all(many[id][:3] == few[id] for id in few)


def test_title_words_stand_first_and_once():
    terms = generated(WORLD)["a"][0].split()
    assert terms[0] == "Aldermoor" and terms.count("Aldermoor") == 1 and len(terms) == 5


def test_without_the_title_queries_are_those_of_a_passage_that_has_none() -> None:
    untitled = [passage._replace(title="") for passage in WORLD]
    assert generated(WORLD, title="leave") == generated(untitled) != generated(WORLD)


def test_rare_is_counted_over_passages_not_over_words():
    rarity = Rarity(
        [Passage("1", "", "fog fog fog", ""), Passage("2", "", "fog rain", ""), Passage("3", "", "sun", "")]
    )
    fog, rain, unknown = rarity.of(["fog", "rain", "never"])
    assert 0 < fog < rain == unknown == 1.0


@pytest.mark.parametrize(
    ("sentence", "question"),
    [
        ("A glacier is a slow river of ice.", "what is glacier?"),
        ("The dance was decoded by Karl von Frisch.", "who decoded the dance?"),
        ("The lighthouse of Aldermoor was built in 1834.", "when was the lighthouse of Aldermoor built?"),
        ("Ships were saved because the keeper rang a bell.", None),  # three words are left: too vague
        (
            "Hundreds of old ships were saved because the keeper rang.",
            "why were Hundreds of old ships saved?",
        ),
        ("The city has about 12 parks along the river.", "how many parks has the city along the river?"),
        ("Ada Finch designed the first tower on the coast.", "who designed the first tower on the coast?"),
        ("What is left behind by the ice?", "What is left behind by the ice?"),
        ("It is a slow river.", None),
        ("I saw him build it last winter by the sea.", None),
        ("Green leaves.", None),
    ],
)
def test_rules(sentence, question):
    assert ask(sentence) == question


def test_sentences_end_where_people_end_them():
    text = (
        'Mr. Finch met J. Doe at 3.5 km. They spoke, e.g. of bees. What now? "Nothing!" he said.\nA new line'
    )
    tokens = TokenArrays.of([text])
    lines, line = [], []
    for token, last in zip(tokens.token.tolist(), tokens.ends.tolist()):
        line.append(tokens.written[token])
        if last:
            lines.append(" ".join(line))
            line = []
    assert lines == ["Mr. Finch met J. Doe at 3.5 km.", "They spoke, e.g. of bees.", "What now?", "Nothing! he said.", ".",
                     "A new line"]  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        "References",
        "Table of Contents",
        "# NT stuff",
        "sympy.core.exprtools >>> import Factors",
        "from django.db import models",
        "remaining = n . for i in range",
        "@ property def name",
        "If the Work includes a NOTICE text file",
        "Unless you agree to it",
        "m.pm package Foo sub 1",
        "package Foo sub run",
        "def area return width height",
        "3 4 5 6 7",
        "====== -----",
        "it is so",
    ],
)
def test_what_is_no_question(query):
    assert not stands_alone(query)


@pytest.mark.parametrize(
    "query",
    [
        "What is samsara?",
        "who invented C++?",
        "if statement syntax",
        "If the lamp fails, who repairs it",
        "If the red lamp blinks, call the service",
        "json.dumps indent",
        "how to import a module in python",
        "std::vector push_back complexity",
        "How would the XMLFilenameFilter be used?",
        "set max_length to 256",
        "AT&T headquarters",
        "Wann wurde die Glocke repariert",
        "когда звонит колокол",
        "灯塔在哪里",
        "radar index errors",
        "class method decorator python",
        "function returns None",
        "package.json scripts field",
    ],
)
def test_what_is_an_ordinary_question(query):
    assert stands_alone(query)


@pytest.mark.parametrize(
    ("language", "common"),
    [("de", "der die das und in den von mit zu des"), ("es", "de la el en y que los del las")],
)
def test_other_languages_have_stop_words_of_their_own(
    shared_data: Callable[[str], Path], language: str, common: str
) -> None:
    passages = list(read_passages(shared_data(f"xquad_{language}")))
    rarity = Rarity(passages)
    assert not rarity.are_english and rarity.stop(common.split()).all()
    assert not rarity.stop(["universität", "universidad", "was"]).any(), (
        "an English function word is none here"
    )
    terms = [queries[0] for _, queries in over(rarity)(passages)]
    assert not [q for q in terms if set(common.split()) & set(q.split("_")[-1].split()[1:])]


def test_clauses_stand_for_words_where_there_are_no_spaces(shared_data: Callable[[str], Path]) -> None:
    passages = list(read_passages(shared_data("xquad_zh")))
    queries = [queries for _, queries in over(Rarity(passages))(passages)]
    assert all(len(own) == len(set(own)) >= 3 for own in queries)
    lengths = sorted(len(query) for own in queries for query in own)
    texts = sorted(len(passage.text) for passage in passages)
    assert lengths[len(lengths) // 2] < texts[len(texts) // 2] / 2, "no query is the whole passage"
