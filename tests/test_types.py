"""What a type checker tells callers of `qontext` and of `qontext.api`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIBRARY = """
from pathlib import Path

import qontext
from qontext import Bm25, CrossEncoder, Retriever, Run, Searcher, api, compare, evaluate, load_passages

passages = load_passages(Path("docs.jsonl"))
first: str = passages[0].title
search = Searcher.build(passages, "encoder")
text: str = search("question", k=3)[0].text
run: Run = Bm25.build(passages).search({"q": "question"}, k=10)
score: float = run["q"][0].score
mean: float = evaluate(run, {"q": {"p": 1}}, "nDCG@10").means["nDCG@10"]
p: float = compare({"a": run, "b": "b.trec"}, Path("qrels.tsv"))[0].p
retriever = Retriever(Path("encoder"), device="cpu")
vectors = retriever.encode_queries(["question"]) @ retriever.encode_passages(passages).T
scores = CrossEncoder("reranker").score([("question", text)])
again: list[qontext.Passage] = load_passages(api.split("docs.jsonl", out="passages"))
fused: Run = qontext.rerank(qontext.fuse([run, "b.trec"]), {"q": "question"}, passages, "reranker")
negatives: list[str] = qontext.mine(fused, "data")[0].negatives
digest: str = api.evaluate("b.trec", "data", out="scores").digest
reasons: list[str] = api.adapt("docs.jsonl").verdict.sentences
plan: dict[str, object] = api.adapt("docs.jsonl", dry_run=True)
"""

COMMANDS = """
from pathlib import Path
from qontext import api

passages = api.split(Path("docs.jsonl"), out="passages", max_tokens=128)
queries = api.generate(passages, out="queries", generator="keyphrase")
encoder = api.pretrain(passages, out=Path("encoder"), queries=queries, steps=10, precision="fp32")
digest: str = encoder.digest
api.fuse([passages, "b.trec"], out="fused.trec")
"""

PROGRAMS = {
    "library": LIBRARY,
    "commands": COMMANDS,
    "wrong_library": LIBRARY.replace("k=3", "top=3").replace('"nDCG@10").means', "10).means"),
    "wrong_commands": COMMANDS.replace("max_tokens=128", "max_token=128").replace('"fp32"', '"fp8"'),
}
COMPLAINTS = {
    "wrong_library": ['Unexpected keyword argument "top"', 'Argument 3 to "evaluate" has incompatible type'],
    "wrong_commands": ['Unexpected keyword argument "max_token"', 'Argument "precision" to "pretrain"'],
}


def test_type_checkers_know_every_name_and_every_setting(tmp_path: Path) -> None:
    """In one run, which reads neither torch nor transformers: that would be most of its time."""
    for name, program in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(program)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-torch.*,transformers.*]\nfollow_imports = skip\n"
    )
    files = [f"{name}.py" for name in PROGRAMS]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *files], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    for name, texts in COMPLAINTS.items():
        for text in texts:
            assert any(line.startswith(f"{name}.py") and text in line for line in errors), done.stdout
    assert len(errors) == sum(map(len, COMPLAINTS.values())), done.stdout + done.stderr
