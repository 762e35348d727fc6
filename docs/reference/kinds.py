"""What is chosen by name: a page for every pre-training method, and one for each table of other kinds."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass

from qontext.contexts import RULES
from qontext.corpus.sources import SOURCES
from qontext.finetune.losses import LOSSES
from qontext.frame.kinds import Kinds
from qontext.models.representations import REPRESENTATIONS
from qontext.pretrain.objectives import METHODS
from qontext.queries.generators import GENERATORS
from qontext.queries.judges import JUDGES
from qontext.release.export import FORMATS
from qontext.retrieve.index import BACKENDS
from qontext.serve.judge import PAIRS

from . import settings
from .text import markdown, page, prose, source_link, split


@dataclass(frozen=True)
class Table:
    """A page of kinds: its title, and the command and setting that choose one of them."""

    path: str
    title: str
    kinds: Kinds
    verb: str
    setting: str
    about: str


METHODS_FOLDER = "reference/methods"
TABLES = [
    Table("generators", "Query generators", GENERATORS, "generate", "--generator", "Models and rules that write queries."),
    Table("judges", "Query filters", JUDGES, "filter", "--by", "Signals by which generated queries are kept or dropped."),
    Table("losses", "Fine-tuning losses", LOSSES, "finetune", "--loss", "Losses of a retriever, with equations."),
    Table(
        "representations", "Representations", REPRESENTATIONS, "finetune", "--representation",
        "Dense vectors, SPLADE, ColBERT, ME-BERT and COIL: what a text becomes, and how two are compared.",
    ),
    Table("indexes", "Index backends", BACKENDS, "index", "--backend", "BM25, HNSW and other indexes of faiss, servers."),
    Table("sources", "Sources of documents", SOURCES, "split", "SOURCE", "Documents that are not files of this machine."),
    Table("formats", "Export formats", FORMATS, "export", "--to", "ONNX, OpenVINO, static embeddings and Parquet."),
    Table("pairs", "Pairs to judge", PAIRS, "annotate", "--pairs", "What people judge."),
]  # fmt: skip


def pages() -> dict[str, str]:
    methods = {f"{METHODS_FOLDER}/{name}.md": _method(name) for name in METHODS.own}
    tables = {f"reference/{table.path}.md": _table(table) for table in TABLES}
    return {
        f"{METHODS_FOLDER}/index.md": _methods(),
        **methods,
        **tables,
        "reference/contexts.md": _contexts(),
    }


def nav() -> list[dict[str, object]]:
    methods: list[object] = [
        f"{METHODS_FOLDER}/index.md",
        *(f"{METHODS_FOLDER}/{name}.md" for name in METHODS.own),
    ]
    return [
        {"Pre-training methods": methods},
        {"Contexts": "reference/contexts.md"},
        *({table.title: f"reference/{table.path}.md"} for table in TABLES),
    ]


def page_of(file: str) -> str | None:
    """The page of the kinds that a file of `src/qontext` defines, if there is one."""
    module = file.removesuffix(".py").replace("/", ".")
    for name, kind in METHODS.own.items():
        if _module(kind.implementation) == module:
            return f"{METHODS_FOLDER}/{name}.md"
    for table in TABLES:
        names = [name for name, kind in table.kinds.own.items() if _module(kind.implementation) == module]
        if names and table.kinds in (LOSSES, REPRESENTATIONS):
            return f"reference/{table.path}.md#{_anchor(names[0])}"
    return None


def overview() -> str:
    """The list of these pages."""
    methods = ", ".join(f"[{_title(name)}](methods/{name}.md)" for name in METHODS.own)
    rows = [
        f"- [Pre-training methods](methods/index.md): {methods}",
        f"- [Contexts](contexts.md) of a passage in pre-training: {', '.join(f'`{name}`' for name in RULES)}",
    ]
    for table in TABLES:
        names = ", ".join(f"[`{name}`]({table.path}.md#{_anchor(name)})" for name in table.kinds.own)
        rows.append(f"- [{table.title}]({table.path}.md): {names}")
    return "\n".join(rows)


def pointer(field: str, table: Kinds) -> str:
    """Where the options of the kinds that a setting chooses are."""
    if table is METHODS:
        listed = ", ".join(f"[{name}](../methods/{name}.md)" for name in table.own)
    else:
        page = next(page for page in TABLES if page.kinds.group == table.group)
        names = [name for name in table.own if name in page.kinds.own]
        listed = ", ".join(f"[{name}](../{page.path}.md#{_anchor(name)})" for name in names)
    flag = f"--{field.replace('_', '-')}"
    return f"Each {table.noun} (`{flag}`) has its own settings, which are settings of this command, too: {listed}."


def _anchor(name: str) -> str:
    return name.replace("_", "-")


def _module(kind: str) -> str:
    return kind.partition(":")[0]


def _doc(kind: str) -> str:
    return inspect.cleandoc(str(importlib.import_module(_module(kind)).__doc__))


def _title(name: str) -> str:
    """The name of a method in its paper: what stands before the colon in its docstring."""
    return _doc(METHODS.own[name].implementation).partition(":")[0]


def _options(kinds: Kinds, name: str) -> str:
    options = getattr(kinds.load(name), "Options", None)
    return settings.definitions(options, options.model_fields) if options and options.model_fields else ""


def _methods() -> str:
    own = METHODS.own.items()
    rows = [f"| [{_title(name)}](../methods/{name}.md) | `{name}` | {kind.about} |" for name, kind in own]
    body = [
        "# Pre-training methods",
        "`qontext pretrain --method NAME` chooses one. Each page has the method's equation, its paper, departures from the "
        "released code, and its settings. [Choose a method](../../guides/methods.md) says when to use which.",
        "\n".join(["| Method | Name | |", "|---|---|---|", *rows]),
        prose(
            "In all equations, h^L are the last layer's hidden states, φ is the MLM head, CE the mean cross-entropy over "
            "the predicted tokens, E the embeddings and [CLS] the first token, whose vector represents the text."
        ),
        "A class of your own is chosen as `module:Class`: see [Extending](../../extending.md#add-a-method).",
    ]
    return page(
        "Pre-training methods", "Equations and settings of all pre-training methods.", "\n\n".join(body)
    )


def _method(name: str) -> str:
    kind = METHODS.own[name]
    title, _, doc = _doc(kind.implementation).partition(":")
    first, rest = split(doc)
    parts = [
        f"# {title}",
        first[:1].upper() + markdown(first)[1:],
        f"```bash\nqontext pretrain passages --method {name} --out encoder\n```",
        markdown(rest),
    ]
    if options := _options(METHODS, name):
        parts += ["## Settings", "Beside those of [`qontext pretrain`](../commands/pretrain.md):", options]
    parts.append(f"Source: {source_link(_module(kind.implementation))}")
    return page(title, f"{title}: {first}", "\n\n".join(parts), boost=0.8)


def _table(table: Table) -> str:
    chooses = f"`qontext {table.verb} {table.setting}`"
    parts = [
        f"# {table.title}",
        f"{table.about} {chooses} chooses one (see [`{table.verb}`](commands/{table.verb}.md)); "
        "a class of your own is `module:Class` ([extending](../extending.md)).",
    ]
    for name, kind in table.kinds.own.items():
        module = _module(kind.implementation)
        parts += [f"## {name} {{: #{_anchor(name)} }}", _about(table.kinds, name)]
        if options := _options(table.kinds, name):
            parts.append(_own_anchors(options, name))
        parts.append(f"Source: {source_link(module)}")
    return page(table.title, table.about, "\n\n".join(parts), boost=0.8)


def _about(kinds: Kinds, name: str) -> str:
    """The docstring of the kind's module; of a kind that shares its module, the line of the table and its own docstring."""
    module = _module(kinds.own[name].implementation)
    if sum(_module(kind.implementation) == module for kind in kinds.own.values()) == 1:
        return markdown(_doc(module))
    about, doc = kinds.own[name].about, inspect.cleandoc(kinds.load(name).__dict__.get("__doc__") or "")
    return f"{about[:1].upper()}{about[1:]}.\n\n{markdown(doc)}"


def _own_anchors(options: str, name: str) -> str:
    """Options of several kinds on one page: their anchors begin with the kind."""
    return options.replace('id="', f'id="{name}-').replace('href="#', f'href="#{name}-')


def _contexts() -> str:
    first, rest = split(str(importlib.import_module("qontext.contexts").__doc__))
    parts = [
        "# Contexts",
        markdown(first),
        "`qontext pretrain --context RULE` chooses one, or several joined by `+` (see [`pretrain`](commands/pretrain.md)).",
        markdown(rest),
        f"Source: {source_link('qontext.contexts')}",
    ]
    about = "The second member of a training pair: near, olap, rand, query."
    return page("Contexts", about, "\n\n".join(parts), boost=0.8)
