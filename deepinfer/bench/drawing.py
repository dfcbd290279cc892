"""A bar chart of a run as SVG: share of the roofline per case, grouped by op. No plotting library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from deepinfer.bench import rows
from deepinfer.bench.rows import Row
from deepinfer.errors import InvalidArgument

WIDTH, BAR, GAP, LABEL, PLOT, HEAD = 1180, 16, 5, 520, 520, 64
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def picture(source: str | Path, target: str | Path) -> None:
    """Draw the roofline shares of a run as SVG; modelled rows have no share and are left out.

    Args:
        source: JSONL file that `run` wrote.
        target: SVG file to write; missing folders are made.

    Raises:
        InvalidArgument: the file cannot be read or holds no row with a share of the roofline.
    """
    found = [row for row in rows.read(source) if row["roofline"] is not None]
    if not found:
        raise InvalidArgument(f"picture: {source} holds no measured row with a roofline share")
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(found), "utf-8")


def draw(found: Sequence[Row]) -> str:
    """The SVG text."""
    latest = {rows.key(row): row for row in found}
    ordered = sorted(latest.values(), key=lambda row: (row["op"], row["case"]))
    parts, y, op = [], HEAD, ""
    for row in ordered:
        if row["op"] != op:
            op = row["op"]
            parts.append(_text(12, y + BAR, op, "op"))
            y += BAR + GAP + 4
        parts += _bar(row, y)
        y += BAR + GAP
    kinds = {f"{row['device']} ({row['driver_kind']}, {row['clock']} clock, {row['state']})" for row in ordered}
    head = [_text(12, 22, "Share of the roofline", "title"), _text(12, 42, "; ".join(sorted(kinds)), "note")]
    return _page(y + 30, [*head, *_axis(y), *parts])


def _bar(row: Row, y: int) -> list[str]:
    share = min(max(float(row["roofline"]), 0.0), 1.0)
    rates = (("tflops", "Tflop/s"), ("gbps", "GB/s"))
    rate = ", ".join(f"{row[name]:g} {unit}" for name, unit in rates if row[name] is not None)
    note = f"{row['roofline'] * 100:.0f} %   {row['median_us']:g} us   {rate}"
    return [
        _text(24, y + BAR - 4, row["case"], "case"),
        f'<rect x="{LABEL}" y="{y}" width="{max(share * PLOT * 0.6, 0.5):.1f}" height="{BAR}" class="bar"/>',
        _text(LABEL + int(share * PLOT * 0.6) + 6, y + BAR - 4, note, "value"),
    ]


def _axis(bottom: int) -> list[str]:
    parts = []
    for tick in TICKS:
        x = LABEL + tick * PLOT * 0.6
        parts.append(f'<line x1="{x:.1f}" y1="{HEAD - 6}" x2="{x:.1f}" y2="{bottom}" class="grid"/>')
        parts.append(_text(int(x) - 8, HEAD - 10, f"{tick * 100:.0f}%", "value"))
    return parts


def _text(x: int, y: int, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" class="{style}">{escape(text)}</text>'


def _page(height: int, parts: Sequence[str]) -> str:
    style = (
        "text{font-family:sans-serif;fill:#222}.title{font-size:18px;font-weight:bold}.note,.value{font-size:11px;"
        "fill:#555}.op{font-size:13px;font-weight:bold}.case{font-size:10px}.bar{fill:#3b7dd8}.grid{stroke:#ddd}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, f"<style>{style}</style>", ground, *parts, "</svg>", ""])
