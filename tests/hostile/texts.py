"""Damage inside a text file, by its format: lines of JSON, tab-separated columns, runs, recipes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.files import Damage
from tests.hostile.runner import ACCEPT, EITHER, REFUSE, REPORT

Table = dict[str, tuple[Damage, str]]
DEEP = "[" * 5_000 + "]" * 5_000
DIGITS = "9" * 5_000


def _rows(change: Callable[[list[str]], Any]) -> Damage:
    """Change the list of a text file's lines."""

    def damage(valid: Path, folder: Path) -> str:
        lines = valid.read_text().splitlines()
        change(lines)
        (folder / valid.name).write_bytes(
            "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        )
        return str(folder / valid.name)

    return damage


def _line(text: str) -> Damage:
    """Replace a line in the middle."""
    return _rows(lambda lines: lines.__setitem__(2, text))


def _bytes(change: Callable[[bytes], bytes], ending: str = "") -> Damage:
    def damage(valid: Path, folder: Path) -> str:
        target = folder / f"{valid.name}{ending}"
        target.write_bytes(change(valid.read_bytes()))
        return str(target)

    return damage


def _key(name: str, value: Any, *, absent: bool = False) -> Damage:
    """Change one value of the third object; the key is the first that is there of `name`'s."""

    def change(lines: list[str]) -> None:
        row = json.loads(lines[2])
        key = next((key for key in name.split("|") if key in row), next(iter(row)))
        row[key] = value
        if absent:
            del row[key]
        lines[2] = json.dumps(row)

    return _rows(change)


ENCODINGS: Table = {
    "bom": (_bytes(lambda b: b"\xef\xbb\xbf" + b), ACCEPT),
    "crlf": (_bytes(lambda b: b.replace(b"\n", b"\r\n")), ACCEPT),
    "blank-between": (_bytes(lambda b: b.replace(b"\n", b"\n\n")), EITHER),
    "no-last-newline": (_bytes(lambda b: b.rstrip(b"\n")), ACCEPT),
    "utf-16": (_bytes(lambda b: b.decode().encode("utf-16")), REFUSE),
    "latin-1": (_bytes(lambda b: b[: len(b) // 2] + b"\xe8" + b[len(b) // 2 :]), REPORT),
    "cut-off": (_bytes(lambda b: b[: len(b) * 2 // 3]), EITHER),
    "plain-named-gz": (_bytes(lambda b: b, ".gz"), ACCEPT),
    "plain-named-zst": (_bytes(lambda b: b, ".zst"), ACCEPT),
    "gz": (_bytes(gzip.compress, ".gz"), ACCEPT),
    "gz-cut-off": (_bytes(lambda b: gzip.compress(b)[:-20], ".gz"), REFUSE),
    "nul-bytes": (_bytes(lambda b: b.replace(b"o", b"\0", 5)), EITHER),
}

IDS = "_id|id|passage"
TEXT = "text|queries"
JSON_LINES: Table = {
    **ENCODINGS,
    "no-json": (_line("{"), REPORT),
    "array": (_line("[]"), REPORT),
    "number": (_line("17"), REPORT),
    "null": (_line("null"), REPORT),
    "string": (_line('"text"'), REPORT),
    "deep": (_line(DEEP), REPORT),
    "deep-value": (_line('{"_id": "d2", "id": "d2", "text": ' + DEEP + "}"), REPORT),
    "digits": (_line(DIGITS), REPORT),
    "digits-value": (_line('{"_id": ' + DIGITS + ', "text": "a"}'), REPORT),
    "nan": (_line('{"_id": NaN, "id": NaN, "text": NaN}'), REPORT),
    "long-line": (_line("x" * 3_000_000), REPORT),
    "id-missing": (_key(IDS, "", absent=True), REPORT),
    "id-null": (_key(IDS, None), REPORT),
    "id-empty": (_key(IDS, ""), REPORT),
    "id-list": (_key(IDS, ["d2"]), REPORT),
    "id-object": (_key(IDS, {"a": 1}), REPORT),
    "id-boolean": (_key(IDS, True), EITHER),
    "id-tab": (_key(IDS, "a\tb"), EITHER),
    "id-newline": (_key(IDS, "a\nb"), EITHER),
    "id-space": (_key(IDS, "a b"), EITHER),
    "id-nul": (_key(IDS, "a\0b"), EITHER),
    "id-surrogate": (_key(IDS, "a\ud800"), REPORT),
    "id-long": (_key(IDS, "x" * 100_000), EITHER),
    "id-twice": (_rows(lambda lines: lines.__setitem__(2, lines[1])), REPORT),
    "text-missing": (_key(TEXT, "", absent=True), REPORT),
    "text-null": (_key(TEXT, None), REPORT),
    "text-empty": (_key(TEXT, ""), EITHER),
    "text-number": (_key(TEXT, 5), REPORT),
    "text-list": (_key(TEXT, [["a"]]), REPORT),
    "text-surrogate": (_key(TEXT, "a \ud800 b"), REPORT),
    "text-nul": (_key(TEXT, "a\0b"), EITHER),
    "text-one-word": (_key(TEXT, "x" * 100_000), EITHER),
}
TAB_SEPARATED: Table = {
    **ENCODINGS,
    "no-columns": (_line("word"), REPORT),
    "more-columns": (_line("a\tb\tc\td\te\tf"), REPORT),
    "id-empty": (_line("\ttext\t1"), REPORT),
    "only-tabs": (_line("\t\t"), EITHER),
    "grade-word": (_line("q2\td2\tgood"), REPORT),
    "grade-fraction": (_line("q2\td2\t1.5"), REPORT),
    "grade-huge": (_line(f"q2\td2\t1{'0' * 30}"), REPORT),
    "grade-digits": (_line(f"q2\td2\t{DIGITS}"), REPORT),
    "grade-nan": (_line("q2\td2\tnan"), REPORT),
    "twice": (_rows(lambda lines: lines.append(lines[2])), EITHER),
    "contradiction": (_rows(lambda lines: lines.append(f"{lines[2]}0")), REPORT),
    "quote": (_line('q2\t"d2\t1'), EITHER),
    "long-line": (_line("q2\t" + "x" * 3_000_000), EITHER),
    "header-alone": (_rows(lambda lines: lines.__delitem__(slice(1, None))), EITHER),
}
RUNS: Table = {
    **ENCODINGS,
    "five-columns": (_line("q0 Q0 d2 3 7.5"), REPORT),
    "seven-columns": (_line("q0 Q0 d 2 3 7.5 mine"), REPORT),
    "score-word": (_line("q0 Q0 d2 3 good mine"), REPORT),
    "score-nan": (_line("q0 Q0 d2 3 nan mine"), REPORT),
    "score-infinite": (_line("q0 Q0 d2 3 inf mine"), EITHER),
    "score-huge": (_line(f"q0 Q0 d2 3 1{'0' * 400} mine"), EITHER),
    "rank-word": (_line("q0 Q0 d2 third 7.5 mine"), EITHER),
    "twice": (_rows(lambda lines: lines.append(lines[2])), REPORT),
    "stranger": (_line("q0 Q0 stranger 3 7.5 mine"), EITHER),
    "strange-query": (_line("stranger Q0 d2 3 7.5 mine"), EITHER),
    "order": (_rows(lambda lines: lines.reverse()), EITHER),
}


RECIPES: Table = {
    **{k: v for k, v in ENCODINGS.items() if "gz" not in k and "zst" not in k},
    "deep": (_rows(lambda lines: lines.append("deep = " + DEEP)), REFUSE),
    "deep-table": (_rows(lambda lines: lines.append(f"[{'a.' * 5_000}b]")), REFUSE),
    "digits": (_rows(lambda lines: lines.append(f"k = {DIGITS}")), REFUSE),
    "no-toml": (_rows(lambda lines: lines.append("= = [")), REFUSE),
    "unknown-verb": (_rows(lambda lines: lines.append("[dance]")), REFUSE),
    "long-step": (_rows(lambda lines: lines.extend([f"[{'s' * 300}]", 'verb = "evaluate"'])), REFUSE),
    "unknown-setting": (_rows(lambda lines: lines.append('mesures = "x"')), REFUSE),
    "step-list": (_rows(lambda lines: lines.append("[[tokens]]")), REFUSE),
    "value-table": (_rows(lambda lines: lines.append("measures = {a = 1}")), REFUSE),
    "value-date": (_rows(lambda lines: lines.append("measures = 2020-01-01")), REFUSE),
    "value-nan": (_rows(lambda lines: lines.append("relevant = nan")), REFUSE),
    "verb-number": (_rows(lambda lines: lines.append("verb = 5")), REFUSE),
    "reference-unknown": (_rows(lambda lines: lines.append('passages = "@nothing"')), REFUSE),
    "reference-itself": (_rows(lambda lines: lines.append('passages = "@evaluate"')), REFUSE),
    "reference-outside": (_rows(lambda lines: lines.append('passages = "@search/../../../../etc/passwd"')), REFUSE),
    "input-unknown": (_rows(lambda lines: lines.append('passages = "$nothing"')), REFUSE),
    "title-number": (_rows(lambda lines: lines.__setitem__(1, "title = 5")), EITHER),
    "recipe-alone": (_rows(lambda lines: lines.__delitem__(slice(2, None))), REFUSE),
}  # fmt: skip
