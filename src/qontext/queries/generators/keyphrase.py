"""Pseudo-queries without a model: extracts of a passage, shortened to the length of typical queries. Five
kinds in turn, each from a different sentence or set of words, so that the C queries of a passage differ:

1. ``terms``     title and the most salient words of the passage, in text order
2. ``question``  a question that one of its sentences answers (rules for English), or one that it contains
3. ``focus``     title and the content words of one sentence
4. ``sentence`` one sentence, unchanged (the inverse cloze task)
5. ``lead``      the opening sentence, shortened

A word's salience is a product of how much likelier people's questions were found to use a word of its kind
(training splits of a Wikipedia, a story and a health set): frequency in the passage (x3 for two
occurrences), in the title (x8), capitalized (x2), early (x3 from end to start). Rarity in the corpus
matters little in the middle; very common words and words of a single passage are asked for less.

Texts in another language than English have their own common words in place of English function words, and only the
questions that they contain. Where there are no spaces between words, clauses stand for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from qontext.data.collection import Passage, read_passages
from qontext.frame.config import Options
from qontext.queries.generators import Generator, Task
from qontext.queries.generators.questions import RULES, ask
from qontext.queries.words import STOP_WORDS, Array, Rarity, TokenArrays
from qontext.training.randomness import key_of, uniform

KINDS = ("terms", "question", "focus", "sentence", "lead")
_PRONOUNS = frozenset(("It", "He", "She", "They"))
_SIGNS = " .,;:'’-"


class TitleOptions(Options):
    """Read by the generators `keyphrase` and `span`."""

    title: Literal["prepend", "leave"] = "prepend"
    """Begin queries with the passage's title, as the passage does, or make them of its text alone."""


class Keyphrase(Generator):
    """Passages → queries. A pure function of (passage, seed, corpus statistics)."""

    Options = TitleOptions
    is_quick = True

    def __init__(self, options: TitleOptions, task: Task, rarity: Rarity | None = None) -> None:
        super().__init__(options, task)
        # Every process reads the corpus for its statistics, since it is fast.
        self.rarity = rarity or Rarity(read_passages(task.passages))

    def __call__(self, passages: Sequence[Passage]) -> Iterator[tuple[int, list[str]]]:
        if self.options.title == "leave":
            passages = [passage._replace(title="") for passage in passages]
        count = self.task.per_passage
        view = _View(passages, self.rarity, self.task.seed, rounds=-(-count // len(KINDS)) + 1)
        # A kind without a new query is skipped; the last round compensates for that.
        turns = [(turn, number, kind) for turn in range(view.rounds) for number, kind in enumerate(KINDS)]
        for index in range(len(passages)):
            lines, queries = view.lines_of(index), dict[str, None]()
            for turn, number, kind in turns if lines else ():
                if len(queries) < count and (
                    query := getattr(view, kind)(index, lines, turn * 3 + number % 3, turn)
                ):
                    queries[query] = None
            yield index, list(queries)


class _View:
    """A batch of P passages for the kinds: T tokens, S sentences, E (passage, word) entries."""

    def __init__(self, passages: Sequence[Passage], rarity: Rarity, seed: int, rounds: int) -> None:
        self.rounds, self.seed = rounds, seed
        self.rules = list(RULES) if rarity.are_english else ["itself"]
        self.titles = [" ".join(p.title.split()[:8]) for p in passages]
        keys = np.array([key_of(p.id) for p in passages], dtype=np.uint64)
        # Titles and texts share one dictionary, so that a word has one code in both.
        tokens = TokenArrays.of([p.text for p in passages] + self.titles)
        self.tokens, P, V = tokens, len(passages), len(tokens.words)
        owner = np.repeat(np.arange(len(tokens.starts) - 1), np.diff(tokens.starts))
        split = int(tokens.starts[P])
        entry_of_token = owner * V + tokens.word[tokens.token]
        entries, first, inverse, count = np.unique(
            entry_of_token[:split], return_index=True, return_inverse=True, return_counts=True
        )
        self.in_title = _among(entries, entry_of_token[split:] - P * V)
        weight = self._salience(entries % V, first, count, owner, rarity)
        self.token: list[int] = tokens.token[:split].tolist()
        self._make_lines(owner[:split], keys, weight[inverse], seed)
        self._make_terms(entries // V, first, weight, keys)
        self._make_focus(weight[inverse], self.in_title[inverse])

    def _salience(self, word: Array, first: Array, count: Array, owner: Array, rarity: Rarity) -> Array:
        tokens = self.tokens
        stop = rarity.stop(tokens.words)
        short = np.array([len(w) < 3 or w[0].isdigit() for w in tokens.words])
        rare = rarity.of(tokens.words)[word]
        place = owner[first]
        position = (first - tokens.starts[place]) / np.diff(tokens.starts)[place]
        weight = np.where(rare < 0.6, 0.3 + rare, np.where(rare < 0.95, 0.9, 0.6)) * (3.0 - 2.0 * position)
        weight *= np.array([0.0, 1.0, 3.0, 5.0, 7.0])[np.minimum(count, 4)]
        # Capitals are informative except at the start of a sentence.
        opens = np.concatenate([[True], tokens.ends[:-1]])[first]
        capital = tokens.capital[tokens.token[first]] & ~opens
        weight *= np.where(self.in_title, 8.0, np.where(capital, 2.0, 1.0))
        weight *= np.where(short[word], 0.5, 1.0)
        return np.where(stop[word], 0.0, weight)

    def _make_lines(self, owner: Array, keys: Array, weight: Array, seed: int) -> None:
        """Sentences in a seeded order: drawn without replacement, with odds by their mean salience."""
        ends = np.flatnonzero(self.tokens.ends[: len(owner)]) + 1
        begins = np.concatenate([[0], ends])[:-1].astype(np.int64)
        self.bounds: list[tuple[int, int]] = list(zip(begins.tolist(), ends.tolist()))
        passage = owner[begins] if len(begins) else np.zeros(0, np.int64)
        self.first_line = np.searchsorted(passage, np.arange(len(keys) + 1))
        # Long sentences have no advantage; very short ones are unlikely.
        length = ends - begins
        mean = np.add.reduceat(weight, begins) / (length + 6.0) if len(begins) else np.zeros(0)
        mean = np.where(length < 4, 1e-6, mean + 1e-3)
        dice = uniform(seed, "lines", keys[passage], np.arange(len(begins)) - self.first_line[passage])
        # Efraimidis and Spirakis: the largest u^(1/w) first.
        self.order = np.lexsort((-(np.log1p(-dice) / mean), passage))
        self.focus_of = np.repeat(np.arange(len(begins)), length)

    def _make_terms(self, passage: Array, first: Array, weight: Array, keys: Array) -> None:
        """The four or five heaviest words of each passage per round, as token numbers in text order."""
        live = np.flatnonzero((weight > 0) & ~self.in_title)
        live = live[np.argsort(first[live])]  # in text order: words are numbered as the batch meets them
        passage, first, weight = passage[live], first[live], weight[live]
        starts = self.tokens.starts[: len(keys) + 1]
        key, places = keys[passage], first - starts[passage]
        self.term_tokens: list[tuple[list[int], list[int]]] = []
        for turn in range(self.rounds):
            # The first round takes the best; later ones draw around it.
            noise = uniform(self.seed, "terms", key, places, turn) ** 0.7 if turn else 1.0
            heaviest = np.sort(first[_heaviest(passage, weight * noise, 4 + turn % 2)])
            self.term_tokens.append((heaviest.tolist(), np.searchsorted(heaviest, starts).tolist()))

    def _make_focus(self, weight: Array, in_title: Array) -> None:
        """The six heaviest words of each sentence, in order."""
        weight = np.where(in_title, 0.0, weight)
        heaviest = np.sort(_heaviest(self.focus_of, weight, 6))
        self.focus_tokens = heaviest.tolist()
        self.focus_bounds = np.searchsorted(self.focus_of[heaviest], np.arange(len(self.bounds) + 1)).tolist()

    def lines_of(self, index: int) -> list[int]:
        """The numbers of the passage's sentences, most salient first."""
        lines: list[int] = self.order[self.first_line[index] : self.first_line[index + 1]].tolist()
        return lines

    def terms(self, index: int, lines: list[int], pick: int, turn: int) -> str:
        tokens, bounds = self.term_tokens[turn]
        return self._titled(index, tokens[bounds[index] : bounds[index + 1]])

    def focus(self, index: int, lines: list[int], pick: int, turn: int) -> str:
        line = lines[pick % len(lines)]
        return self._titled(index, self.focus_tokens[self.focus_bounds[line] : self.focus_bounds[line + 1]])

    def question(self, index: int, lines: list[int], pick: int, turn: int) -> str:
        if turn == 0:
            self.questions = self._questions(index, lines)
        return next(self.questions, "")

    def _questions(self, index: int, lines: list[int]) -> Iterator[str]:
        for line in lines:
            text = self._text(line)
            clause = self._named(index, text)
            # A subject that replaced a pronoun may be wrong, so no question asks what it is.
            rules = [rule for rule in self.rules if rule != "definition" or clause is text]
            if question := ask(clause, rules):
                yield question

    def sentence(self, index: int, lines: list[int], pick: int, turn: int) -> str:
        return shorten(self._named(index, self._text(lines[pick % len(lines)])), 20)

    def lead(self, index: int, lines: list[int], pick: int, turn: int) -> str:
        if turn:
            return self.focus(index, lines, pick, turn)
        return shorten(self._named(index, self._text(int(self.first_line[index]))), 12)

    def _titled(self, index: int, places: list[int]) -> str:
        """Title first, then the terms (they are not in the title)."""
        bare = self.tokens.bare
        rest = [*dict.fromkeys(bare[self.token[place]] for place in places)]
        return " ".join([self.titles[index], *rest] if self.titles[index] else rest)

    def _named(self, index: int, text: str) -> str:
        """Replace a pronoun at the start of a sentence by the passage's title."""
        first, _, rest = text.partition(" ")
        return f"{self.titles[index]} {rest}" if first in _PRONOUNS and self.titles[index] else text

    def _text(self, line: int) -> str:
        begin, end = self.bounds[line]
        words = self.tokens.written
        return " ".join([words[token] for token in self.token[begin:end]])


def shorten(line: str, most: int) -> str:
    """At most a number of words, without trailing punctuation or function words."""
    words = line.split()
    if len(words) > most:
        words = words[:most]
        while len(words) > 3 and words[-1].lower().strip(_SIGNS) in STOP_WORDS:
            words.pop()
    return " ".join(words).strip(_SIGNS)


def _heaviest(group: Array, weight: Array, most: int) -> Array:
    """The numbers of the `most` heaviest members of each group, the first of equal ones; members without
    weight are skipped."""
    live = np.flatnonzero(weight > 0)
    order = live[np.lexsort((-weight[live], group[live]))]
    grouped = group[order]
    rank = np.arange(len(order)) - np.searchsorted(grouped, grouped)
    heaviest: Array = order[rank < most]
    return heaviest


def _among(sorted_values: Array, some: Array) -> Array:
    """[len(sorted_values)] which of the values are among `some`."""
    is_among = np.zeros(len(sorted_values), bool)
    place = np.searchsorted(sorted_values, some)
    some, place = some[place < len(is_among)], place[place < len(is_among)]
    is_among[place[sorted_values[place] == some]] = True
    return is_among
