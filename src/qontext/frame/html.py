"""HTML tables of results, as notebooks show them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence


def table(rows: Sequence[Mapping[str, object]], caption: str = "") -> str:
    """A table with a row for each mapping and a column for each key of the first one. All texts are escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(str(value))}</td>' for value in row.values())}</tr>" for row in rows
    )
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
