"""The report: what stands in it, what must not, and how it looks in a real browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from qontext import api
from qontext.evaluation.gather import gather
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
    """Two systems on one set, one with two seeds and a hostile name; texts; a training's losses."""
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
    claim = {"verb": "pretrain", "format": 1, "config": {"steps": 40}, "inputs": {}, "key": ""}
    work = artifacts.begin(folder / "runs" / "pretrain", claim)
    with work.write("logs/metrics.jsonl") as path:
        losses = ({"mlm": 9 / step, "contrast": 1 / step} for step in range(1, 40))
        rows = [{"phase": "cocondenser", "step": s, "losses": loss} for s, loss in enumerate(losses, 1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"phase": "coc')  # cut by a kill
    artifacts.finish(work, claim, {"steps": 40, "passages_per_second": 3800.0}, 75.0)
    (folder / "runs" / "recipe.toml").write_text('[recipe]\ntitle = "Cells & <stars>"\n')
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Artifact:
    return api.report((str(folder / "runs"),), data=folder / "data", price_per_hour=2.5, out=folder / "out")  # type: ignore[no-any-return]


def test_the_page_asks_for_nothing_and_runs_nothing(report: Artifact) -> None:
    page = (report.path / "report.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|iframe|img|object)\b", page)
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    assert "<img" not in page
    assert "ours &lt;img src=x onerror=alert(1)&gt; $x_1$ &amp; co" in page
    assert len(re.findall(r"<svg ", page)) == 6  # means, scatter, differences, two by depth, losses
    ids = re.findall(r'\bid="([^"]+)"', page)
    drawn = [
        id
        for id in ids
        if not re.match(r"(figure|axes|patch|line2d|matplotlib|xtick|ytick|text|Path|legend|Fill)", id)
    ]
    assert len(drawn) == len(set(drawn))  # what one drawing refers to is its own


def test_what_it_says(report: Artifact) -> None:
    text = (report.path / "report.md").read_text()
    assert "24 queries; a query without results" in text
    assert "3,800 passages/s" in text
    assert "at 2.5 per hour" in text
    assert "Losses of pretrain, cocondenser" in text
    assert "± is the standard deviation over training seeds" in text
    assert PUBLISHED not in text
    row = next(line for line in text.splitlines() if line.startswith("| a base |"))
    assert "| 33.3 |" in row
    assert report.summary["systems"] == 2
    assert text.startswith("# Cells &amp; &lt;stars&gt;")


def test_the_numbers_are_those_of_the_evaluation(report: Artifact, folder: Path) -> None:
    with (report.path / "results.csv").open() as file:
        rows = {(row["system"], row["measure"]): row for row in csv.DictReader(file)}
    base = rows["base", "MRR@10"]
    assert float(base["mean"]) == pytest.approx(1 / 3)
    seeds = [
        json.loads((folder / "runs" / f"{HOSTILE}-seed{s}" / "scores.json").read_text())["measures"]["MRR@10"]
        for s in (1, 2)
    ]
    ours = rows[HOSTILE, "MRR@10"]
    assert float(ours["mean"]) == pytest.approx(np.mean(seeds))
    assert float(ours["sd_over_seeds"]) == pytest.approx(np.std(seeds, ddof=1))
    with (report.path / "differences.csv").open() as file:
        pair = next(row for row in csv.DictReader(file) if row["measure"] == "MRR@10")
    assert float(pair["p_holm"]) <= 0.05
    assert int(pair["wins"]) == 24


def test_a_loss_that_was_logged_once_is_a_value_not_a_chart(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs" / "pretrain", tmp_path / "runs" / "short")
    rows = [
        {"phase": "cocondenser", "step": 1, "losses": {"mlm": 4.25}},
        {"phase": "both", "step": 1, "losses": {"mlm": 3.5, "contrast": 2.5}},
        {"phase": "both", "step": 2, "losses": {"mlm": 3.25}},
    ]
    log = tmp_path / "runs" / "short" / "logs" / "metrics.jsonl"
    log.chmod(0o644)
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(folder / "runs" / "base", tmp_path / "runs" / "base")
    report = api.report((str(tmp_path / "runs"),), out=tmp_path / "out")
    text = (report.path / "report.md").read_text()
    assert "Losses of short, cocondenser, logged once: mlm 4.25 at step 1." in text
    assert "Losses of short, both, logged once: contrast 2.5 at step 1." in text
    assert len(list((report.path / "plots").glob("loss*.svg"))) == 1


def test_figures_are_files_too(report: Artifact) -> None:
    names = {path.name for path in (report.path / "plots").iterdir()}
    assert {"s1-scatter.svg", "s1-scatter.png", "loss1.png", "s1-R.svg"} <= names
    assert (report.path / "plots" / "s1-means.png").read_bytes().startswith(b"\x89PNG")


def test_latex_takes_the_names(report: Artifact) -> None:
    assert (
        r"b ours $<$img src=x onerror=alert(1)$>$ \$x\_1\$ \& co" in (report.path / "tables.tex").read_text()
    )


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
    return folder / "report" / "report.md"


@pytest.mark.parametrize(("passages", "beside"), [(8_841_823, True), (None, True), (100_000, False)])
def test_published_figures_only_beside_the_same_benchmark(
    shared_data,  # type: ignore[no-untyped-def]
    tmp_path: Path,
    passages: int | None,
    beside: bool,
) -> None:
    qrels = shared_data("msmarco_trecdl") / "qrels.dl19-passage.txt.gz"
    text = dl19(tmp_path, qrels, passages).read_text()
    assert (PUBLISHED in text) is beside
    assert ("published results are not comparable" in text) is not beside
    assert ("| CoT-MAE (1200k) | 70.9 | – |" in text) is beside


def test_names_without_what_they_share_but_never_one_for_two(folder: Path, tmp_path: Path) -> None:
    for name in ("evaluate-x", "scores-x", "evaluate-y", "x-seed1"):
        shutil.copytree(folder / "runs" / "base", tmp_path / name)

    def named(*names: str) -> list[tuple[str, int]]:
        (section,) = gather([str(tmp_path / name) for name in names]).sections
        return [(system.name, len(system.seeds)) for system in section.systems]

    assert named("evaluate-x", "evaluate-y") == [("x", 1), ("y", 1)]
    assert named("evaluate-x", "scores-x") == [("evaluate-x", 1), ("scores-x", 1)]
    assert named("evaluate-y", "x-seed1") == [("y", 1), ("x", 1)]


def test_texts_that_cannot_be_read_are_refused_even_where_none_are_shown(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no collection\n")
    for data in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(QontextError, match=r"corpus\.jsonl"):
            api.report((str(folder / "runs" / "base"),), data=data, out=tmp_path / "out")


def test_equal_steps_of_two_runs_are_no_seeds_of_one(folder: Path, tmp_path: Path) -> None:
    for place in ("base/finetune", "ours-seed1/finetune", "ours-seed2/finetune"):
        shutil.copytree(folder / "runs" / "pretrain", tmp_path / place)
    report = api.report((str(tmp_path),), out=tmp_path / "out")
    captions = re.findall(r"Losses of [^.<*\"]+", (report.path / "report.html").read_text())
    assert set(captions) == {
        "Losses of base/finetune, cocondenser",
        "Losses of ours/finetune, cocondenser (mean of 2 seeds)",
    }


def test_a_report_of_unfinished_trainings_alone(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs" / "pretrain", tmp_path / "runs" / "pretrain")
    (tmp_path / "runs" / "pretrain" / "meta.json").rename(tmp_path / "runs" / "pretrain" / "claim.json")
    report = api.report((str(tmp_path / "runs"),), out=tmp_path / "out")
    assert "Losses of pretrain" in (report.path / "report.html").read_text()


def test_a_damaged_curve_writes_nowhere_else(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs" / "base", tmp_path / "evil")
    file = tmp_path / "evil" / "curves.json"
    content = json.loads(file.read_text())
    content["curves"]["x/../../../../elsewhere"] = content["curves"]["R"]
    file.chmod(0o644)
    file.write_text(json.dumps(content))
    meta = json.loads((tmp_path / "evil" / "meta.json").read_text())
    meta["parts"]["curves.json"]["bytes"] = file.stat().st_size
    (tmp_path / "evil" / "meta.json").chmod(0o644)
    (tmp_path / "evil" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(QontextError, match=r"curves\.json: damaged: .* is no curve"):
        api.report((str(tmp_path / "evil"),), out=tmp_path / "a" / "b" / "out")
    assert not list(tmp_path.rglob("elsewhere*"))


def test_two_systems_never_share_a_label(folder: Path, tmp_path: Path) -> None:
    own = [str(folder / "runs" / "base"), str(tmp_path / "other")]
    shutil.copytree(folder / "runs" / "base", tmp_path / "other")
    for labels in (["base=X", "other=X"], ["base=other"]):
        with pytest.raises(QontextError, match="two systems have the name"):
            api.report(own, label=labels, out=tmp_path / "out")
    api.report((own[0], own[0]), out=tmp_path / "same")  # one directory twice is one


def test_a_damaged_recipe_has_no_title(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs" / "base", tmp_path / "mine" / "base")
    for text in ("[recipe", f"title = {'[' * 5_000}", "recipe = 3", "[recipe]\n"):
        (tmp_path / "mine" / "recipe.toml").write_text(text)
        assert gather([str(tmp_path / "mine")]).title == "mine"


def test_damaged_scores_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs" / "base", tmp_path / "base")
    (tmp_path / "base" / "queries.parquet").write_bytes(b"")
    with pytest.raises(QontextError, match=r"queries\.parquet: damaged"):
        gather([str(tmp_path / "base")])


def test_examples_are_judged_by_the_split_that_was_scored(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    for split in ("generated", "test"):
        rows = "".join(f"{split}{i}\t{split}{i}-right\t1\n" for i in range(3))
        (data / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    names = [f"{split}{i}" for split in ("generated", "test") for i in range(3)]
    texts = [{"_id": f"{name}-{w}", "text": "A text."} for name in names for w in ("right", "w1")]
    (data / "corpus.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    (data / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": name}) + "\n" for name in names)
    )
    for split in ("generated", "test"):
        for system, rank in (("base", 3), ("ours", 1)):
            lines = [
                f"{split}{i} Q0 {split}{i}-{'right' if r == rank else f'w{r}'} {r} {-r} x"
                for i in range(3)
                for r in (1, 2, 3)
            ]
            run = tmp_path / f"{system}-{split}.trec"
            run.write_text("\n".join(lines) + "\n")
            api.evaluate(
                run, data, split=split, measures="MRR@10", out=tmp_path / "runs" / f"{system}-{split}"
            )
    report = api.report((str(tmp_path / "runs"),), data=data, out=tmp_path / "out")
    examples = [line for line in (report.path / "report.md").read_text().splitlines() if "A text." in line]
    marks = {(line.split("|")[2].strip(), line.split("|")[4].strip()) for line in examples}
    assert len(examples) == 12
    assert all(re.search(r"\w+-(right|w1): A text\.", line) for line in examples), "which of the equal ones"
    assert marks == {("base", "✗"), ("ours", "✓")}
    splits = [section.split for section in gather([str(tmp_path / "runs")]).sections]
    assert splits == ["test", "generated"]


def test_labels_name_and_order_the_systems_and_sentences_open_the_page(folder: Path, tmp_path: Path) -> None:
    runs = tuple(str(folder / "runs" / name) for name in ("base", f"{HOSTILE}-seed1"))
    label = (f"{HOSTILE}=Ours + BM25", "base=Base")
    report = api.report(runs, label=label, opening=("Ours helped.",), out=tmp_path / "out")
    text = (report.path / "report.md").read_text()
    assert text.index("Ours helped.") < text.index("| a Ours + BM25 |") < text.index("| b Base |")
    assert "From Ours + BM25 to Base, n = 24" in text.replace("\\", "")
    base = next(line for line in text.splitlines() if line.startswith("| b Base |"))
    assert base.split("|")[-2].strip() == "&lt; .001"  # p of the main measure against the first
    with pytest.raises(QontextError, match="NAME=LABEL"):
        api.report(runs, label=("base",), out=tmp_path / "bad")
    with pytest.raises(QontextError, match="unknown system in --label 'bse'") as caught:
        api.report(runs, label=("bse=Base",), out=tmp_path / "bad")
    assert "Did you mean 'base'?" in caught.value.remedy
    with pytest.raises(QontextError, match="unknown system in --recommended 'base'"):
        api.report(runs, label=label, recommended="base", out=tmp_path / "bad")  # it is called Base
    assert not (tmp_path / "bad").exists()


def test_the_recommended_system_is_marked_and_shown_in_examples(folder: Path, tmp_path: Path) -> None:
    data = folder / "data"
    ranks = {"base": 3, "chosen": 2, "best": 1}
    runs = [
        evaluate(tmp_path, name, data, {f"q{i}": rank for i in range(24)}) for name, rank in ranks.items()
    ]
    report = api.report(
        tuple(map(str, runs)),
        data=data,
        label=("base=Base",),
        opening=("Use it.", "It is good."),
        recommended="chosen",
        out=tmp_path / "out",
    )
    text = (report.path / "report.md").read_text()
    assert "**Use it.**\n\nIt is good.\n" in text
    row = next(line for line in text.splitlines() if "chosen (recommended)" in line)
    assert row.startswith("| **") and row.split("|")[-2].strip() == "–", "p is against the recommended system"
    assert "gains and losses from Base to chosen" in text and "| best | 100.0 |" not in text
    page = (report.path / "report.html").read_text()
    assert '<p class="lead"><b>Use it.</b></p>' in page and '<p class="lead">It is good.</p>' in page


def test_examples_that_look_alike_are_told_apart(folder: Path, tmp_path: Path) -> None:
    same = tmp_path / "same"
    shutil.copytree(folder / "data", same)
    rows = [json.loads(line) for line in (same / "corpus.jsonl").read_text().splitlines()]
    (same / "corpus.jsonl").write_text("".join(json.dumps({**row, "text": "Insert."}) + "\n" for row in rows))
    runs = [
        evaluate(tmp_path, name, same, {f"q{i}": rank for i in range(24)})
        for name, rank in {"a": 2, "b": 1}.items()
    ]
    report = api.report(tuple(map(str, runs)), data=same, out=tmp_path / "out")
    text = (report.path / "report.md").read_text()
    assert "| q0-w1: Insert. |" in text and "| q0-right: Insert. |" in text


def test_arms_of_a_sweep_are_named_by_what_differs_and_seeds_are_one_system(
    folder: Path, tmp_path: Path
) -> None:
    for context in ("query", "near"):
        for seed in (1, 2):
            shutil.copytree(
                folder / "runs" / "base", tmp_path / f"evaluate--context={context}--pretrain.seed={seed}"
            )
            shutil.copytree(
                folder / "runs" / "pretrain", tmp_path / f"pretrain--context={context}--pretrain.seed={seed}"
            )
    report = api.report((str(tmp_path),), out=tmp_path / "out")
    (section,) = gather([str(tmp_path)]).sections
    assert [(s.name, len(s.seeds)) for s in section.systems] == [("context=near", 2), ("context=query", 2)]
    text = (report.path / "report.md").read_text()
    assert re.findall(r"Losses of (.*?)\*", text.replace("\\", "")) == [
        f"pretrain, context={c}, cocondenser (mean of 2 seeds)" for c in ("near", "query")
    ]
    for seed in (1, 2):
        shutil.copytree(folder / "runs" / "base", tmp_path / "one" / f"evaluate--seed={seed}")
    (section,) = gather([str(tmp_path / "one")]).sections
    assert [(s.name, len(s.seeds)) for s in section.systems] == [("evaluate", 2)]


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(QontextError, match="nothing to report"):
        api.report((str(tmp_path),), out=tmp_path / "out")


def test_an_empty_directory_beside_others_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(QontextError, match="empty: nothing to report"):
        gather([str(folder / "runs" / "base"), str(tmp_path / "empty")])


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 500)])
def test_in_a_real_browser(report: Artifact, tmp_path: Path, scheme: str, width: int) -> None:
    from PIL import Image

    shot = tmp_path / "shot.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2400", f"--screenshot={shot}"]  # fmt: skip
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
    assert (saturation > 80).sum() > 500
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
    assert tables == 2
    assert cut == 0  # every table fits


def test_evaluations_without_a_common_measure_are_apart(folder: Path, tmp_path: Path) -> None:
    for name, measure in (("a", "MRR@10"), ("b", "R@10")):
        api.evaluate(folder / "base.trec", folder / "data", measures=measure, out=tmp_path / "runs" / name)
    page = (api.report([tmp_path / "runs"], out=tmp_path / "out").path / "report.html").read_text()
    assert "MRR@10" in page and "R@10" in page


def test_the_share_of_judged_results_alone_has_a_report_without_tests(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        api.evaluate(
            folder / "base.trec", folder / "data", measures="Judged@10", out=tmp_path / "runs" / name
        )
    path = api.report([tmp_path / "runs"], out=tmp_path / "out").path
    assert "Judged@10" in (path / "report.md").read_text()
    assert len((path / "differences.csv").read_text().splitlines()) == 1
