"""The command line: one verb per stage, in the order in which data flows.

Each command is built from its configuration class: a field is a flag, the docstring under the field is its
help. A verb's module is imported only when that verb is called, so that `qontext --help` stays fast.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from qontext import __version__
from qontext.cli.help import ADVANCED, GENERAL, HELP_ALL, MACHINE, HelpCommand, HelpGroup
from qontext.frame import files, log, process, stages, trust
from qontext.frame import kinds as kinds
from qontext.frame.errors import QontextError, shorten
from qontext.frame.stages import VERBS
from qontext.frame.workdir import as_json
from qontext.models import hub as hub

ABOUT = """Search your documents by words and by meaning, and adapt a retriever to them.

    qontext search docs/ "how do I reset my password?"
    qontext adapt docs/ --out runs/docs
    qontext search runs/docs "a question"

Without documents at hand, try 'qontext demo'. Help for a command: qontext VERB --help.
"""

LEFT_OUT = ("torch", "transformers", "tokenizers", "safetensors", "ir_measures", "matplotlib")
"""Packages that an installation for searching by words alone may lack; see docs/guides/install.md."""
_TRUST = (
    "Allow the code, servers and secrets that the recipe, index or directory itself names; see SECURITY.md."
)

_UsageError: Any = typer.BadParameter.__mro__[1]
"""The base class of usage errors, which typer itself does not export."""


class VerbGroup(HelpGroup):
    """Lists the verbs from the table; imports a verb's module only when that verb is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=verb.help, rich_help_panel=verb.panel)
            for name, verb in VERBS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        if not name:
            return name, listed, rest
        config = stages.load(name).config
        trust.give(chosen_kinds(config, rest))
        # During completion, and for a verb's general help, only kinds that were named are imported.
        is_looking = ctx.resilient_parsing or "--help" in rest or "--help-all" in rest
        run_guarded(
            lambda: config.with_options(chosen_kinds(config, rest), defaults=not is_looking),
            debug="--debug" in rest,
        )
        ctx.obj = (config, [*rest])
        return name, make_command(name, chosen_kinds(config, rest), defaults=not is_looking), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            option = getattr(error, "option_name", None)
            if option and ctx.obj:
                config, rest = ctx.obj
                name = option.removeprefix("--no-").removeprefix("--").replace("-", "_")
                run_guarded(
                    lambda: config.refuse_unread(name, chosen_kinds(config, rest)), debug="--debug" in rest
                )
            # The words in front are the library's; what follows may quote a long argument.
            error.message = shorten(error.message.removeprefix("Value error, "), 900)
            raise


def chosen_kinds(config: Any, words: list[str]) -> dict[str, str]:
    """The kinds that the command-line arguments choose."""
    kinds = {}
    for field in config.kinds:
        flag = f"--{field.replace('_', '-')}"
        for word, following in zip(words, [*words[1:], None]):
            if word == "--":
                break
            if word.startswith(f"{flag}="):
                kinds[field] = word.partition("=")[2]
            elif word == flag and following is not None:
                kinds[field] = following
    return kinds


app = typer.Typer(
    cls=VerbGroup, help=ABOUT, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _version(is_set: bool) -> None:
    if is_set:
        print(f"qontext {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    help_all: HELP_ALL = False,
) -> None:
    pass


def make_command(verb: str, kinds: Mapping[str, str] = MappingProxyType({}), *, defaults: bool = True) -> Any:
    """The typer command of a verb: a function whose signature mirrors the configuration class.

    `chosen` names the kinds whose options it includes; with `defaults`, options of the other fields' default
    kinds are included, too.
    """
    loaded = stages.load(verb)
    config = loaded.config.with_options(kinds, defaults=defaults)

    def command(ctx: typer.Context, **values: Any) -> None:
        is_default = {
            name for name in values if getattr(ctx.get_parameter_source(name), "name", "") == "DEFAULT"
        }
        # Settings that were not passed are left to the configuration, which knows the ones that were.
        values |= dict.fromkeys(is_default & config.model_fields.keys())
        debug, as_json = values.pop("debug"), values.pop("as_json")
        verbose, quiet = values.pop("verbose"), values.pop("quiet")
        is_trusted = values.pop("trust")
        trust.give(values)
        del values["help_all"]
        # Only rank 0 prints.
        level = _level(verbose, quiet or as_json) if process.speaks() else log.SILENT
        log.show(level, log.WARNING if _is_read_by_a_program(loaded, values) and not verbose else log.DETAIL)
        with trust.trusting(is_trusted):
            run_guarded(lambda: _call(loaded, values, as_json), debug=debug)

    out = _out_parameters(loaded) if isinstance(loaded, stages.Stage) else []
    parameters = [*_field_parameters(config), *out, *_common_parameters()]
    parameters.append(_parameter("ctx", typer.Context, inspect.Parameter.empty))
    # Parameters without a default first, as Python requires.
    parameters.sort(key=lambda p: p.default is not inspect.Parameter.empty)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    examples = "\n".join(f"    {line.strip()}" for line in loaded.examples.strip().splitlines())
    further = "".join(
        f"\n\nEach {table.noun} has its own settings: qontext {verb} --help --{field.replace('_', '-')} NAME\n"
        for field, table in config.kinds.items()
        if field not in config.chosen
    )
    command.__doc__ = f"{VERBS[verb].help}{further}\n\nExamples:\n\n{examples}\n"
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(verb, cls=HelpCommand)(command)
    return typer.main.get_command(single)


def _is_read_by_a_program(loaded: Any, values: dict[str, Any]) -> bool:
    """True for a report that is not shown on a terminal: an agent or a script reads it, and not how it was made."""
    is_report = isinstance(loaded, stages.Report) or (
        isinstance(loaded, stages.Stage) and not values.get("out")
    )
    return is_report and not (sys.stderr is not None and sys.stderr.isatty())


def _level(verbose: bool, quiet: bool) -> int:
    if verbose:
        return log.DETAIL
    return log.WARNING if quiet else log.NOTE


def _call(loaded: Any, values: dict[str, Any], as_json: bool) -> None:
    from qontext.frame import execution  # listing the verbs does not need pydantic

    process.rank()  # which refuses a broken environment before any work
    config = configure(loaded, values)
    if isinstance(loaded, stages.Stage) and values["out"] is not None:
        out = execution.directory(values["out"])
        artifact = execution.execute(loaded, config, out, overwrite=values["overwrite"])
        result = {"path": str(out), "digest": artifact.digest, **artifact.summary}
        if not as_json:
            log.show_table(f"{loaded.verb} → {out}", artifact.summary)
    else:
        result = execution.report_of(loaded, config, "--out").run(config)
    if as_json and process.speaks():
        _print_json(result)


def configure(loaded: Any, values: dict[str, Any]) -> Any:
    """Build the configuration from the command's arguments and options."""
    # The frame handles a stage's directory; a command's `out` is one of its settings.
    apart = ("out", "overwrite") if isinstance(loaded, stages.Stage) else ()
    settings = {k: v for k, v in values.items() if k not in apart}
    # Options that were not passed keep the configuration's default.
    settings = {k: v for k, v in settings.items() if v is not None and v != []}
    return loaded.config.make(settings, where=loaded.verb)


def _print_json(result: dict[str, Any]) -> None:
    with log.results():
        print(as_json(result))


def run_guarded(action: Callable[[], None], *, debug: bool) -> None:
    """Run; user errors exit with one sentence and code 2, interrupts with 130."""
    try:
        try:
            with files.readable_errors():
                action()
        finally:
            process.check_interrupt()
    except QontextError as error:
        if debug:
            traceback.print_exc()
        log.say(f"error: {error}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        process.tell_interrupt()
        raise typer.Exit(process.EXIT_CODE) from None
    except BrokenPipeError:
        raise typer.Exit(141) from None
    except Exception as error:
        if debug:
            raise
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in (
            *LEFT_OUT,
            "huggingface_hub",
        ):
            log.say(
                f"error: this needs the package {error.name}, which is not installed. Run: pip install qontext"
            )
            raise typer.Exit(2) from None
        log.say(
            f"internal error: {type(error).__name__}: {error}\n"
            "Run the command again with --debug for the traceback. Unless it ends in your code, this is a bug in Qontext: "
            "report it."
        )
        raise typer.Exit(1) from None


def _field_parameters(config: Any) -> list[inspect.Parameter]:
    from qontext.frame.config import Action, Advanced, Input, Machine, marked, plain_type

    parameters = []
    # The verb's own settings come first in the help, then its kinds', then what it shares with other verbs.
    annotated = inspect.get_annotations(config.__mro__[1] if config.chosen else config)
    own = [name for name in annotated if name in config.model_fields]
    options = [name for kind in config.chosen.values() for name in kind.options.model_fields]
    for name in dict.fromkeys([*own, *options, *config.model_fields]):
        info = config.model_fields[name]
        mark = marked(config, name, Input)
        kind = plain_type(info)
        is_many = str(kind).startswith("tuple")
        kind = list[str] if is_many else kind
        text = " ".join((info.description or "").split())
        if name in config.kinds:
            text += f" Choose from: {config.kinds[name].about()}, or module:Class."
        if mark and mark.positional:
            option: Any = typer.Argument(help=text, metavar=name.upper(), show_default=False)
        else:
            flag = "--" + name.replace("_", "-")
            flags = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
            is_machine = marked(config, name, Machine) and not marked(config, name, Action)
            owner = next((of.name for of in config.chosen.values() if name in of.options.model_fields), None)
            settings = "Settings" if owner is None else f"Settings of {owner}"
            settings = ADVANCED if marked(config, name, Advanced) else settings
            panel = "Inputs" if mark else MACHINE if is_machine else settings
            option = typer.Option(
                *flags, help=text, rich_help_panel=panel, show_default=not info.is_required()
            )
        default: Any = (
            inspect.Parameter.empty if info.is_required() else info.get_default(call_default_factory=True)
        )
        default = list(default) if isinstance(default, tuple) else default
        parameters.append(_parameter(name, Annotated[kind, option], default))
    return parameters


def _out_parameters(stage: stages.Stage[Any]) -> list[inspect.Parameter]:
    is_needed = stage.without_out is None
    kind: Any = str if is_needed else str | None
    text = "Output directory"
    text += f", or NAME{Path(stage.file).suffix} for {stage.file} alone" if stage.file else ""
    text += "." if is_needed else ", to keep the result."
    option = typer.Option(
        "--out", "-o", help=text, metavar="DIR", show_default=False, rich_help_panel="Output"
    )
    replace = typer.Option(
        "--overwrite", help="Replace an existing result with other settings.", rich_help_panel="Output"
    )
    return [
        _parameter("out", Annotated[kind, option], inspect.Parameter.empty if is_needed else None),
        _parameter("overwrite", Annotated[bool, replace], False),
    ]


def _common_parameters() -> list[inspect.Parameter]:
    def switch(*flags: str, help: str) -> Any:
        return Annotated[bool, typer.Option(*flags, help=help, rich_help_panel=GENERAL, show_default=False)]

    return [
        _parameter("as_json", switch("--json", help="Print only the result, as one line of JSON."), False),
        _parameter("verbose", switch("--verbose", "-v", help="Show more detailed messages."), False),
        _parameter("quiet", switch("--quiet", "-q", help="Show only warnings and errors."), False),
        _parameter("trust", switch("--trust", help=_TRUST), False),
        _parameter("debug", switch("--debug", help="Show the traceback of an error."), False),
        _parameter("help_all", HELP_ALL, False),
    ]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def main() -> None:
    """Run the command line. The installed command starts in `qontext.__main__`, which handles interrupts earlier."""
    process.run_command(run_app)


def run_app() -> None:
    """The command line without interrupt handling."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may hold bytes that are not UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    if os.environ.get("COLUMNS") == "0":  # an unknown width, in which rich would print nothing
        del os.environ["COLUMNS"]
    try:
        with log.results():  # help and version, too
            app()
    except QontextError as error:
        log.say(f"error: {error}")
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)
