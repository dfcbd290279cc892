"""How commands print: a rich table or one JSON document on standard output, nothing else there."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepinfer.errors import invalid

SHORTEST = 10  # cells of a column below which its text is no longer read
STYLES = {"PASS": "green", "FAIL": "red", "-": "dim"}


def tolerant_streams() -> None:
    """What the terminal's encoding lacks is printed as escapes; input that is no text is left to the model."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def forget_output() -> None:
    """After the reader has gone: let the interpreter's last flush go nowhere instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _writable(path: Path) -> bool:
    try:
        return not path.is_dir() and path.absolute().parent.is_dir()
    except OSError:  # a name that no file system takes
        return False


def check_target(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written before the work that fills it, not after."""
    if path is not None and not _writable(path):
        raise invalid(option, str(path), "must be a file in a folder that exists")


def print_json(value: Any) -> None:
    """One JSON document; what JSON does not know is printed as text; it has no NaN and no infinities: null."""
    print(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(_key(key)): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _key(key: Any) -> Any:
    """Keys as json spells them: true, false and null, numbers in digits."""
    return key if isinstance(key, str) else json.dumps(key, default=str).strip('"')


def print_table(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a table; the cell texts PASS and FAIL are coloured.

    A pipe or file gets one line per row, however long, so that `grep` finds what belongs together; a terminal too
    narrow for the columns gets one line per cell.
    """
    texts = [[str(row.get(column, "")) for column in columns] for row in rows]
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(_width(columns, texts), len(title)))
    elif _width(columns, texts, SHORTEST) > console.width:
        _print_records(console, title, columns, texts)
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for cells in texts:
        table.add_row(*(_styled(text) for text in cells))
    console.print(table)


def _print_records(console: Console, title: str, columns: Sequence[str], texts: Sequence[Sequence[str]]) -> None:
    console.print(f"[italic]{escape(title)}[/italic]")
    for cells in texts:
        console.print("-" * min(console.width, 20))
        for column, text in zip(columns, cells, strict=True):
            if text:
                console.print(f"[bold]{escape(column)}[/bold]: {_styled(text)}", overflow="fold", highlight=False)


def _styled(text: str) -> str:
    style = STYLES.get(text)
    return f"[{style}]{escape(text)}[/{style}]" if style else escape(text)


def _width(columns: Sequence[str], texts: Sequence[Sequence[str]], cap: int = 1 << 20) -> int:
    """Cells of a table whose columns show their longest line, or `cap` cells of it, without a break."""
    stacked = ["\n".join(column) for column in zip(columns, *texts, strict=True)]
    longest = [max(map(cell_len, column.split("\n"))) for column in stacked]
    return sum(min(cells, cap) + 3 for cells in longest) + 1
