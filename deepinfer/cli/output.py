"""How commands print: a rich table or one JSON document on standard output, nothing else there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

STYLES = {"PASS": "green", "FAIL": "red", "-": "dim"}


def print_json(value: Any) -> None:
    """One JSON document; what JSON does not know is printed as text."""
    print(json.dumps(value, indent=2, default=str))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a table; the cell texts PASS and FAIL are coloured."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = []
        for column in columns:
            text = str(row.get(column, ""))
            style = STYLES.get(text)
            cells.append(f"[{style}]{escape(text)}[/{style}]" if style else escape(text))
        table.add_row(*cells)
    Console().print(table)
