"""A page for every command: what it does, examples, output, and all of its settings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any

from qontext import cli
from qontext.cli.help import FIRST, GENERAL, RARE
from qontext.frame import stages
from qontext.frame.stages import Stage

from . import kinds, outputs, settings
from .text import inline, markdown, page, source_link, split

FOLDER = "reference/commands"


def pages() -> dict[str, str]:
    return {
        "reference/index.md": _overview(),
        **{f"{FOLDER}/{verb}.md": _page(verb) for verb in stages.VERBS},
    }


def nav() -> list[dict[str, object]]:
    return [{panel: [f"{FOLDER}/{verb}.md" for verb in verbs]} for panel, verbs in _panels().items()]


def _panels() -> dict[str, list[str]]:
    panels: dict[str, list[str]] = {}
    for name, verb in stages.VERBS.items():
        panels.setdefault(verb.panel, []).append(name)
    return panels


def _overview() -> str:
    parts = [
        "# Reference",
        "All commands, settings, methods and public names, generated from the code. `qontext VERB --help` prints the same.",
        "A setting has one name everywhere: `--max-tokens 144` on the command line is `max_tokens = 144` in a recipe and "
        "`max_tokens=144` in a call of `qontext.api`.",
    ]
    for panel, names in _panels().items():
        rows = [f"| [`{name}`](commands/{name}.md) | {stages.VERBS[name].help} |" for name in names]
        parts.append("\n".join([f"## {panel}", "", "| Command | |", "|---|---|", *rows]))
    parts.append("## Chosen by name\n\n" + kinds.overview())
    parts.append("## Options of every command\n\n" + _general())
    return page("Reference", "Commands, settings, methods and the Python API.", "\n\n".join(parts), boost=0.5)


def _general() -> str:
    command = cli.make_command("show", {}, defaults=False)
    return _definitions(p for p in command.params if getattr(p, "rich_help_panel", None) == GENERAL)


def _definitions(parameters: Iterable[Any]) -> str:
    """The list of options that the command line adds to the settings."""
    rows = [
        settings.entry(", ".join(sorted(p.opts, key=len)), ["required"] if p.required else [], inline(p.help))
        for p in parameters
    ]
    return "\n".join(['<dl class="settings" markdown="0">', *rows, "</dl>"])


def _page(verb: str) -> str:
    listed, loaded = stages.VERBS[verb], stages.load(verb)
    first, about = split(str(importlib.import_module(listed.module).__doc__))
    lead = listed.help
    command = cli.make_command(verb, {}, defaults=False)
    parts = [f"# `qontext {verb}`", lead, f"```text\n{_usage(verb, command)}\n```"]
    examples = inspect.cleandoc(loaded.examples).strip()
    parts += ["## Examples", f"```bash\n{examples}\n```"]
    if about := markdown(about):
        parts += ["## Description", about]
    if files := outputs.listing(verb, is_stage=isinstance(loaded, Stage)):
        parts += ["## Files", files]
    parts += _settings(loaded, command)
    parts.append(f"Source: {source_link(listed.module)}")
    return page(f"qontext {verb}", first if "→" in first else lead, "\n\n".join(parts), boost=0.6)


def _usage(verb: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments]
    words += ["--out DIR"] if any(p.name == "out" and p.required for p in command.params) else []
    return " ".join(["qontext", verb, *words, "[OPTIONS]"])


def _settings(loaded: Any, command: Any) -> list[str]:
    config, panels = loaded.config, {}
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        panel = "Arguments" if is_argument else parameter.rich_help_panel or GENERAL
        panels.setdefault(panel, []).append(parameter)
    parts = []
    for panel in sorted(panels, key=lambda name: (*FIRST, name, *RARE).index(name)):
        if panel == GENERAL:
            continue
        names = [p.name for p in panels[panel]]
        if panel == "Output" and isinstance(loaded, Stage):
            text = _definitions(panels[panel])
        else:
            text = settings.definitions(config, names, positional=names if panel == "Arguments" else ())
        parts += [f"## {panel}", text]
        if panel == "Settings" and config.kinds:
            parts += [kinds.pointer(field, table) for field, table in config.kinds.items()]
    parts.append(
        "All commands also have the [options of every command](../index.md#options-of-every-command)."
    )
    return parts
