"""The row: one measured case, with exactly the fields of `FIELDS`, one JSON object per line.

Invariant: a row says what clock it was taken with and in which state; a modelled time has clock "model" and no share
of a roofline, so it can never be read as a measured one.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import deepinfer
from deepinfer.errors import InvalidArgument, invalid

Row = dict[str, Any]

FIELDS = (
    "op", "params", "case", "kernel", "device", "driver_kind", "clock", "state", "median_us", "p10", "p90", "n",
    "gbps", "tflops", "roofline", "commit", "versions",
)
CLOCKS = ("device", "wall", "model")
STATES = ("sust", "cool")


def commit() -> str:
    """The source revision that was measured, with "+" when the tree had changes; "" outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def versions(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Versions that decide a time."""
    found = {"deepinfer": deepinfer.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return found | dict(extra or {})


def check(row: Mapping[str, Any], where: str = "row") -> None:
    """Raise InvalidArgument unless `row` has exactly the fields, with sensible values."""
    missing, extra = sorted(set(FIELDS) - set(row)), sorted(set(row) - set(FIELDS))
    if missing or extra:
        wanted = ", ".join(FIELDS)
        raise InvalidArgument(f"{where}: fields missing {missing}, unknown {extra}; must be exactly {wanted}")
    if row["clock"] not in CLOCKS:
        raise invalid(f"{where}: clock", row["clock"], f"must be one of {CLOCKS}")
    if row["state"] not in STATES:
        raise invalid(f"{where}: state", row["state"], f"must be one of {STATES}")
    for name in ("op", "case", "kernel", "device", "driver_kind", "commit"):
        if not isinstance(row[name], str):
            raise invalid(f"{where}: {name}", row[name], "must be text")
    if not _number(row["median_us"]) or not row["median_us"] > 0:
        raise invalid(f"{where}: median_us", row["median_us"], "must be a positive number")
    for name in ("p10", "p90", "gbps", "tflops", "roofline"):
        if row[name] is not None and not (_number(row[name]) and row[name] >= 0):
            raise invalid(f"{where}: {name}", row[name], "must be a number >= 0, or null where there is none")
    if row["clock"] == "model" and row["roofline"] is not None:
        raise invalid(f"{where}: roofline", row["roofline"], "must be null for a modelled time", nearest="null")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read(path: str | Path) -> list[Row]:
    """All rows of a JSONL file; InvalidArgument names file and line of the first bad one."""
    rows: list[Row] = []
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"rows: cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            rows.append(_parse(line, f"{path}:{number}"))
    return rows


def _parse(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # no JSON, a number of a million digits, a million brackets
        raise InvalidArgument(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise invalid(where, row, "must be a JSON object")
    check(row, where)
    return row


def append(path: str | Path, rows: Iterable[Row]) -> None:
    """Append rows to a JSONL file, creating it and its folder."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a", encoding="utf-8") as file:
        for row in rows:
            check(row)
            file.write(json.dumps({name: row[name] for name in FIELDS}) + "\n")


def key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes two rows comparable: same op, case, device, clock and state."""
    return (row["op"], row["case"], row["device"], row["driver_kind"], row["clock"], row["state"])
