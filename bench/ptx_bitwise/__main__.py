"""Commands: `run` executes cases on one side, `compare` writes evidence, `assemble` asks ptxas, `list` names cases.

export PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton:bench
python -m ptx_bitwise run hardware --out hardware.jsonl.xz
python -m ptx_bitwise run simulated --out sim.jsonl.xz
python -m ptx_bitwise compare sim.jsonl.xz hardware.jsonl.xz --evidence
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from pathlib import Path
from typing import Any

from ptx_bitwise import assemble, evidence, worker
from ptx_bitwise.case import output_key
from ptx_bitwise.catalogue import all_cases, choose


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
    """Later hardware files replace earlier ones; rows whose case has changed since are left out."""
    cases, (_, simulated) = all_cases(), read(options.simulated)
    rows: dict[str, dict[str, Any]] = {}
    approximate = {}
    for path in options.hardware:
        header, hardware = read(path)
        for name, found in hardware.items():
            case, other = cases.get(name), simulated.get(name, {})
            if case is None or found.get("key") != case.inputs_key() or case.family == "survey":
                continue
            if "outputs" not in other:
                print("NOT SIMULATED", name[:150], other.get("error", "")[:150])
                continue
            outputs = worker.unpack(found["outputs"]) if "outputs" in found else found["output"]
            rows[name] = evidence.row(case, header, found["device"], outputs, worker.unpack(other["outputs"]))
            if case.rule.startswith("ulp:") and not rows[name]["equal"]:
                approximate[name] = outputs
    bad = [r for r in rows.values() if not r["ok"]]
    for r in bad:
        print("DIFFERS", r["rule"], r["case"][:150], r.get("unequal_bytes"), r.get("max_ulp"))
    missing = [n for n, c in cases.items() if n not in rows and c.family != "survey"]
    print("without a result of the hardware:", len(missing), *(n[:120] for n in missing[:40]), sep="\n  ")
    if options.evidence:
        evidence.write(rows.values(), approximate)
    print(len(rows), "cases compared,", sum(r["equal"] for r in rows.values()), "equal,", len(bad), "differ")
    return 1 if bad else 0


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
    two.add_argument("simulated", type=Path)
    two.add_argument("hardware", type=Path, nargs="+")
    two.add_argument("--evidence", action="store_true", help="replace the files in bench/evidence")
    two.set_defaults(call=compare)
    three = commands.add_parser("assemble")
    three.set_defaults(call=lambda _: print(json.dumps(assemble.refusals(all_cases().values()), indent=1)) or 0)
    four = commands.add_parser("list")
    four.set_defaults(call=lambda _: print("\n".join(all_cases())) or 0)
    options = parser.parse_args()
    return int(options.call(options))


if __name__ == "__main__":
    raise SystemExit(main())
