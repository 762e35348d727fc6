"""The documentation site: built from docs/ and the code, without other hosts, and searchable in people's words."""

from __future__ import annotations

import ast
import html
import http.server
import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.examples.collect import ROOT
from tests.examples.workspace import Workspace
from tests.serve.browser import PHONE, Person, chromium

from qontext.frame import stages

QUESTIONS = {
    "search a folder of PDFs": "guides/search/",
    "own encoder": "guides/models/",
    "read the verdict": "guides/adapt/",
    "add a loss": "extending/",
    "run a row of a paper": "guides/reproduce/",
    "serve with a token": "guides/serve/",
    "quantization": "guides/indexes/",
    "SPLADE": "guides/finetune/",
    "CoT-MAE": "reference/methods/cot-mae/",
    "split": "reference/commands/split/",
}
"""What people type into the search → the page that answers it, among the first three."""


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    """The package that generates the pages; mkdocs finds it beside `docs/hooks.py`."""
    sys.path.insert(0, str(ROOT / "docs"))
    yield importlib.import_module("reference")
    sys.path.remove(str(ROOT / "docs"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; a broken link or anchor, or a page that is not in the navigation, fails its build."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def test_the_reference_has_every_setting_and_kind(reference: Any) -> None:
    pages = reference.pages()
    for verb in stages.VERBS:
        page = pages[f"reference/commands/{verb}.md"]
        config = stages.load(verb).config
        for name, info in config.model_fields.items():
            assert f'id="{name.replace("_", "-")}"' in page, f"{verb}: {name}"
            start = re.split(r"[`'<>&-]", " ".join((info.description or "").split()))[0]
            assert html.escape(start, quote=False) in page, f"{verb}: {name}"
        for table in config.kinds.values():
            for kind in table.own:
                for option in table.options(kind).model_fields:
                    texts = [text for path, text in pages.items() if kind in path or f"## {kind} " in text]
                    assert any(f'{option.replace("_", "-")}"><a' in text for text in texts), (
                        f"{kind}: {option}"
                    )


def test_equations_keep_their_columns(reference: Any) -> None:
    text = reference.text.markdown(
        "    for x:\n    L_co = CE(φ(h^L), x)        x masked\n    L    = L_co + w · L_x"
    )
    assert "<sub>co</sub>" in text and "h<sup>L</sup>" in text
    places = dict(re.findall(r"grid-area: \d+ / (\d+) / auto / \d+\">(= |x masked)", text))
    assert places == {"2": "= ", "3": "x masked"}
    assert reference.text.prose("s = <h, h'> and `a_b` with --top-k") == (
        "s = &lt;h, h'&gt; and `a_b` with `--top-k`"
    )


def test_the_files_of_a_command_are_those_that_it_writes(reference: Any, workspace: Workspace) -> None:
    seen: dict[str, set[str]] = {}
    for folder in [*workspace.folder.iterdir(), *(workspace.folder / "runs").rglob("*")]:
        if (folder / "meta.json").is_file():
            verb = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["verb"]
            files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
            names = {str(path) for path in files if not any(part.startswith(".") for part in path.parts)}
            patterns = [p for listed in reference.outputs.FILES[verb] for p in listed.split(", ")]
            if verb not in ("index", "export"):
                unknown = {name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)}
                assert unknown <= {"meta.json"}, f"{verb}: {unknown}"
            seen.setdefault(verb, set()).update(names)
    assert len(seen) > 12
    optional = re.compile(r"starts-|\.jinja|derived|head|README|plots")
    for verb, names in seen.items():
        for pattern in (p for listed in reference.outputs.FILES[verb] for p in listed.split(", ")):
            assert optional.search(pattern) or any(fnmatch(name, pattern) for name in names), (
                f"{verb}: {pattern}"
            )


def test_every_environment_variable_is_explained() -> None:
    """Those that the code reads or sets: text in capitals with an underscore, in a call or an index of the environment."""
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    others = r"EN(_PLUS)?|HNSW_SQ|IVF_\w+|SC_\w+|SO_\w+|O_\w+|INFERENCE_PRECISION_HINT|WRONG_VERSION_NUMBER|STOPWORDS_\w+"
    names = {
        node.value
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", node.value) and not re.fullmatch(others, node.value)
    }
    assert "QONTEXT_TOKEN" in names
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_map_for_language_models_has_every_page() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((?!http)([^)]+)\)", text))
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith(("docs/reference/", "docs/results/"))} <= linked
    assert "docs/results/index.md" in linked
    assert {link for link in linked if not (ROOT / link).exists()} == set()


def test_nothing_comes_from_another_host(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="?([^"\s>]+)|<link\b([^>]*)>""")
    for page in site.rglob("*.html"):
        for source, link in loaded.findall(page.read_text(encoding="utf-8")):
            target = source or re.sub(r'.*href="?([^"\s>]+).*', r"\1", link)
            assert not target.startswith(("http", "//")) or "canonical" in link, f"{page}: {target}"
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_finds_the_page(question: str, address: str, browser: Any) -> None:
    person = Person(browser, address)
    page = person.go(f"?q={question.replace(' ', '+')}")
    page.wait_for_selector(".md-search-result__item")
    results = page.eval_on_selector_all(
        ".md-search-result__item > a.md-search-result__link", "links => links.map(link => link.href)"
    )
    pages = [link.removeprefix(address).partition("?")[0].partition("#")[0] for link in results]
    assert QUESTIONS[question] in list(dict.fromkeys(pages))[:3], pages
    assert not person.errors
    person.context.close()


ASK = """async ([index, questions]) => {
  const worker = new Worker(JSON.parse(document.querySelector("#__config").textContent).search);
  const send = message => new Promise(done => { worker.onmessage = done; worker.postMessage(message); });
  await send({type: 0, data: {...index, options: {suggest: true}}});
  for (const question of questions) await send({type: 2, data: question});
}"""
"""Asks the search, as the page does, one question after the other."""


def test_the_search_reads_every_word(site: Path, address: str, browser: Any) -> None:
    """Where its index is damaged, it says so on the console, and that there are no pages."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    text = " ".join(f"{part['title']} {part['text']}" for part in index["docs"])
    words = sorted({word.lower() for word in re.findall(r"[A-Za-z]\w+", re.sub(r"<[^>]*>", " ", text))})
    assert len(words) > 2000
    person = Person(browser, address)
    said: list[str] = []
    person.page.on("console", lambda message: said.append(message.text))
    person.go("").evaluate(ASK, [index, words])
    assert [line for line in said if "Invalid query" in line] == []
    person.context.close()


@pytest.mark.parametrize("size", ["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_in_a_browser(size: str, scheme: str, address: str, browser: Any) -> None:
    """Nothing is asked of another host, and nothing is wider than the window."""
    options = {"viewport": PHONE} if size == "phone" else {}
    person = Person(browser, address, color_scheme=scheme, **options)
    asked: list[str] = []
    person.page.on("request", lambda request: asked.append(request.url))
    for path in (
        "",
        "guides/search/",
        "reference/",
        "reference/commands/pretrain/",
        "reference/methods/retromae/",
    ):
        page = person.go(path)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert not person.errors
    person.context.close()
