"""Evidence: what a run of the suite proved, one JSONL row per (op, kernel), kept in bench/evidence/.

    python -m deepinfer.conformance.evidence report.json bench/evidence/cpu.jsonl

A row says which tier proved the kernel (hardware | simulated | host | compiled), on what, when, with how many cases,
and carries the hash of the kernel's sources; docs/ops.md marks a row whose hash no longer fits as stale.
Invariant: an op with a failed check yields no row.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepinfer.errors import InvalidArgument

FIELDS = (
    "op", "kernel", "backend", "driver", "tier", "device", "date", "hash", "sources", "cases", "suite", "versions",
)
KEY = ("op", "kernel", "backend", "driver", "device")
TIERS = {"hardware": "hardware", "simulator": "simulated", "host": "host"}
Row = dict[str, Any]


def from_report(report: Mapping[str, Any], date: str | None = None) -> list[Row]:
    """Rows for every op of a JSON report whose checks all ended well; `date` is YYYY-MM-DD, today by default."""
    device = report["device"]
    day = date or datetime.now(UTC).date().isoformat()
    driver = device["spec"].partition(":")[0].partition("/")[2]
    rows: list[Row] = []
    for op, kernels in report["kernels"].items():
        if any(result["outcome"] == "failed" for result in report["results"] if result["subject"] == op):
            continue
        for kernel, facts in kernels.items():
            rows.append({
                "op": op, "kernel": kernel, "backend": report["backend"], "driver": driver,
                "tier": TIERS[device["kind"]], "device": device["name"], "date": day, "hash": facts["hash"],
                "sources": facts["sources"], "cases": facts["cases"], "suite": report["tier"],
                "versions": report["versions"],
            })
    return rows


def read(paths: Iterable[Path]) -> list[Row]:
    """All evidence rows of these files; InvalidArgument names file and line of a bad one. Other row types are skipped:
    a file may hold benchmark rows too (they have no `tier`)."""
    rows: list[Row] = []
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InvalidArgument(f"{path}:{number}: not JSON: {error}") from error
            if "tier" not in row:
                continue
            missing = [name for name in FIELDS if name not in row]
            if missing:
                raise InvalidArgument(f"{path}:{number}: fields missing: {', '.join(missing)}")
            rows.append(row)
    return rows


def merge(path: Path, rows: Iterable[Row]) -> None:
    """Write `rows` into `path`; of several rows for one (op, kernel, backend, driver, device) the newest stays."""
    old = read([path]) if path.is_file() else []
    latest = {tuple(row[name] for name in KEY): row for row in [*old, *rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = [latest[key] for key in sorted(latest)]
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in ordered), "utf-8")


def main(argv: list[str] | None = None) -> int:
    """Command line: report.json evidence.jsonl."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer.conformance.evidence", description=__doc__)
    parser.add_argument("report", type=Path, help="JSON report of a conformance run")
    parser.add_argument("evidence", type=Path, help="JSONL file that gets the rows")
    options = parser.parse_args(argv)
    rows = from_report(json.loads(options.report.read_text("utf-8")))
    merge(options.evidence, rows)
    print(f"{len(rows)} rows into {options.evidence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
