"""Kinds from outside the package: the files of docs/extending.md, through the real command line, by ``module:Class`` and by
the entry points of an installed package."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import Server, save_bert, write_collection
from typer.testing import CliRunner

from qontext import cli
from qontext.frame import stages
from qontext.frame.artifacts import open_artifact
from qontext.frame.config import Options
from qontext.frame.kinds import Kinds
from qontext.frame.trust import trusting
from qontext.models.retriever import Retriever

DOCS = Path(__file__).parents[1] / "docs" / "extending.md"
KINDS = ("bag", "openings", "triplet", "brute", "attentive", "verses")
GROUPS = tuple(
    f"qontext.{name}"
    for name in ("objectives", "generators", "losses", "indexes", "representations", "sources")
)
CLASSES = tuple(f"{name}:{name.title()}" for name in KINDS)
POEM = [
    f"The {n}th verse speaks of {a} and {b}. It ends with {c}."
    for n, (a, b, c) in enumerate(
        [("rivers", "stones", "boats"), ("winter", "bread", "mills"), ("lamps", "stairs", "bells")] * 4
    )
]


def write_labels(folder: Path) -> None:
    """The poem in BEIR's layout, with a question about each verse."""
    verses = [{"_id": f"v{n}", "title": "", "text": verse} for n, verse in enumerate(POEM)]
    questions = [{"_id": f"q{n}", "text": " ".join(verse.split()[4:7])} for n, verse in enumerate(POEM)]
    write_collection(folder, verses, questions, {"train": {f"q{n}": f"v{n}" for n in range(len(POEM))}})


def write_modules(folder: Path) -> None:
    """The documented files, each under the name in its first line."""
    blocks = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == list(KINDS)
    for name, text in blocks:
        (folder / f"{name}.py").write_text(text)


def install(folder: Path) -> None:
    """Write an installed package: its modules and a folder that describes it, with its entry points."""
    write_modules(folder)
    about = folder / "verse_tools-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: verse-tools\nVersion: 1.0\n")
    points = (f"[{g}]\n{n} = {c}\n" for g, n, c in zip(GROUPS, KINDS, CLASSES))
    (about / "entry_points.txt").write_text("\n".join(points))


RunCommands = Callable[..., str]


@pytest.fixture
def run_commands(warm: Server, tmp_path: Path) -> RunCommands:
    """Runs command lines of `qontext` in one new process, with these folders on its path; the current one is not there by
    itself."""

    def run(commands: list[str], folder: Path, *paths: Path) -> str:
        code = textwrap.dedent(f"""
            import sys
            from qontext import cli
            sys.path[:0] = {[*map(str, paths)]!r}
            for line in {commands!r}:
                try:
                    cli.app(line.split())
                except SystemExit as left:
                    assert not left.code, (line, left.code)
        """)
        search = os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
        order = {"code": code, "cwd": str(folder)}
        running = warm.launch(order, tmp_path / "said", PYTHONPATH=search, COLUMNS="200")
        assert running.wait() == {0}, running.text()
        return running.text()

    return run


def read_run(path: Path) -> list[float]:
    """The scores: passages that are nearly as good may change places."""
    return [float(line.split()[4]) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("way", ["module:Class", "entry points"])
def test_every_kind_from_outside_the_package(tmp_path: Path, run_commands: RunCommands, way: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "poem.txt").write_text("\n".join(POEM))
    if way == "entry points":
        (tmp_path / "site").mkdir()
        install(tmp_path / "site")
        paths, (method, generator, loss, index, _, source) = [tmp_path / "site"], KINDS
    else:
        write_modules(work)
        paths, (method, generator, loss, index, _, source) = [], CLASSES
    output = run_commands(
        [
            f"split {source}:poem.txt --out passages -q",
            f"generate passages --generator {generator} --words 4 --out queries -q",
            "train-tokenizer passages --vocabulary 120 --out tokenizer -q",
            f"pretrain passages --method {method} --share 0.5 --bag-weight 2 --encoder tiny --tokenizer tokenizer "
            "--steps 2 --batch-size 4 --max-tokens 24 --device cpu --precision fp32 --workers 1 --out encoder -q",
            "encode passages --encoder encoder --device cpu --precision fp32 --out vectors -q",
            f"index vectors --backend {index} --out index -q",
            "retrieve index --queries queries --k 3 --trust --device cpu --precision fp32 --out own -q",
            "retrieve vectors --queries queries --k 3 --device cpu --precision fp32 --out exact -q",
            "mine exact/run.trec queries --queries queries --passages passages --per-query 2 --out groups -q",
            f"finetune groups --passages passages --encoder encoder --loss {loss} --margin 200 --passages-per-query 3 "
            "--steps 2 --batch-size 4 --log-every 1 --device cpu --precision fp32 --out retriever -q",
            f"pretrain --help --method {method}",
            f"finetune --help --loss {loss}",
        ],
        work,
        *paths,
    )
    artifacts = {
        name: open_artifact(work / name) for name in ("passages", "queries", "encoder", "index", "retriever")
    }
    assert artifacts["passages"].summary["passages"] == len(POEM)
    assert artifacts["queries"].summary["queries"] == len(POEM)
    assert artifacts["queries"].config["words"] == 4 and artifacts["index"].config["backend"] == index
    settings = artifacts["encoder"].config
    assert (settings["method"], settings["share"], settings["bag_weight"]) == (method, 0.5, 2)
    assert "temperature" not in settings
    assert list(artifacts["encoder"].summary[method]["losses"]) == ["bag"]
    settings = artifacts["retriever"].config
    assert (settings["loss"], settings["margin"]) == (loss, 200) and "contrastive_weight" not in settings
    assert artifacts["retriever"].summary["losses"].keys() == {"triplet"}
    assert artifacts["retriever"].summary["losses"]["triplet"] > 100
    own, exact = (read_run(work / name / "run.trec") for name in ("own", "exact"))
    assert len(own) == 3 * len(POEM) and own == pytest.approx(exact, rel=1e-5)
    assert f"Settings of {method}" in output and "--bag-weight" in output and "--window" not in output
    assert f"Settings of {loss}" in output and "--margin" in output and "--passage-weight" not in output
    # What the source reads has a fingerprint of its own: a change is noticed.
    (work / "poem.txt").write_text("\n".join(POEM[:-1]))
    with pytest.raises(AssertionError, match="the content of source"):
        run_commands([f"split {source}:poem.txt --out passages -q"], work, *paths)


@pytest.mark.parametrize("way", ["module:Class", "entry points"])
def test_a_representation_from_outside_the_package(
    tmp_path: Path, minilm: Path, run_commands: RunCommands, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, site = tmp_path / "work", tmp_path / "site"
    write_labels(work / "labeled")
    save_bert(work / "encoder", minilm)
    site.mkdir()
    if way == "entry points":
        install(site)
    else:
        write_modules(site)
    names = KINDS if way == "entry points" else CLASSES
    name, trust, on = names[4], "--trust" if way == "module:Class" else "", "--device cpu --precision fp32"
    train = (
        f"finetune labeled --representation {name} --sharpness 2 --steps 2 --batch-size 4 "
        f"--query-length 8 --passage-length 24 {on} -q --out"
    )
    run_commands([f"{train} retriever --encoder encoder"], work, site)
    encode = f"encode labeled --encoder retriever {on} --out vectors -q"
    if trust:  # a folder may come from anyone
        with pytest.raises(
            AssertionError,
            match=rf"modules\.json: it asks to run the code of the representation '{name}'.*--trust",
        ):
            run_commands([encode], work, site)
    search = f"--data labeled --split train --k 3 {on} --trust -q"
    commands = [
        f"{encode} {trust}",
        f"index vectors --backend {names[3]} --out index -q",
        f"retrieve index {search} --out own",
        f"retrieve vectors {search} --out exact",
        f"{train} again --encoder retriever --lr 1e-12",
    ]
    run_commands(commands, work, site)
    own, exact = (read_run(work / run / "run.trec") for run in ("own", "exact"))
    assert len(own) == 3 * len(POEM) and own == pytest.approx(exact, rel=1e-5)
    assert open_artifact(work / "vectors").summary["pooling"] == name
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "attentive", raising=False)
    with trusting():
        retriever, again = (
            Retriever(work / n, device="cpu", precision="fp32") for n in ("retriever", "again")
        )
    assert isinstance(retriever.representation, sys.modules["attentive"].Attentive)
    assert retriever.representation.sharpness == 2
    torch.testing.assert_close(again.representation.state_dict(), retriever.representation.state_dict())
    similar = retriever.encode_queries(["of rivers and"]) @ retriever.encode_passages(POEM).T
    best = read_run(work / "exact" / "run.trec")[:3]
    assert best == pytest.approx(sorted(similar[0].tolist(), reverse=True)[:3], rel=1e-4)


MINIMAL = """
from qontext.models.representations.base import Representation
class Longest(Representation):
    def forward(self, encoder, ids_NT, mask_NT, are_queries):
        (last,) = encoder(ids_NT, mask_NT)
        return last.masked_fill(~mask_NT[..., None], -9).amax(1).float()
    def similarity(self, queries, passages):
        return queries @ passages.T
"""


def test_a_representation_needs_but_two_methods(
    tmp_path: Path, minilm: Path, run_commands: RunCommands
) -> None:
    """No options, no constructor; every loss has options of its own."""
    write_labels(tmp_path / "labeled")
    save_bert(tmp_path / "encoder", minilm)
    (tmp_path / "longest.py").write_text(MINIMAL)
    on = "--device cpu --precision fp32 -q"
    train = (
        f"finetune labeled --encoder encoder --representation longest:Longest --steps 1 --batch-size 4 {on}"
    )
    commands = [
        f"{train} --loss pair --out pair",
        f"{train} --out retriever",
        f"encode labeled --encoder retriever {on} --trust --out vectors",
    ]
    run_commands(commands, tmp_path, tmp_path)
    assert open_artifact(tmp_path / "vectors").summary["pooling"] == "longest:Longest"
    (tmp_path / "longest.py").write_text(f"{MINIMAL}    def width(self, encoder):\n        return 8\n")
    with pytest.raises(AssertionError, match=r"returns vectors of 16 numbers, and its width is 8\. Correct"):
        run_commands([commands[-1].replace("vectors", "narrow")], tmp_path, tmp_path)
    (tmp_path / "several.py").write_text(f"{MINIMAL}    stored = 'tokens'\n".replace("Longest", "Several"))
    with pytest.raises(AssertionError, match="stores tokens: it must define pack and set index"):
        run_commands(
            [train.replace("longest:Longest", "several:Several") + " --out several"], tmp_path, tmp_path
        )


BROKEN = {
    "syntax.py": "class Odd(:\n",
    "fails.py": "raise RuntimeError('no license')\n",
    "needs.py": "import a_package_that_is_not_there\n",
    "plain.py": "class Odd: pass\n",
    "taken.py": """
        from qontext.frame.config import Options
        from qontext.pretrain.objectives.base import Objective
        class OddOptions(Options):
            lr: float = 1.0
            \"\"\"Taken.\"\"\"
        class Odd(Objective):
            Options = OddOptions
            layout = forward = None
    """,
    "loose.py": """
        from qontext.pretrain.objectives.base import Objective
        class Odd(Objective):
            Options = dict
            layout = forward = None
    """,
}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Odd", "cannot be imported: there is no module 'nowhere'. Install its package, or run"),
        ("plain:Odd", r"is not a subclass of qontext\.pretrain\.objectives\.base\.Objective"),
        ("taken:Odd", "has an option 'lr', which is already the name of a setting. Rename the option"),
        ("loose:Odd", r"the Options of the method 'loose:Odd' are not a subclass of qontext\.frame\.config\.Options"),
        (":Odd", "is not of the form module:Class"),
        ("condensor", "unknown method 'condensor'.*Did you mean 'condenser'"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    for file, text in BROKEN.items():
        (tmp_path / file).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in BROKEN:
        monkeypatch.delitem(sys.modules, module.removesuffix(".py"), raising=False)
    for more in ([], ["--help"]):
        done = CliRunner().invoke(cli.app, ["pretrain", "p", "--out", "o", "--method", name, *more])
        assert done.exit_code == 2 and not done.stdout, done.output
        (line,) = done.stderr.splitlines()
        assert re.search(message, line), line


def tables() -> dict[str, tuple[str, str, Kinds]]:
    by_option: dict[str, tuple[str, str, Kinds]] = {}
    for verb in stages.VERBS:
        for field, table in stages.load(verb).config.kinds.items():
            by_option[f"{verb} --{field}"] = (verb, field, table)
    return by_option


@pytest.mark.parametrize("where", tables())
def test_each_kind_shows_and_records_its_own_options_and_no_others(where: str) -> None:
    verb, field, table = tables()[where]
    general = CliRunner(env={"COLUMNS": "400"}).invoke(cli.app, [verb, "--help-all"]).output
    assert f"qontext {verb} --help --{field} NAME" in general
    options: dict[str, type[Any]] = {name: table.options(name) for name in table.own}
    for name, own in options.items():
        assert issubclass(own, Options) and table.own[name].about in " ".join(general.split())
        flag = [f"--{field}", name] if name != "t5" else [f"--{field}={name}"]
        done = CliRunner(env={"COLUMNS": "400"}).invoke(cli.app, [verb, "--help-all", *flag])
        listed = done.output.partition("\nArguments\n")[2]  # after the examples
        text = " ".join(listed.split())
        for other, theirs in options.items():
            for option, info in theirs.model_fields.items():
                shown = re.search(rf"--{option.replace('_', '-')}\b(?!-)", listed) is not None
                assert shown == (option in own.model_fields), (name, other, option)
                if other == name:
                    assert info.description and " ".join(info.description.split()) in text, (name, option)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pretrain p --out o --method mlm --window 5", "window is not read by the method 'mlm', only by cot-mae"),
        ("pretrain p --out o --window=5", "window is not read by the method 'cocondenser', only by cot-mae"),
        ("finetune g --out o --passage-weight 0.2", "passage_weight is not read by the loss 'contrastive', only by pair"),
        ("index v --out o --backend bm25 --lists 5", "lists is not read by the backend 'bm25', only by faiss-ivfpq"),
        ("generate p --out o --generator keyphrase --chat-model x", "chat_model is not read by the generator"),
        ("filter q --passages p --out o --by overlap --top 5", "top is not read by the judge 'overlap', only by"),
    ],
)  # fmt: skip
def test_an_option_of_another_kind_is_refused(line: str, message: str) -> None:
    done = CliRunner().invoke(cli.app, line.split())
    assert done.exit_code == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.output


def test_a_recipe_checks_the_options_of_its_kinds(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('[pretrain]\npassages = "p"\nmethod = "mlm"\nwindow = 3\n')
    done = CliRunner().invoke(cli.app, ["run", str(tmp_path / "r.toml"), "--dry-run"])
    assert "window is not read by the method 'mlm', only by cot-mae" in done.stderr
    (tmp_path / "r.toml").write_text('[pretrain]\npassages = "p"\nmethod = "mlm"\nwinow = 3\n')
    done = CliRunner().invoke(cli.app, ["run", str(tmp_path / "r.toml"), "--dry-run"])
    assert "unknown setting of [pretrain] in r.toml 'winow'" in json.dumps(done.stderr)
