"""Commands: `run` executes cases on one side, `compare` writes evidence, `assemble` asks ptxas, `list` names cases.

    export PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench
    python -m ptx_bitwise run hardware --out hardware.jsonl.xz
    python -m ptx_bitwise run simulated --out sim.jsonl.xz
    python -m ptx_bitwise compare hardware.jsonl.xz sim.jsonl.xz --evidence bench/evidence/ptx_bitwise.jsonl
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from pathlib import Path
from typing import Any

from ptx_bitwise import assemble, worker
from ptx_bitwise.case import output_key
from ptx_bitwise.catalogue import all_cases, choose
from ptx_bitwise.compare import verdict


def versions(side: str) -> dict[str, str]:
    """What took part: driver and its compiler on hardware, the package's version on both."""
    import deepinfer

    found = {"deepinfer": deepinfer.__version__}
    if side == "hardware":
        from cuda.bindings import driver as cu

        cu.cuInit(0)
        found["cuda_driver"] = str(cu.cuDriverGetVersion()[1])
    return found


def write(path: Path, header: dict[str, Any], rows: dict[str, dict[str, Any]]) -> None:
    with lzma.open(path, "wt", preset=2) as sink:
        sink.write(json.dumps(header) + "\n")
        for row in rows.values():
            sink.write(json.dumps(row) + "\n")


def read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Header and rows by case name."""
    with lzma.open(path, "rt") as source:
        header, *rows = [json.loads(line) for line in source]
    return header, {row["name"]: row for row in rows}


def run(options: argparse.Namespace) -> int:
    names = choose(options.family, options.contains)
    start = time.perf_counter()
    rows = worker.run(options.side, names, options.jobs, options.library)
    seconds = round(time.perf_counter() - start, 1)
    failed = [row for row in rows.values() if "error" in row]
    for row in failed[:30]:
        print("FAILED", row["name"], row["error"][:300])
    cases = all_cases()
    for name, row in rows.items():
        if "outputs" in row:
            row["key"], row["output"] = cases[name].inputs_key(), output_key(worker.unpack(row["outputs"]))
    if options.expect:  # keep whole outputs only where the other side is known to differ, or where they are fitted to
        _, known = read(options.expect)
        for name, row in rows.items():
            if row.get("output") == known.get(name, {}).get("output") and cases[name].rule == "bits":
                row.pop("outputs", None)
    if options.brief:
        for row in rows.values():
            row.pop("outputs", None)
    write(options.out, {"side": options.side, "commit": options.commit, "versions": versions(options.side)}, rows)
    print(options.side, len(rows), "cases", len(failed), "failed", seconds, "s", options.out.stat().st_size, "bytes")
    return 1 if failed else 0


def compare(options: argparse.Namespace) -> int:
    header, hardware = read(options.hardware)
    cases = all_cases()
    _, simulated = read(options.simulated)
    rows, bad = [], []
    for name, row in hardware.items():
        other, case = simulated.get(name, {}), cases.get(name)
        if case is None or row.get("key") != case.inputs_key():
            print("stale", name)
            continue
        entry = {
            "case": name,
            "instruction": case.instruction,
            "family": case.family,
            "rule": case.rule,
            "key": row["key"],
            "device": row["device"],
            "driver_kind": "hardware",
            "against": "simulated",
            "commit": header["commit"],
            "versions": header["versions"],
        }
        if "outputs" in row and "outputs" in other:
            entry |= verdict(case, worker.unpack(row["outputs"]), worker.unpack(other["outputs"]))
        else:
            same = row["output"] == other.get("output")
            bits = sum(a.nbytes * 8 for a in worker.unpack(other["outputs"])) if "outputs" in other else None
            entry |= {"bits": bits, "equal": same, "ok": same, "output": row["output"]}
        rows.append(entry)
        if not entry["ok"]:
            bad.append(entry)
    for entry in bad:
        print("DIFFERS", entry["rule"], entry["case"][:150], entry.get("unequal_bytes"), entry.get("max_ulp"))
    if options.evidence:
        options.evidence.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in rows))
    print(len(rows), "cases compared,", sum(r["equal"] for r in rows), "equal,", len(bad), "differ")
    return 1 if any(e["rule"] != "report" for e in bad) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("side", choices=("hardware", "simulated"))
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--family", action="append", default=[])
    one.add_argument("--contains", default="")
    one.add_argument("--jobs", type=int, default=2)
    one.add_argument("--library", help="the simulator's library, when not the built one")
    one.add_argument("--expect", type=Path, help="rows of the other side: equal outputs are kept as hashes only")
    one.add_argument("--brief", action="store_true", help="hashes only")
    one.add_argument("--commit", default="unknown")
    one.set_defaults(call=run)
    two = commands.add_parser("compare")
    two.add_argument("hardware", type=Path)
    two.add_argument("simulated", type=Path)
    two.add_argument("--evidence", type=Path)
    two.set_defaults(call=compare)
    three = commands.add_parser("assemble")
    three.set_defaults(call=lambda _: print(json.dumps(assemble.refusals(all_cases().values()), indent=1)) or 0)
    four = commands.add_parser("list")
    four.set_defaults(call=lambda _: print("\n".join(all_cases())) or 0)
    options = parser.parse_args()
    return int(options.call(options))


if __name__ == "__main__":
    raise SystemExit(main())
