"""Evidence: what a run of the suite proved, one JSONL row per (op, kernel), kept in bench/evidence/.

    python -m deepinfer.conformance.evidence report.json bench/evidence/cpu.jsonl

A row says which tier proved the kernel (hardware | simulated | host | compiled), on what, when, with how many cases,
and carries the hash of the kernel's sources; docs/ops.md marks a row whose hash no longer fits as stale.
Invariants: an op with a failed check yields no row, and takes back the rows it had on that device; lines of other
kinds in the file (benchmark rows, which have no `tier`) are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deepinfer.errors import InvalidArgument

FIELDS = (
    "op", "kernel", "backend", "driver", "tier", "device", "date", "hash", "sources", "cases", "suite", "versions",
)
KEY = ("op", "kernel", "backend", "driver", "device")
PLACE = ("op", "backend", "driver", "device")
TIERS = {"hardware": "hardware", "simulator": "simulated", "host": "host"}
Row = dict[str, Any]


def from_report(report: Mapping[str, Any], date: str | None = None) -> list[Row]:
    """Rows for every op of a JSON report whose checks all ended well; `date` is YYYY-MM-DD, today by default."""
    device, failed = report["device"], {op for op, *_ in refuted(report)}
    day = date or datetime.now(UTC).date().isoformat()
    rows: list[Row] = []
    for op, kernels in report["kernels"].items():
        if op in failed:
            continue
        for kernel, facts in kernels.items():
            rows.append({
                "op": op, "kernel": kernel, "backend": report["backend"], "driver": _driver(device),
                "tier": TIERS[device["kind"]], "device": device["name"], "date": day, "hash": facts["hash"],
                "sources": facts["sources"], "cases": facts["cases"], "suite": report["tier"],
                "versions": report["versions"],
            })
    return rows


def refuted(report: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """(op, backend, driver, device) of every op with a failed check."""
    device = report["device"]
    return {
        (result["subject"], report["backend"], _driver(device), device["name"])
        for result in report["results"]
        if result["outcome"] == "failed"
    }


def _driver(device: Mapping[str, Any]) -> str:
    driver: str = device["spec"].partition(":")[0].partition("/")[2]
    return driver


def read(paths: Iterable[Path]) -> list[Row]:
    """All evidence rows of these files, without other kinds; InvalidArgument names file and line of a bad one."""
    return [row for path in paths for row in _lines(path) if "tier" in row]


def _lines(path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidArgument(f"{path}:{number}: not JSON: {error}") from error
        missing = [name for name in FIELDS if name not in row] if "tier" in row else []
        if missing:
            raise InvalidArgument(f"{path}:{number}: fields missing: {', '.join(missing)}")
        rows.append(row)
    return rows


def merge(path: Path, rows: Iterable[Row], taken_back: Collection[tuple[str, ...]] = ()) -> None:
    """Write `rows` into `path`; of several rows for one (op, kernel, backend, driver, device) the newest stays.

    Old rows whose (op, backend, driver, device) is in `taken_back` are dropped.
    """
    old = _lines(path) if path.is_file() else []
    others = [row for row in old if "tier" not in row]
    kept = [row for row in old if "tier" in row and tuple(row[name] for name in PLACE) not in taken_back]
    latest = {tuple(row[name] for name in KEY): row for row in [*kept, *rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = [*(latest[key] for key in sorted(latest)), *others]
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in ordered), "utf-8")


def main(argv: list[str] | None = None) -> int:
    """Command line: report.json evidence.jsonl [--commit NAME]."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer.conformance.evidence", description=__doc__)
    parser.add_argument("report", type=Path, help="JSON report of a conformance run")
    parser.add_argument("evidence", type=Path, help="JSONL file that gets the rows")
    parser.add_argument("--commit", help="commit of the sources that ran; goes into each row")
    options = parser.parse_args(argv)
    report = json.loads(options.report.read_text("utf-8"))
    rows = [{**row, "commit": options.commit} if options.commit else row for row in from_report(report)]
    merge(options.evidence, rows, refuted(report))
    print(f"{len(rows)} rows into {options.evidence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
