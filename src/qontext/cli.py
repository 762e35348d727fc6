"""The command line: one verb per stage, in the order in which data flows.

Every command is made from its configuration class: a field is a flag, the text under the field is its
help. A verb's module is imported only when that verb is called, so that `qontext --help` stays instant.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from qontext import __version__, log, stages
from qontext.errors import QontextError
from qontext.stages import VERBS

ABOUT = """Turn a pile of documents into a dense retriever.

The whole pipeline, on text that is already on this machine:

    qontext demo

With documents of your own:

    qontext adapt docs.jsonl --out runs/mine
    qontext search runs/mine "a question"

Every command explains itself: qontext VERB --help.
"""


class VerbGroup(TyperGroup):
    """Lists the verbs from the table; imports a verb's module only when that verb is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=verb.help, rich_help_panel=verb.panel)
            for name, verb in VERBS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, make_command(name) if name else listed, rest


app = typer.Typer(
    cls=VerbGroup, help=ABOUT, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"qontext {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def make_command(verb: str) -> Any:
    """The command of a verb: a function whose signature is the configuration class, given to typer."""
    loaded = stages.load(verb)

    def command(**values: Any) -> None:
        debug, as_json = values.pop("debug"), values.pop("as_json")
        verbose, quiet = values.pop("verbose"), values.pop("quiet")
        is_first = os.environ.get("RANK", "0") == "0"
        log.verbosity = -2 if not is_first else 1 if verbose else -1 if quiet or as_json else 0
        run_guarded(lambda: _call(loaded, values, as_json), debug=debug)

    out = _out_parameters(loaded.needs_out) if isinstance(loaded, stages.Stage) else []
    parameters = [*_field_parameters(loaded.config), *out, *_common_parameters()]
    # Arguments without a default first, as Python's signatures want it.
    parameters.sort(key=lambda p: p.default is not inspect.Parameter.empty)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    examples = "\n".join(f"    {_plain(line.strip())}" for line in loaded.examples.strip().splitlines())
    command.__doc__ = f"{_plain(VERBS[verb].help)}\n\n[bold]Examples[/bold]\n\n{examples}\n"
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(verb)(command)
    return typer.main.get_command(single)


def _call(loaded: Any, values: dict[str, Any], as_json: bool) -> None:
    # A stage's directory is the frame's business; a command's `out` is a setting of its own.
    apart = ("out", "overwrite") if isinstance(loaded, stages.Stage) else ()
    settings = {k: v for k, v in values.items() if k not in apart}
    # An option that was not given is left to the configuration's own default.
    settings = {k: v for k, v in settings.items() if v is not None and v != []}
    config = loaded.config.make(settings, where=loaded.verb)
    if isinstance(loaded, stages.Command):
        result = loaded.run(config)
        if as_json:
            print(json.dumps(result, ensure_ascii=False))
        return
    out = None if values["out"] is None else Path(values["out"])
    artifact = stages.execute(loaded, config, out, overwrite=values["overwrite"])
    place = {} if out is None else {"path": str(out), "digest": artifact.digest}
    if as_json:
        print(json.dumps({**place, **artifact.summary}, ensure_ascii=False))
    elif out is not None or loaded.without_out is None:  # else it has shown its answer itself
        log.show_table(loaded.verb if out is None else f"{loaded.verb} → {out}", artifact.summary)


def run_guarded(action: Callable[[], None], *, debug: bool) -> None:
    """Run; what a user can mend ends in one sentence and exit code 2, an interrupt in 130."""
    try:
        action()
    except QontextError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("Interrupted. What is finished stays; the same command resumes.", file=sys.stderr)
        raise typer.Exit(130) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise typer.Exit(141) from None
    except Exception as error:
        if debug:
            raise
        print(
            f"internal error: {type(error).__name__}: {error}\n"
            "This is a fault of qontext, not of your input. Run again with --debug to see where, and report it.",
            file=sys.stderr,
        )
        raise typer.Exit(1) from None


def _field_parameters(config: Any) -> list[inspect.Parameter]:
    from qontext.config import Input, Machine, marked, plain_type

    found = []
    # The verb's own settings come first in the help, what it shares with other verbs after them.
    own = [name for name in inspect.get_annotations(config) if name in config.model_fields]
    for name in dict.fromkeys([*own, *config.model_fields]):
        info = config.model_fields[name]
        mark = marked(config, name, Input)
        kind = plain_type(info)
        is_many = str(kind).startswith("tuple")
        kind = list[str] if is_many else kind
        help_text = _plain(" ".join((info.description or "").split()))
        if mark and mark.positional:
            option: Any = typer.Argument(help=help_text, metavar=name.upper(), show_default=False)
        else:
            flag = "--" + name.replace("_", "-")
            flags = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
            panel = "Inputs" if mark else "This machine" if marked(config, name, Machine) else "Settings"
            option = typer.Option(
                *flags, help=help_text, rich_help_panel=panel, show_default=not info.is_required()
            )
        default: Any = (
            inspect.Parameter.empty if info.is_required() else info.get_default(call_default_factory=True)
        )
        default = list(default) if isinstance(default, tuple) else default
        found.append(_parameter(name, Annotated[kind, option], default))
    return found


def _plain(text: str) -> str:
    """The text for a help page, where square brackets would else be taken for markup and vanish."""
    from rich.markup import escape

    return escape(text)


def _out_parameters(is_needed: bool) -> list[inspect.Parameter]:
    kind: Any = str if is_needed else str | None
    text = "The directory to write." if is_needed else "A directory to write, if the result is to be kept."
    option = typer.Option("--out", "-o", help=text, metavar="DIR", show_default=False)
    replace = typer.Option("--overwrite", help="Replace what an earlier run with other settings left there.")
    return [
        _parameter("out", Annotated[kind, option], inspect.Parameter.empty if is_needed else None),
        _parameter("overwrite", Annotated[bool, replace], False),
    ]


def _common_parameters() -> list[inspect.Parameter]:
    def switch(*flags: str, help: str) -> Any:
        return Annotated[bool, typer.Option(*flags, help=help, rich_help_panel="Output")]

    return [
        _parameter(
            "as_json", switch("--json", help="Print the result as one line of JSON, and nothing else."), False
        ),
        _parameter("verbose", switch("--verbose", "-v", help="Say more about what happens."), False),
        _parameter("quiet", switch("--quiet", "-q", help="Say nothing but warnings and errors."), False),
        _parameter("debug", switch("--debug", help="Show the traceback of an error."), False),
    ]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def main() -> None:
    """The entry point of the `qontext` command."""
    app()
