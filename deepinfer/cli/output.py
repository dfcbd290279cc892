"""How commands print: a rich table or one JSON document on standard output, nothing else there."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepinfer.errors import invalid

STYLES = {"PASS": "green", "FAIL": "red", "-": "dim"}


def tolerant_streams() -> None:
    """What the terminal's encoding lacks is printed as escapes; input that is no text is left to the model."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def forget_output() -> None:
    """After the reader has gone: let the interpreter's last flush go nowhere instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def check_target(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written before the work that fills it, not after."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise invalid(option, str(path), "must be a file in a folder that exists")


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
