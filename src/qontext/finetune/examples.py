"""Training examples: queries with positives and negatives, and the passages of each visit to a query. Visit e
of a query takes its positives in turn and, from its negatives, shuffled once, a window that slides by its
width: every negative is used before one is repeated. The passages of a visit depend only on the query's id,
the seed and e.

Shapes: Q queries, P passages (numbered by first appearance), C passages per visit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qontext.data.collection import load_collection, read_passages
from qontext.data.runs import Run
from qontext.finetune.negatives.groups import Group, read_groups
from qontext.frame import log
from qontext.frame.errors import QontextError
from qontext.models.batching import Ints
from qontext.training.randomness import below, hashed
from qontext.training.texts import text_key

Floats = NDArray[np.float32]


@dataclass
class Example:
    """A query: its key, the numbers of its passages, and a teacher's scores, if any. `labeled` are all positives, also those
    that the teacher did not score."""

    key: int
    positives: Ints
    negatives: Ints
    labeled: Ints
    positive_scores: Floats
    negative_scores: Floats


class Examples:
    """All queries' examples, with their `place` and the path of their `passages`.

    After `attach_passage_keys`, `known` has the text keys of each query's positives. Queries with the same text share them.
    """

    def __init__(self, groups: Iterable[Group], place: str, teacher: Run | None = None) -> None:
        self.place, self.teacher = place, teacher
        self.number: dict[str, int] = {}
        self.texts: list[str] = []
        self.rows: list[Example] = []
        self.margin_bins: int | None = None
        self.unscored = self.without_negatives = 0
        self.known: list[Ints] = []
        self.passage_keys: Ints = np.empty(0, np.int64)
        for group in groups:
            self._add(group)
        if not self.rows:
            raise QontextError("contains no query to train on", place=place)

    def __len__(self) -> int:
        return len(self.rows)

    def _add(self, group: Group) -> None:
        positives = list(dict.fromkeys(group.positives))
        negatives = [p for p in dict.fromkeys(group.negatives) if p not in group.positives]
        scores: Mapping[str, float] = {}
        if self.teacher is not None and not negatives:
            self.without_negatives += 1  # no negative to compare with
            return
        if self.teacher is not None:
            scores = {hit.passage: hit.score for hit in self.teacher.get(group.query, [])}
            self.unscored += sum(p not in scores for p in (*positives, *negatives))
            positives = [p for p in positives if p in scores]
            negatives = [p for p in negatives if p in scores]
            if not positives or not negatives:
                raise QontextError(
                    f"the teacher scored no {'negative' if positives else 'positive'} of the query {group.query!r}",
                    place=self.place,
                    remedy="Score the groups with it: qontext rerank GROUPS --reranker MODEL",
                )
        self.texts.append(group.text)
        own, others, labeled = (self._numbers(some) for some in (positives, negatives, group.positives))
        of_own, of_others = (
            np.array([scores.get(p, np.nan) for p in some], np.float32) for some in (positives, negatives)
        )
        self.rows.append(Example(text_key(group.query), own, others, labeled, of_own, of_others))

    def _numbers(self, passages: list[str]) -> Ints:
        return np.array([self.number.setdefault(p, len(self.number)) for p in passages], np.int64)

    def contents(self, passages: str, between: str | None = " ") -> Iterator[tuple[int, str]]:
        """(number, title and text) of every passage that is named, in the order of the source; `between` as in
        `Passage.joined`."""
        missing = set(self.number)
        for passage in read_passages(passages):
            if passage.id in missing:
                missing.remove(passage.id)
                yield self.number[passage.id], passage.joined(between)
        if missing:
            raise QontextError(
                f"names the passage {min(missing)!r}, which is not in the passages ({len(missing):,} are missing)",
                place=self.place,
                remedy="Check that the groups were mined from these passages.",
            )

    def attach_passage_keys(self, passage_keys: Ints) -> None:
        """With the passages' text keys: collect the known positives, and remove them from the negatives."""
        self.passage_keys = passage_keys
        by_text: dict[str, set[int]] = {}
        for text, row in zip(self.texts, self.rows):
            by_text.setdefault(text.strip(), set()).update(passage_keys[row.labeled].tolist())
        known = {text: np.array(sorted(keys), np.int64) for text, keys in by_text.items()}
        self.known = [known[text.strip()] for text in self.texts]
        for row, keys in zip(self.rows, self.known):
            wrong = np.isin(passage_keys[row.negatives], keys)
            if wrong.any():
                row.negatives, row.negative_scores = row.negatives[~wrong], row.negative_scores[~wrong]

    def is_known_positive(self, number: int, passages: Ints) -> NDArray[np.bool_]:
        """A mask of the passages with the text of a positive of the query."""
        return np.isin(self.passage_keys[passages], self.known[number])

    def passages_per_visit(self, limit: int) -> int:
        """C: the requested number, or less if no query has that many."""
        most = 1 + max(len(row.negatives) for row in self.rows)
        if most < limit and most > 1:
            log.note(f"No query has {limit - 1} negatives; using {most} passages per query.")
        return min(limit, most)

    def left_out(self, per_visit: int) -> dict[str, int]:
        """Counts of skipped and filled passages by reason, for the summary."""
        short = sum(len(row.negatives) < per_visit - 1 for row in self.rows)
        counts = {
            "queries_filled_with_random_passages": short,
            "queries_without_negatives": self.without_negatives,
            "passages_without_teacher_score": self.unscored,
        }
        return {reason: count for reason, count in counts.items() if count}

    def visit(self, number: int, epoch: int, per_visit: int, seed: int) -> tuple[Ints, Floats]:
        """The passages [C] of a visit, the positive first, and the teacher's scores [C]; NaN where there is none.

        Where there are too few negatives, the rest are drawn from all passages. With `margin_bins`, negatives are drawn
        evenly from bins of the teacher's margin.
        """
        row, negatives = self.rows[number], per_visit - 1
        turn = np.argsort(hashed(seed, "positives", row.key, np.arange(len(row.positives))), kind="stable")
        first = turn[epoch % len(turn)]
        order = np.argsort(hashed(seed, "negatives", row.key, np.arange(len(row.negatives))), kind="stable")
        offsets = np.arange(min(negatives, len(order)))
        picked = order[(offsets + epoch * negatives) % max(len(order), 1)]
        if self.margin_bins and len(order):
            margins = row.positive_scores[first] - row.negative_scores
            picked = _evenly(margins, self.margin_bins, len(offsets), (seed, row.key, epoch))
        random = below(len(self.number), seed, "random", row.key, epoch, np.arange(negatives - len(offsets)))
        passages = np.concatenate([[row.positives[first]], row.negatives[picked], random])
        none = np.full(len(random), np.nan, np.float32)
        scores = np.concatenate([row.positive_scores[[first]], row.negative_scores[picked], none])
        return passages.astype(np.int64), scores


def _evenly(margins: Floats, bins: int, count: int, key: tuple[int, int, int]) -> Ints:
    """`count` places in `margins`, each from a bin that is drawn first. Bins have equal widths; empty ones are left out."""
    width = max((margins.max() - margins.min()) / bins, np.finfo(np.float32).tiny)
    bin_of = np.minimum((margins - margins.min()) // width, bins - 1)
    order = np.argsort(bin_of, kind="stable")
    _, begins, sizes = np.unique(bin_of[order], return_index=True, return_counts=True)
    draws = np.arange(count)
    bin_drawn = below(len(begins), key[0], "bin", *key[1:], draws)
    places: Ints = order[begins[bin_drawn] + below(sizes[bin_drawn], key[0], "place in bin", *key[1:], draws)]
    return places


def is_collection(source: str) -> bool:
    """True for a BEIR folder, which has passages of its own."""
    return any(Path(source).expanduser().glob("corpus.jsonl*"))


def read_examples(
    source: str, split: str, passages: str | None, teacher: Run | None = None
) -> tuple[Examples, str]:
    """The examples of `mine`'s groups or of a BEIR folder's split; and where their passages are."""
    if is_collection(source):
        collection = load_collection(source)
        texts = collection.queries(split)
        positives = {
            q: [p for p, grade in of.items() if grade > 0] for q, of in collection.qrels(split).items()
        }
        groups = (Group(query, texts[query], own, []) for query, own in positives.items() if own)
        return Examples(groups, f"{source} ({split})", teacher), passages or source
    if passages is None:
        raise QontextError("groups name passages by id", remedy="Name the passages with --passages SOURCE.")
    return Examples(read_groups(source), source, teacher), passages
