"""Runs many cases on one side in several processes, so that a case that hangs or poisons its context costs only itself.

A child takes case names and appends one JSON line per case to its file; after an error on hardware it ends (the context
may be unusable) and the parent starts another for the rest.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ptx_bitwise.catalogue import all_cases

SILENCE = 60.0  # seconds after which a child that finished no case is taken to hang


def pack(outputs: list[np.ndarray[Any, Any]]) -> list[list[Any]]:
    return [[a.dtype.str, base64.b64encode(zlib.compress(a.tobytes(), 6)).decode()] for a in outputs]


def unpack(packed: list[list[Any]]) -> list[np.ndarray[Any, Any]]:
    """Outputs from their JSON form."""
    return [np.frombuffer(zlib.decompress(base64.b64decode(text)), np.dtype(kind)) for kind, text in packed]


def child(side_name: str, names: Path, out: Path, library: str | None) -> int:
    """Runs the named cases in order."""
    from ptx_bitwise.sides import open_side

    cases = all_cases()
    side = open_side(side_name, library)
    with out.open("a") as sink:
        for name in json.loads(names.read_text()):
            row: dict[str, Any] = {"name": name, "device": side.device}
            try:
                row["outputs"] = pack(side.run(cases[name]))
            except Exception as error:  # the row carries it; the comparison fails on it
                row["error"] = f"{type(error).__name__}: {error}"[:2000]
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            if "error" in row and side.kind == "hardware":
                return 3
    return 0


def finished(out: Path) -> list[dict[str, Any]]:
    """Complete rows of a child's file."""
    if not out.exists():
        return []
    return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]


def drive(side: str, names: list[str], library: str | None) -> list[dict[str, Any]]:
    """All rows of `names`, restarting children as often as needed."""
    rows: list[dict[str, Any]] = []
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            todo, out = Path(folder, "todo.json"), Path(folder, "rows.jsonl")
            todo.write_text(json.dumps(left))
            command = [sys.executable, "-m", "ptx_bitwise.worker", side, str(todo), str(out)]
            process = subprocess.Popen([*command, *([library] if library else [])], stderr=subprocess.PIPE, text=True)
            count, since = 0, time.monotonic()
            while process.poll() is None:
                time.sleep(0.05)
                now = out.read_text().count("\n") if out.exists() else 0
                if now != count:
                    count, since = now, time.monotonic()
                if time.monotonic() - since > SILENCE + (20 if count == 0 else 0):
                    process.kill()
            done = finished(out)
            errors = process.stderr.read() if process.stderr else ""
        rows += done
        left = left[len(done) :]
        if left and not (done and "error" in done[-1]):  # died without a row: the next case is the cause
            rows.append({"name": left.pop(0), "error": f"exit status {process.returncode} {errors[-600:]}"})
    return rows


def run(side: str, names: list[str], jobs: int, library: str | None = None) -> dict[str, dict[str, Any]]:
    """Rows by case name."""
    slices = [names[i::jobs] for i in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda part: drive(side, part, library), [s for s in slices if s])
        return {row["name"]: row for rows in found for row in rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("side")
    parser.add_argument("names", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("library", nargs="?")
    options = parser.parse_args()
    raise SystemExit(child(options.side, options.names, options.out, options.library))
