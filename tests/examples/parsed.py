"""The examples that cannot run in tests, and why; they are parsed, and their settings are validated."""

from __future__ import annotations

import re

from tests.examples.collect import Example

from qontext import cli
from qontext.frame import stages

NOT_RUN = {
    "(serve|annotate) (?!.*--(dry-run|export))": "serves until it is stopped; tests/serve does so",
    "export .*--to (onnx|openvino)": "converts a model, which takes seconds; tests/release does so",
    "demo": "takes minutes; tests/test_demo.py runs it on a smaller source",
    "generate .*--endpoint": "needs a chat server; tests/queries/test_llm.py has one",
    "(index|adapt) .*--uri": "needs a server; tests/retrieve has real ones",
    ".*--on ": "starts or needs a Ray cluster; tests/cluster has one",
    "evaluate .* trec-dl-2019": "needs a data set from the network",
    "(search|adapt) .*--(system|also)": "asks a search that readers have; tests/retrieve/test_outside.py has some",
    "adapt vault": "reads a vault that readers have",
    "adapt .*--judge": "serves until all is judged; tests/adapt/test_judgments.py does so",
    "mine .*--(margin|positives-share)": "needs a trained cross-encoder; tests/retrieve/test_mine.py has its scores",
    "run .*inputs.topics_2019": "needs MS MARCO; tests/workflow/test_small.py runs the small profile",
    "beir retriever": "needs data sets from the network",
    "adapt (corpus|fairytaleqa|medquad)": "shows how a result was made, on its data",
    "finetune runs/labeled|encode runs/labeled|search plain|compare adapted=": "shows how a result was made, on its data",
}
"""Commands that begin like this → why they are not run."""


NOT_EXECUTED = {
    "langchain_huggingface": "it is not installed",
    "127.0.0.1:8000": "needs a server; tests/serve/test_clients.py has one",
}
"""The content of a block of Python → why it is only compiled."""


def why_not_executed(code: str) -> str | None:
    return next((why for part, why in NOT_EXECUTED.items() if part in code), None)


def why_not_run(example: Example) -> str | None:
    line = " ".join(example.argv)
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line)), None)


def parse(example: Example) -> None:
    """The command line parses, and its settings are valid."""
    verb, *arguments = example.argv
    chosen = cli.chosen_kinds(stages.load(verb).config, arguments)
    values = cli.make_command(verb, chosen).make_context(verb, arguments).params
    common = ("debug", "as_json", "verbose", "quiet", "trust")
    cli.configure(stages.load(verb), {name: value for name, value in values.items() if name not in common})
