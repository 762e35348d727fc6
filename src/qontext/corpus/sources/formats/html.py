"""HTML: the main part of a page, sections by headings; navigation, footers, scripts and notices are removed.
Removed parts are identified by elements, roles and class names, and lists by the share of links in their
text. If these rules would remove nearly all of a page, only those by elements apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from qontext.corpus.sources.formats import (
    FileText,
    HeadingOrBlock,
    Unreadable,
    collapse,
    decode,
    read_bytes,
    stem,
    under_headings,
)
from qontext.data.records import Block

_CHARSET = re.compile(rb"(?:<meta[^>]+charset=|<\?xml[^>]*\sencoding\s*=\s*)[\"']?([\w-]+)", re.IGNORECASE)
_XML = re.compile(r"\A\s*<\?xml[^>]*\?>")
_HIDDEN = frozenset((
    "script", "style", "noscript", "template", "nav", "footer", "aside", "button", "select", "option",
    "textarea", "input", "svg", "math-ml", "iframe", "object", "embed", "canvas", "audio", "video", "map", "dialog",
    "head",
))  # fmt: skip
_ROLES = frozenset((
    "navigation", "banner", "contentinfo", "search", "complementary", "dialog", "alertdialog", "menu", "menubar",
))  # fmt: skip
_BOILERPLATE = re.compile(
    r"(?:^|[\s_-])(?:nav|navbar|navigation|navheader|navfooter|menu|sidebar|sphinxsidebar|sidebarwrapper|breadcrumbs?|cookies?|"
    r"consent|gdpr|footer|banner|toc|contents-list|related|headerlink|headeranchor|anchorjs-link|share|social|adverts?|"
    r"advertisement|ads|popup|modal|newsletter|skip|skip-link|pagination|pager|next-prev|edit-page|prev-next)(?:$|[\s_-])",
    re.IGNORECASE,
)
_ANCHORS = re.compile(
    r"(?:^|\s)(?:headerlink|headeranchor|anchorjs-link|md-skip|skip-(?:link|nav|main|to)|edit-page)(?:$|[\s_-])",
    re.IGNORECASE,
)
"""Classes of links and phrases that are no part of the text."""
_CERTAIN = re.compile(
    r"(?:^|\s)(?:breadcrumbs?|pagination|pager|cookies?|consent|gdpr|newsletter|prev-next|footer|nav-links?|"
    r"(?:social-)?shar(?:e|ing)-(?:buttons?|links?|icons?|bar)|social-(?:share|sharing|links?|icons?)|"
    r"cookie-(?:notice|banner|bar|consent))(?:$|[\s_-])",
    re.IGNORECASE,
)
"""Classes of paragraphs and items that are no part of the text."""
_CONTAINERS = frozenset((
    "div", "section", "header", "ul", "ol", "dl", "table", "tbody", "td", "form", "fieldset", "figure", "details", "center",
))  # fmt: skip
"""Elements that are left out by the names of their class and id; in others, these may say what the text is about."""
_PHRASES = frozenset(("a", "span", "label"))
_PARAGRAPHS = frozenset(("p", "li", "address", "blockquote"))
_UNSHOWN = frozenset(("script", "style", "button"))
"""Elements in headings and code that are no text."""
_HEADINGS = {f"h{n}": n for n in range(1, 7)}
_CONTENTS = re.compile(
    r"(?:table of )?contents:?|(?:on|in) this (?:page|article|section)|inhalt(?:sverzeichnis)?|sommaire|table des matières",
    re.IGNORECASE,
)
"""Headings of a table of contents, which is left out: what follows is not part of it."""
_BLOCKS = frozenset((
    "p", "div", "section", "article", "main", "header", "ul", "ol", "dl", "li", "dt", "dd", "table", "thead",
    "tbody", "tr", "blockquote", "figure", "figcaption", "details", "summary", "address", "hr", "body", "center",
    "fieldset", "form", "pre", "caption",
))  # fmt: skip
_ITEMS = frozenset(("li", "tr", "dt", "dd"))
_LISTS = frozenset(("ul", "ol", "dl", "table"))
_QUOTED = frozenset((
    "gmail_quote", "gmail_signature", "moz-cite-prefix", "moz-signature",
))  # fmt: skip
"""Classes of quotations and signatures in mail."""
_MOST_LINKED, _LEAST_KEPT = 0.7, 0.15
_DATES = frozenset((
    "date", "dc.date", "dcterms.date", "dcterms.modified", "article:published_time", "article:modified_time",
    "last-modified",
))  # fmt: skip


def read(path: Path, encoding: str) -> Iterator[FileText]:
    yield parse(read_bytes(path), encoding, stem(path))


def parse(
    content: bytes | str,
    encoding: str = "utf-8",
    name: str = "",
    charset: str | None = None,
    *,
    is_mail: bool = False,
) -> FileText:
    """Read a page; `name` is the title if the page has none, and `charset` its encoding as its server declares it.
    Quotations and signatures of mail are left out."""
    from lxml import etree, html

    if isinstance(content, bytes):
        declared = _CHARSET.search(content[:4096])
        content = decode(content, charset or (declared[1].decode("ascii") if declared else None), encoding)
    content = _XML.sub(lambda match: "\n" * match[0].count("\n"), content).replace("\0", "")
    if not content.strip():
        return FileText(name)
    parser = html.HTMLParser(
        encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True, no_network=True
    )
    try:
        tree = html.document_fromstring(content.encode("utf-8", "replace"), parser=parser)
    except (etree.LxmlError, ValueError) as error:
        raise Unreadable("damaged document", f"is not readable HTML ({error})") from None
    if is_mail:
        _drop_quotations(tree)
    metadata, title = _head(tree)
    root = _main(tree)
    blocks = list(under_headings(_parts(root, strict=True)))
    if sum(len(block.text) for block in blocks) < _LEAST_KEPT * _length(root):
        blocks = list(under_headings(_parts(root, strict=False)))
    return FileText(*_titled(blocks, title or name), metadata)


def _drop_quotations(tree: Any) -> None:
    for element in list(tree.iter("*")):
        names = (element.get("class") or "").split()
        if (element.tag == "blockquote" or not _QUOTED.isdisjoint(names)) and element.getparent() is not None:
            element.drop_tree()


def _titled(blocks: list[Block], title: str) -> tuple[str, tuple[Block, ...]]:
    """(title, blocks): a single top heading is the title, and not part of the paths."""
    firsts = [block.headings[0] for block in blocks if block.headings]
    top = firsts[0] if firsts else ""
    if not top or sum(first == top for first in firsts) < 0.8 * len(blocks):
        return title, tuple(blocks)
    return top, tuple(replace(b, headings=b.headings[b.headings[:1] == (top,) :]) for b in blocks)


def _head(tree: Any) -> tuple[dict[str, Any], str]:
    """The page's metadata (language, author, tags, date, URL) and its title."""
    metadata: dict[str, Any] = {}
    if language := tree.get("lang"):
        metadata["lang"] = language.strip().lower()[:20]
    for element in tree.iter("meta"):
        name = (element.get("name") or element.get("property") or element.get("http-equiv") or "").lower()
        content = collapse(element.get("content") or "")
        if name in _DATES and content:
            metadata.setdefault("date", content[:40])
        if name == "author" and content:
            metadata.setdefault("author", content[:1000])
        if name == "keywords" and (tags := [tag.strip() for tag in content.split(",") if tag.strip()]):
            metadata.setdefault("tags", tags)
    for element in tree.iter("link"):
        if element.get("rel", "").lower() == "canonical" and element.get("href", "").startswith("http"):
            metadata["url"] = element.get("href").strip()[:1000]
    title = next((element.text_content() for element in tree.iter("title")), "")
    return metadata, collapse(title)


def _main(tree: Any) -> Any:
    """The element with the page's main text."""
    for elements in (
        tree.xpath("//main | //*[@role='main']"),
        tree.xpath("//article"),
        tree.xpath("//body"),
    ):
        if len(elements) == 1 and _length(elements[0]) > 0:
            return elements[0]
    return tree


def _length(element: Any) -> int:
    """Characters of its text, without scripts and styles."""
    hidden = sum(len(s.text or "") for s in element.iter("script", "style"))
    return sum(map(len, element.itertext())) - hidden


def _is_hidden(element: Any, *, strict: bool) -> bool:
    tag = element.tag
    if tag in _HIDDEN or element.get("hidden") is not None or element.get("aria-hidden") == "true":
        return True
    if not strict or tag in ("body", "html", "main", "article") or tag in _HEADINGS:
        return False
    if (element.get("role") or "").lower() in _ROLES:
        return True
    if _is_boilerplate(element):
        return True
    if tag == "form":  # some servers wrap the whole page in a form
        return next(element.iter(*_HEADINGS), None) is None
    return tag in _LISTS and _is_linked(element)


def _is_boilerplate(element: Any) -> bool:
    """True if its names say that it is no part of the text."""
    names = (element.get("class") or "")[:500]
    if element.tag in _PHRASES:
        return bool(_ANCHORS.search(names))
    if element.tag in _PARAGRAPHS:
        return bool(_CERTAIN.search(names))
    if element.tag not in _CONTAINERS and "-" not in element.tag:  # which is an element of the page's own
        return False
    own = "" if _is_section(element) else (element.get("id") or "")[:500]
    return bool(_BOILERPLATE.search(f"{names} {own}"))


def _is_section(element: Any) -> bool:
    """True if the element is a section with a heading: its id is an anchor, often made from its text."""
    is_named = element.tag == "section" or "section" in (element.get("class") or "").split()
    return is_named and any(child.tag in _HEADINGS for child in element)


def _is_linked(element: Any) -> bool:
    """True if the element is mostly links, as menus and tables of contents are."""
    links = list(element.iter("a"))
    if len(links) < 3:
        return False
    text = len(collapse(element.text_content()))
    return sum(len(collapse(a.text_content())) for a in links if a.get("href")) > _MOST_LINKED * max(1, text)


def _parts(root: Any, *, strict: bool) -> Iterator[HeadingOrBlock]:
    """Text and headings in page order. The traversal uses an explicit stack, since pages may be nested deeply."""
    words: list[str] = []
    line, tight = root.sourceline, False

    def flush() -> Iterator[Block]:
        nonlocal tight
        text = collapse("".join(words)).removesuffix("|").rstrip()
        words.clear()
        if text:
            yield Block(text, line=line, tight=tight)
            tight = False

    stack: list[tuple[Any, bool]] = [(root, True)]
    while stack:
        element, opens = stack.pop()
        tag = element.tag
        if opens:
            if not isinstance(tag, str) or (element is not root and _is_hidden(element, strict=strict)):
                words.append(element.tail or "")
                if tag in _BLOCKS or tag == "nav":
                    yield None
                continue
            if tag in _HEADINGS:
                yield from flush()
                name = collapse(_shown(element)).rstrip("¶#§ ").strip()
                name = "" if _CONTENTS.fullmatch(name) else name
                yield _HEADINGS[tag], Block(name, line=element.sourceline)
                if _is_linked(element):
                    yield None
                words.append(element.tail or "")
                continue
            if tag == "pre":
                yield from flush()
                code = _shown(element).strip("\n").rstrip()
                if code.strip():
                    yield Block(code, line=element.sourceline, code=True)
                words.append(element.tail or "")
                line = element.sourceline
                continue
            if tag in _BLOCKS:
                yield from flush()
                line, tight = element.sourceline, tight or tag in _ITEMS
            elif tag == "br":
                words.append("\n")
            elif tag in ("td", "th") and collapse("".join(words)):
                words.append(" | ")
            words.append(element.text or "")
            stack.append((element, False))
            stack += [(child, True) for child in reversed(element)]
        else:
            if tag in _BLOCKS:
                yield from flush()
            if element is not root:
                words.append(element.tail or "")
    yield from flush()


def _shown(element: Any) -> str:
    """The text of a heading or of code, without anchors that lead back to itself."""
    parts = ["\n"]
    stack: list[tuple[Any, bool]] = [(element, True)]
    while stack:
        node, opens = stack.pop()
        if node is not element and node.tag in _BLOCKS and not parts[-1].endswith("\n"):
            parts.append("\n")
        hides = opens and node is not element
        if hides and (not isinstance(node.tag, str) or node.tag in _UNSHOWN or _is_boilerplate(node)):
            text = node.tail
        elif opens:
            text = "\n" if node.tag == "br" else node.text
            stack.append((node, False))
            stack += [(child, True) for child in reversed(node)]
        else:
            text = node.tail if node is not element else ""
        parts += [text] if text else []
    return "".join(parts[1:])
