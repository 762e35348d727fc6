"""What a person may type for a setting, by its type: what must be refused, and what may be accepted."""

from __future__ import annotations

import typing
from typing import Any

from tests.hostile.runner import ACCEPT, EITHER, REFUSE

from qontext.frame.config import StageConfig, plain_type

Value = tuple[str, str]
"""The text that is typed, and the outcome that is expected."""

LONG = "x" * 100_000
NUMBERS: dict[str, Value] = {
    "empty": ("", REFUSE),
    "word": ("many", REFUSE),
    "hexadecimal": ("0x10", REFUSE),
    "list": ("[1]", REFUSE),
    "two": ("1 2", REFUSE),
    "nul": ("1\0", REFUSE),
    "surrogate": ("1\udce9", REFUSE),
    "long": (LONG, REFUSE),
    "nan": ("nan", REFUSE),
    "infinite": ("inf", REFUSE),
    "minus-infinite": ("-inf", REFUSE),
    "5000-digits": ("9" * 5_000, REFUSE),
    "huge": ("1" + "0" * 20, REFUSE),
    "minus-huge": ("-1" + "0" * 20, REFUSE),
    "past-int64": (str(2**63), REFUSE),
    "past-bound": ("10000000000", REFUSE),
    "none": ("none", REFUSE),
    "spaces": (" 7 ", EITHER),
    "other-digits": ("٣", EITHER),
    "underscore": ("1_0", EITHER),
}
INTEGERS: dict[str, Value] = {
    **NUMBERS,
    "negative": ("-1", REFUSE),
    "zero": ("0", EITHER),
    "fraction": ("1.5", REFUSE),
    "exponent": ("1e3", REFUSE),
    "boolean": ("true", REFUSE),
    "large": ("1000000000", EITHER),
    "one": ("1", EITHER),
}
FLOATS: dict[str, Value] = {
    **NUMBERS,
    "negative": ("-1", EITHER),
    "zero": ("0", EITHER),
    "overflow": ("1e400", REFUSE),
    "largest": ("1.7e308", REFUSE),
    "tiny": ("5e-324", EITHER),
    "comma": ("0,5", REFUSE),
}
CHOICES: dict[str, Value] = {
    "unknown": ("klingon", REFUSE),
    "empty": ("", REFUSE),
    "long": (LONG, REFUSE),
    "nul": ("\0", REFUSE),
    "surrogate": ("\udce9", REFUSE),
    "spaces": (" auto ", REFUSE),
    "capitals": ("AUTO", REFUSE),
    "newline": ("auto\nauto", REFUSE),
}
TEXTS: dict[str, Value] = {
    "empty": ("", EITHER),
    "blank": ("   ", EITHER),
    "long": (LONG, EITHER),
    "name-of-300": ("n" * 300, EITHER),
    "nul": ("a\0b", REFUSE),
    "surrogate": ("caf\udce9", REFUSE),
    "newline": ("a\nb", EITHER),
    "tab": ("a\tb", EITHER),
    "traversal": ("../../../etc/passwd", EITHER),
    "percent": ("%s%n{0}{x}$HOME", EITHER),
    "json": ('{"a": [1, null]}', EITHER),
    "deep-json": ("[" * 5_000 + "]" * 5_000, EITHER),
    "number": ("9" * 5_000, EITHER),
    "rich-markup": ("[/bold][red]x[/nothing]", EITHER),
    "right-to-left": ("\u202eabc\u202c", EITHER),
    "regex": ("(a+)+$[", EITHER),
    "dashes": ("--out", EITHER),
    "none": ("None", EITHER),
}
KINDS: dict[str, Value] = {
    "no-module": ("a_module_that_is_not_there:Kind", REFUSE),
    "no-class": ("json:Kind", REFUSE),
    "no-kind": ("json:JSONDecoder", REFUSE),
    "no-name": ("json:", REFUSE),
    "relative": (".json:Kind", REFUSE),
    "long-module": (f"{LONG}:Kind", REFUSE),
    "nul-module": ("a\0b:Kind", REFUSE),
    "surrogate-module": ("caf\udce9:Kind", REFUSE),
    "path": ("../json:Kind", REFUSE),
}
"""Of a setting that chooses a kind, besides `CHOICES`."""
OUTS: dict[str, Value] = {
    "empty": ("", REFUSE),
    "nul": ("a\0b", REFUSE),
    "surrogate": ("caf\udce9", REFUSE),
    "long": (LONG, REFUSE),
    "name-of-300": ("n" * 300, REFUSE),
    "null-device": ("/dev/null", REFUSE),
    "full-device": ("/dev/full", REFUSE),
    "below-a-file": ("/etc/passwd/x", REFUSE),
    "proc": ("/proc/nothing", REFUSE),
    "nested": ("a/b/c/d", EITHER),
    "spaces": ("a name with 'quotes\" and ünïcode", ACCEPT),
    "newline": ("a\nb", EITHER),
    "markup": ("[red]x[/bold]", ACCEPT),
    "dash": ("-", EITHER),
    "dot": (".", EITHER),
}
"""Places to write to. What has to be set up on the disk first stands in `files`."""

SKIPPED = {
    "large": {"steps", "condenser_steps", "epochs", "permutations", "passages", "neighbors", "effort"},
    "zero": {"workers", "micro_tokens"},
}  # fmt: skip
"""Settings for which a legal value asks for days of work, or for all processors."""


def values_of(config: type[StageConfig], field: str) -> dict[str, Value]:
    """The values to try for a setting that is no input."""
    info = config.model_fields[field]
    kind = plain_type(info)
    kinds = {
        item
        for arg in (info.annotation, *typing.get_args(info.annotation))
        for item in (arg, *typing.get_args(arg))
    }
    if field in config.kinds:
        table = CHOICES | KINDS
    elif "Literal" in str(info.annotation):
        table = CHOICES
    elif kind is bool:
        return {}
    elif int in kinds:
        table = INTEGERS
    elif float in kinds:
        table = FLOATS
    else:
        table = TEXTS
    table = {name: value for name, value in table.items() if field not in SKIPPED.get(name, ())}
    if field == "seed":  # which has a bound of its own
        table["past-bound"] = (table["past-bound"][0], ACCEPT)
    return table


def is_list(config: type[StageConfig], field: str) -> bool:
    annotation: Any = config.model_fields[field].annotation
    return "tuple" in str(annotation)
