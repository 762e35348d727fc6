"""The ways in: an installation without PyTorch, the containers and services that the documentation describes, and the files
by which the project is built and released."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.examples.collect import Example
from tests.examples.parsed import parse
from tests.tiny import write_lines

from qontext.cli import LEFT_OUT

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from qontext.cli import run_app
for line in {lines!r}:
    sys.argv = ["qontext", *line.split()]
    print("$", line, flush=True)
    try:
        run_app()
    except SystemExit as end:
        print("exit", end.code, flush=True)
"""


def test_words_are_searched_without_torch(tmp_path: Path) -> None:
    """In one process: everything that docs/guides/install.md says, and the sentence for what needs a model."""
    write_lines(tmp_path / "docs.jsonl", [{"_id": "1", "text": "The mill grinds flour."}])
    (tmp_path / "q.tsv").write_text("1\tflour\n")
    lines = [
        "--help",
        "split docs.jsonl --workers 1 --out passages",
        "retrieve --bm25 --passages passages --queries q.tsv --k 2 --out run",
        "index passages --backend bm25 --out words",
        "show words",
        "demo --help",
        "adapt docs.jsonl --yes --out made",
    ]
    absent = {*LEFT_OUT, "huggingface_hub", "scipy", "sympy"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(absent=absent, lines=lines)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    codes = [code.splitlines()[-1] for code in done.stdout.split("$ ")[1:]]
    assert codes == [*["exit 0"] * 6, "exit 2"], done.stdout + done.stderr
    assert "1 Q0 1#0 1 " in (tmp_path / "run" / "run.trec").read_text()
    assert re.search(
        r"error: this needs the package \w+, which is not installed. Run: pip install qontext", done.stderr
    )


def test_the_documented_packages_are_the_dependencies() -> None:
    page = (ROOT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
    listed = re.search(r"^pip install (bm25s .*)$", page, re.M)
    assert listed is not None
    needed = {re.split(r"[>=<!]", name)[0].replace("-", "_") for name in PROJECT["dependencies"]}
    assert {name.replace("-", "_") for name in listed[1].split()} == needed - {*LEFT_OUT}
    extras = {name for name in PROJECT["optional-dependencies"] if name not in ("dev", "site")}
    table = page.partition("## Extras")[2].partition("## ")[0]
    assert {
        name for row in re.findall(r"^\| (`.*?`) \|", table, re.M) for name in re.findall(r"`(.*?)`", row)
    } == extras


def instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, its arguments) of a Dockerfile."""
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]  # type: ignore[misc]


def parses(words: list[str]) -> None:
    """The command line is one of qontext's, with settings that exist."""
    parse(Example(shlex.join(["qontext", *words])))


def test_the_image_is_built_from_what_is_there(tmp_path: Path) -> None:
    steps = instructions(ROOT / "Dockerfile")
    froms = [rest for name, rest in steps if name == "FROM"]
    assert all(
        re.fullmatch(r"python:3\.\d+-slim-\w+( AS \w+)?", image) for image in froms
    )  # pinned, and small
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [
        path for name, rest in steps if name == "COPY" and "--from" not in rest for path in rest.split()[:-1]
    ]
    assert all((ROOT / path).exists() and f"!{path.removeprefix('./')}" in ignored for path in copied)
    run = " ".join(rest for name, rest in steps if name == "RUN")
    extras = re.search(r"'\.\[(.*?)\]'", run)
    assert extras is not None and {*extras[1].split(",")} <= {*PROJECT["optional-dependencies"]}
    # The file of the only line that is torch's, as the image's shell makes it.
    script = run.partition("sed ")[2].partition(" && ")[0]
    subprocess.run(
        ["sh", "-c", f"sed {script.replace('> torch.txt', f'> {tmp_path}/torch.txt')}"], cwd=ROOT, check=True
    )
    assert re.fullmatch(r"torch==\S+\n", (tmp_path / "torch.txt").read_text())
    assert next(rest for name, rest in reversed(steps) if name == "USER").isdigit()  # not root
    start = json.loads(next(rest for name, rest in steps if name == "CMD" and "serve" in rest))
    parses(start)
    assert not any("TOKEN" in rest for name, rest in steps if name in ("ENV", "ARG"))


def test_compose() -> None:
    made = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    server, postgres = made["services"]["qontext"], made["services"]["postgres"]
    parses(server["command"])
    assert all(port.startswith("127.0.0.1:") for port in server["ports"]) and "ports" not in postgres
    assert "?" in server["environment"]["QONTEXT_TOKEN"]  # refuses to start without one
    assert server["read_only"] and server["cap_drop"] == ["ALL"]
    assert postgres["profiles"] == ["postgres"]
    named = {v.split(":")[0] for s in made["services"].values() for v in s["volumes"] if v[0] not in "./$"}
    assert named == {*made["volumes"]}
    volumes = {json.dumps(rest) for name, rest in instructions(ROOT / "Dockerfile") if name == "VOLUME"}
    assert all(place.split(":")[1] in str(volumes) or "documents" in place for place in server["volumes"])


def test_commands_of_the_page() -> None:
    page = (ROOT / "docs" / "guides" / "deploy.md").read_text(encoding="utf-8")
    commands = re.findall(r"^docker compose run --rm qontext (.*)$", page, re.M)
    assert len(commands) == 2
    for command in commands:
        parses(shlex.split(command))
    for file in re.findall(r"`(deploy/\S+)`", page):
        assert (ROOT / file).is_file(), file


def test_service_and_proxies() -> None:
    service = (ROOT / "deploy" / "qontext.service").read_text(encoding="utf-8")
    start = re.search(r"^ExecStart=/\S+/qontext (.*)$", service, re.M)
    assert start is not None
    parses(shlex.split(start[1]))
    assert "DynamicUser=yes" in service and "ProtectSystem=strict" in service
    allowed = re.search(r"--allow-host (\S+)", start[1])
    assert allowed is not None
    for name in ("Caddyfile", "nginx.conf"):
        proxy = (ROOT / "deploy" / name).read_text(encoding="utf-8")
        assert allowed[1] in proxy and "127.0.0.1:8000" in proxy
    assert "proxy_set_header Host $host" in proxy


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_have_few_rights(file: Path) -> None:
    made = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert made["permissions"] in ({}, {"contents": "read"})
    for name, job in made["jobs"].items():
        assert "timeout-minutes" in job, name
        for step in job["steps"]:
            # What others write into an event is text, never a part of a script.
            assert "${{ github.event" not in step.get("run", "")
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


def test_every_supported_python_is_tested() -> None:
    made = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    tested = made["jobs"]["test"]["strategy"]["matrix"]["python"]
    stated = [c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert tested == stated
    assert f"| {tested[-1]}](" in (ROOT / "README.md").read_text(encoding="utf-8").partition("\n\n")[2][:120]


def test_the_release_is_published_without_a_secret() -> None:
    file = ROOT / ".github" / "workflows" / "release.yml"
    jobs: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert "secrets." not in file.read_text(encoding="utf-8")
    assert "cyclonedx_py" in str(jobs["build"]["steps"])
