"""A file as a document, with its sections."""

from __future__ import annotations

from email.message import EmailMessage
from pathlib import Path

from qontext.corpus.sources import FieldNames, open_source
from qontext.data.records import Document

Section = tuple[tuple[str, ...], str]


def read(path: Path) -> Document:
    """The one document of a file that has no problems."""
    (document,) = open_source(str(path), fields=FieldNames()).documents()
    assert isinstance(document, Document), document
    return document


def sections(document: Document) -> list[Section]:
    return [(block.headings, block.text) for block in document.blocks]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


PAGE = """<!DOCTYPE html>
<html lang="EN-us"><head><title>Guide — The Site</title><meta name=date content="2024-05-06"><meta name=author content=Ada>
<link rel="canonical" href="https://x.org/guide"><style>p {color: red}</style></head>
<meta name=keywords content="tools, wood  work,"><body class="with-sidebar">
<div id="cookie-banner">We use cookies.</div>
<nav><ul><li><a href="/">Home</a></li></ul></nav>
<div class="sphinxsidebar">Quick search</div>
<div role="main">
<h1>The guide<a class="headerlink" href="#g">¶</a></h1>
<p>It is <b>bold</b>ly
written.<!-- not this --></p>
<ul class="toc"><li>Contents</li></ul>
<ul><li><a href="a">One</a></li><li><a href="b">Two</a></li><li><a href="c">Three</a></li></ul>
<h2>Install</h2>
<ul><li>a hammer</li><li>a <a href="n">nail</a></li></ul>
<pre>make
  all</pre>
<table><tr><th>tool</th><th>price</th></tr><tr><td><p>saw</p></td><td>9</td></tr></table>
<h3>On Linux</h3>First<br>this, <script>alert(1)</script>then that.
<h2>Use</h2><p>Use it.</p>
</div>
<footer>© The Site</footer></body></html>
"""


MARKDOWN = """---
title: "The guide"
date: 2024-05-06   # when
tags: [a, 'b']
authors:
  - Ann
---
<!-- a comment
of two lines -->
# Not the title

It is *bold*ly [written](http://x.y "t").

## Install

- a hammer
- a nail

```sh
# no heading
make
```

| tool | price |
|---|---|
| saw | 9 |

### On Linux
First this.
"""


def message(subject: str, text: str, html: str = "") -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = subject, "Ann <ann@x.org>", "bob@x.org"
    mail["Date"] = "Mon, 06 May 2024 10:00:00 +0200"
    if text:
        mail.set_content(text)
        if html:
            mail.add_alternative(html, subtype="html")
    else:
        mail.set_content(html, subtype="html")
    mail.add_attachment(b"\0\1", maintype="application", subtype="octet-stream", filename="x.bin")
    return mail
