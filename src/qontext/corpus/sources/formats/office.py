"""Office files and books (DOCX, ODT, PPTX, XLSX, RTF, EPUB): pandoc converts them to HTML, which keeps their headings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from qontext.corpus.sources.formats import LARGEST, FileText, Unreadable, html, read_bytes, stem
from qontext.data.lines import ending

_LONGEST_SECONDS, _MOST_MEMORY = 120, "1g"
_TEMPLATE = Path(__file__).with_name("office.html")


def read(path: Path, encoding: str) -> Iterator[FileText]:
    import pypandoc

    memory = ["+RTS", f"-M{_MOST_MEMORY}", "-RTS"]
    formats = [f"--from={ending(path)[1:]}", "--to=html", f"--template={_TEMPLATE}", "--wrap=none"]
    levels = "--shift-heading-level-by=1"  # below the title
    command = [pypandoc.get_pandoc_path(), *memory, "--sandbox", *formats, levels]
    content = read_bytes(path, LARGEST)
    try:
        page = subprocess.run(
            command, input=content, capture_output=True, check=True, timeout=_LONGEST_SECONDS
        )
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise Unreadable("damaged document", f"cannot be converted: {reason}") from None
    except subprocess.TimeoutExpired:
        raise Unreadable("damaged document", "cannot be converted: it takes too long") from None
    text = html.parse(page.stdout.decode("utf-8", "replace"), name=stem(path))
    yield replace(text, blocks=tuple(replace(block, line=None) for block in text.blocks))
