"""DOCX: paragraphs, lists and tables of a Word document, sections by heading styles, including localized ones.

The archive's XML is read as a stream: images are not unpacked, and memory does not depend on header values.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats.base import (
    FileText,
    HeadingOrBlock,
    Unreadable,
    archive,
    collapse,
    member,
    stem,
    under_headings,
)
from qontext.data.records import Block

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_STRICT = "{http://purl.oclc.org/ooxml/wordprocessingml/main}"
_CORE = "docProps/core.xml"
_WRAPPERS = ("sdt", "sdtContent", "customXml", "smartTag", "ins", "moveTo")
"""Elements whose content stands in their place: content controls and tracked insertions."""
_ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"
"""An element that has its content in several ways, of which the first is read."""
_MATH = (
    "{http://schemas.openxmlformats.org/officeDocument/2006/math}",
    "{http://purl.oclc.org/ooxml/officeDocument/math}",
)
_FORMULAS = tuple(space + name for space in _MATH for name in ("oMath", "oMathPara"))
_MATH_TEXT = tuple(f"{space}t" for space in _MATH)
_SIGNS = {space + name: sign for space in _MATH for name, sign in (("den", "/"), ("sup", "^"), ("sub", "_"))}
"""Parts of formulas, and what says so in text."""
_SEPARATE = tuple(space + name for space in _MATH for name in ("oMathPara", "eqArr", "mr"))
"""Formulas and cells beside each other."""
_OPERATORS = {f"{space}nary": space for space in _MATH}
"""Sums, integrals and the like, whose sign is a property."""
_REMOVED = tuple(space + name for space in (_W, _STRICT) for name in ("del", "moveFrom"))
"""Tracked deletions; moved text stands elsewhere, too."""
_LEFT_OUT = ("pPr", "rPr")
"""Elements without text of their own."""
_OLE = b"\xd0\xcf\x11\xe0"


def read(path: Path, encoding: str) -> Iterator[FileText]:
    with path.open("rb") as file:
        if file.read(4) == _OLE:
            raise Unreadable(
                "encrypted", "is encrypted, or a document of Word 97; save it as DOCX without a password"
            )
    with archive(path) as container:
        if "word/document.xml" not in container.namelist():
            raise Unreadable("damaged document", "contains no word/document.xml")
        levels = _levels(container)
        title, metadata = _core(container)
        root = parse_xml(member(container, "word/document.xml"), "word/document.xml")
        for element in list(root.iter(*_REMOVED)):
            if (parent := element.getparent()) is not None:
                parent.remove(element)
        blocks = list(under_headings(_parts(root, levels)))
    first = next((b.text for b in blocks if b.page == 0), "")
    blocks = [b for b in blocks if b.page != 0]
    tops = {b.headings[0] for b in blocks if b.headings}
    if not first and len(tops) == 1 and all(b.headings for b in blocks):
        first = tops.pop()
        blocks = [Block(b.text, b.headings[1:], tight=b.tight) for b in blocks]
    yield FileText(first or title or stem(path), tuple(blocks), metadata)


def parse_xml(content: bytes, name: str) -> Any:
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )
    try:
        return etree.fromstring(content, parser)
    except etree.LxmlError as error:
        raise Unreadable("damaged document", f"its {name} is not readable XML ({error})") from None


def _local(element: Any) -> str:
    """The element's name in Word's namespace, of either edition of the standard; empty for others."""
    tag = element.tag
    if not isinstance(tag, str):
        return ""
    return tag.removeprefix(_W).removeprefix(_STRICT)


def _value(element: Any, name: str = "val") -> str:
    return str(element.get(_W + name) or element.get(_STRICT + name) or "")


def _levels(container: zipfile.ZipFile) -> dict[str, int]:
    """Style → level of its heading, from 1; 0 is the title's."""
    levels: dict[str, int] = {}
    if "word/styles.xml" not in container.namelist():
        return levels
    based: dict[str, str] = {}
    for style in parse_xml(member(container, "word/styles.xml"), "word/styles.xml"):
        if _local(style) != "style":
            continue
        name = _value(style, "styleId")
        for part in style.iter():
            kind = _local(part)
            if kind == "name":
                label = _value(part).lower()
                if label == "title":
                    levels[name] = 0
                elif label.startswith("heading ") and label[8:].isdigit():
                    levels[name] = int(label[8:])
            elif kind == "outlineLvl" and _value(part).isdigit() and int(_value(part)) < 9:
                levels.setdefault(name, int(_value(part)) + 1)
            elif kind == "basedOn":
                based[name] = _value(part)
    for style_name in based:
        visited, base = {style_name}, based[style_name]
        while base in based and base not in levels and base not in visited:
            visited.add(base)
            base = based[base]
        if base in levels:
            levels.setdefault(style_name, levels[base])
    return levels


def _core(container: zipfile.ZipFile) -> tuple[str, dict[str, Any]]:
    """The title, author and date from the document's properties."""
    if _CORE not in container.namelist():
        return "", {}
    values = {
        element.tag.rpartition("}")[2]: collapse(element.text or "")
        for element in parse_xml(member(container, _CORE), _CORE)
        if isinstance(element.tag, str)
    }
    date = (values.get("modified") or values.get("created") or "")[:10]
    metadata = {"author": values.get("creator", ""), "date": date}
    return values.get("title", ""), {key: value for key, value in metadata.items() if value}


def _parts(root: Any, levels: dict[str, int]) -> Iterator[HeadingOrBlock]:
    """Paragraphs, rows of tables and headings. A title is a block of page 0."""
    was_item, titled = False, False
    body = next((element for element in root if _local(element) == "body"), root)
    for element in _flow(body):
        level = None
        if _local(element) == "tr":
            cells = [_text(cell) for cell in _children(element) if _local(cell) == "tc"]
            text, is_item = " | ".join(filter(None, cells)), True
        else:
            text, style, is_item = _text(element), _style(element), _is_item(element)
            level = levels.get(style) if style else None
        if not text:
            continue
        if level == 0 and not titled:
            yield Block(text, page=0)
        elif level:
            yield level, Block(text)
        else:
            yield Block(text, tight=is_item and was_item)
        titled = titled or level is not None
        was_item = is_item and not level


def _flow(body: Any) -> Iterator[Any]:
    """Paragraphs, and rows of tables, in order."""
    for element in _children(body):
        kind = _local(element)
        if kind == "p" or kind in _FORMULAS:
            yield element
        elif kind == "tbl":
            yield from (row for row in _children(element) if _local(row) == "tr")


def _children(element: Any) -> Iterator[Any]:
    """The element's children, also those inside content controls and alternatives."""
    for child in element:
        if _local(child) in _WRAPPERS:
            yield from _children(child)
        elif child.tag == _ALTERNATIVES:
            yield from _children(next(iter(child), ()))
        else:
            yield child


def _text(element: Any) -> str:
    """The text of a paragraph or cell, without deleted text and field codes."""
    parts: list[str] = []
    stack: list[Any] = [element]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            parts.append(node)
            continue
        kind = _local(node)
        if kind == "t" or kind in _MATH_TEXT:
            parts.append(node.text or "")
        elif kind in ("tab", "br", "cr"):
            parts.append(" ")
        elif kind == "noBreakHyphen":
            parts.append("-")
        elif kind == "p":
            stack += [" ", *reversed(node), " "]
        elif kind == _ALTERNATIVES:
            stack += list(node)[:1]
        elif kind in _SEPARATE:
            stack += [one for child in reversed(node) for one in (" ", child)]
        elif kind in _OPERATORS:
            operands = list(node)
            stack += [*operands[-1:], " ", *operands[-2::-1], _operator(node, _OPERATORS[kind])]
        elif kind not in _LEFT_OUT:
            parts += [_SIGNS[kind]] if kind in _SIGNS and "".join(node.itertext()).strip() else []
            stack += reversed(node)
    return collapse("".join(parts))


def _operator(node: Any, space: str) -> str:
    """The sign of a sum, an integral or the like; an integral's unless another one is named."""
    sign = node.find(f"{space}naryPr/{space}chr")
    return "∫" if sign is None else str(sign.get(f"{space}val") or "")


def _properties(paragraph: Any, name: str) -> Iterator[Any]:
    """The paragraph's own properties of this name."""
    return (one for child in paragraph if _local(child) == "pPr" for one in child if _local(one) == name)


def _style(paragraph: Any) -> str:
    return next(map(_value, _properties(paragraph, "pStyle")), "")


def _is_item(paragraph: Any) -> bool:
    return any(True for _ in _properties(paragraph, "numPr")) or "list" in _style(paragraph).lower()
