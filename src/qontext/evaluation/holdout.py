"""`qontext holdout`: hold out the queries of some documents for evaluation.

    queries/     the generated queries of all other documents, for training
    measured/    a labeled set in BEIR's layout: passages to search; `generated` judges the held-out
                 documents' generated queries, and with labels `train`, `dev` and `test` judge real ones

Documents are held out by a hash of their ids, independently of other documents. Labels with splits keep them;
others are split by document, too, if there are enough documents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from qontext.data.lines import write_jsonl
from qontext.frame.artifacts import Workdir
from qontext.frame.config import Input, Seed, StageConfig
from qontext.frame.errors import QontextError
from qontext.frame.stages import Stage

if TYPE_CHECKING:
    from qontext.data.collection import Passage, Qrels
    from qontext.data.labels import Labels

FEW_DOCUMENTS = 20
ASKED, MOST_ASKED = "asked", 500
"""The split of real questions without labels, and its maximum size."""
FIRST_ASKED = 1_000_000
"""The number of the first real question among a passage's queries."""


class HoldoutConfig(StageConfig):
    passages: Annotated[str, Input(positional=True)]
    """Passages: output of `split`."""

    queries: Annotated[str | None, Input(positional=True)] = None
    """Generated queries of these passages."""

    labels: Annotated[str | None, Input()] = None
    """Real queries: a folder in BEIR's layout, or lines of {"query": "…", "passage": "id"}."""

    question_model: Annotated[str | None, Input()] = None
    """Local language model that writes a question for each held-out passage: a folder or a Hub name.
    Default: one of the passage's generated queries."""

    asked: Annotated[str | None, Input()] = None
    """Real questions without labels. With --answers, every second different one becomes a training query of the passage that
    was found first, and the others are the split `asked`, for people to judge."""

    answers: Annotated[str | None, Input()] = None
    """Run of these questions over the passages."""

    share: float = Field(0.1, gt=0, lt=1)
    """Maximum share of documents to hold out."""

    questions: int = Field(500, ge=1)
    """Approximate number of generated queries for evaluation, one per held-out passage."""

    pool: int = Field(100_000, ge=1)
    """Maximum number of passages to search: the judged ones, and others drawn from the collection."""

    split_labels: bool = True
    """Divide labels without splits into train, dev and test. Otherwise, all of them are for evaluation."""

    max_labels: int | None = Field(None, ge=1)
    """Maximum number of labeled training queries, drawn with the seed."""

    least_labels: int = Field(0, ge=0)
    """Minimum number of labeled training queries; fewer are an error."""

    seed: Seed = 42
    """Random seed."""


def run(config: HoldoutConfig, work: Workdir) -> dict[str, Any]:
    if config.question_model is not None and config.queries is None:
        raise QontextError("--question-model needs generated queries, whose passages it reads")
    total, held_out, rule = _held_out(config)
    held_queries: dict[str, tuple[str, str]] = {}
    summary: dict[str, Any] = {"passages": total, "held_out_passages": len(held_out), "held_out_by": rule}
    asked = None if config.asked is None else _asked(config)
    if config.queries is not None:
        texts, training = _divide(config, held_out, [] if asked is None else asked[0], work)
        if config.question_model is not None:
            texts = _written(config.question_model, set(texts), config, work)
        held_queries = _chosen(texts, config.seed)
        summary |= {"training_queries": training, "held_out_queries": len(held_queries)}
        if unsuitable := len(texts) - len(held_queries):
            summary["passages_without_a_question"] = unsuitable
    judged: dict[str, Qrels] = {"generated": {id: {passage: 1} for id, (passage, _) in held_queries.items()}}
    queries = {id: text for id, (_, text) in held_queries.items()}
    if asked is not None:
        judged[ASKED] = asked[1]
    if config.labels is not None:
        splits, texts_labeled = _labeled(config)
        _refuse_confused(splits, judged, held_queries, str(config.labels))
        judged |= splits
        queries |= texts_labeled
        summary["labeled_queries"] = {name: len(qrels) for name, qrels in splits.items()}
    if asked is not None:
        taught, _, texts_asked = asked
        queries |= texts_asked
        summary["asked_questions"] = {"train": len(taught), ASKED: len(texts_asked)}
    summary["searched_passages"] = _write_measured(config, queries, judged, total, work)
    if not any(judged.values()):
        if config.queries is None:
            raise QontextError("neither queries nor labels are specified", place=config.passages)
        raise QontextError(
            "no held-out passage has a query",
            place=config.queries,
            remedy="Generate queries for all passages, or pass --labels.",
        )
    return summary


def _labeled(config: HoldoutConfig) -> tuple[dict[str, Qrels], dict[str, str]]:
    """The splits of the labels, and the texts of their queries."""
    from qontext.data.collection import read_passages
    from qontext.data.labels import read_labels, to_passages

    source = str(config.labels)
    labels, document = to_passages(read_labels(source), read_passages(config.passages), source)
    splits = _split_labels(labels, document, config)
    if len(splits.get("train", {})) < config.least_labels:
        raise QontextError(
            f"only {len(splits.get('train', {})):,} labeled queries are left for training, "
            f"{config.least_labels:,} are needed",
            place=source,
            remedy="Fix the unknown ids, or change --max-labels.",
        )
    return splits, {id: labels.queries[id] for qrels in splits.values() for id in qrels}


def _refuse_confused(
    splits: dict[str, Qrels], judged: dict[str, Qrels], held: Collection[str], place: str
) -> None:
    """Refuse labels with the name of a split, or the id of a query, that is not theirs."""
    if name := next((name for name in splits if judged.get(name)), None):
        raise QontextError(
            f"the split {name!r} has the name of one that holdout makes itself",
            place=place,
            remedy="Rename or remove its file in qrels.",
        )
    if twice := next((id for qrels in splits.values() for id in qrels if id in held), None):
        raise QontextError(
            f"the id {twice!r} of a labeled query is also the id of a generated query",
            place=place,
            remedy="Change the id of the labeled query.",
        )


def _write_measured(
    config: HoldoutConfig, queries: dict[str, str], judged: dict[str, Qrels], total: int, work: Workdir
) -> int:
    """Write the labeled set; returns the number of its passages."""
    from qontext.data.collection import write_qrels

    judged_ids = {passage for qrels in judged.values() for grades in qrels.values() for passage in grades}
    with work.write_folder("measured") as folder:
        count = _write_corpus(folder / "corpus.jsonl", config, judged_ids, total)
        write_jsonl(folder / "queries.jsonl", ({"_id": id, "text": text} for id, text in queries.items()))
        (folder / "qrels").mkdir()
        for name, qrels in judged.items():
            if qrels:
                rows = ((q, p, grade) for q, judged_of_q in qrels.items() for p, grade in judged_of_q.items())
                write_qrels(folder / "qrels" / f"{name}.tsv", rows)
    return count


def _asked(config: HoldoutConfig) -> tuple[list[tuple[str, str]], Qrels, dict[str, str]]:
    """Real questions without labels, with the passage that was found first for each: (passage, question) pairs to train on,
    and judgments and texts of the others."""
    from qontext.data.collection import read_asked
    from qontext.data.runs import read_run

    if config.asked is None or config.answers is None:
        raise QontextError("--asked needs --answers, the run of a search for these questions")
    run = read_run(config.answers)
    texts = read_asked(config.asked, among=run)
    order = sorted(texts, key=lambda id: _chance(config.seed, "asked", id))
    if not order:
        raise QontextError("has no result for any of the questions", place=config.answers)
    held = order[: max(1, min(MOST_ASKED, len(order) // 2))]
    first = {id: run[id][0].passage for id in order}
    return (
        [(first[id], texts[id]) for id in order[len(held) :]],
        {f"{ASKED}:{id}": {first[id]: 1} for id in held},
        {f"{ASKED}:{id}": texts[id] for id in held},
    )


def _with_asked(queries: Any, pairs: list[tuple[str, str]]) -> Any:
    """The training queries with real questions, each after the generated queries of its passage."""
    import pyarrow as pa

    from qontext.data import records

    rows = sorted(pairs)
    columns = {
        "passage": [passage for passage, _ in rows],
        "query": [text for _, text in rows],
        "number": list(range(FIRST_ASKED, FIRST_ASKED + len(rows))),
    }
    joined = pa.concat_tables([queries, pa.table(columns, records.QUERIES)])
    passages = joined["passage"].to_pylist()
    places = {passage: place for place, passage in enumerate(dict.fromkeys(passages))}
    return joined.take(sorted(range(len(passages)), key=lambda row: places[passages[row]]))


def _held_out(config: HoldoutConfig) -> tuple[int, set[str], str]:
    """The number of passages, the held-out ones, and the unit of holding out: documents, or passages if there
    are few documents. The one with the lowest hash is always held out."""
    from qontext.data.collection import read_passages

    total, documents, last = 0, 0, None
    for passage in read_passages(config.passages):
        total, documents, last = total + 1, documents + (passage.doc != last), passage.doc
    if not total:
        raise QontextError("contains no passages", place=config.passages)
    rule = "documents" if documents >= FEW_DOCUMENTS else "passages"
    share = min(config.share, config.questions / total)
    held_out, lowest, fallback = set[str](), 2.0, set[str]()
    for passage in read_passages(config.passages):
        unit = passage.doc if rule == "documents" else passage.id
        chance = _chance(config.seed, "document", unit)
        if chance < share:
            held_out.add(passage.id)
        if chance < lowest:
            lowest, fallback = chance, set()
        if chance == lowest:
            fallback.add(passage.id)
    return total, held_out or fallback, rule


def _divide(
    config: HoldoutConfig, out: set[str], taught: list[tuple[str, str]], work: Workdir
) -> tuple[dict[str, list[str]], int]:
    """Write the training queries, with those that are `taught` for a passage; returns held-out passages with their queries,
    and the number of the generated others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from qontext.data import records

    assert config.queries is not None
    by_passage: dict[str, list[str]] = {}
    tables = []
    for part in records.parquet_parts(config.queries):
        table = records.read_whole(part, records.QUERIES)
        aside = pa.array([passage in out for passage in table["passage"].to_pylist()], pa.bool_())
        for row in table.filter(aside).select(["passage", "query"]).to_pylist():
            by_passage.setdefault(row["passage"], []).append(row["query"])
        tables.append(table.filter(pc.invert(aside)))
    rest = pa.concat_tables(tables)
    if not len(rest):  # too few passages to hold any out
        parts = records.parquet_parts(config.queries)
        rest = pa.concat_tables([records.read_whole(part, records.QUERIES) for part in parts])
    pairs = [(passage, text) for passage, text in taught if passage not in out]
    with work.write("queries/queries.parquet") as path:
        records.write_table(path, _with_asked(rest, pairs) if pairs else rest)
    return dict(list(by_passage.items())[: 2 * config.questions]), len(rest)


def _chosen(texts: dict[str, list[str]], seed: int) -> dict[str, tuple[str, str]]:
    """The passages and questions for evaluation by id: one query per passage, of those that can stand for a question. A
    passage without such a query tests nothing, unless none has one."""
    from qontext.queries.generators.questions import stands_alone

    good = {
        passage: [query for query in queries if stands_alone(query)] for passage, queries in texts.items()
    }
    good = {passage: queries for passage, queries in good.items() if queries} or texts
    return {
        f"{passage}:q": (passage, queries[int(_chance(seed, "query", passage) * len(queries))])
        for passage, queries in good.items()
    }


def _written(model: str, held_out: set[str], config: HoldoutConfig, work: Workdir) -> dict[str, list[str]]:
    """The held-out passages with questions of a language model."""
    from qontext.data.collection import read_passages
    from qontext.evaluation.question_model import write_questions

    passages = [passage for passage in read_passages(config.passages) if passage.id in held_out]
    questions = write_questions(model, passages, config.seed, work)
    return {passage: [question] for passage, question in questions.items()}


def _split_labels(labels: Labels, document: dict[str, str], config: HoldoutConfig) -> dict[str, Qrels]:
    """train, dev and test: existing splits, or new ones, or only test."""
    from qontext.data.labels import measured_sizes, tested

    if labels.are_split:
        splits = {name: dict(qrels) for name, qrels in labels.splits.items() if qrels}
        splits["test"] = splits.pop(tested(splits))
    elif not config.split_labels:
        splits = {"test": dict(next(iter(labels.splits.values())))}
    else:
        (everything,) = labels.splits.values()
        splits = _divided(
            everything, measured_sizes(len(everything), str(config.labels)), document, config.seed
        )
    if config.max_labels is not None and "train" in splits:
        order = sorted(splits["train"], key=lambda query: _chance(config.seed, "few", query))
        splits["train"] = {query: splits["train"][query] for query in order[: config.max_labels]}
    return splits


def _divided(
    everything: Qrels, measured: tuple[int, int], document: dict[str, str], seed: int
) -> dict[str, Qrels]:
    """Assign the queries of whole documents to test, then to dev, in the order of a hash, as far as they fit;
    the rest to train. By query, if there are few documents or documents have too many queries."""
    sizes = dict(zip(("test", "dev"), measured))
    by_document: dict[str, list[str]] = {}
    for query, judged in everything.items():
        by_document.setdefault(document[next(iter(judged))], []).append(query)
    by_query = {query: [query] for query in everything}
    splits: dict[str, Qrels] = {}
    for units in [by_document, by_query] if len(by_document) >= FEW_DOCUMENTS else [by_query]:
        splits = {"train": {}, "dev": {}, "test": {}}
        for unit in sorted(units, key=lambda name: _chance(seed, "labels", name)):
            fits = (n for n, size in sizes.items() if len(splits[n]) + len(units[unit]) <= size)
            splits[next(fits, "train")] |= {query: everything[query] for query in units[unit]}
        if all(2 * len(splits[name]) >= size for name, size in sizes.items()):
            break
    return splits


def _write_corpus(path: Path, config: HoldoutConfig, judged_ids: set[str], total: int) -> int:
    """The judged passages, and as many others as fit, drawn by a hash of their ids."""
    from qontext.data.collection import passage_row, read_passages

    odds = max(0.0, config.pool - len(judged_ids)) / total
    count = 0

    def chosen(passage: Passage) -> bool:
        return passage.id in judged_ids or _chance(config.seed, "pool", passage.id) < odds

    def rows() -> Iterator[dict[str, str]]:
        nonlocal count
        for passage in read_passages(config.passages):
            if total <= config.pool or chosen(passage):
                count += 1
                yield passage_row(passage)

    write_jsonl(path, rows())
    return count


def _chance(seed: int, what: str, name: str) -> float:
    """A number in [0, 1) that belongs to a name."""
    from qontext.training.randomness import key_of, uniform

    return float(uniform(seed, what, key_of(name)))


STAGE = Stage(
    verb="holdout",
    config=HoldoutConfig,
    run=run,
    examples="""
        qontext holdout passages queries --out holdout
        qontext holdout passages queries --labels labels.jsonl --out holdout
        qontext holdout passages queries --question-model question-model --out holdout
    """,
)
