"""The report: what stands in it, what must not, and how it looks in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from qontext import api
from qontext.evaluation.report import gather
from qontext.frame import artifacts
from qontext.frame.artifacts import Artifact
from qontext.frame.errors import QontextError

HOSTILE = "ours <img src=x onerror=alert(1)> $x_1$ & co"
PUBLISHED = "CoT-MAE (1200k)"


def evaluate(folder: Path, name: str, qrels: Path, ranks: dict[str, int]) -> Path:
    """An evaluation of a run whose right passage stands at the given rank for each query."""
    lines = []
    for query, right in ranks.items():
        for rank in range(1, 11):
            lines.append(f"{query} Q0 {query}-{'right' if rank == right else f'w{rank}'} {rank} {-rank} x")
    (folder / f"{name}.trec").write_text("\n".join(lines) + "\n")
    out = folder / "runs" / name
    api.evaluate(folder / f"{name}.trec", qrels, measures="MRR@10 nDCG@10", out=out)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two systems on one set, one with two seeds and a hostile name, and texts."""
    folder = tmp_path_factory.mktemp("report")
    queries = [f"q{i}" for i in range(24)]
    data = folder / "data"
    (data / "qrels").mkdir(parents=True)
    rows = "".join(f"{q}\t{q}-right\t1\n" for q in queries)
    (data / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    texts = [{"_id": f"{q}-{w}", "text": f"{HOSTILE} {q}-{w}"} for q in queries for w in ("right", "w1")]
    (data / "corpus.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts))
    (data / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": q, "text": HOSTILE}) + "\n" for q in queries)
    )
    rng = np.random.default_rng(0)
    evaluate(folder, "base", data, dict.fromkeys(queries, 3))
    for seed in (1, 2):
        evaluate(folder, f"{HOSTILE}-seed{seed}", data, {q: int(rng.integers(1, 3)) for q in queries})
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Artifact:
    return api.report((str(folder / "runs"),), data=folder / "data", out=folder / "out")  # type: ignore[no-any-return]


def text_of(page: Path) -> str:
    """The page's text, cells separated by bars and rows by line ends."""
    text = re.sub(r"</t[dh]><t[dh][^>]*>", " | ", re.sub(r"</tr>|</p>|</caption>", "\n", page.read_text()))
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def test_the_page_asks_for_nothing_and_runs_nothing(report: Artifact) -> None:
    page = (report.path / "report.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|iframe|img|object)\b", page)
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    assert "ours &lt;img src=x onerror=alert(1)&gt; $x_1$ &amp; co" in page
    assert len(re.findall(r"<svg ", page)) == 1


def test_what_it_says(report: Artifact) -> None:
    text = text_of(report.path / "report.html")
    assert "± is the standard deviation over training seeds" in text
    assert PUBLISHED not in text
    row = next(line for line in text.splitlines() if line.startswith("a  base |"))
    assert "| 33.3 |" in row
    assert report.summary["systems"] == 2
    assert f"base → {HOSTILE} | MRR@10 | +" in text and "| 24 / 0 / 0" in text


def test_a_report_inside_the_run_is_not_about_itself(folder: Path) -> None:
    first = api.report((str(folder / "runs"),), out=folder / "runs" / "report")
    again = api.report((str(folder / "runs"),), out=folder / "runs" / "report")
    assert first.digest == again.digest
    shutil.rmtree(folder / "runs" / "report")


def dl19(folder: Path, qrels: Path, passages: int | None) -> Path:
    run = folder / "search"
    claim = {"verb": "search", "format": 1, "config": {}, "inputs": {}, "key": ""}
    work = artifacts.begin(run, claim)
    with work.write("run.trec") as path:
        path.write_text("19335 Q0 1017759 1 1.0 x\n")
    artifacts.finish(work, claim, {"passages": passages} if passages else {}, 1.0)
    api.evaluate(run, qrels, out=folder / "scores")
    api.report((str(folder / "scores"),), out=folder / "report")
    return folder / "report" / "report.html"


@pytest.mark.parametrize(("passages", "beside"), [(8_841_823, True), (None, True), (100_000, False)])
def test_published_figures_only_beside_the_same_benchmark(
    shared_data,  # type: ignore[no-untyped-def]
    tmp_path: Path,
    passages: int | None,
    beside: bool,
) -> None:
    qrels = shared_data("msmarco_trecdl") / "qrels.dl19-passage.txt.gz"
    text = text_of(dl19(tmp_path, qrels, passages))
    assert (PUBLISHED in text) is beside
    assert ("published results are not comparable" in text) is not beside
    assert ("CoT-MAE (1200k) | 70.9 | –" in text) is beside


def test_names_without_what_they_share_but_never_one_for_two(folder: Path, tmp_path: Path) -> None:
    for name in (
        "evaluate-x",
        "scores-x",
        "evaluate-y",
        "x-seed1",
        "a=1--seed=1",
        "a=1--seed=2",
        "a=2--seed=1",
    ):
        shutil.copytree(folder / "runs" / "base", tmp_path / name)

    def named(*names: str) -> list[tuple[str, int]]:
        (section,) = gather([str(tmp_path / name) for name in names])
        return [(system.name, len(system.seeds)) for system in section.systems]

    assert named("evaluate-x", "evaluate-y") == [("x", 1), ("y", 1)]
    assert named("evaluate-x", "scores-x") == [("evaluate-x", 1), ("scores-x", 1)]
    assert named("evaluate-y", "x-seed1") == [("y", 1), ("x", 1)]
    assert named("a=1--seed=1", "a=1--seed=2", "a=2--seed=1") == [("a=1", 2), ("a=2", 1)]
    with pytest.raises(QontextError, match="same name"):
        gather([str(tmp_path / name) for name in ("evaluate-x", "evaluate-y")], {"x": "y"})


def test_damaged_scores_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs" / "base", tmp_path / "base")
    (tmp_path / "base" / "queries.parquet").write_bytes(b"")
    with pytest.raises(QontextError, match=r"queries\.parquet: damaged"):
        gather([str(tmp_path / "base")])


def test_real_queries_come_before_generated_ones_and_examples_are_of_the_split(
    folder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(folder / "data", data)
    shutil.copy(data / "qrels" / "test.tsv", data / "qrels" / "generated.tsv")
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tq1-w1\t1\n")
    for split in ("generated", "test"):
        for system in ("base", f"{HOSTILE}-seed1"):
            run, out = folder / f"{system}.trec", tmp_path / "runs" / f"{system[:4]}-{split}"
            api.evaluate(run, data, split=split, measures="MRR@10", out=out)
    assert [section.split for section in gather([str(tmp_path / "runs")])] == ["test", "generated"]
    text = text_of(api.report((tmp_path / "runs",), data=data, out=tmp_path / "out").path / "report.html")
    assert re.search(r"base \| 0.333 \| ✗ \| .* q\d+-w1", text), "as the generated questions judge it"
    assert "favor BM25" in text


def test_labels_name_and_order_the_systems_and_the_recommended_one_is_marked(
    folder: Path, tmp_path: Path
) -> None:
    runs = tuple(str(folder / "runs" / name) for name in ("base", f"{HOSTILE}-seed1"))
    settings = {"label": (f"{HOSTILE}=Ours + BM25", "base=Base"), "opening": ("Use it.", "It is good.")}
    report = api.report(runs, **settings, recommended="Base", data=folder / "data", out=tmp_path / "out")
    page = (report.path / "report.html").read_text()
    assert '<p class="lead"><b>Use it.</b></p>' in page and '<p class="lead">It is good.</p>' in page
    text = text_of(report.path / "report.html")
    assert text.index("a  Ours + BM25 |") < text.index("b  Base (recommended) |")
    assert "gains and losses from Ours + BM25 to Base" in text
    with pytest.raises(QontextError, match="NAME=LABEL"):
        api.report(runs, label=("base",), out=tmp_path / "bad")
    with pytest.raises(QontextError, match="unknown system in --label 'bse'"):
        api.report(runs, label=("bse=Base",), out=tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="nothing to report"):
        api.report((str(tmp_path),), out=tmp_path / "out")


def test_evaluations_without_a_common_measure_are_apart(folder: Path, tmp_path: Path) -> None:
    for name, measure in (("a", "MRR@10"), ("b", "R@10"), ("c", "Judged@10"), ("d", "Judged@10")):
        api.evaluate(folder / "base.trec", folder / "data", measures=measure, out=tmp_path / "runs" / name)
    page = (api.report([tmp_path / "runs"], out=tmp_path / "out").path / "report.html").read_text()
    assert all(measure in page for measure in ("MRR@10", "R@10", "Judged@10"))


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 500)])
def test_in_a_real_browser(report: Artifact, tmp_path: Path, scheme: str, width: int) -> None:
    from PIL import Image

    shot = tmp_path / "shot.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},4000", f"--screenshot={shot}"]  # fmt: skip
    flags += ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    assert CHROMIUM is not None
    subprocess.run(
        [CHROMIUM, *flags, (report.path / "report.html").as_uri()], check=True, capture_output=True
    )
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    ground = pixels[2, 2]
    assert (ground > 240).all() if scheme == "light" else (ground < 60).all()
    # Text and lines stand on the ground in the contrary brightness, and the drawings bring color.
    contrast = np.abs(pixels - ground).max(axis=2)
    assert (contrast > 150).mean() > 0.005
    saturation = pixels.max(axis=2) - pixels.min(axis=2)
    assert (saturation > 80).sum() > 100
    # Nothing is cut off: the page's right margin stays empty.
    assert (contrast[:, -4:] < 30).all()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_on_a_phone_texts_stand_below_each_other_and_nothing_widens_the_page(
    report: Artifact, tmp_path: Path
) -> None:
    # A window cannot be as narrow as a phone, a frame can; the page in it tells its own widths.
    frame = tmp_path / "frame.html"
    page = (report.path / "report.html").read_text()
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    (tmp_path / "page.html").write_text(page)
    frame.write_text(
        '<iframe src="page.html" style="width:390px;height:6000px;border:0"></iframe><script>'
        "onload = () => { const d = document.querySelector('iframe').contentDocument;"
        "const cell = d.querySelector('.prose td:last-child');"
        "document.title = [d.documentElement.scrollWidth, cell.clientWidth,"
        "d.querySelectorAll('.prose').length, [...d.querySelectorAll('.scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth).length].join(' ') }</script>"
    )
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
             f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]  # fmt: skip
    dom = subprocess.run([CHROMIUM, *flags, frame.as_uri()], check=True, capture_output=True).stdout.decode()
    title = re.search(r"<title>([\d ]+)</title>", dom)
    assert title is not None
    width, cell, tables, cut = map(int, title[1].split())
    assert width == 390
    assert cell > 300  # the passage has the whole width
    assert tables == 1
    assert cut <= 1  # only the table of differences is wider, and scrolls in its own box
