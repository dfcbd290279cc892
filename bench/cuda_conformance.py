"""Runs the conformance suite on a CUDA device and writes reports and evidence; needs no installed entry points.

    PYTHONPATH=.:backends/cpu:backends/cuda_sm10:backends/triton python bench/cuda_conformance.py --out folder

Levels L0 to L2 of the ops that have kernels (`--op` limits them). Each op runs in a process of its own, `--jobs` at a
time, because most of the time goes into compiling specialisations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from deepinfer_cpu.plugin import create as create_cpu
from deepinfer_cuda.kernels import KERNELS
from deepinfer_cuda.plugin import create

import deepinfer
from deepinfer import conformance
from deepinfer.conformance import evidence


def one(options: argparse.Namespace) -> int:
    """This process runs `options.op` at `options.level` and writes its report."""
    torch.set_num_threads(1)
    deepinfer.register_backend("cuda", create)
    deepinfer.register_backend("cpu", create_cpu)
    levels = options.level or ["L2"]
    report = conformance.run(options.backend, quick=not options.full, levels=levels, ops=options.op)
    Path(options.report).write_text(json.dumps(report.to_json()))
    if not report.ok:
        print(report.text())
    return 0 if report.ok else 1


def spawn(options: argparse.Namespace, arguments: list[str], report: Path) -> tuple[dict[str, Any] | None, str]:
    command = [sys.executable, "-X", "faulthandler", __file__, "--backend", options.backend, "--report", str(report)]
    command += [*arguments, "--full"] if options.full else arguments
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return None, f"stopped after {options.timeout:g} s"
    text = done.stdout[-6000:]
    if not report.exists():
        text += f"exit status {done.returncode}\n{done.stderr[-2000:]}"
    return (json.loads(report.read_text()) if report.exists() else None), text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda:0")
    parser.add_argument("--op", action="append")
    parser.add_argument("--kernels", default="", help="only ops with a kernel whose name starts so")
    parser.add_argument("--level", action="append")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--jobs", type=int, default=15)
    parser.add_argument("--timeout", type=float, default=400)
    parser.add_argument("--report", help="run in this process and write the report here")
    parser.add_argument("--out", type=Path, help="folder for the reports and evidence.jsonl")
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if options.report:
        return one(options)
    start = time.perf_counter()
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    ops = options.op or sorted({str(kernel.op) for kernel in KERNELS if kernel.name.startswith(options.kernels)})
    tasks = {"L0-L1": ["--level", "L0", "--level", "L1"]} | {op: ["--op", op] for op in ops}
    failed, rows = [], []
    with ThreadPoolExecutor(options.jobs) as pool:
        found = {
            name: pool.submit(spawn, options, arguments, folder / f"{name}.json") for name, arguments in tasks.items()
        }
        for name, future in found.items():
            table, text = future.result()
            outcomes: dict[str, int] = {}
            for result in (table or {"results": []})["results"]:
                outcomes[result["outcome"]] = outcomes.get(result["outcome"], 0) + 1
            print(name, outcomes or "no report", round(time.perf_counter() - start, 1), flush=True)
            if table is None or outcomes.get("failed"):
                failed.append(name)
                print(text)
            if table is not None:  # written as it grows: what was proved stays proved when the time runs out
                rows += [{**row, "commit": options.commit} for row in evidence.from_report(table)]
                text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
                (folder / "evidence.jsonl").write_text(text)
    print("seconds", round(time.perf_counter() - start, 1), "failed", failed)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
