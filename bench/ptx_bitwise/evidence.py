"""Evidence of a comparison: one JSON row per case, and the H200's outputs of approximate functions in one .npz.

With both, the simulator can be held to the hardware's results on machines without a GPU: rows keep the hash of each
case's inputs and of the hardware's outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ptx_bitwise.case import Case, output_key
from ptx_bitwise.compare import LIMIT, ulps, verdict

FOLDER = Path(__file__).parents[1] / "evidence"
ROWS = FOLDER / "ptx_bitwise.jsonl"
APPROXIMATE = FOLDER / "ptx_bitwise_approximate.npz"

Arrays = list[np.ndarray[Any, Any]]


def row(case: Case, header: dict[str, Any], device: str, hardware: Arrays | str, simulated: Arrays) -> dict[str, Any]:
    """One evidence row. `hardware`: outputs, or their hash where only that was kept."""
    entry: dict[str, Any] = {
        "case": case.name, "instruction": case.instruction, "rule": case.rule, "key": case.inputs_key(),
        "device": device, "driver_kind": "hardware", "commit": header["commit"], "versions": header["versions"],
    }  # fmt: skip
    if isinstance(hardware, str):
        same = hardware == output_key(simulated)
        bits = sum(a.nbytes * 8 for a in simulated)
        return entry | {"bits": bits, "equal": same, "ok": same, "output": hardware} | ({"max_ulp": 0} if same else {})
    return entry | verdict(case, hardware, simulated)


def read_rows(path: Path = ROWS) -> dict[str, dict[str, Any]]:
    """Rows by case name."""
    return {r["case"]: r for r in map(json.loads, path.read_text().splitlines())}


def write(rows: Iterable[dict[str, Any]], approximate: dict[str, Arrays]) -> None:
    """Replaces both files."""
    ROWS.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in rows))
    names = sorted(approximate)
    arrays = {f"{i}_{j}": a for i, name in enumerate(names) for j, a in enumerate(approximate[name])}
    np.savez_compressed(APPROXIMATE, names=np.array(names), **arrays)


def approximate_outputs(path: Path = APPROXIMATE) -> dict[str, Arrays]:
    """Hardware's outputs of the cases that may differ by LIMIT ulp."""
    with np.load(path) as store:
        names = [str(n) for n in store["names"]]
        return {n: [store[k] for k in sorted(store.files) if k.startswith(f"{i}_")] for i, n in enumerate(names)}


def problem(case: Case, kept: dict[str, Any], outputs: Arrays, hardware: Arrays | None) -> str:
    """Why `outputs` of the simulator do not meet the evidence `kept`; empty when they do."""
    if case.inputs_key() != kept["key"]:
        return "the case's PTX or inputs changed since it ran on hardware"
    if output_key(outputs) == kept["output"]:
        return ""
    if hardware is None or not case.rule.startswith("ulp:"):
        return "bits differ from the hardware's"
    worst = max(ulps(s, h, case.rule[4:]) for s, h in zip(outputs, hardware, strict=True))
    return "" if worst <= LIMIT else f"differs by {worst} ulp, {LIMIT} are allowed"
