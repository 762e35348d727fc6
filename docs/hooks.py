"""What the site has besides the pages in docs/: the generated reference, links into the repository, and llms-full.txt."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_TEXTS: dict[str, str] = {}
"""The pages, as they are built."""
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_config(config: Any) -> Any:
    """The reference's part of the navigation stands where mkdocs.yml says REFERENCE."""
    config.nav = [{"Reference": reference.nav()} if entry == "REFERENCE" else entry for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links out of docs/ lead to the page that a file of code has here, or to the repository; links to the published site
    stay in this one."""
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if target.startswith(config.site_url):
            return _page(target.removeprefix(config.site_url), here, files) + anchor
        path = posixpath.normpath(posixpath.join("docs", here, target))
        if ":" in target or path.startswith("docs/"):
            return found[0]
        if (of_kind := reference.kinds.page_of(path.removeprefix("src/"))) is not None:
            return posixpath.relpath(of_kind, here or ".")
        if not (ROOT / path).exists():
            raise PluginError(f"{page.file.src_uri} has a link to {target}, which does not exist")
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.repo_url.rstrip('/')}/{kind}/main/{path}{anchor}"

    if page.file.generated_by:
        page.edit_url = None
    if page.file.src_uri.startswith("results/"):
        page.meta.setdefault("search", {"boost": 0.5})  # the manual comes first
    text = _LINK.sub(link, markdown)
    _TEXTS[page.file.src_uri] = text
    return text


def on_post_build(config: Any) -> None:
    """llms.txt with links to this site, and llms-full.txt with the whole text apart from the results."""
    site = Path(config.site_dir)

    def link(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        if ":" in path:
            return found[0]
        if path.startswith("docs/"):
            url = re.sub(r"(^|/)index\.md$|\.md$", "/", path.removeprefix("docs/")).removeprefix("/")
            return f"{config.site_url}{url}{anchor}"
        return f"{config.repo_url}/blob/main/{path}{anchor}"

    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    (site / "llms.txt").write_text(_LINK.sub(link, text), encoding="utf-8")
    texts = [text for name, text in _TEXTS.items() if not name.startswith("results/")]
    (site / "llms-full.txt").write_text("\n\n".join(texts), encoding="utf-8")


def _page(url: str, here: str, files: Any) -> str:
    """The source of a page of this site, relative to a folder."""
    source = next((file.src_uri for file in files if file.url in (url, f"{url}/")), None)
    if source is None:
        raise PluginError(f"there is no page {url} on this site")
    return posixpath.relpath(source, here or ".")
