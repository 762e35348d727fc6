"""What is wrong with the files that an evaluation was given, in a sentence, before any figure is shown."""

from __future__ import annotations

from pathlib import Path

from qontext import log
from qontext.collection import Qrels, read_lines
from qontext.errors import QontextError
from qontext.evaluate.datasets import Judged, altered
from qontext.retrieve.runs import Run


def kind_of(path: Path) -> str | None:
    """'run' or 'qrels' if the file's first line looks like one of them, else None."""
    if not path.is_file():
        return None
    fields = next(iter(read_lines(path)), "").split()
    if len(fields) == 6 and _is_number(fields[3]) and _is_number(fields[4]):
        return "run"
    is_judgement = len(fields) == 4 and fields[3].lstrip("-").isdigit()
    return "qrels" if is_judgement or fields[:1] == ["query-id"] else None


def check_kinds(run: str, qrels: str) -> None:
    """Refuse a run where judgements belong, and the other way round."""
    run_kind, qrels_kind = kind_of(Path(run)), kind_of(Path(qrels))
    if run_kind == "qrels":
        also = " and the other is a run: they are swapped" if qrels_kind == "run" else ""
        raise QontextError(
            f"this is a file of judgements, not a run{also}", place=run, remedy="The order is RUN QRELS."
        )
    if qrels_kind == "run":
        raise QontextError(
            "this is a run, not a file of judgements", place=qrels, remedy="The order is RUN QRELS."
        )


def check_ids(run: Run, qrels: Qrels, run_place: str, qrels_place: str) -> None:
    """Refuse a run that cannot belong to the judgements; warn where it hardly does."""
    common = [query for query in run.queries if query in qrels]
    passages = {passage for judged in qrels.values() for passage in judged}
    if not common:
        swapped = not passages.isdisjoint(run.queries) or any(query in qrels for query in run.ids)
        hint = (
            "the columns for query and passage seem to be swapped in one of them"
            if swapped
            else f"the run has ids like {run.queries[0]!r}, the judgements like {next(iter(qrels))!r}"
        )
        raise QontextError(f"no query of the run is judged in {qrels_place}: {hint}", place=run_place)
    if passages and passages.isdisjoint(run.ids):
        log.warn(
            f"{run_place}: none of its passages is judged in {qrels_place}; the run has ids like "
            f"{run.ids[0]!r}, the judgements like {min(passages)!r}. Every score is 0."
        )
    elif len(common) < len(qrels) / 2:
        log.warn(
            f"{run_place}: has results for {len(common)} of {len(qrels)} judged queries; the others score 0."
        )


def note_grades(judged: Judged, relevant: int | None) -> None:
    """Say how graded judgements are read where measures need them to be yes or no."""
    if judged.benchmark is not None:
        return
    grades = {grade for rows in judged.qrels.values() for grade in rows.values()}
    like = altered(judged.qrels)
    if like is not None:
        log.warn(
            f"{judged.place}: as many queries and judgements as {like.name} ({like.queries:,} and "
            f"{like.judgements:,}), but its grades are {', '.join(map(str, sorted(grades)))} or its ids others. "
            "What is computed is not the benchmark's figure."
        )
    elif len({grade for grade in grades if grade > 0}) > 1 and relevant is None:
        log.note(
            f"{judged.place} is graded up to {max(grades)}: MRR, recall and MAP count every grade from 1 on "
            "as relevant; --relevant sets another threshold."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
