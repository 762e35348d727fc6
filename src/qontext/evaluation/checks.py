"""Checks of the input files of an evaluation."""

from __future__ import annotations

from pathlib import Path

from qontext.data.collection import Qrels
from qontext.data.lines import first_line
from qontext.data.runs import Run
from qontext.evaluation.datasets import Judged, altered
from qontext.frame import log
from qontext.frame.artifacts import is_artifact
from qontext.frame.errors import QontextError


def kind_of(path: Path) -> str | None:
    """'run' or 'qrels' if the file's first line looks like one of them, else None."""
    if not path.is_file():
        return None
    fields = first_line(path).split()
    if len(fields) == 6 and _is_number(fields[3]) and _is_number(fields[4]):
        return "run"
    is_judgment = len(fields) == 4 and fields[3].lstrip("-").isdigit()
    return "qrels" if is_judgment or fields[:1] == ["query-id"] else None


def check_kinds(run: str, qrels: str) -> None:
    """Refuse a run in place of judgments, and vice versa."""
    run_kind, qrels_kind = kind_of(Path(run)), kind_of(Path(qrels))
    if run_kind == "qrels":
        also = " and the other is a run: the arguments are swapped" if qrels_kind == "run" else ""
        raise QontextError(
            f"this is a judgments file, not a run{also}", place=run, remedy="The order is RUN QRELS."
        )
    if qrels_kind == "run":
        raise QontextError(
            "this is a run, not a judgments file", place=qrels, remedy="The order is RUN QRELS."
        )


def check_ids(run: Run, qrels: Qrels, run_place: str, qrels_place: str) -> None:
    """Refuse a run that does not match the judgments; warn if it hardly matches, or if a search found nothing at all."""
    if not run.queries and is_artifact(run_place):
        log.warn(f"{run_place}: has no results. Every score is 0.")
        return
    if not run.queries:
        raise QontextError("the run is empty", place=run_place)
    common = [query for query in run.queries if query in qrels]
    passages = {passage for judged in qrels.values() for passage in judged}
    if not common:
        swapped = not passages.isdisjoint(run.queries) or any(query in qrels for query in run.ids)
        hint = (
            "the query and passage columns seem to be swapped in one of them"
            if swapped
            else f"the run has ids like {run.queries[0]!r}, the judgments like {next(iter(qrels))!r}"
        )
        raise QontextError(f"no query of the run is judged in {qrels_place}: {hint}", place=run_place)
    if passages and passages.isdisjoint(run.ids):
        log.warn(
            f"{run_place}: none of its passages is judged in {qrels_place}; the run has ids like "
            f"{run.ids[0]!r}, the judgments like {min(passages)!r}. Every score is 0."
        )
    elif len(common) < len(qrels) / 2:
        log.warn(
            f"{run_place}: has results for {len(common)} of {len(qrels)} judged queries; the others score 0."
        )


def note_grades(judged: Judged, relevant: int | None) -> None:
    """Report how graded judgments are used by binary measures."""
    if judged.benchmark is not None:
        return
    grades = {grade for rows in judged.qrels.values() for grade in rows.values()}
    like = altered(judged.qrels)
    if like is not None:
        log.warn(
            f"{judged.place}: as many queries and judgments as {like.name} ({like.queries:,} and "
            f"{like.judgments:,}), but its grades are {', '.join(map(str, sorted(grades)))} or its ids others. "
            "The results are not comparable with the benchmark's."
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
