"""The result of adapt in Python: a searcher with its verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import qontext
from qontext import Searcher, api


def test_the_result_is_a_searcher_with_its_verdict(adapted: Any) -> None:
    result = qontext.Adapted(adapted.out)
    assert result.verdict.as_json() == json.loads(json.dumps(adapted.result["verdict"]))
    assert str(result.verdict).startswith("Recommended: ") and result.summary["system"] == result.system.name
    assert list(result("the lamp", k=3)) == Searcher(adapted.out)("the lamp", k=3)
    again = api.adapt(adapted.documents, out=adapted.out)
    assert isinstance(again, qontext.Adapted) and again.summary["passages"] == adapted.result["passages"]
    assert repr(again) == f"Adapted({str(adapted.out)!r}: {again.verdict.sentences[0]})"
    assert api.show(again)["system"] == again.summary["system"]


def test_a_verdict_is_escaped_in_a_notebook(adapted: Any) -> None:
    verdict = qontext.Adapted(adapted.out).verdict
    page = replace(verdict, sentences=["<script>"])._repr_html_()
    assert page.startswith("<p>&lt;script&gt;</p><table>") and "(recommended)" in page
