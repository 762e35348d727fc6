"""Help pages: plain text in two columns, the settings that most need first.

Options are grouped by panel. A long page names the options of the panels in `RARE` at its end; `--help-all` explains them.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

MACHINE, ADVANCED, GENERAL = "This machine", "Advanced settings", "General"
FIRST = ("Arguments", "Inputs", "Output", "Settings")
RARE = (ADVANCED, MACHINE, GENERAL)
_LONG = 30
"""Options of a page that is shortened."""
_WIDEST, _COLUMN = 110, 32


class HelpCommand(TyperCommand):
    """A command whose help is such a page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(self, ctx, everything=ctx.meta.get("help_all", False)))


class HelpGroup(TyperGroup):
    """A group whose help lists the commands of the first panel, and all with `--help-all`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        everything = ctx.meta.get("help_all", False)
        parts = [f"Usage: {ctx.command_path} VERB …\n", _text(self.help or "")]
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panels.setdefault(str(getattr(command, "rich_help_panel", "")), []).append(
                (name, command.help or "")
            )
        first, *others = panels
        parts += [_section(panel, panels[panel]) for panel in (first, *(others if everything else ()))]
        if not everything:
            parts.append(_more(ctx, "verbs", [name for panel in others for name, _ in panels[panel]]))
        formatter.write("\n".join([*parts, _section(GENERAL, _rows(ctx, self.get_params(ctx)))]))


def _show_all(ctx: typer.Context, is_set: bool) -> None:
    if is_set and not ctx.resilient_parsing:
        ctx.meta["help_all"] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


HELP_ALL = Annotated[
    bool,
    typer.Option(
        "--help-all",
        is_eager=True,
        callback=_show_all,
        help="Show this message with all options and exit.",
        rich_help_panel=GENERAL,
        show_default=False,
    ),
]


def page(command: Any, ctx: Any, *, everything: bool) -> str:
    """The help of a command."""
    panels: dict[str, list[Any]] = {}
    for parameter in command.get_params(ctx):
        is_argument = parameter.param_type_name == "argument"
        panel = "Arguments" if is_argument else parameter.rich_help_panel or GENERAL
        panels.setdefault(panel, []).append(parameter)
    few = sum(map(len, panels.values())) <= _LONG
    names = sorted(panels, key=lambda name: (*FIRST, name, *RARE).index(name))
    visible = [name for name in names if everything or few or name not in RARE]
    usage = [p.name.upper() + ("…" if p.nargs == -1 else "") for p in panels.get("Arguments", ())]
    usage = [name if p.required else f"[{name}]" for name, p in zip(usage, panels.get("Arguments", ()))]
    needed = [p for name in names if name != "Arguments" for p in panels[name] if p.required]
    usage += [f"{p.opts[-1]} {p.metavar or p.name.upper()}" for p in needed]
    parts = [
        f"Usage: {' '.join([ctx.command_path, *usage])} [OPTIONS]\n",
        _text(inspect.cleandoc(command.help or "")),
    ]
    parts += [_section(name, _rows(ctx, panels[name])) for name in visible]
    if hidden := [p.opts[0] for name in names if name not in visible for p in panels[name]]:
        parts.append(_more(ctx, "options", hidden))
    return "\n".join(parts)


def _more(ctx: Any, what: str, names: list[str]) -> str:
    """A section that only names what `--help-all` explains."""
    words = textwrap.fill(", ".join(names), _width() - 2, break_on_hyphens=False)
    return f"{_bold(f'More {what} ({ctx.command_path} --help-all)')}\n{textwrap.indent(words, '  ')}\n"


def _rows(ctx: Any, parameters: Iterable[Any]) -> list[tuple[str, str]]:
    records = (parameter.get_help_record(ctx) for parameter in parameters)
    return [(name.replace("<bool>", "").strip(), text) for name, text in filter(None, records)]


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A heading, and names with their texts in two columns; a long name has a line of its own."""
    lines = [_bold(title)]
    for name, text in rows:
        wrapped = textwrap.wrap(" ".join(text.split()), _width() - _COLUMN, break_on_hyphens=False) or [""]
        head = f"  {name}"
        if len(head) > _COLUMN - 2:
            lines.append(head)
            head = ""
        lines.append(f"{head:<{_COLUMN}}{wrapped[0]}".rstrip())
        lines += [" " * _COLUMN + line for line in wrapped[1:]]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Paragraphs, wrapped; indented lines are kept as they are."""
    blocks = []
    for block in text.strip().split("\n\n"):
        is_code = block.startswith("    ")
        blocks.append(block if is_code else textwrap.fill(" ".join(block.split()), _width()))
    return "\n\n".join(blocks) + "\n"


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"


def _width() -> int:
    return min(_WIDEST, max(60, shutil.get_terminal_size().columns))
